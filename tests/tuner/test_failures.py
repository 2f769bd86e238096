"""Failures of clients and trials, on every path: they are worst, and end no other."""

import logging
import math
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, QFedAvg, Strategy
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import (
    FederationTuner,
    Halving,
    InProcessGrid,
    PrivateChoice,
    Seeds,
    tuner_mod,
)
from flwr_fbo.cli import app as cli_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuner.report.page import tuner_page
from flwr_fbo.tuner.trials.training_rounds import TrainingFailedError
from flwr_fbo.tuning import FederationResult
from tests.support.apps import RecordingGrid, tuner

NUM_CLIENTS = 6
EVERYBODY = frozenset(range(NUM_CLIENTS))
TWO_RUNGS, ONE_RUNG = Halving(6, (1, 2)), Halving(4, (2,))
BEST, SECOND = 1.0, 1.2
ENQUEUE = [{"rate": BEST}, {"rate": SECOND}]

Report = Callable[[int, float, dict[str, Any]], None]


def _no_report(client: int, rate: float, metrics: dict[str, Any]) -> None:
    """Leave metrics as they are."""


def _app(
    report: Report = _no_report,
    learn: Callable[[int, float, Any], Any] = lambda client, rate, w: w + 0.1 * rate,
    weight: float = 1,
) -> ClientApp:
    """Return an app whose scores and training may fail."""
    app = ClientApp(mods=[tuner_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        rate = float(str(context.run_config["rate"]))
        arrays = {
            name: array.numpy()
            for name, array in message.content.array_records["arrays"].items()
        }
        arrays["w"] = learn(client, rate, arrays["w"])
        metrics = MetricRecord({"loss": 0.5, "num-examples": weight})
        record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
        content = RecordDict({"arrays": record, "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        rate = float(str(context.run_config["rate"]))
        metrics: dict[str, Any] = {"num-examples": 1, "score": -abs(rate - BEST)}
        report(client, rate, metrics)
        content = RecordDict({"metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    return app


RUN_CONFIG: dict[str, Any] = {"rate": 9.0, "num-server-rounds": 2}


def _main(make: Callable[[], Strategy] = FedAvg, **arrays: Any) -> Any:
    initial = {"w": np.zeros(2), **arrays}

    def main(grid: Grid, context: Context) -> None:
        record = ArrayRecord({name: Array(value) for name, value in initial.items()})
        make().start(grid=grid, initial_arrays=record, num_rounds=2)

    return main


SMALL_NOISE = 1000.0, 1e-3
PATHS: dict[str, dict[str, Any]] = {
    "exact": {"privacy": None},
    "ranks": {"privacy": PrivateChoice(*SMALL_NOISE)},
    "secure sums": {
        "privacy": PrivateChoice(*SMALL_NOISE),
        "aggregation": SecureAggregation(threshold=4, honest=4),
        "seeds": Seeds(study=1),
    },
}
of_all_paths = pytest.mark.parametrize("path", PATHS)
of_two_paths = pytest.mark.parametrize("path", ["exact", "ranks"])
of_both_schedules = pytest.mark.parametrize("schedule", [ONE_RUNG, TWO_RUNGS])


def _study(path: str, schedule: Halving = ONE_RUNG, **options: Any) -> FederationTuner:
    return tuner(
        **{
            "space": {"rate": FloatDistribution(0.01, 10, log=True)},
            "metric": "score",
            "direction": "maximize",
            "num_agents": NUM_CLIENTS,
            "schedule": schedule,
            "enqueue": ENQUEUE,
            "seeds": Seeds(study=1, noise=2),
            **PATHS[path],
            **options,
        }
    )


def _start(
    study: FederationTuner, app: ClientApp, main: Any = None
) -> FederationResult:
    grid = InProcessGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG)
    return study.start(main or _main(), grid, _context())


def _context() -> Context:
    return Context(1, 1, {}, RecordDict(), dict(RUN_CONFIG))


# -------------------------------------------------------------- scores of clients


def _raises() -> None:
    raise OverflowError("too fast")


FAILURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "NaN": lambda metrics: metrics.update(score=math.nan),
    "inf": lambda metrics: metrics.update(score=math.inf),
    "missing": lambda metrics: metrics.pop("score"),
    "raised": lambda metrics: _raises(),
    "a list": lambda metrics: metrics.update(score=[1.0]),
    "a weight of NaN": lambda metrics: metrics.update({"num-examples": math.nan}),
    "a weight of 0": lambda metrics: metrics.update({"num-examples": 0}),
    "a negative weight": lambda metrics: metrics.update({"num-examples": -3}),
}


def _fails_at(
    clients: Collection[int], failure: str = "NaN", rates: Collection[float] = ()
) -> Report:
    """Return what makes the scores of some clients fail, at all rates or at some."""

    def report(client: int, rate: float, metrics: dict[str, Any]) -> None:
        if client in clients and (not rates or rate in rates):
            FAILURES[failure](metrics)

    return report


@of_all_paths
@pytest.mark.parametrize(
    ("clients", "schedule"),
    [({1}, ONE_RUNG), ({1}, TWO_RUNGS), (EVERYBODY - {1}, ONE_RUNG)],
)
def test_clients_without_a_score_decide_nothing(
    path: str, schedule: Halving, clients: Collection[int]
) -> None:
    study = _study(path, schedule)
    result = _start(study, _app(_fails_at(clients)))
    assert result.best == {"rate": BEST}


@of_all_paths
def test_weights_of_0_are_named(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The metric is fine, and is not NaN."""
    # Without privacy it is Flower's mean of the replies that fails.
    with pytest.raises((AggregationError, ZeroDivisionError)):
        _start(_study(path), _app(_fails_at(EVERYBODY, "a weight of 0")))
    assert "num-examples=0 in a reply to evaluate" in caplog.text


@of_two_paths
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_the_failure_it_is_none_of_the_others(path: str, failure: str) -> None:
    result = _start(_study(path), _app(_fails_at({1}, failure)))
    assert result.best == {"rate": BEST}


@of_all_paths
@pytest.mark.parametrize("failure", ["raised", "inf"])
def test_a_trial_that_fails_at_all_clients_is_worst(path: str, failure: str) -> None:
    app = _app(_fails_at(EVERYBODY, failure, rates=[BEST]))
    result = _start(_study(path), app)
    assert result.best != {"rate": BEST}
    if path == "exact":
        assert result.rungs[0].scores[1] == -math.inf


@of_all_paths
def test_a_trial_that_fails_at_most_clients_is_not_chosen(path: str) -> None:
    """Not even by those at which it is the best."""
    app = _app(_fails_at({0, 1, 2, 3}, rates=[BEST]))
    assert _start(_study(path), app).best != {"rate": BEST}


@pytest.mark.parametrize("failure", ["NaN", "inf"])
def test_without_any_score_an_exact_choice_is_an_error(failure: str) -> None:
    with pytest.raises(
        AggregationError, match="metric='score': there is no finite score"
    ):
        _start(_study("exact"), _app(_fails_at(EVERYBODY, failure)))


def _no_weight(client: int, rate: float, metrics: dict[str, Any]) -> None:
    metrics["num-examples"] = 0


@pytest.mark.parametrize("path", ["exact", "ranks", "secure sums"])
def test_without_any_weight_it_is_an_error(path: str) -> None:
    unweighted = FedAvg(evaluate_metrics_aggr_fn=lambda records, key: MetricRecord())
    main = _main(lambda: unweighted)
    with pytest.raises(AggregationError, match="finite score"):
        _start(_study(path), _app(_no_weight), main)


@pytest.mark.parametrize("path", ["ranks", "secure sums"])
@of_both_schedules
def test_without_any_score_a_private_choice_is_an_error(
    path: str, schedule: Halving
) -> None:
    """What is released says about how many clients have none."""
    app = _app(_fails_at(EVERYBODY))
    with pytest.raises(AggregationError, match="do not differ from noise") as error:
        _start(_study(path, schedule), app)
    assert "6 of 6 clients have no finite score" in str(error.value)


def test_it_stays_an_error_when_the_tuner_is_started_again(tmp_path: Path) -> None:
    """Its first rung is on record; no other trial is trained by it."""
    for schedule in (ONE_RUNG, TWO_RUNGS):
        folder = tmp_path / str(len(schedule.rungs))
        grid = RecordingGrid(
            _app(_fails_at(EVERYBODY)), NUM_CLIENTS, run_config=RUN_CONFIG
        )
        num_sends = []
        for _ in range(2):
            study = _study("ranks", schedule, folder=folder)
            with pytest.raises(AggregationError, match="needs a new folder"):
                study.start(_main(), grid, _context())
            num_sends.append(len(grid.sends))
        assert num_sends[0] == num_sends[1]


def test_after_a_weak_release_nothing_is_claimed() -> None:
    """It cannot tell how many clients have scores."""
    weak = PrivateChoice(epsilon=0.1, delta=1e-3)
    result = _start(_study("ranks", privacy=weak), _app(_fails_at(EVERYBODY)))
    assert len(result.rungs) == 1
    assert not result.defaults_beaten
    assert "beaten" not in str(result)


@of_all_paths
@pytest.mark.parametrize("failure", ["raised", "missing", "a list"])
def test_defaults_that_nobody_can_evaluate_could_not_be_scored(
    path: str, failure: str, tmp_path: Path
) -> None:
    """They are not beaten by so many deviations: no output says so."""
    app = _app(_fails_at(EVERYBODY, failure, rates=[float(RUN_CONFIG["rate"])]))
    result = _start(_study(path, folder=tmp_path), app)
    assert result.rungs[0].failed == (0,)
    assert (result.over_defaults, result.defaults_beaten) == (None, False)
    for told in (str(result), *_outputs_of(tmp_path)):
        assert "could not be scored" in told
        assert "ahead of theirs" not in told


def _outputs_of(folder: Path) -> tuple[str, str]:
    """Return what `flwr-fbo show` prints, and the page of `flwr-fbo report`."""
    shown = CliRunner().invoke(cli_app, ["show", str(folder)])
    with Journal.snapshot(folder / FILE_NAME) as journal:
        return shown.output, tuner_page(journal)


def test_a_client_without_a_score_is_told_at_the_site_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its replies while trials are trained are those of a client with scores."""

    def replies(clients: Collection[int]) -> list[list[tuple[str, str]]]:
        app = _app(_fails_at(clients))
        grid = RecordingGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG)
        _study("ranks").start(_main(), grid, _context())
        return [
            [(name, repr(record)) for name, record in reply.content.items()]
            for reply in grid.replies
            if "fbo-ballot" not in reply.content
        ]

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        honest = replies(())
        assert "no finite score" not in caplog.text
        assert replies({1}) == honest
    assert "client 1 has no finite score in any of the 4 trials" in caplog.text


# ---------------------------------------------------------------- training that fails


def _learns_nan(client: int, rate: float, w: Any) -> Any:
    return w * math.nan if rate == BEST else w + 0.1 * rate


def _raises_in_training(client: int, rate: float, w: Any) -> Any:
    return _raises() if rate == BEST else w + 0.1 * rate


def _qfedavg() -> Strategy:
    return QFedAvg(client_learning_rate=0.1, train_loss_key="loss")


@pytest.mark.parametrize(
    ("path", "make"),
    [
        *((path, FedAvg) for path in PATHS),
        ("ranks", FedAdam),
        ("ranks", FedMedian),
        ("exact", _qfedavg),
    ],
)
@pytest.mark.parametrize(
    ("learn", "words"),
    [
        (_learns_nan, "trial 1: training diverged in round 1 at 6 of 6 clients"),
        (_raises_in_training, "trial 1: no client could train in round 1: Overflow"),
    ],
)
def test_a_trial_whose_training_fails_is_worst(
    path: str, make: Any, learn: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says where; it is no fault of the strategy."""
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_study(path), _app(learn=learn), _main(make))
    assert result.best == {"rate": SECOND}
    assert caplog.text.count(words) == 1
    assert "QFedAvg" not in caplog.text


def test_the_round_is_named_in_a_later_rung_and_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def learn(client: int, rate: float, w: Any) -> Any:
        is_second = rate == BEST and w.any()
        return w * math.inf if is_second else w + 0.1 * rate

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_study("ranks", TWO_RUNGS), _app(learn=learn))
    assert result.rungs[0].survivors[0] == 1
    assert result.best == {"rate": SECOND}
    assert caplog.text.count("trial 1: training diverged in round 2") == 1


def test_one_client_that_sends_nan_in_all_trials_is_named() -> None:
    """A training with it fails too, so there is nothing to choose."""

    def learn(client: int, rate: float, w: Any) -> Any:
        return w * math.nan if client == 2 else w

    for path in ("exact", "ranks"):
        words = r"diverged in round 1 at 1 of 6 clients, nodes \[\d+\]$"
        with pytest.raises(TrainingFailedError, match=words):
            _start(_study(path), _app(learn=learn))


def test_a_strategy_that_raises_because_of_nan_has_diverged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Careful(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if arrays is not None and np.isnan(arrays["w"].numpy()).any():
                raise ValueError("Input contains NaN.")
            return arrays, metrics

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_study("ranks"), _app(learn=_learns_nan), _main(Careful))
    assert result.best == {"rate": SECOND}
    assert "trial 1: training diverged in round 1 at 6 of 6" in caplog.text


class _Overflowing(FedAvg):
    """Makes a model of NaN from finite ones, as a step that is too large."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        w = arrays["w"].numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            w = w * np.inf if 0.09 < abs(w).max() < 0.11 else w
        return ArrayRecord({"w": Array(w)}), metrics


@of_two_paths
def test_a_step_of_the_server_that_overflows_has_diverged(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_study(path), _app(), _main(_Overflowing))
    assert result.best == {"rate": SECOND}
    assert "training diverged in round 1 at the server" in caplog.text


def test_arrays_that_are_infinite_from_the_start_are_no_divergence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A mask of attention is such an array."""
    mask = np.triu(np.full((2, 2), -np.inf), 1)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(_study("exact"), _app(), _main(mask=mask))
    assert result.best == {"rate": BEST}
    assert "diverged" not in caplog.text


def test_training_without_any_example_raises_what_the_strategy_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        _start(_study("ranks"), _app(weight=0))


# ---------------------------------------------- what can be known before all training


@pytest.mark.parametrize(
    ("path", "parallel", "failure", "words"),
    [
        ("exact", 1, "missing", r"no 'score'; it has \['num-examples'\]"),
        ("ranks", 2, "missing", r"no 'score'; it has \['num-examples'\]"),
        ("ranks", 16, "missing", r"no 'score'; it has \['num-examples'\]"),
        ("ranks", 4, "a list", "'score' in a reply to evaluate is a list, not a num"),
        ("ranks", 4, "a weight of NaN", "'num-examples' in a reply to evaluate is neg"),
        ("exact", 4, "a negative weight", "'num-examples' in a reply to evaluate is n"),
    ],
)
def test_a_metric_that_no_client_has_is_an_error_at_once(
    path: str,
    parallel: int,
    failure: str,
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before a second round, and before all trials are trained; with few lines."""
    app = _app(_fails_at(EVERYBODY, failure))
    grid = RecordingGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG)
    study = _study(path, Halving(16, (2, 4), parallel=parallel))
    with (
        caplog.at_level(logging.WARNING, "flwr.fbo"),
        pytest.raises(AggregationError, match=words),
    ):
        study.start(_main(), grid, _context())
    num_trials = grid.sends.count("train") * parallel
    assert num_trials == max(2, parallel)
    assert sum("MetricError" in line for line in caplog.messages) <= 4
    assert caplog.text.count("Traceback") <= 1


@pytest.mark.parametrize("value", ["0.9", True, b"1"])
def test_a_metric_that_is_no_number_is_named_with_its_type(value: Any) -> None:
    from flwr_fbo.tuner.site.hidden_metrics import MetricError, number_of

    kind = type(value).__name__
    with pytest.raises(MetricError, match=f"'acc' in a reply to .* is a {kind}, not"):
        number_of({"acc": value}, "acc", "a reply to evaluate")


def test_a_trial_without_the_metric_does_not_end_the_others() -> None:
    """An app may leave out what it cannot compute; the defaults are sent alone."""
    app = _app(_fails_at(EVERYBODY, "missing", rates=[RUN_CONFIG["rate"]]))
    result = _start(_study("exact", Halving(4, (2,), parallel=1)), app)
    assert result.best == {"rate": BEST}


@pytest.mark.parametrize("weight", [math.nan, -1.0, math.inf])
def test_a_bad_weight_in_a_reply_to_train_is_named(weight: float) -> None:
    with pytest.raises(AggregationError, match="'num-examples' in a reply to train"):
        _start(_study("ranks"), _app(weight=weight))


def test_fewer_nodes_than_agents_are_said_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        _start(_study("ranks", num_agents=9), _app())
        assert "num_agents=9, and 6 nodes are connected" in caplog.text
        caplog.clear()
        _start(_study("ranks"), _app())
        _start(_study("exact", num_agents=9), _app())
    assert "are connected" not in caplog.text


# ------------------------------------------------------------------------------ log


@cache
def _lines_of_six_faults(num_clients: int) -> tuple[str, ...]:
    """Return the log of a tuner in whose app six things fail."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend(self.format(record).splitlines())

    def report(client: int, rate: float, metrics: dict[str, Any]) -> None:
        failures = {1: "raised", 2: "missing", 3: "a weight of NaN", 4: "NaN"}
        if client % 6 in failures:
            FAILURES[failures[client % 6]](metrics)

    def learn(client: int, rate: float, w: Any) -> Any:
        if client % 6 == 5:
            raise ValueError(f"cannot read row {rate}")
        return _raises_in_training(client, rate, w)

    handler, flower = Lines(), logging.getLogger("flwr.fbo")
    flower.addHandler(handler)
    try:
        grid = InProcessGrid(_app(report, learn), num_clients, run_config=RUN_CONFIG)
        study = _study("ranks", Halving(8, (1, 2)), num_agents=num_clients)
        study.start(_main(), grid, _context())
    finally:
        flower.removeHandler(handler)
    return tuple(lines)


def test_each_fault_of_an_app_is_told_once_and_counted() -> None:
    lines = _lines_of_six_faults(6)
    raised = [line for line in lines if line == "Traceback (most recent call last):"]
    # Two have a public text that says it all, and the sixth is a score of NaN.
    assert len(raised) == 3
    text = "\n".join(lines)
    for words in (
        "OverflowError: too fast",
        "MetricError: a reply to evaluate has no 'score'",
        "has no finite score in any of the 8 trials of rung 1",
    ):
        assert words in text
    assert "the same fault 9 more times" in text


def test_more_clients_do_not_make_the_log_longer() -> None:
    assert len(_lines_of_six_faults(24)) <= len(_lines_of_six_faults(6)) + 12
