"""A race inside one training: who trains, what is handed over, and the cost."""

import importlib
import logging
import math
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedTrimmedAvg,
    Krum,
    Strategy,
)
from optuna.distributions import FloatDistribution, IntDistribution

from flwr_fbo import FederationTuner, OneTraining, PrivateChoice, Seeds
from flwr_fbo.journal.journal import Journal
from flwr_fbo.tuner.message_headers import read_header
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuner.schedules.schedule import AppShape
from flwr_fbo.tuning import current_trial, server_score
from tests.support.apps import message_app
from tests.support.races import (
    FINAL,
    NUM_NODES,
    NUM_ROUNDS,
    RaceGrid,
    counts,
    race,
    race_context,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "tune-fedavg-sklearn" / "after"


def _main(make: Callable[[], Strategy] = FedAvg) -> Callable[[Grid, Context], Any]:
    """Return the `main` of an app, which returns what Flower's strategy does."""

    def main(grid: Grid, context: Context) -> Any:
        config = context.run_config
        return make().start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=int(config["num-server-rounds"]),
            train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
        )

    return main


def _model(returned: Any) -> Any:
    return returned.arrays["w"].numpy()


# ---------------------------------------------------------------------- what it costs


def test_tuning_and_training_cost_one_training() -> None:
    grid = RaceGrid()
    result = race().start(_main(), grid, race_context())
    assert grid.num_trainings <= 1.05 * NUM_NODES * NUM_ROUNDS
    # All trials of a rung once, by all clients; then as the app itself evaluates.
    in_rungs = sum(len(rung.trials) for rung in result.rungs)
    last = [header for header in grid.of_training() if header.trial]
    assert len(last) > 0
    own = sum(len(sent.get(FINAL, ())) for sent in grid.evaluated)
    assert grid.num_evaluations == NUM_NODES * in_rungs + own
    assert own == NUM_NODES * (24 - result.rungs[-1].rounds)
    assert grid.num_ballots == NUM_NODES * len(result.rungs)
    assert [len(rung.trials) for rung in result.rungs] == [16, 4, 2]


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the modules of the example app."""
    monkeypatch.syspath_prepend(EXAMPLE)
    for name in [name for name in sys.modules if name.startswith("digits_sgd")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("digits_sgd.client_app")


@pytest.mark.gate
def test_a_real_app_is_tuned_at_the_price_of_one_training(digits: Any) -> None:
    """Its handed-over model is as good as one that is trained with the same setting."""
    server = importlib.import_module("digits_sgd.server_app")
    task = importlib.import_module("digits_sgd.task")

    def main(grid: Grid, context: Context) -> float:
        num_rounds = int(context.run_config["num-server-rounds"])
        found = FedAvg().start(
            grid=grid,
            initial_arrays=ArrayRecord(task.initial_model()),
            num_rounds=num_rounds,
            evaluate_fn=server.test,
        )
        return float(str(found.evaluate_metrics_serverapp[num_rounds]["accuracy"]))

    config: dict[str, Any] = {"num-server-rounds": 15, "local-epochs": 1}
    config["learning-rate"] = 0.001
    context = race_context()
    context.run_config = config
    grid = RaceGrid(digits.app, run_config=config)
    tuner = FederationTuner(
        {
            "learning-rate": FloatDistribution(1e-4, 1.0, log=True),
            "local-epochs": IntDistribution(1, 4),
        },
        "accuracy",
        "maximize",
        NUM_NODES,
        privacy=PrivateChoice(epsilon=2, delta=1e-3),
        seeds=Seeds(study=1, noise=1),
    )
    result = tuner.start(main, grid, context)
    assert grid.num_trainings <= 1.05 * NUM_NODES * 15
    again = main(*result.apply(RaceGrid(digits.app, run_config=config), context))
    before = main(RaceGrid(digits.app, run_config=config), context)
    assert result.returned > before + 0.05
    assert abs(result.returned - again) < 0.03


def test_without_a_key_for_the_rounds_main_trains_for_its_own_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main(grid: Grid, context: Context) -> Any:
        own = race_context(**{**context.run_config, "num-server-rounds": 12})
        return _main()(grid, own)

    context = race_context()
    del context.run_config["num-server-rounds"]
    grid = RaceGrid()
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = race().start(main, grid, context)
    assert "3 more in all than without a tuner" in caplog.text
    assert len(result.returned.train_metrics_clientapp) <= 12
    assert grid.num_trainings == NUM_NODES * (12 + 3)


def test_the_number_of_rounds_is_smaller_at_the_server_and_at_each_client() -> None:
    found: set[int] = set()

    def noted(message: Message, context: Context, call_next: Any) -> Message:
        found.add(int(context.run_config["num-server-rounds"]))
        reply: Message = call_next(message, context)
        return reply

    from flwr_fbo import tuner_mod

    app = message_app(first=(tuner_mod, noted))
    result = race().start(_main(), RaceGrid(app), race_context())
    assert found == {24}
    assert len(result.returned.evaluate_metrics_clientapp) < 24
    assert max(result.returned.evaluate_metrics_clientapp) == 24


# ------------------------------------------------------------------ who trains a trial


@pytest.mark.gate
@pytest.mark.parametrize("num_nodes", [10, 13, 20, 50])
def test_each_candidate_has_enough_clients_in_each_round(num_nodes: int) -> None:
    grid = RaceGrid(num_nodes=num_nodes)
    race(num_nodes).start(_main(), grid, race_context())
    assert len(grid.in_trials) > 0
    for sent in grid.in_trials:
        assert min(map(len, sent.values())) >= 5
        # Of all that share a turn, each client trains one.
        assert max(counts(sent).values()) <= math.ceil(len(sent) / (num_nodes // 5))


def test_a_candidate_is_moved_on_in_each_round_whatever_the_data() -> None:
    plan = OneTraining().plan(16, AppShape(20, 20, 27, "rounds"))
    nodes = list(range(100, 120))
    for rung, planned in enumerate(plan.rungs):
        places = plan.turns(rung)
        assert [p for turn in places for p in turn] == [*range(planned.num_trials)]
        for round_number in range(1, 9):
            for turn in places:
                shares = [plan.share(nodes, rung, p, round_number) for p in turn]
                assert sorted(chain(*shares)) == nodes
    rounds = [plan.share(nodes, 1, 2, number) for number in range(1, 5)]
    assert sorted(chain(*rounds)) == nodes  # it has met each client once
    assert plan.share(nodes[::-1], 1, 2, 1) == rounds[0]


def test_where_nodes_leave_groups_do_not_become_too_small() -> None:
    plan = OneTraining().plan(16, AppShape(20, 20))
    for num_left in range(5, 20):
        share = plan.share(range(num_left), 0, 3, 1)
        assert len(share) >= 5
    assert plan.share(range(3), 0, 3, 1) == [0, 1, 2]


@pytest.mark.gate
def test_other_data_have_the_same_groups() -> None:
    """Of the first rung: later ones depend on what was released, and on no more."""
    found = []
    for rate in (0.001, 0.9):
        grid = RaceGrid(run_config={"learning-rate": rate})
        race(seeds=Seeds(study=5)).start(
            _main(), grid, race_context(**{"learning-rate": rate})
        )
        first = grid.in_trials[0]
        found.append({trial: sorted(nodes) for trial, nodes in first.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize("fraction", [0.5, 0.7])
def test_a_part_of_a_group_is_sampled_where_the_app_samples(fraction: float) -> None:
    grid = RaceGrid(num_nodes=40)
    make = lambda: FedAvg(fraction_train=fraction, fraction_evaluate=0.2)  # noqa: E731
    result = race(40).start(_main(make), grid, race_context())
    assert min(len(n) for sent in grid.in_trials for n in sent.values()) >= 5
    assert len(result.rungs[0].trials) == 16
    plain = int(40 * fraction) * NUM_ROUNDS
    assert grid.num_trainings <= 1.05 * plain
    # All clients score each trial, and the app's own part of them after that.
    for rung, sent in zip(result.rungs, grid.evaluated, strict=False):
        assert set(map(len, sent.values())) == {40}
        assert len(sent) == len(rung.trials)


def test_a_client_can_score_what_others_have_trained() -> None:
    """Every client scores every trial of a rung: none of its replies is an error."""
    failed: list[str] = []

    class Heard(RaceGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            for reply in replies:
                header = read_header(reply.content) if reply.has_content() else None
                failed.extend(getattr(header, "errors", {}).values())
            return replies

    race().start(_main(), Heard(), race_context())
    assert failed == []


def _without(*clients: int) -> Any:
    """Return a mod with which some clients cannot train."""

    def fails(message: Message, context: Context, call_next: Any) -> Message:
        client = int(context.node_config["partition-id"])
        if message.metadata.message_type == "train" and client in clients:
            raise MemoryError
        reply: Message = call_next(message, context)
        return reply

    return fails


def _watched(*idle: int, num_nodes: int = NUM_NODES) -> tuple[Any, RaceGrid, list[int]]:
    """Run a race; return its result, its Grid and how many models each sum has."""
    from flwr_fbo import tuner_mod

    models: list[int] = []

    class Watched(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = list(replies)
            models.append(sum(reply.has_content() for reply in found))
            return super().aggregate_train(server_round, found)

    app = message_app(first=(tuner_mod, _without(*idle)))
    grid = RaceGrid(app, num_nodes)
    result = race(num_nodes).start(_main(Watched), grid, race_context())
    return result, grid, models


def test_another_client_trains_in_place_of_one_that_does_not() -> None:
    """In the same round: a group of exactly min_clients would come to nothing."""
    result, grid, models = _watched(3)
    assert result.best_trial != 0
    # 5 of 5, 9 or 10 of 10; and 19 of 20 after the choice.
    assert set(models) == {5, 9, 10, 19}
    # One more for each round of the first rungs in which a group had that client.
    assert grid.num_trainings == NUM_NODES * NUM_ROUNDS + 8
    spares = [
        nodes[0]
        for sent in grid.in_trials
        for nodes in sent.values()
        if len(nodes) == 1
    ]
    assert len(spares) == 8
    assert len(set(spares)) > 4  # not always the same one


def test_too_few_models_are_not_aggregated(caplog: pytest.LogCaptureFixture) -> None:
    """A mean of fewer models than min_clients would show more of each."""
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result, _, models = _watched(0, 1, 2, 3, 4, 5, num_nodes=10)
    assert "fewer than min_clients=5 clients could train" in caplog.text
    assert set(models) == {0, 4}
    assert result.returned is not None


# ------------------------------------------------------- apps that cannot be shared out


def _private() -> Strategy:
    inner = FedAvg()
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 10.0, NUM_NODES)


def _alone(grid: Grid, context: Context) -> Any:
    """Train without a strategy."""
    weights = np.zeros(3)
    rate = context.run_config["learning-rate"]
    config = ConfigRecord({"learning-rate": rate})
    for _ in range(int(context.run_config["num-server-rounds"])):
        for kind in ("train", "evaluate"):
            arrays = ArrayRecord({"w": Array(weights)})
            content = RecordDict({"arrays": arrays, "config": config})
            nodes = grid.get_node_ids()
            asked = [Message(content, node, kind) for node in nodes]
            replies = list(grid.send_and_receive(asked))
            if kind == "train":
                records = [r.content.array_records["arrays"] for r in replies]
                found = [record["w"].numpy() for record in records]
                weights = np.mean(found, axis=0)
    return weights


@pytest.mark.parametrize(
    ("main", "reason"),
    [
        (_main(lambda: Krum(num_malicious_nodes=2)), "Krum needs the models of all"),
        (_main(FedTrimmedAvg), "FedTrimmedAvg needs the models of all"),
        (_main(lambda: FedAvg(min_train_nodes=12)), "waits for more than 5 nodes"),
        (_main(lambda: FedAvg(min_available_nodes=20)), "waits for more than 5 nodes"),
        (_main(_private), "adds noise for num_sampled_clients"),
        (_main(lambda: FedAvg(fraction_train=0.2)), "the server asks 4 clients"),
        (_alone, "the server trains without a strategy"),
    ],
)
def test_an_app_that_cannot_be_shared_out_is_told_before_the_first_message(
    main: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[bool] = []

    class Told(RaceGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            costs = "costs more epsilon where training is charged" in caplog.text
            told.append(costs and reason in caplog.text)
            return super().send_and_receive(messages, timeout=timeout)

    grid = Told(run_config={"num-server-rounds": 9})
    study = race(schedule=OneTraining(trials=4))
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = study.start(main, grid, race_context(**{"num-server-rounds": 9}))
    assert set(told) == {True}
    assert [len(rung.trials) for rung in result.rungs] == [4, 2]
    assert result.returned is not None
    assert {len(nodes) for sent in grid.in_trials for nodes in sent.values()} <= {4, 20}


def test_with_few_clients_all_train_each_trial_and_the_winner_is_handed_over() -> None:
    grid = RaceGrid(num_nodes=6)
    result = race(6).start(_main(), grid, race_context())
    found = [(rung.rounds, len(rung.trials)) for rung in result.rungs]
    assert found == [(3, 8), (9, 2)]
    short = OneTraining().plan(16, AppShape(6, 6, 3))
    assert [(r.rounds, r.num_trials) for r in short.rungs] == [(3, 8)]
    assert short.rungs[-1].num_survivors == 1
    # Many clients can tell more trials apart, also where they are not shared out.
    many = OneTraining().plan(16, AppShape(20, 20, 27, reason="Krum"))
    assert [rung.num_trials for rung in many.rungs] == [16, 4, 2]
    assert [rung.rounds for rung in many.rungs] == [1, 3, 9]
    for sent in grid.in_trials:
        assert set(map(len, sent.values())) == {6}
    own = sum(len(sent[FINAL]) for sent in grid.trained if FINAL in sent)
    assert own == 6 * (NUM_ROUNDS - 9)
    assert max(result.returned.evaluate_metrics_clientapp) == NUM_ROUNDS


# -------------------------------------------------------------------- what goes on


@pytest.mark.parametrize("make", [FedAvg, FedAvgM, FedAdam])
def test_the_strategy_goes_on_with_its_state(make: Any) -> None:
    """The handed-over model is that of one strategy, which made all its rounds."""
    strategies: list[Any] = []

    class Counted(make):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(**({"server_momentum": 0.5} if make is FedAvgM else {}))
            self.rounds: list[int] = []
            strategies.append(self)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.rounds.append(server_round)
            return super().aggregate_train(server_round, replies)

    result = race().start(_main(Counted), RaceGrid(), race_context())
    whole = [one for one in strategies if len(one.rounds) == 24]
    assert len(whole) == 1
    assert whole[0].rounds == list(range(1, 25))
    assert _model(result.returned).shape == (3,)


def test_the_model_is_that_of_a_training_with_the_same_setting() -> None:
    result = race().start(_main(), RaceGrid(), race_context())
    again = _main()(*result.apply(RaceGrid(), race_context()))
    np.testing.assert_allclose(_model(result.returned), _model(again), atol=0.02)
    assert not np.allclose(_model(again), 0.0, atol=0.1)


def test_a_clients_state_goes_on_and_loggers_find_no_trial() -> None:
    """The app counts its calls of `train`: of the chosen trial, and those after it."""
    trials: list[Any] = []

    def main(grid: Grid, context: Context) -> Any:
        found = _main()(grid, context)
        trials.append(current_trial(context))
        return found

    grid = RaceGrid()
    result = race(privacy=None).start(main, grid, race_context())
    assert trials == [None]
    calls = {
        context.node_id: int(str(context.state.config_records["calls"]["n"]))
        for context in grid.contexts.values()
    }
    for node, num in calls.items():
        mine = sum(
            node in sent.get(trial, ())
            for sent in grid.trained
            for trial in (result.best_trial, FINAL)
        )
        assert num == mine
    assert all(set(c.state) == {"calls"} for c in grid.contexts.values())


@pytest.mark.parametrize("exact", [True, False])
def test_metrics_stay_hidden_unless_they_are_asked_for(exact: bool) -> None:
    grid = RaceGrid()
    result = race().start(_main(), grid, race_context(), exact_metrics=exact)
    assert {header.is_hidden for header in grid.of_training()} == {not exact}
    assert result.exact_metrics is exact
    last = result.returned.evaluate_metrics_clientapp[24]["distance"]
    assert math.isfinite(last) is exact
    assert ("clients sent exact metrics" in str(result)) is exact
    assert ("did not send" in str(result)) is not exact


def test_the_log_shows_the_end_of_a_training_that_ends_with_the_last_rung(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the chosen trial, as the app's own; its metrics have stayed at the clients."""
    grid = RaceGrid(num_nodes=6, run_config={"num-server-rounds": 3})
    context = race_context(**{"num-server-rounds": 3})
    with caplog.at_level(logging.INFO, "flwr"):
        study = race(6, schedule=OneTraining(trials=4))
        result = study.start(_main(), grid, context, exact_metrics=True)
    assert result.rungs[-1].rounds == 3
    assert max(result.returned.evaluate_metrics_clientapp) == 3
    lines = [r for r in caplog.records if r.name == "flwr" and r.levelno >= 20]
    last = [r for r in lines if "Final results" in r.getMessage()]
    assert [r.threadName for r in last] == ["chosen trial"]
    assert not [r for r in lines if r.threadName != "chosen trial"]
    assert not [r for r in lines if "ROUND" in r.getMessage()]
    assert result.exact_metrics is False


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_large_model_that_ends_with_the_last_rung_is_handed_over(
    parallel: int,
) -> None:
    """Though its trial has waited for others since then."""
    start = np.zeros(300_000)

    def main(grid: Grid, context: Context) -> Any:
        found = FedAvg().start(
            grid,
            ArrayRecord({"w": Array(start[:3].copy()), "large": Array(start.copy())}),
            num_rounds=int(context.run_config["num-server-rounds"]),
            train_config=ConfigRecord(
                {"learning-rate": context.run_config["learning-rate"]}
            ),
        )
        return found.arrays

    def grows(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if message.metadata.message_type == "train":
            large = message.content.array_records["arrays"]["large"].numpy() + 1.0
            reply.content.array_records["arrays"]["large"] = Array(large)
        return reply

    from flwr_fbo import tuner_mod

    app = message_app(first=(tuner_mod, grows))
    grid = RaceGrid(app, num_nodes=6, run_config={"num-server-rounds": 3})
    study = race(6, schedule=OneTraining(trials=4, parallel=parallel))
    result = study.start(main, grid, race_context(**{"num-server-rounds": 3}))
    np.testing.assert_allclose(result.returned["large"].numpy(), 3.0)


def test_files_are_where_the_app_writes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def main(grid: Grid, context: Context) -> Any:
        Path("settings.txt").write_text(str(context.run_config["learning-rate"]))
        found = _main()(grid, context)
        Path("model.txt").write_text(str(_model(found).tolist()))
        return found

    folder = tmp_path / "tuner"
    result = race(folder=folder).start(main, RaceGrid(), race_context())
    assert Path("settings.txt").read_text() == str(result.best["learning-rate"])
    assert Path("model.txt").read_text() == str(_model(result.returned).tolist())
    assert not list(folder.glob("trial-*/model.txt"))


# --------------------------------------------------------------------- killed, resumed


def _ledger(folder: Path) -> list[list[float]]:
    with Journal(None, folder / FILE_NAME) as journal:
        return [row.vectors.tolist() for row in journal.ledger()]


@pytest.mark.gate
def test_killed_anywhere_it_goes_on_at_no_further_epsilon(tmp_path: Path) -> None:
    whole = race().start(_main(), RaceGrid(), race_context())
    decided = set()
    # In each rung at a training, an evaluation or the ballots, and after the choice.
    for dies_at in (0, 1, 2, 5, 8, 11, 13, 14, 25, 40):
        folder = tmp_path / str(dies_at)
        dying = RaceGrid()
        dying.dies_at = dies_at
        with pytest.raises(KeyboardInterrupt):
            race(folder=folder).start(_main(), dying, race_context())
        before = _ledger(folder)
        decided.add(len(before))
        result = race(folder=folder).start(_main(), RaceGrid(), race_context())
        assert _ledger(folder)[: len(before)] == before
        assert len(_ledger(folder)) == 3
        assert result.settings == whole.settings
        assert result.privacy_spent == whole.privacy_spent
        assert result.best == whole.best
        np.testing.assert_allclose(
            _model(result.returned), _model(whole.returned), atol=1e-9
        )
    assert decided == {0, 1, 2, 3}


def test_a_complete_one_asks_nobody(tmp_path: Path) -> None:
    first = race(folder=tmp_path).start(_main(), RaceGrid(), race_context())
    grid = RaceGrid()
    again = race(folder=tmp_path).start(_main(), grid, race_context())
    assert grid.num_sends == 0
    assert again == first
    assert again.returned is None
    assert again.exact_metrics is False


def test_what_ends_main_after_the_choice_is_raised_and_can_go_on(
    tmp_path: Path,
) -> None:
    def main(grid: Grid, context: Context) -> Any:
        found = _main()(grid, context)
        if fails:
            raise OSError("no space left on device")
        return found

    fails = True
    with pytest.raises(OSError, match="no space left"):
        race(folder=tmp_path).start(main, RaceGrid(), race_context())
    before = _ledger(tmp_path)
    fails = False
    grid = RaceGrid()
    result = race(folder=tmp_path).start(main, grid, race_context())
    assert _ledger(tmp_path) == before
    assert grid.num_ballots == 0
    assert result.returned is not None


# ------------------------------------------------------------------ other ways to score


def test_the_servers_scores_need_no_evaluation_at_clients() -> None:
    def evaluate(_round: int, arrays: ArrayRecord) -> Any:
        from flwr.app import MetricRecord

        away = arrays["w"].numpy() - np.array([1.95, -1.05, 1.45])
        return MetricRecord({"distance": float(np.linalg.norm(away))})

    def main(grid: Grid, context: Context) -> Any:
        config = context.run_config
        return FedAvg(fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=int(config["num-server-rounds"]),
            train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
            evaluate_fn=server_score(grid, evaluate),
        )

    grid = RaceGrid()
    study = optuna.create_study(direction="minimize")
    options: dict[str, Any] = {"privacy": None, "score": "server", "study": study}
    result = race(**options).start(main, grid, race_context())
    assert grid.num_evaluations == grid.num_ballots == 0
    assert grid.num_trainings <= 1.05 * NUM_NODES * NUM_ROUNDS
    assert min(len(n) for sent in grid.in_trials for n in sent.values()) >= 5
    assert len(study.trials) == 16
    assert len({str(settings) for settings in result.settings}) == 16
    assert max(result.returned.evaluate_metrics_serverapp) == 24


# --------------------------------------------------------------------------- the plan


@pytest.mark.parametrize("num_rounds", [4, 5, 9, 15, 27, 60])
@pytest.mark.parametrize("num_nodes", [10, 15, 20, 50, 100])
def test_a_race_fits_into_the_training(num_nodes: int, num_rounds: int) -> None:
    shape = AppShape(num_nodes, num_nodes, num_rounds, "rounds")
    plan = OneTraining().plan(16, shape)
    assert plan.is_shared
    assert plan.num_rounds is not None
    # The other half is for all clients and one trial.
    assert plan.num_rung_rounds <= (num_rounds + 1) // 2
    last = plan.rungs[-1]
    assert plan.num_rung_rounds + plan.num_rounds - last.rounds == num_rounds
    assert last.num_survivors == 1
    sizes = [rung.num_trials for rung in plan.rungs]
    assert sizes == sorted(sizes, reverse=True)
    assert [rung.num_survivors for rung in plan.rungs] == [*sizes[1:], 1]
    if num_rounds >= 27:
        assert sizes == [16, 4, 2]
        assert 10 <= plan.num_rung_rounds <= 15


@pytest.mark.parametrize("trials", range(2, 40))
def test_all_numbers_of_trials_have_a_plan(trials: int) -> None:
    schedule = OneTraining(trials)
    for num in range(2, trials + 1):
        plan = schedule.plan(num, AppShape(20, 20))
        assert plan.rungs[0].num_trials == num
        assert len(plan.rungs) <= len(schedule.sizes)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("trials", {"trials": 1}),
        ("min_clients", {"min_clients": 0}),
        ("rounds", {"rounds": 0}),
        ("parallel", {"parallel": 0}),
    ],
)
def test_bad_settings_are_named(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{field}="):
        OneTraining(**options)
