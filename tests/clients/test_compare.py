"""The default and the tuned setting are compared before training, and once."""

import logging
import math
from collections.abc import Callable, Iterator
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
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import CategoricalDistribution

from flwr_fbo import (
    FederationTuner,
    Halving,
    InProcessGrid,
    add_tuning,
    best_params,
    tuner_mod,
    tuning_app,
    with_tuning,
)
from flwr_fbo._compat import NumPyClient
from flwr_fbo.journal.journal import Journal
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.search.comparison import Comparison
from flwr_fbo.tuning.site.tuning_journals import recorded_comparison
from tests.support.federation import make_objective, numpy_app, strategy

DEFAULT = {"x": 9.0, "C": 1.0, "depth": 3}
BAD, GOOD = 0.403, 0.574


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        yield


def _tuned_context(
    app: ClientApp, folder: Path | None = None, **options: Any
) -> Context:
    """Return the context of one site after a study of it alone."""
    config: UserConfig = {"fbo-folder": str(folder)} if folder else {}
    grid = InProcessGrid(app, 1, run_config=config)
    strategy(num_agents=1, **options).start(grid, num_rounds=3)
    (context,) = grid.contexts.values()
    return context


class Scores:
    """A score of the default and of any other setting, which counts its calls."""

    def __init__(self, default: Any, tuned: Any) -> None:
        self.default, self.tuned = default, tuned
        self.asked: list[Params] = []

    def __call__(self, params: Params) -> float:
        self.asked.append(params)
        value = self.default if params["x"] == DEFAULT["x"] else self.tuned
        if isinstance(value, BaseException):
            raise value
        return value  # type: ignore[no-any-return]


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was said of a comparison."""
    said = [r.getMessage() for r in caplog.records if r.name == "flwr.fbo"]
    return [line for line in said if "held-out data" in line]


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_default_that_scores_better_is_kept_and_said_once(
    in_folder: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = _tuned_context(numpy_app(), tmp_path if in_folder else None)
    score = Scores(GOOD, BAD)
    for _ in range(3):
        assert best_params(context, DEFAULT, compare=score) == DEFAULT
    assert best_params(context, DEFAULT) == DEFAULT  # it is on record
    assert len(score.asked) == 2
    said = "The default is kept: it scores 0.574, the tuned setting scores 0.403."
    assert _lines(caplog) == [f"agent 0, on held-out data: {said}"]
    assert caplog.records[-1].levelno == logging.WARNING


def test_a_comparison_in_a_folder_outlives_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config: UserConfig = {"fbo-folder": str(tmp_path)}
    context, score = _tuned_context(numpy_app(), tmp_path), Scores(GOOD, BAD)
    best_params(context, DEFAULT, compare=score)
    fresh = Context(99, 5, {"partition-id": 0}, RecordDict(), config)
    for _ in range(2):
        assert best_params(fresh, DEFAULT, compare=score) == DEFAULT
    assert len(score.asked) == 2
    first, second = _lines(caplog)  # once in each run's log
    assert first == second
    (path,) = tmp_path.glob("study-*.sqlite")
    with Journal(None, path) as journal:
        comparison = recorded_comparison(journal)
    assert comparison is not None
    assert (comparison.default_score, comparison.tuned_score) == (GOOD, BAD)
    assert comparison.default == DEFAULT


def test_a_tuned_setting_that_scores_better_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    context = _tuned_context(numpy_app())
    tuned = best_params(context, DEFAULT, compare=Scores(BAD, GOOD))
    assert tuned != DEFAULT
    (line,) = _lines(caplog)
    said = "The tuned setting is better: it scores 0.574, the default scores 0.403."
    assert line.startswith(f"agent 0, on held-out data: {said}")
    assert "The average of all sites was not compared" in line
    assert caplog.records[-1].levelno == logging.WARNING


def _tuning_score(context: Context) -> float:
    """Return the value of the best trial, as the site's journal has it."""
    content = context.state.config_records["flwr-fbo-agent"]["journal"]
    assert isinstance(content, bytes)
    with Journal(None, content=content) as journal:
        return max(trial.value for trial in journal.trials())


@pytest.mark.parametrize("uses_tuned", [None, True])
@pytest.mark.parametrize(("lead", "is_chance"), [(0.019, True), (0.021, False)])
def test_a_lead_within_what_one_setting_differs_by_may_be_chance(
    lead: float,
    is_chance: bool,
    uses_tuned: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Said at each site, also where the federation compares averages."""
    context = _tuned_context(numpy_app())
    if uses_tuned is not None:
        context.run_config = {"fbo-tuned": uses_tuned}
    known = _tuning_score(context)
    score = Scores(known - 0.01 - lead, known - 0.01)
    assert best_params(context, DEFAULT, compare=score) != DEFAULT
    (line,) = _lines(caplog)
    said = f"The lead of {lead:.2g} may be chance: in the tuning the same setting"
    assert (said in line) is is_chance
    is_warning = caplog.records[-1].levelno == logging.WARNING
    assert is_warning is (is_chance or uses_tuned is None)


def test_of_leads_that_are_chance_two_in_three_are_named() -> None:
    """With normal noise 0.70 of them: the share of angles with a tangent of 2.

    Of 2000 leads the share has a standard error of 0.01.
    """
    rng, named = np.random.default_rng(0), list[bool]()
    while len(named) < 2000:
        default, tuned, in_tuning = rng.normal(0.5, 0.1, size=3)
        found = Comparison({}, {"x": 1}, default, tuned, "maximize", 1)
        if found.tuned_is_better:
            named.append(found.doubt(in_tuning) != "")
    assert 0.6 < np.mean(named) < 0.8


def _constant_app() -> ClientApp:
    return tuning_app(lambda context: lambda trial: 0.1)


@pytest.mark.parametrize("compare", [None, Scores(BAD, GOOD)])
def test_trials_that_all_score_the_same_say_nothing(
    compare: Scores | None, caplog: pytest.LogCaptureFixture
) -> None:
    """As a model does that always predicts the largest class."""
    context = _tuned_context(_constant_app())
    best_params(context, DEFAULT, compare=compare)
    (line,) = _lines(caplog)
    assert "All 6 trials of the tuning scored 0.1" in line
    assert "may be chance" not in line
    assert caplog.records[-1].levelno == logging.WARNING


@pytest.mark.parametrize(
    ("uses_tuned", "compare"), [(False, Scores(BAD, GOOD)), (True, None)]
)
def test_a_federation_that_compares_averages_decides_and_no_site_warns(
    uses_tuned: bool, compare: Scores | None, caplog: pytest.LogCaptureFixture
) -> None:
    context = _tuned_context(numpy_app())
    context.run_config = {"fbo-tuned": uses_tuned}
    best = best_params(context, DEFAULT, compare=compare)
    assert (best == DEFAULT) is not uses_tuned
    assert "was not compared" not in caplog.text


def test_the_direction_of_the_study_decides() -> None:
    context = _tuned_context(numpy_app(), direction="minimize")
    assert best_params(context, DEFAULT, compare=Scores(BAD, GOOD)) == DEFAULT
    context = _tuned_context(numpy_app(), direction="minimize")
    assert best_params(context, DEFAULT, compare=Scores(GOOD, BAD)) != DEFAULT


@pytest.mark.parametrize(
    ("default", "tuned", "keeps", "said"),
    [
        (0.5, 0.5, True, "it scores 0.5, as does the tuned setting."),
        (0.5, (0.9, 1), True, "the tuned setting could not be scored."),
        (math.nan, 0.1, False, "it scores 0.1, the default could not be scored."),
        (OSError("gone"), 0.1, False, "the default could not be scored."),
        (OSError("gone"), OSError("gone"), True, "it could not be scored, the tuned"),
    ],
)
def test_ties_and_failed_scores(
    default: Any,
    tuned: Any,
    keeps: bool,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    context, score = _tuned_context(numpy_app()), Scores(default, tuned)
    for _ in range(2):
        best = best_params(context, DEFAULT, compare=score)
        assert (best == DEFAULT) is keeps
    assert len(score.asked) == 2
    (line,) = _lines(caplog)
    assert said in line
    level = logging.INFO if default == tuned == 0.5 else logging.WARNING
    assert [r.levelno for r in caplog.records if r.getMessage() == line] == [level]
    failures = [str(v) for v in (default, tuned) if isinstance(v, OSError)]
    assert caplog.text.count("OSError: gone") == len(failures)


def test_failed_scores_are_tried_again_in_another_run(tmp_path: Path) -> None:
    context = _tuned_context(numpy_app(), tmp_path)
    assert best_params(context, DEFAULT, compare=Scores(0.5, math.nan)) == DEFAULT
    fresh = Context(99, 5, context.node_config, RecordDict(), context.run_config)
    assert best_params(fresh, DEFAULT, compare=Scores(0.5, 0.6)) != DEFAULT


def test_it_is_made_again_when_either_setting_has_changed() -> None:
    app, score = numpy_app(), Scores(GOOD, BAD)
    grid = InProcessGrid(app, 1)
    study = strategy(num_agents=1)
    study.start(grid, num_rounds=2)
    (context,) = grid.contexts.values()
    first = best_params(context, DEFAULT)
    best_params(context, DEFAULT, compare=score)
    other = {**DEFAULT, "depth": 4}
    assert best_params(context, other, compare=score) == other
    assert len(score.asked) == 4
    strategy(num_agents=1, study_seed=3).start(grid, num_rounds=2)
    assert best_params(context, other) != first != other
    best_params(context, other, compare=score)
    assert len(score.asked) == 6


def test_without_trials_there_is_nothing_to_compare(
    caplog: pytest.LogCaptureFixture,
) -> None:
    score = Scores(GOOD, BAD)
    fresh = Context(1, 1, {"partition-id": 0}, RecordDict(), {})
    assert best_params(fresh, DEFAULT, compare=score) == DEFAULT
    assert score.asked == [] == _lines(caplog)


def test_a_setting_that_is_no_json_can_be_a_default() -> None:
    default = {"x": 9.0, "layers": (3, np.int64(2)), "kind": float}
    context, score = _tuned_context(numpy_app()), Scores(GOOD, BAD)
    for _ in range(2):
        assert best_params(context, default, compare=score) == default
    assert len(score.asked) == 2


class Trainer(NumPyClient):
    """An app's own client, made with a setting."""

    used: list[Params]

    def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
        return parameters, 1, {}


def _numpy_app(used: list[Params], **options: Any) -> ClientApp:
    def client_fn(context: Context) -> Any:
        used.append(best_params(context, DEFAULT))
        return Trainer().to_client()

    options = {"compare": None, **options}
    return ClientApp(client_fn=with_tuning(client_fn, make_objective, **options))


def _message_app(used: list[Params], **options: Any) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        used.append(best_params(context, DEFAULT))
        return Message(RecordDict({"m": MetricRecord({"a": 1})}), reply_to=message)

    return add_tuning(app, make_objective, **{"compare": None, **options})


APPS: list[tuple[Callable[..., ClientApp], Any]] = [
    (_numpy_app, "both"),
    (_message_app, "action"),
]


def _train(app: ClientApp, context: Context) -> None:
    arrays, config = ArrayRecord({"0": Array(np.zeros(1))}), ConfigRecord()
    record = RecordDict({"fitins.parameters": arrays, "fitins.config": config})
    app(Message(record, context.node_id, "train"), context)


@pytest.mark.parametrize(("make", "client_api"), APPS)
def test_an_app_compares_before_it_trains(
    make: Callable[..., ClientApp], client_api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[Params] = []
    score = Scores(GOOD, BAD)
    app = make(used, compare=lambda context: (DEFAULT, score))
    context = _tuned_context(app, client_api=client_api)
    assert score.asked == []  # nothing of it in the tuning stage
    for _ in range(3):
        _train(app, context)
    assert used == [DEFAULT] * 3
    assert len(score.asked) == 2
    (line,) = _lines(caplog)
    assert "The default is kept" in line


@pytest.mark.parametrize(("make", "client_api"), APPS)
def test_an_app_that_does_not_compare_warns_once(
    make: Callable[..., ClientApp], client_api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    used: list[Params] = []
    app = make(used)
    context = _tuned_context(app, client_api=client_api)
    for _ in range(3):
        _train(app, context)
    assert used[0] != DEFAULT
    (line,) = _lines(caplog)
    assert "was not compared with the default" in line
    levels = {r.levelno for r in caplog.records if r.getMessage() == line}
    assert levels == {logging.WARNING}


@pytest.mark.parametrize(("wanted", "stays"), [(DEFAULT["x"], True), (0.0, False)])
def test_the_federation_tuner_compares_the_averages(
    wanted: float, stays: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each site prefers its own setting; the average decides which is used."""
    app = _averaging_app(wanted)
    run_config: UserConfig = {"fbo-tuned": False}
    grid = InProcessGrid(app, 3, run_config=run_config)
    strategy(num_agents=3, client_api="action").start(grid, num_rounds=3)
    averages: list[float] = []

    def main(grid: Any, context: Context) -> None:
        arrays = ArrayRecord({"0": Array(np.zeros(1))})
        result = FedAvg().start(grid, arrays, num_rounds=1)
        averages.append(float(result.arrays["0"].numpy()[0]))

    tuner = FederationTuner(
        {"fbo-tuned": CategoricalDistribution([False, True])},
        "score",
        "maximize",
        3,
        schedule=Halving(2, (1,)),
        privacy=None,
        enqueue=[{"fbo-tuned": True}],
    )
    result = tuner.start(main, grid, Context(1, 1, {}, RecordDict(), run_config))
    assert result.defaults_stayed_best is stays
    main(*result.apply(grid, Context(1, 1, {}, RecordDict(), run_config)))
    assert (averages[-1] == DEFAULT["x"]) is stays
    assert "The tuned setting is better" in caplog.text
    assert "was not compared" not in caplog.text


def _averaging_app(wanted: float) -> ClientApp:
    """Return an app that averages its settings, and wants the average to be there."""
    app = ClientApp(mods=[tuner_mod])

    def reply(message: Message, arrays: ArrayRecord, **metrics: float) -> Message:
        record = MetricRecord({"num-examples": 1, **metrics})
        content = RecordDict({"arrays": arrays, "metrics": record})
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x = float(best_params(context, DEFAULT)["x"])
        return reply(message, ArrayRecord({"0": Array(np.array([x]))}))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        score = -abs(float(arrays["0"].numpy()[0]) - wanted)
        return reply(message, arrays, score=score)

    def compare(context: Context) -> tuple[Params, Scores]:
        return DEFAULT, Scores(BAD, GOOD)

    return add_tuning(app, make_objective, compare=compare)


def test_misuse_is_named() -> None:
    context = _tuned_context(numpy_app())
    with pytest.raises(ValueError, match=r"compare=0\.5"):
        best_params(context, DEFAULT, compare=0.5)  # type: ignore[arg-type]
    context.run_config = {"fbo-tuned": "yes"}
    with pytest.raises(ValueError, match="fbo-tuned='yes'"):
        best_params(context, DEFAULT)
    for make, _ in APPS:
        with pytest.raises(ValueError, match="compare=3"):
            make([], compare=3)
        app = make([], compare=lambda context: 0.5)
        with pytest.raises(ValueError, match=r"what compare returned=0\.5.* a pair"):
            _train(app, context)
