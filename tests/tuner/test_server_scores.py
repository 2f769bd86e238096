"""Scores of the server, weighted metrics, and clients that main does not ask."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import Halving, InProcessGrid, PrivateChoice
from flwr_fbo.tuning import server_score
from tests.support.apps import (
    EXACT_LOSS,
    NUM_CLIENTS,
    TWO_RUNGS,
    RecordingGrid,
    main_of,
    message_app,
    recording,
    server_context,
    tuner,
)
from tests.support.server_scores import by_distance, distance_of, score_main

PRIVATE = PrivateChoice(1000.0, 1e-3)


def _grid() -> RecordingGrid:
    return recording(message_app())


@pytest.mark.parametrize("fraction_evaluate", [0.0, 1.0])
def test_the_server_scores_trials_without_a_score_of_a_client(
    fraction_evaluate: float,
) -> None:
    grid = _grid()
    study = tuner(privacy=None, score="server", schedule=TWO_RUNGS)
    main = score_main(by_distance, fraction_evaluate=fraction_evaluate)
    result = study.start(main, grid, server_context())
    trained = [_trained_alone(setting) for setting in result.settings]
    assert result.best_trial == int(np.argmin(trained))
    wanted = [trained[trial] for trial in result.rungs[-1].trials]
    np.testing.assert_allclose(result.rungs[-1].scores, wanted, atol=1e-12)
    assert result.privacy_spent is None
    assert "clients send no ballots" in str(result)
    # Nothing is private, and nothing is hidden.
    metrics = [r.content.metric_records for r in grid.replies]
    sent = {k: v for one in metrics for m in one.values() for k, v in m.items()}
    assert sent["loss"] == EXACT_LOSS
    if fraction_evaluate == 0:
        assert set(grid.sends) == {"train"}


def _trained_alone(setting: dict[str, Any]) -> float:
    """Return the distance after the three rounds of the last rung."""
    found: list[float] = []

    def note(_: int, arrays: ArrayRecord) -> None:
        found.append(distance_of(arrays))

    context = server_context(**{**setting, "num-server-rounds": 3})
    grid = InProcessGrid(message_app(), NUM_CLIENTS, run_config=context.run_config)
    score_main(note)(grid, context)
    return found[-1]


def test_what_main_returns_is_a_score_of_the_server() -> None:
    schedule = Halving(6, (4,))
    by_return = score_main(
        lambda *_: None, returns=lambda arrays: {"distance": distance_of(arrays)}
    )
    by_number = score_main(lambda *_: None, returns=distance_of)
    results = [
        tuner(privacy=None, score="server", schedule=schedule).start(
            main, _grid(), server_context()
        )
        for main in (score_main(by_distance), by_return, by_number)
    ]
    assert results[0].rungs == results[1].rungs == results[2].rungs


def test_scores_that_flower_keeps_need_no_change_of_main() -> None:
    """Of the server's own evaluation, and means over the clients that train."""

    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        FedAvg(fraction_evaluate=0.0).start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=int(config["num-server-rounds"]),
            train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
            evaluate_fn=by_distance,
        )

    study = tuner(privacy=None, score="server", schedule=TWO_RUNGS)
    result = study.start(main, _grid(), server_context())
    wanted = study.start(score_main(by_distance), _grid(), server_context())
    assert result.rungs == wanted.rungs
    measured = result.measured[result.best_trial]
    assert [*measured] == [0, 1, 2, 3]
    assert measured[3]["distance"] == pytest.approx(result.rungs[-1].scores[0])
    by_loss = tuner(privacy=None, score="server", schedule=TWO_RUNGS, metric="loss")
    found = by_loss.start(main, _grid(), server_context())
    assert found.rungs[0].scores == pytest.approx([EXACT_LOSS] * 6)


def test_clients_may_evaluate_something_else() -> None:
    def accuracy(_: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": -distance_of(arrays)})

    wanted, found = (
        tuner(
            privacy=None,
            score="server",
            metric="accuracy",
            direction="maximize",
            schedule=TWO_RUNGS,
        ).start(
            score_main(accuracy, fraction_evaluate=fraction), _grid(), server_context()
        )
        for fraction in (0.0, 1.0)
    )
    assert found.rungs == wanted.rungs


def test_loss_and_metrics_of_the_older_api_are_scores() -> None:
    def main(grid: Grid, context: Context) -> None:
        def evaluate(arrays: ArrayRecord) -> tuple[float, dict[str, float]]:
            return 1.0, {"distance": distance_of(arrays)}

        older = server_score(grid, evaluate)
        score_main(lambda _, arrays: MetricRecord({**older(arrays)[1]}))(grid, context)

    result = tuner(privacy=None, score="server").start(main, _grid(), server_context())
    assert np.isfinite(result.rungs[0].scores).all()


def test_outside_of_trials_the_function_is_as_it_is() -> None:
    assert server_score(_grid(), by_distance) is by_distance


def test_a_metric_that_the_server_does_not_compute_is_an_error_before_training() -> (
    None
):
    grid = _grid()
    study = tuner(privacy=None, score="server", metric="acc")
    with pytest.raises(ValueError, match=r"no 'acc'; it has \['distance'\]"):
        study.start(score_main(by_distance), grid, server_context())
    assert grid.sends == []


@pytest.mark.parametrize("score", ["server", "clients"])
def test_trials_without_scores_end_before_the_others_are_trained(score: str) -> None:
    grid = _grid()
    schedule = Halving(12, (2, 6), parallel=3)
    study = tuner(privacy=None, score=score, schedule=schedule)
    main = main_of(lambda: FedAvg(fraction_evaluate=0.0))
    wanted = "server_score" if score == "server" else r"score=\"server\""
    with pytest.raises(ValueError, match=wanted):
        study.start(main, grid, server_context(**{"num-server-rounds": 9}))
    assert grid.sends == ["train", "train"]


def test_a_score_of_the_server_that_is_not_finite_is_the_worst() -> None:
    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        distance = distance_of(arrays)
        return MetricRecord({"distance": math.nan if distance > 1 else distance})

    study = tuner(privacy=None, score="server", enqueue=[{"learning-rate": 0.5}])
    result = study.start(score_main(evaluate), _grid(), server_context())
    assert result.rungs[0].scores[0] == math.inf  # smaller is better
    assert result.best_trial != 0
    study = tuner(privacy=None, score="server")
    nothing = score_main(lambda *_: MetricRecord({"distance": math.nan}))
    with pytest.raises(
        AggregationError, match="metric='distance': there is no finite score"
    ):
        study.start(nothing, _grid(), server_context())


def test_scores_of_the_server_are_not_released() -> None:
    with pytest.raises(ValueError, match=r"^privacy=.*None with score='server'"):
        tuner(score="server")
    with pytest.raises(ValueError, match=r"^score='both'"):
        tuner(privacy=None, score="both")


def test_a_run_that_was_ended_keeps_the_scores_of_the_server(tmp_path: Any) -> None:
    def started(grid: RecordingGrid) -> Any:
        study = tuner(privacy=None, score="server", schedule=TWO_RUNGS, folder=tmp_path)
        return study.start(score_main(by_distance), grid, server_context())

    result, again = started(_grid()), _grid()
    assert started(again).rungs == result.rungs
    assert again.sends == []


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_a_score_may_be_a_weighted_sum_of_metrics(
    privacy: PrivateChoice | None,
) -> None:
    """The second metric grows by one a round of training: it is the same for all."""
    plain = tuner(privacy=privacy, schedule=TWO_RUNGS)
    summed = tuner(
        privacy=privacy,
        metric={"distance": -1, "calls": -0.25},
        direction="maximize",
        schedule=TWO_RUNGS,
    )
    wanted, found = (
        study.start(main_of(), _grid(), server_context()) for study in (plain, summed)
    )
    assert [rung.survivors for rung in found.rungs] == [
        rung.survivors for rung in wanted.rungs
    ]
    if privacy is None:
        last = found.rungs[-1].rounds
        np.testing.assert_allclose(
            found.rungs[-1].scores, -np.array(wanted.rungs[-1].scores) - 0.25 * last
        )


@pytest.mark.parametrize(
    "metric", [{}, {"acc": 0}, {"acc": math.nan}, {"": 1}, {1: 1.0}, "", {"acc": True}]
)
def test_a_sum_of_no_metrics_is_refused(metric: Any) -> None:
    with pytest.raises(ValueError, match=r"^metric="):
        tuner(metric=metric)


@pytest.mark.parametrize("privacy", [None, PRIVATE])
def test_all_clients_score_a_rung_though_main_asks_few(
    privacy: PrivateChoice | None,
) -> None:
    def few() -> FedAvg:
        return FedAvg(fraction_evaluate=0.2, min_evaluate_nodes=1)

    grids = _grid(), _grid()
    found, wanted = (
        tuner(privacy=privacy, schedule=Halving(6, (2,))).start(
            main, grid, server_context()
        )
        for main, grid in zip((main_of(few), main_of()), grids, strict=True)
    )
    assert found.rungs == wanted.rungs
    # Only the last evaluation of a rung asks all.
    assert len(grids[0].replies) < len(grids[1].replies)
