"""`FederationTuner` on an app whose best settings are known."""

import logging
import random
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution

from flwr_fbo import Halving, PrivateChoice, Seeds, tuner_mod
from flwr_fbo.tuning import FederationResult
from tests.support.apps import (
    EVALUATE,
    NUM_CLIENTS,
    ONE_RUNG,
    RUN_CONFIG,
    SHORT,
    SPACE,
    TWO_RUNGS,
    assert_all_end,
    in_process,
    main_of,
    message_app,
    recording,
    server_context,
    trained,
    tuner,
)
from tests.support.federation import shuffled
from tests.support.federation_tuner import NumpyDistances


@cache
def _exactly_best(schedule: Halving) -> FederationResult:
    options: dict[str, Any] = {"privacy": None, "schedule": schedule}
    return tuner(**options).start(main_of(), in_process(), server_context())


@pytest.mark.parametrize("schedule", [ONE_RUNG, TWO_RUNGS])
def test_with_little_noise_it_chooses_as_without(schedule: Halving) -> None:
    private = tuner(schedule=schedule).start(main_of(), in_process(), server_context())
    exact = _exactly_best(schedule)
    assert private.settings == exact.settings
    assert private.best_trial == exact.best_trial != 0
    assert not private.defaults_stayed_best
    assert exact.privacy_spent is None
    assert private.privacy_spent is not None
    assert 990 < private.privacy_spent.epsilon <= 1000


def test_exact_means_are_those_that_the_app_would_report() -> None:
    """Of the same trainings, one by one, without the tuner."""
    result = _exactly_best(ONE_RUNG)
    (rung,) = result.rungs
    for trial, score in zip(rung.trials, rung.scores, strict=True):
        seen: list[dict[str, Any]] = []
        context = server_context(**result.settings[trial])
        grid = in_process()
        for each in grid.contexts.values():
            each.run_config = dict(context.run_config)
        main_of(seen=seen)(grid, context)
        assert score == pytest.approx(seen[0]["metrics"][2]["distance"])


def test_the_apps_defaults_are_a_candidate_and_can_stay_best() -> None:
    best: dict[str, Any] = {"learning-rate": 0.5, "local-epochs": 5}
    result = tuner(privacy=None).start(main_of(), in_process(), server_context(**best))
    assert result.settings[0] == best
    assert result.defaults_stayed_best
    assert result.best == best


@pytest.mark.parametrize("privacy", [None, PrivateChoice(1000.0, 1e-3)])
def test_defaults_that_are_clearly_bad_take_no_place(
    privacy: PrivateChoice | None,
) -> None:
    slow = server_context(**{"learning-rate": 1e-4, "local-epochs": 1})
    study = tuner(privacy=privacy, schedule=Halving(8, (1, 4)))
    result = study.start(main_of(), in_process(), slow)
    scores = np.array(result.rungs[0].scores)
    # With privacy a rank, else a distance.
    assert np.argmin(scores if privacy else -scores) == 0
    assert 0 not in result.rungs[1].trials
    assert result.best_trial != 0


def test_enqueued_settings_are_candidates() -> None:
    enqueue: list[dict[str, Any]] = [
        {"learning-rate": 0.5},
        {"learning-rate": 0.6, "local-epochs": 3},
    ]
    study = tuner(enqueue=enqueue)
    result = study.start(main_of(), in_process(), server_context())
    assert list(result.settings[1:3]) == [
        {"learning-rate": 0.5, "local-epochs": RUN_CONFIG["local-epochs"]},
        {"learning-rate": 0.6, "local-epochs": 3},
    ]
    assert len(result.settings) == ONE_RUNG.trials
    for settings in result.settings:
        assert all(SPACE[key]._contains(value) for key, value in settings.items())


def test_a_seed_makes_settings_repeat_and_none_does_not() -> None:
    def settings(seed: int | None) -> tuple[dict[str, Any], ...]:
        study = tuner(seeds=Seeds(study=seed, noise=1), schedule=SHORT)
        return study.start(main_of(), in_process(), server_context()).settings

    assert settings(1) == settings(1)
    assert settings(1) != settings(2)
    assert settings(None) != settings(None)


def test_nothing_depends_on_how_many_trials_share_a_send() -> None:
    def result(parallel: int) -> FederationResult:
        schedule = Halving(6, (1, 3), parallel)
        return tuner(schedule=schedule).start(
            main_of(), shuffled(in_process(), parallel), server_context()
        )

    assert result(1) == result(3) == result(100)


def test_every_trial_gets_its_settings_at_server_and_client() -> None:
    """What is read at the client is told by the model that comes back."""
    models: dict[int, list[Any]] = {}

    def main(grid: Grid, context: Context) -> None:
        class Watched(FedAvg):
            def aggregate_train(self, server_round: int, replies: Any) -> Any:
                asked = list(replies)
                models.setdefault(id(self), [dict(context.run_config)]).append(
                    asked[0].content.array_records["arrays"]["w"].numpy()
                )
                return super().aggregate_train(server_round, asked)

        main_of(Watched)(grid, context)

    grid = in_process()
    result = tuner().start(main, grid, server_context())
    first = next(iter(grid.contexts.values()))
    assert len(models) == len(result.settings)
    for config, model, *_ in models.values():
        client = Context(1, 1, first.node_config, RecordDict(), config)
        wanted = trained(np.zeros(3), client, config["learning-rate"])
        np.testing.assert_allclose(model, wanted)


def test_each_trial_has_its_own_state_at_the_client_and_none_after() -> None:
    """The app counts its calls of `train`: one a round, in each trial."""
    grid = in_process()
    for context in grid.contexts.values():
        context.state["calls"] = ConfigRecord({"n": 100})
    exact = tuner(privacy=None, metric="calls", direction="maximize")
    (rung,) = exact.start(main_of(), grid, server_context()).rungs
    assert rung.scores == pytest.approx([102.0] * len(rung.trials))
    # Outside of trials it is what it was; theirs is forgotten with the next message.
    for context in grid.contexts.values():
        assert context.state.config_records["calls"]["n"] == 100
    seen: list[dict[str, Any]] = []
    main_of(seen=seen)(grid, server_context())
    assert seen[0]["metrics"][4]["calls"] == pytest.approx(104.0)
    assert all(set(c.state) == {"calls"} for c in grid.contexts.values())


@pytest.mark.parametrize("exact_metrics", [True, False])
def test_the_real_training_has_the_chosen_settings_everywhere(
    exact_metrics: bool,
) -> None:
    grid, context = in_process(), server_context()
    result = tuner().start(main_of(), grid, context)
    seen: list[dict[str, Any]] = []
    main_of(seen=seen)(*result.apply(grid, context, exact_metrics=exact_metrics))
    alone: list[dict[str, Any]] = []
    chosen = server_context(**result.best)
    other = in_process()
    for each in other.contexts.values():
        each.run_config = dict(chosen.run_config)
    main_of(seen=alone)(other, chosen)
    assert seen[0]["config"] == alone[0]["config"]
    np.testing.assert_allclose(seen[0]["w"], alone[0]["w"])
    # And exact metrics, as in any training, but only where they are asked for.
    for number, metrics in alone[0]["metrics"].items():
        found = seen[0]["metrics"][number]
        if exact_metrics:
            assert found == pytest.approx(dict(metrics))
        else:
            assert found.keys() == metrics.keys()
            assert np.isnan(list(found.values())).all()
    assert context.run_config == RUN_CONFIG


def test_a_main_that_reads_metrics_gets_nan_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[dict[str, Any]] = []
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        study = tuner(schedule=Halving(2, (4,)))
        study.start(main_of(seen=seen), in_process(), server_context())
    metrics = [m for one in seen for m in one["metrics"].values()]
    assert all(np.isnan(m["distance"]) for m in metrics)
    assert "the server sees NaN" in caplog.text
    assert "does not cover the training" in caplog.text


@pytest.mark.parametrize(
    ("options", "is_private"),
    [({"privacy": None}, False), ({"seeds": Seeds(noise=1)}, False), ({}, True)],
)
def test_what_is_not_private_says_so(
    options: dict[str, Any], is_private: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"seeds": Seeds(), "schedule": SHORT, **options}
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        tuner(**options).start(main_of(), in_process(), server_context())
    assert ("NOT PRIVATE" not in caplog.text) == is_private


def test_random_states_of_trials_are_their_own() -> None:
    """Else trials, and the training after them, would share noise that protects."""
    drawn: dict[Any, list[float]] = {}

    def main(grid: Grid, context: Context) -> None:
        mine = drawn.setdefault(context.run_config["learning-rate"], [])

        class Drawing(FedAvg):
            def configure_train(self, *args: Any) -> Any:
                mine.append(random.random() + np.random.random())  # noqa: NPY002
                return super().configure_train(*args)

        main_of(Drawing)(grid, context)

    def run(parallel: int) -> tuple[dict[Any, list[float]], float]:
        drawn.clear()
        random.seed(5)
        np.random.seed(6)  # noqa: NPY002
        schedule = Halving(4, (3,), parallel=parallel)
        tuner(schedule=schedule).start(main, in_process(), server_context())
        of_trials = {rate: draws[:3] for rate, draws in drawn.items()}
        return of_trials, random.random() + np.random.random()  # noqa: NPY002

    trials, after = run(1)
    everything = [value for draws in trials.values() for value in draws]
    assert len({*everything, after}) == 4 * 3 + 1
    assert run(3) == (trials, after)


def test_a_key_that_nothing_reads_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main(grid: Grid, context: Context) -> None:
        config = {key: context.run_config[key] for key in ("learning-rate",)}
        inner = server_context(**config)
        main_of()(grid, inner)

    space = {**SPACE, "unused": FloatDistribution(0.0, 1.0)}
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        tuner(space=space).start(main, in_process(), server_context())
    assert "Nothing has read ['unused']" in caplog.text


def test_a_trial_whose_main_fails_is_worst(caplog: pytest.LogCaptureFixture) -> None:
    def main(grid: Grid, context: Context) -> None:
        if float(context.run_config["learning-rate"]) > 0.1:
            raise OverflowError("too fast")
        main_of()(grid, context)

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = tuner().start(main, in_process(), server_context())
    assert result.best["learning-rate"] <= 0.1
    assert "OverflowError('too fast')" in caplog.text


def test_a_main_that_exits_has_failed() -> None:
    """Also one that has been evaluated before."""

    def main(grid: Grid, context: Context) -> None:
        main_of()(grid, context)
        if float(context.run_config["learning-rate"]) > 0.1:
            raise SystemExit("too fast")

    # To a round that no trial comes to: each runs to its end.
    study = tuner(schedule=Halving(6, (9,)))
    result = study.start(main, in_process(), server_context())
    assert result.best["learning-rate"] <= 0.1


def test_a_main_that_fails_in_all_trials_raises_what_it_raised() -> None:
    def main(grid: Grid, context: Context) -> None:
        raise OverflowError("too fast")

    with pytest.raises(OverflowError, match="too fast"):
        tuner().start(main, in_process(), server_context())


def test_a_client_that_fails_in_one_trial_answers_for_the_others() -> None:
    """And a NaN score is worst."""

    def fails(message: Message, context: Context, call_next: Any) -> Message:
        rate = float(str(context.run_config["learning-rate"]))
        if rate > 0.1:
            raise OverflowError("too fast")
        out: Message = call_next(message, context)
        return out

    app = message_app(first=(tuner_mod, fails))
    result = tuner().start(main_of(), in_process(app), server_context())
    assert any(s["learning-rate"] > 0.1 for s in result.settings)
    assert result.best["learning-rate"] <= 0.1


def test_clients_that_were_not_asked_are_neutral() -> None:
    def half() -> FedAvg:
        return FedAvg(fraction_train=1.0, fraction_evaluate=0.5)

    # FedAvg draws whom it asks; of 100 draws 9 are for another trial.
    random.seed(5)
    result = tuner().start(main_of(half), in_process(), server_context())
    assert result.best_trial == _exactly_best(ONE_RUNG).best_trial


class _NumpyStrategy(FedAvg):
    """FedAvg, as its evaluation must be told for a `NumPyClient`."""

    def __init__(self) -> None:
        super().__init__(
            arrayrecord_key="fitins.parameters",
            configrecord_key="fitins.config",
            weighted_by_key="num_examples",
        )

    def configure_evaluate(self, *args: Any) -> Any:
        messages = list(super().configure_evaluate(*args))
        for message in messages:
            content = message.content
            message.content = RecordDict(
                {
                    "evaluateins.parameters": content["fitins.parameters"],
                    "evaluateins.config": content["fitins.config"],
                }
            )
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Any) -> None:
        """Read nothing: there are two metric records."""


def test_a_numpy_client_is_tuned() -> None:
    app = ClientApp(client_fn=lambda c: NumpyDistances(c).to_client(), mods=[tuner_mod])

    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord({"0": Array(np.zeros(3))})
        _NumpyStrategy().start(grid, arrays, num_rounds=3)

    grid = recording(app)
    result = tuner(metric="loss").start(main, grid, server_context())
    assert result.best_trial == _exactly_best(ONE_RUNG).best_trial
    sent = [r for reply in grid.replies for r in reply.content.metric_records.items()]
    losses = [record["loss"] for name, record in sent if name.endswith("res.loss")]
    assert len(losses) > 0
    assert np.isnan(losses).all()


def test_an_app_may_name_its_actions() -> None:
    """And has no other function than those."""
    inner, app = message_app(first=()), ClientApp(mods=[tuner_mod])

    def plain(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type.split(".")[0]
        message.metadata.message_type = kind
        return inner(message, context)

    app.train("mine")(plain)
    app.evaluate("mine")(plain)

    class Named(FedAvg):
        def _construct_messages(self, record: Any, nodes: Any, kind: str) -> Any:
            return super()._construct_messages(record, nodes, f"{kind}.mine")

    result = tuner().start(main_of(Named), in_process(app), server_context())
    assert result.best_trial == _exactly_best(ONE_RUNG).best_trial


def test_a_main_that_ends_early_is_compared_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    short = server_context(**{"num-server-rounds": 1})
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = tuner().start(main_of(), in_process(), short)
    assert result.best_trial == _exactly_best(ONE_RUNG).best_trial
    assert "The training ended before round 2" in caplog.text


def test_lines_of_trials_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        tuner().start(main_of(), in_process(), server_context())
        main_of()(in_process(), server_context())
    rounds = [m for m in caplog.messages if "[ROUND 1/4]" in m]
    assert rounds == ["[ROUND 1/4]"]  # of the training after the tuner


def test_with_debug_the_log_has_all_lines_of_trials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        tuner().start(main_of(), in_process(), server_context())
    found = [r for r in caplog.records if "[ROUND 1/4]" in r.getMessage()]
    trials = [f"[trial-{number}] [ROUND 1/4]" for number in range(ONE_RUNG.trials)]
    assert [r.getMessage() for r in found] == trials
    assert {r.levelname for r in found} == {"DEBUG"}


def test_warnings_of_a_trial_stay_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class CarefulFedAvg(FedAvg):
        def configure_train(self, *args: Any, **kwargs: Any) -> Any:
            logging.getLogger("flwr").warning("careful")
            return super().configure_train(*args, **kwargs)

    with caplog.at_level(logging.INFO):
        tuner().start(main_of(CarefulFedAvg), in_process(), server_context())
    assert "[trial-0] careful" in caplog.messages


def test_no_thread_of_a_trial_is_left() -> None:
    before = threading.enumerate()
    tuner(schedule=TWO_RUNGS).start(main_of(), in_process(), server_context())
    assert_all_end(before)


# ------------------------------------------------------------------ what is refused


def test_a_main_that_never_evaluates_is_an_error() -> None:
    def main(grid: Grid, context: Context) -> None:
        main_of(lambda: FedAvg(fraction_evaluate=0.0))(grid, context)

    with pytest.raises(ValueError, match="federated evaluation"):
        tuner().start(main, in_process(), server_context())


def test_a_missing_metric_is_named() -> None:
    with pytest.raises(AggregationError, match=r"no 'acc'.*'distance'"):
        tuner(metric="acc").start(main_of(), in_process(), server_context())


def test_a_missing_mod_is_named() -> None:
    app = message_app(first=())
    with pytest.raises(AggregationError, match="tuner_mod the first mod"):
        tuner().start(main_of(), in_process(app), server_context())


def test_a_main_that_pushes_messages_is_refused_by_name() -> None:
    def main(grid: Grid, context: Context) -> None:
        content = RecordDict({"config": ConfigRecord({"learning-rate": 0.1})})
        grid.push_messages([Message(content, n, "train") for n in grid.get_node_ids()])

    with pytest.raises(NotImplementedError, match="send_and_receive"):
        tuner().start(main, in_process(), server_context())


def test_other_messages_are_refused_by_name() -> None:
    def main(grid: Grid, context: Context) -> None:
        nodes = grid.get_node_ids()
        grid.send_and_receive([Message(RecordDict(), n, "query.mine") for n in nodes])

    with pytest.raises(ValueError, match=r"^message_type='query\.mine'"):
        tuner().start(main, in_process(), server_context())


def test_a_reply_to_train_without_a_weight_is_refused_by_name() -> None:
    app = message_app(train_metrics=lambda client: {"n": 3})
    strategy = lambda: FedAvg(weighted_by_key="n")  # noqa: E731
    with pytest.raises(AggregationError, match="num-examples"):
        tuner().start(main_of(strategy), in_process(app), server_context())
    # Without privacy nothing is hidden.
    tuner(privacy=None).start(main_of(strategy), in_process(app), server_context())


def test_a_federation_that_never_answers_is_an_error() -> None:
    from tests.support.apps import RecordingGrid

    class Silent(RecordingGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            list(super().send_and_receive(messages, timeout=timeout))
            return []

    grid = Silent(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    with pytest.raises(AggregationError, match="no client has answered"):
        tuner().start(main_of(), grid, server_context())


@pytest.mark.parametrize("num_nodes", [5, 6])
def test_too_few_ballots_are_an_error(num_nodes: int) -> None:
    from tests.support.apps import RecordingGrid

    class Silent(RecordingGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            replies = list(super().send_and_receive(asked, timeout=timeout))
            is_ballot = len(asked[0].content) == 1
            return replies[:2] if is_ballot else replies

    grid = Silent(message_app(), num_nodes, run_config=RUN_CONFIG)
    words = f"2 of {num_nodes} nodes gave a ballot"
    with pytest.raises(AggregationError, match=words):
        tuner().start(main_of(), grid, server_context())
    assert grid.sends[-1] == EVALUATE
