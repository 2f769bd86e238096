"""A site's own limits and ledger, where it takes part in a tuner."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    UserConfig,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import (
    Halving,
    InProcessGrid,
    Limits,
    PrivateChoice,
    Seeds,
    tuner_mod,
    with_tuning,
)
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.privacy.spending_ledger import Charge, Promise, SpendingLedger
from flwr_fbo.tuner.message_headers import (
    HEADER,
    BallotHeader,
    SettingsHeader,
    TrialsHeader,
    header_record,
    pack,
)
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    main_of,
    message_app,
    server_context,
    tuner,
)
from tests.support.federation import charges_in
from tests.support.gate import simple_objective
from tests.support.site_budget import asked_of, study_of

SCHEDULE = Halving(4, (1, 2), parallel=2)
PRIVACY = PrivateChoice(epsilon=2.0, delta=1e-3)
LIMITS: UserConfig = {"fbo-max-epsilon-per-client": 3.0, "fbo-max-delta": 1e-3}


def _grid(tmp_path: Path, **limits: Any) -> InProcessGrid:
    """Return clients that each have a folder and limits."""
    configs: list[UserConfig] = [
        {
            "partition-id": n,
            "num-partitions": NUM_CLIENTS,
            "fbo-folder": str(tmp_path / str(n)),
            **limits,
        }
        for n in range(NUM_CLIENTS)
    ]
    app = message_app()
    return InProcessGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG, node_configs=configs)


def _start(grid: InProcessGrid, **options: Any) -> Any:
    study = {"schedule": SCHEDULE, "privacy": PRIVACY, "seeds": Seeds(), **options}
    return tuner(**study).start(main_of(), grid, server_context())


def _epsilon(tmp_path: Path, client: int = 0) -> float:
    with SpendingLedger.held(tmp_path / str(client)) as ledger:
        return Spent.of(CLIENT, ledger.facts()).epsilon(1e-3)


def test_ballots_are_charged_as_the_tuner_says(tmp_path: Path) -> None:
    spent = _start(_grid(tmp_path)).privacy_spent
    with SpendingLedger.held(tmp_path / "3") as ledger:
        assert len(ledger.rows) == 2
    assert _epsilon(tmp_path) == pytest.approx(spent.epsilon, rel=1e-6)


def test_a_second_tuner_that_exceeds_the_limit_is_refused(tmp_path: Path) -> None:
    _start(_grid(tmp_path, **LIMITS))
    with pytest.raises(AggregationError, match="takes no part: its limits"):
        _start(_grid(tmp_path, **LIMITS))
    assert _epsilon(tmp_path) <= 2.0


@pytest.mark.parametrize(
    "options",
    [{"privacy": None}, {"seeds": Seeds(noise=1)}],
)
def test_what_cannot_be_added_up_is_refused_at_once(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    grid = _grid(tmp_path, **LIMITS)
    with pytest.raises(AggregationError, match="takes no part: the study"):
        _start(grid, **options)
    assert not any(tmp_path.rglob("*.sqlite"))
    assert all("calls" not in c.state.config_records for c in grid.contexts.values())


def test_one_site_that_refuses_is_left_out(tmp_path: Path) -> None:
    grid = _grid(tmp_path)
    first = next(iter(grid.contexts.values()))
    first.node_config |= {"fbo-max-epsilon-per-client": 0.5, "fbo-max-delta": 1e-3}
    _start(grid)
    assert charges_in(tmp_path / "0") == []
    assert _epsilon(tmp_path, 1) > 1.5


def test_the_same_ballot_is_not_given_twice(tmp_path: Path) -> None:
    class AsksAgain(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            replies = list(super().send_and_receive(asked, timeout=timeout))
            if any("fbo-ballot" in reply.content for reply in replies):
                return super().send_and_receive(asked, timeout=timeout)
            return replies

    plain = _grid(tmp_path)
    configs = [context.node_config for context in plain.contexts.values()]
    grid = AsksAgain(
        message_app(), NUM_CLIENTS, run_config=RUN_CONFIG, node_configs=configs
    )
    with pytest.raises(AggregationError, match="release 1 is asked for again"):
        _start(grid)
    with SpendingLedger.held(tmp_path / "0") as ledger:
        assert len(ledger.rows) == 1


@pytest.mark.parametrize("asked", ["trials", "ballot"])
def test_exact_scores_are_refused_whatever_is_promised(
    asked: str, tmp_path: Path
) -> None:
    """By a site with a limit on epsilon, of a server that promises to be private."""
    grid = _grid(tmp_path, **LIMITS)
    promise = Promise((Charge(5.0),), private=True)
    if asked == "trials":
        trials = TrialsHeader("a", (0,), ({},), (0,), {"accuracy": 1.0}, False, promise)
        content = pack(trials, {0: RecordDict()})
    else:
        ballot = BallotHeader("a", 0, (0,), (), True, True, promise, 1)
        content = RecordDict({HEADER: header_record(ballot)})
    messages = [Message(content, node, "evaluate") for node in grid.get_node_ids()]
    for reply in grid.send_and_receive(messages):
        assert reply.has_error()
        assert "takes no part: the study asks for exact" in str(reply.error.reason)
    assert all("calls" not in c.state.config_records for c in grid.contexts.values())
    assert not any(tmp_path.rglob("*.sqlite"))


def _tunes_twice() -> InProcessGrid:
    """Return a site without a folder, of an app with `with_tuning` and `tuner_mod`."""
    limits = Limits(max_epsilon_per_client=0.5, max_delta=1e-5)
    client_fn = with_tuning(
        lambda _: NumPyClient(), simple_objective, None, limits=limits
    )
    return InProcessGrid(ClientApp(client_fn=client_fn, mods=[tuner_mod]), 1)


def _tune(grid: InProcessGrid, content: RecordDict) -> Message:
    [node] = grid.get_node_ids()
    [reply] = grid.send_and_receive([Message(content, node, "train")])
    return reply


def _asked_of(n: int) -> dict[str, Any]:
    """Return a study's request: one is within the limit, and three are not."""
    return asked_of(study_of((Charge(10.0),), study_id=f"study-{n}"), 0, 1)


def _for_numpy(config: dict[str, Any]) -> RecordDict:
    records = {"fitins.config": ConfigRecord(config)}
    return RecordDict({**records, "fitins.parameters": ArrayRecord({})})


@pytest.mark.parametrize("place", ["content", "settings"])
def test_a_trial_takes_part_in_no_study(place: str) -> None:
    """Each trial has a copy of the state, and so of the journals that are in it."""
    numbers = tuple(range(3))
    asked = tuple(map(_asked_of, numbers))
    nothing: tuple[dict[str, Any], ...] = ({}, {}, {})
    configs, settings = (asked, nothing) if place == "content" else (nothing, asked)
    promise = Promise((Charge(20.0),), private=True)
    header = TrialsHeader("a", numbers, settings, numbers, {"x": 1.0}, True, promise)
    contents = {n: _for_numpy(configs[n]) for n in numbers}
    reply = _tune(_tunes_twice(), pack(header, contents))
    errors = json.loads(str(reply.content.config_records[HEADER]["fields"]))["errors"]
    assert len(errors) == 3
    assert all("takes part in no study" in error for error in errors.values())
    assert list(reply.content) == [HEADER]


def test_settings_name_no_folder(tmp_path: Path) -> None:
    """The ledger would be in another one with each message."""
    grid = _tunes_twice()
    for n in range(3):
        settings = SettingsHeader({"fbo-folder": str(tmp_path / str(n))})
        header = RecordDict({HEADER: header_record(settings)})
        reply = _tune(grid, RecordDict({**header, **_for_numpy(_asked_of(n))}))
        assert "no fbo-folder" in str(reply.error.reason)
    assert not any(tmp_path.iterdir())


def test_what_replies_have_is_charged_where_the_server_scores(tmp_path: Path) -> None:
    def main(grid: Grid, context: Context) -> None:
        def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
            return MetricRecord({"distance": float(arrays["w"].numpy().sum())})

        FedAvg().start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=3,
            train_config=ConfigRecord(
                {"learning-rate": context.run_config["learning-rate"]}
            ),
            evaluate_fn=evaluate,
        )

    options = {"privacy": None, "score": "server", "schedule": SCHEDULE}
    tuner(**options).start(main, _grid(tmp_path / "free"), server_context())
    assert len(charges_in(tmp_path / "free" / "0")) == 1
    with pytest.raises(AggregationError, match="the study is not private"):
        tuner(**options).start(
            main, _grid(tmp_path / "limited", **LIMITS), server_context()
        )
    assert charges_in(tmp_path / "limited" / "0") == []
