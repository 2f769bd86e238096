"""Flower's own secure aggregation of models, SecAgg and SecAgg+, under the tuner."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation import secaggplus_constants
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow, SecAggWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from optuna.distributions import BaseDistribution

from flwr_fbo import Halving, PrivateChoice, Seeds, tuner_mod
from flwr_fbo._compat import SECURE_AGGREGATION_KEYS
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.tuner.message_headers import TrialsHeader, pack, read_header
from flwr_fbo.tuner.site.hidden_metrics import hide_train_metrics
from flwr_fbo.tuning import FederationResult, server_score
from tests.support.apps import (
    EXACT_LOSS,
    NUM_CLIENTS,
    RUN_CONFIG,
    SPACE,
    DyingGrid,
    Ended,
    RecordingGrid,
    assert_all_end,
    distance,
    main_of,
    message_app,
    recording,
    server_context,
    trained,
    tuner,
)

# Many trainings, each of four sends a round.
pytestmark = pytest.mark.gate

SCHEDULE = Halving(4, (1, 2), parallel=4)
RATE: dict[str, BaseDistribution] = {"learning-rate": SPACE["learning-rate"]}
PRIVATE = PrivateChoice(1000.0, 1e-3)
# A model of each round, by learning rate.
Models = dict[float, list[Any]]
STAGES = secaggplus_constants.Stage.all()


class Distances(NumPyClient):
    """A client of the legacy API, with a metric that is to stay where it is."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def fit(self, parameters: Any, config: Any) -> Any:
        new = trained(parameters[0], self._context, float(config["learning-rate"]))
        client = int(self._context.node_config["partition-id"])
        return [new], 10 + client, {"loss": EXACT_LOSS}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return distance(parameters[0], self._context), 10, {}


def _app(mods: Sequence[Mod] = (tuner_mod, secaggplus_mod)) -> ClientApp:
    return ClientApp(client_fn=lambda c: Distances(c).to_client(), mods=[*mods])


def _workflow() -> Any:
    return SecAggPlusWorkflow(1.0, 0.5, max_weight=20.0)


def _main(
    models: Models | None = None,
    make_workflow: Callable[[], Any] = _workflow,
    rounds: int = 3,
) -> Any:
    """Return a `main` as an app with secure aggregation has it."""

    def main(grid: Grid, context: Context) -> None:
        config = {"learning-rate": float(context.run_config["learning-rate"])}
        mine = [] if models is None else models.setdefault(config["learning-rate"], [])

        class Noted(FedAvg):
            def aggregate_fit(self, *args: Any) -> Any:
                parameters, metrics = super().aggregate_fit(*args)
                assert parameters is not None
                mine.append(parameters_to_ndarrays(parameters)[0])
                return parameters, metrics

        strategy = Noted(
            initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
            on_fit_config_fn=lambda _: {**config},
        )
        legacy = LegacyContext(context, ServerConfig(num_rounds=rounds), strategy)
        DefaultWorkflow(make_workflow())(grid, legacy)

    return main


def _start(main: Any, grid: Grid | None = None, **options: Any) -> FederationResult:
    options = {
        "schedule": SCHEDULE,
        "space": RATE,
        "metric": "loss",
        "privacy": PRIVATE,
        **options,
    }
    grid = recording(_app()) if grid is None else grid
    return tuner(**options).start(main, grid, server_context())


@pytest.mark.parametrize(
    ("mod", "make_workflow"),
    [
        (secaggplus_mod, _workflow),
        # Each client shares its keys with two of the five others.
        (secaggplus_mod, lambda: SecAggPlusWorkflow(3, 2, max_weight=20.0)),
        (secagg_mod, lambda: SecAggWorkflow(0.5, max_weight=20.0)),
    ],
)
@pytest.mark.parametrize("privacy", [PRIVATE, None])
def test_models_and_choice_are_those_without_masks(
    mod: Mod, make_workflow: Callable[[], Any], privacy: PrivateChoice | None
) -> None:
    """Up to the rounding of the protocol: 16 / 2**22, for clients of half a weight."""
    masked: Models = {}
    grid = recording(_app((tuner_mod, mod)))
    found = _start(_main(masked, make_workflow), grid, privacy=privacy)
    plain: Models = {}
    plain_grid = recording(_app((tuner_mod,)))
    wanted = _start(_main(plain, lambda: None), plain_grid, privacy=privacy)
    assert found.settings == wanted.settings
    assert found.best_trial == wanted.best_trial != 0
    assert [r.survivors for r in found.rungs] == [r.survivors for r in wanted.rungs]
    assert len(masked) == SCHEDULE.trials
    assert {rate: len(m) for rate, m in masked.items()} == {
        rate: len(m) for rate, m in plain.items()
    }
    for rate, models in masked.items():
        np.testing.assert_allclose(models, plain[rate], atol=2e-5)
    # Four sends a round of training in place of one; all trials share each.
    num_rounds = SCHEDULE.rungs[-1].rounds
    assert Counter(grid.sends)["train"] == 4 * num_rounds
    assert Counter(plain_grid.sends)["train"] == num_rounds
    assert Counter(grid.sends)["evaluate"] == Counter(plain_grid.sends)["evaluate"]


def _numbers(content: RecordDict) -> Iterator[float]:
    for record in content.values():
        for value in record.values():
            values = value if isinstance(value, list) else [value]
            yield from (float(v) for v in values if isinstance(v, int | float))


def test_no_metric_and_no_single_model_reaches_the_server() -> None:
    grid = recording(_app())
    _start(_main(), grid)
    replies = [r for r in grid.replies if "evaluate" not in r.metadata.message_type]
    assert len(replies) == 4 * 2 * NUM_CLIENTS
    assert all(len(r) == 0 for m in replies for r in m.content.array_records.values())
    sent = {n for m in replies for n in _numbers(m.content)}
    assert EXACT_LOSS not in sent
    nodes = set(map(float, grid.get_node_ids()))
    weights = {10.0 + client for client in range(NUM_CLIENTS)}
    # And the code of a status, which is 0.
    assert {n for n in sent if n == n} == nodes | weights | {0.0}
    _start(_main(), grid, privacy=None)
    assert EXACT_LOSS in {n for m in grid.replies for n in _numbers(m.content)}


def test_of_the_protocols_record_only_the_protocols_keys_are_sent() -> None:
    content = RecordDict()
    content.config_records["secaggplus_configs"] = ConfigRecord(
        {"pk1": b"1", "loss": 0.25, "dsts": [1]}
    )
    (hidden,) = hide_train_metrics(content).config_records.values()
    assert hidden["pk1"] == b"1"
    assert hidden["dsts"] == [1]
    assert np.isnan(float(str(hidden["loss"])))
    known = set(vars(secaggplus_constants.Key).values())
    assert set(SECURE_AGGREGATION_KEYS) <= known


def test_clients_keep_the_protocols_state_for_each_trial_while_it_lives() -> None:
    """And what trials have left behind goes with the next message of another kind."""
    grid = recording(_app())
    before = threading.enumerate()
    result = _start(_main(), grid)
    alive = set(result.rungs[-1].trials)
    assert len(alive) == 2
    for context in grid.contexts.values():
        states = [name for name in context.state if name.endswith("secaggplus_state")]
        assert {int(name.split(":")[1]) for name in states} == alive
    # Also the thread that Flower's workflow leaves behind when its trial is ended.
    assert_all_end(before)
    _main()(*result.apply(grid, server_context()))
    for context in grid.contexts.values():
        assert set(context.state) == {"secaggplus_state"}


def test_a_trial_does_not_go_on_with_a_protocol_from_outside() -> None:
    """Else the last stage of one protocol could be answered once in each trial."""
    outside: list[Message] = []

    class Stopping(RecordingGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            if len(self.sends) == 3:
                outside.extend(asked)
                raise Ended
            return super().send_and_receive(asked, timeout=timeout)

    grid = Stopping(_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    with pytest.raises(Ended):
        _main()(grid, server_context())
    plain = recording(_app())
    plain.contexts = grid.contexts
    promise = Promise((Charge(5.0),), private=True)
    settings, metric = ({"learning-rate": HIT},), {"loss": 1.0}
    header = TrialsHeader("a", (0,), settings, (0,), metric, True, promise)
    in_trial = [
        Message(pack(header, {0: m.content}), m.metadata.dst_node_id, "train")
        for m in outside
    ]
    for reply in plain.send_and_receive(in_trial):
        (error,) = read_header(reply.content).errors.values()  # type: ignore[union-attr]
        assert error.startswith("ValueError")
    # Outside it is where it was.
    assert not any(m.has_error() for m in plain.send_and_receive(outside))


class Failing:
    """A mod of one client that fails in a stage of the protocol.

    Parameters
    ----------
    stage : str
    client : int
    rate : float
        In the trial with this learning rate.
    rounds : int
        In the first ones.
    """

    def __init__(self, stage: str, client: int, rate: float, rounds: int = 9) -> None:
        self._stage, self._client, self._rate = stage, client, rate
        self._left = rounds

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        """Fail, or leave it to the app."""
        configs = message.content.config_records.get(
            "secaggplus_configs", ConfigRecord()
        )
        is_client = int(context.node_config["partition-id"]) == self._client
        is_trial = float(context.run_config["learning-rate"]) == self._rate
        if is_client and is_trial and configs.get("stage") == self._stage:
            self._left -= 1
            if self._left >= 0:
                raise ConnectionError
        reply: Message = call_next(message, context)
        return reply


HIT = 0.5
# Of the trial that is hit, whoever drops out.
OPTIONS: dict[str, Any] = {"enqueue": [{"learning-rate": HIT}]}


@cache
def _whole() -> Models:
    """Return the models where nobody drops out."""
    models: Models = {}
    assert _start(_main(models), **OPTIONS).best_trial == 1
    return models


def _after_one_round(without: int | None) -> Any:
    goals = np.array([1.0, -2.0, 0.5]) + 0.1 * np.arange(NUM_CLIENTS)[:, None]
    weights = 10.0 + np.arange(NUM_CLIENTS)
    if without is not None:
        weights[without] = 0.0
    return HIT * (weights @ goals) / weights.sum()


@pytest.mark.parametrize(("stage", "without"), [(STAGES[2], 2), (STAGES[3], None)])
def test_who_drops_out_while_models_are_summed_is_left_out_of_the_round(
    stage: str, without: int | None
) -> None:
    """If its model is in the sum already, that is unmasked without its help."""
    models: Models = {}
    mods = tuner_mod, Failing(stage, 2, HIT), secaggplus_mod
    result = _start(_main(models), recording(_app(mods)), **OPTIONS)
    whole = _whole()
    assert result.best_trial == 1
    for rate in models:
        wanted = _after_one_round(without) if rate == HIT else whole[rate][0]
        np.testing.assert_allclose(models[rate][0], wanted, atol=2e-5)


@pytest.mark.parametrize("stage", STAGES[:2])
def test_who_drops_out_while_keys_are_exchanged_halts_the_round(
    stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So Flower has it. The round is not counted: the trial is trained once more."""
    models: Models = {}
    mods = tuner_mod, Failing(stage, 2, HIT, rounds=1), secaggplus_mod
    with caplog.at_level(logging.WARNING):
        result = _start(_main(models), recording(_app(mods)), **OPTIONS)
    whole = _whole()
    assert result.best_trial == 1
    np.testing.assert_allclose(models[HIT], whole[HIT], atol=2e-5)
    assert "Not enough shares to recover secret" in caplog.text
    assert "The training ended before" not in caplog.text


class Losing(RecordingGrid):
    """Which loses the messages of some sends to one node."""

    lost, node = range(0), 0

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver the others."""
        is_lost = len(self.sends) in self.lost
        asked = [
            m for m in messages if not (is_lost and m.metadata.dst_node_id == self.node)
        ]
        return super().send_and_receive(asked, timeout=timeout)


@pytest.mark.parametrize("begin", range(4))
def test_a_node_that_is_gone_for_the_rest_of_a_round(begin: int) -> None:
    """In all trials, as they share their messages."""
    grid = Losing(_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    grid.node, grid.lost = list(grid.get_node_ids())[2], range(begin, 4)
    models: Models = {}
    result = _start(_main(models), grid, **OPTIONS)
    assert result.best_trial == 1
    assert len(models[HIT]) == 2
    is_left_out = begin == 2
    wanted = _after_one_round(2 if is_left_out else None)
    np.testing.assert_allclose(models[HIT][0], wanted, atol=2e-5)
    halted = 4 if begin < 2 else 0
    assert Counter(grid.sends)["train"] == 8 + halted


def test_a_round_with_too_few_voices_halts(caplog: pytest.LogCaptureFixture) -> None:
    mods = [Failing(STAGES[2], client, HIT, rounds=1) for client in range(3)]
    grid = recording(_app((tuner_mod, *mods, secaggplus_mod)))
    models: Models = {}
    main = _main(models, lambda: SecAggPlusWorkflow(1.0, 4, max_weight=20.0))
    with caplog.at_level(logging.WARNING):
        assert _start(main, grid, **OPTIONS).best_trial == 1
    assert len(models[HIT]) == 2
    assert "Insufficient available nodes" in caplog.text
    assert "The training ended before" not in caplog.text


@pytest.mark.parametrize("stage", STAGES[:2])
def test_a_trial_without_any_complete_round_fails(
    stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    grid = recording(_app((tuner_mod, Failing(stage, 2, HIT), secaggplus_mod)))
    with caplog.at_level(logging.WARNING):
        result = _start(_main(), grid, **OPTIONS)
    assert result.best_trial != 1
    halted = (
        "trial 1: the app has failed: RuntimeError(\"Flower's secure aggregation halted"
    )
    assert halted in caplog.text


def test_a_trial_that_no_client_can_train_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mods = [Failing(STAGES[2], client, HIT) for client in range(NUM_CLIENTS)]
    grid = recording(_app((tuner_mod, *mods, secaggplus_mod)))
    with caplog.at_level(logging.WARNING):
        result = _start(_main(), grid, **OPTIONS)
    assert result.best_trial != 1
    assert "trial 1: no client could train in round 1: ConnectionError" in caplog.text


def test_a_tuner_that_is_killed_in_the_middle_of_a_round_goes_on(
    tmp_path: Path,
) -> None:
    """Clients have an unfinished protocol then, of another attempt."""
    grid = DyingGrid(_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    grid.dies_at = 8  # rung 1 has 4 + 1 sends and a ballot
    with pytest.raises(Ended):
        _start(_main(), grid, folder=tmp_path)
    grid.dies_at = -1
    result = _start(_main(), grid, folder=tmp_path)
    assert result == _start(_main())


def test_the_server_sees_no_models_and_no_ballots_of_one_client() -> None:
    """With masks around both."""
    result = _start(
        _main(),
        seeds=Seeds(study=1),
        aggregation=SecureAggregation(threshold=4, honest=4),
    )
    assert result.trust.startswith("secure aggregation")
    assert result.best["learning-rate"] > 0.1


def test_trials_are_scored_at_the_server_by_the_means_that_are_unmasked() -> None:
    def main(grid: Grid, context: Context) -> None:
        def norm(model: Any) -> dict[str, Any]:
            return {"norm": float(np.linalg.norm(model))}

        score = server_score(grid, norm)
        rate = float(context.run_config["learning-rate"])
        strategy = FedAvg(
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
            on_fit_config_fn=lambda _: {"learning-rate": rate},
            evaluate_fn=lambda number, model, config: (0.0, score(model[0])),
        )
        legacy = LegacyContext(context, ServerConfig(num_rounds=3), strategy)
        DefaultWorkflow(_workflow())(grid, legacy)

    options = {"score": "server", "privacy": None, "metric": "norm", **OPTIONS}
    result = _start(main, direction="maximize", **options)
    assert result.best_trial == 1
    first = _whole()[HIT][0]
    score = dict(zip(result.rungs[0].trials, result.rungs[0].scores, strict=True))[1]
    assert score == pytest.approx(np.linalg.norm(first), abs=1e-4)


def test_the_mod_without_the_workflow_is_named() -> None:
    app = message_app(first=(tuner_mod, secaggplus_mod))
    with pytest.raises(
        AggregationError, match=r"could train.*the server does not run SecAgg"
    ):
        tuner().start(main_of(), recording(app), server_context())


def test_the_workflow_without_the_mod_is_named() -> None:
    with pytest.raises(
        AggregationError, match=r"could train: .*the server runs SecAgg.*mods="
    ):
        _start(_main(), recording(_app((tuner_mod,))))


def test_the_mod_before_the_tuners_is_named() -> None:
    with pytest.raises(AggregationError, match=r"secaggplus_configs.*first mod"):
        _start(_main(), recording(_app((secaggplus_mod, tuner_mod))))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_a_trial_that_diverges_is_scored_as_bad_as_it_is(value: float) -> None:
    """Its models are integers when they are masked: nobody can see that they are NaN.

    One of infinity is clipped.
    """

    def diverges(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        is_trial = float(context.run_config["learning-rate"]) == HIT
        if is_trial and "fitres.parameters" in reply.content:
            model = ArrayRecord([np.full(3, value)])
            reply.content.array_records["fitres.parameters"] = model
        return reply

    grid = recording(_app((tuner_mod, secaggplus_mod, diverges)))
    models: Models = {}
    result = _start(_main(models), grid, **OPTIONS)
    assert result.best_trial != 1
    assert np.isfinite(models[HIT]).all()
