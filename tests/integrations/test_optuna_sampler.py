"""Plain Optuna code around a federated agent."""

import math
import pickle
import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.testing import pytest_samplers
from optuna.trial import TrialState

from flwr_fbo import InProcessGrid
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.integrations import FederatedSampler
from flwr_fbo.integrations.optuna_export import export_journal
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning import FedVoteSettings, FedWarmStartSettings
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.agent import Agent, play_round
from flwr_fbo.tuning.search.optuna_trials import POINT
from flwr_fbo.tuning.search.study import TuningStudy, create_agent
from flwr_fbo.tuning.search.trial import Objective
from tests.support.federation import AGENT, SPACE, numpy_app, objective_of, strategy

optuna.logging.set_verbosity(optuna.logging.ERROR)

NUM_TRIALS = 14
FEW = DPFTSDESettings(
    num_initial=2, num_features=10, num_candidates=20, num_starts=2, num_sub_regions=1
)


def agent_for(
    space: dict[str, BaseDistribution],
    direction: Any = "minimize",
    settings: DPFTSDESettings | FedVoteSettings = FEW,
) -> Agent:
    study = TuningStudy(SearchSpace(space), direction, settings, 1, 2, "x")
    return create_agent(study, slot=2, entropy=7)


class _Recorder:
    """What an objective would declare."""

    def __init__(self) -> None:
        self.space: dict[str, BaseDistribution] = {}

    def suggest_float(self, name: str, low: float, high: float, **more: Any) -> float:
        self.space[name] = FloatDistribution(low, high, **more)
        return low

    def suggest_int(self, name: str, low: int, high: int, **more: Any) -> int:
        self.space[name] = IntDistribution(low, high, **more)
        return low

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.space[name] = CategoricalDistribution(choices)
        return choices[0]


# The spaces of the conformance tests that have one of their own.
_FIXED_SPACES: dict[str, dict[str, BaseDistribution]] = {
    "test_nan_objective_value": {"x": FloatDistribution(0.1, 0.2)},
    "test_partial_fixed_sampling": {
        "x": FloatDistribution(-1, 1),
        "y": IntDistribution(-1, 1),
        "z": FloatDistribution(-1, 1),
    },
    "test_conditional_parameter_objective": {
        "x": CategoricalDistribution([True, False]),
        "y": FloatDistribution(0, 1),
        "z": FloatDistribution(0, 1),
    },
    "test_dynamic_range_objective": {
        "x": FloatDistribution(0, 10),
        "y": IntDistribution(0, 10),
    },
    "test_sample_relative_categorical": {
        "x": CategoricalDistribution([1, 10, 100]),
        "y": CategoricalDistribution([-1, -10, -100]),
    },
    "test_trial_relative_params": {
        "x": FloatDistribution(-10, 10),
        "y": FloatDistribution(-10, 10),
    },
}


class Conforming:
    """The agent has the space of the conformance test; the server owns it in a study.

    Tests of nothing but independent sampling get a space of other names.
    """

    @pytest.fixture
    def sampler(self, request: pytest.FixtureRequest) -> Callable[[], FederatedSampler]:
        name = request.node.originalname
        given = getattr(request.node, "callspec", None)
        recorder = _Recorder()
        for key, value in sorted(given.params.items() if given else ()):
            if key.startswith("suggest_method_"):
                value(recorder)
            elif key in ("x_distribution", "y_distribution"):
                recorder.space[key[0]] = value
        if name == "test_sample_relative_mixed":
            recorder.space["y"] = CategoricalDistribution([-1, -10, -100])
        space = recorder.space or _FIXED_SPACES.get(name, {})
        other: dict[str, BaseDistribution] = {"other": FloatDistribution(0, 1)}
        return lambda: FederatedSampler(agent_for(space or other))


class TestBasic(Conforming, pytest_samplers.BasicSamplerTestCase):
    """Optuna's published tests; so are the next two."""


class TestRelative(Conforming, pytest_samplers.RelativeSamplerTestCase):
    pass


class TestSingleOnly(Conforming, pytest_samplers.SingleOnlySamplerTestCase):
    pass


def _objective(trial: Any) -> float:
    x = trial.suggest_float("x", -1.0, 1.0)
    c = trial.suggest_float("C", 1e-3, 1e3, log=True)
    depth = trial.suggest_int("depth", 1, 9)
    if depth == 5:
        raise optuna.TrialPruned
    return float(-((x - 0.3) ** 2) - 0.1 * np.log10(c) ** 2 - 0.01 * depth)


def _vectors(iteration: int) -> np.ndarray:
    return np.random.default_rng(iteration).standard_normal((4, 30))


def _client_path(agent: Agent, objective: Objective) -> None:
    for iteration in range(NUM_TRIALS - AGENT.num_initial + 1):
        vectors = _vectors(iteration) if iteration else None
        play_round(agent, objective, iteration, vectors, send_message=False)


@pytest.mark.parametrize("storage", [False, True])
def test_suggestions_equal_the_clients(tmp_path: Path, storage: bool) -> None:
    """Also when each trial is asked for by a fresh process's sampler, but for state."""
    client = agent_for(SPACE, "maximize", AGENT)
    _client_path(client, _objective)
    sampler = FederatedSampler(agent_for(SPACE, "maximize", AGENT))
    url = f"sqlite:///{tmp_path}/optuna.db" if storage else None
    study = optuna.create_study(sampler=sampler, direction="maximize", storage=url)
    for number in range(NUM_TRIALS):
        if number >= AGENT.num_initial:
            sampler.agent.receive(_vectors(number - AGENT.num_initial + 1))
        study.optimize(_objective, n_trials=1)
    assert [t.params for t in study.trials] == [
        client.space.from_unit(point) for point in client.points
    ]
    values = [math.nan if t.value is None else t.value for t in study.trials]
    np.testing.assert_array_equal(values, client.values)
    assert 0 < sum(t.state == TrialState.PRUNED for t in study.trials) < NUM_TRIALS


def test_a_pickled_sampler_goes_on() -> None:
    def run(stops: bool) -> list[Any]:
        sampler = FederatedSampler(agent_for(SPACE, "maximize", AGENT))
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.optimize(_objective, n_trials=8)
        if stops:
            study.sampler = pickle.loads(pickle.dumps(study.sampler))
        study.optimize(_objective, n_trials=4)
        return [trial.params for trial in study.trials]

    assert run(stops=True) == run(stops=False)


@pytest.mark.parametrize("settings", [AGENT, FedVoteSettings(num_features=20)])
def test_another_study_begins_without_the_fit_of_the_last(settings: Any) -> None:

    def settings_tried(sampler: FederatedSampler) -> list[Any]:
        study = optuna.create_study(sampler=sampler, direction="maximize")
        study.optimize(_objective, n_trials=NUM_TRIALS)
        return [trial.params for trial in study.trials]

    sampler, fresh = (
        FederatedSampler(agent_for(SPACE, "maximize", settings)) for _ in range(2)
    )
    flat = optuna.create_study(sampler=sampler, direction="maximize")
    flat.optimize(lambda trial: 0.0 * _objective(trial), n_trials=2 * NUM_TRIALS)
    assert settings_tried(sampler) == settings_tried(fresh)


def test_a_sampler_from_a_journal_goes_on_where_the_client_would(
    tmp_path: Path,
) -> None:
    grid = InProcessGrid(numpy_app(), 4, run_config={"fbo-folder": str(tmp_path)})
    federation = strategy()
    federation.start(grid, num_rounds=4)
    agent = grid.agents(federation.study)[2]
    (path,) = tmp_path.glob("*-agent-2.sqlite")
    study = export_journal(path, f"sqlite:///{tmp_path}/optuna.db")
    expected = deepcopy(agent).ask(4)[0]
    study.sampler = FederatedSampler.from_journal(path)
    objective = objective_of(2)
    study.optimize(
        lambda t: objective(
            {
                "x": t.suggest_float("x", -1.0, 1.0),
                "C": t.suggest_float("C", 1e-3, 1e3, log=True),
                "depth": t.suggest_int("depth", 1, 9),
            }
        ),
        n_trials=2,
    )
    assert study.trials[7].params == agent.space.from_unit(expected)
    assert study.trials[8].system_attrs["flwr-fbo:iteration"] == 5
    # The federation goes on; what is new comes after the sampler's own trials.
    with Journal(None, path) as own:
        number = own.begin_trial(
            9, study.trials[0].params, agent.points[0], "own search"
        )
        own.end_trial(number, 0.25)
    assert number == 7
    again = export_journal(path, f"sqlite:///{tmp_path}/optuna.db")
    assert len(again.trials) == 10
    assert again.trials[9].value == 0.25


def test_a_parameter_that_a_trial_does_not_use_is_remembered() -> None:
    space: dict[str, BaseDistribution] = {
        "kind": CategoricalDistribution(["a", "b"]),
        "x": FloatDistribution(0, 1),
    }
    sampler = FederatedSampler(agent_for(space, "maximize"))
    study = optuna.create_study(sampler=sampler, direction="maximize")

    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":
            return 0.5
        return trial.suggest_float("x", 0, 1)

    study.optimize(objective, n_trials=12)
    assert {len(trial.params) for trial in study.trials} == {1, 2}
    study.ask(space)  # tells the agent all that is finished
    assert len(sampler.agent.values) == 12


def test_trials_of_strangers_are_used_where_they_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    space: dict[str, BaseDistribution] = {"x": FloatDistribution(0, 1)}
    sampler = FederatedSampler(agent_for(space, "maximize"))
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.enqueue_trial({"x": 0.25})
    study.add_trial(
        optuna.create_trial(
            params={"x": 7.0}, distributions={"x": FloatDistribution(0, 9)}, value=1.0
        )
    )
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=4)
    assert "trial 1 is not used: params['x']=7.0" in caplog.text
    assert caplog.text.count("is not used") == 1
    used = [agent_x[0] for agent_x in sampler.agent.points]
    assert used[0] == 0.25
    assert len(used) == 3


def test_trials_may_be_asked_for_before_any_is_told() -> None:
    sampler = FederatedSampler(agent_for(SPACE, "maximize"))
    study = optuna.create_study(sampler=sampler, direction="maximize")
    asked = [study.ask(SPACE).params for _ in range(5)]
    assert len({str(params) for params in asked}) == 5


METHODS = [FEW, FedVoteSettings(), FedWarmStartSettings()]


@pytest.mark.parametrize("settings", METHODS, ids=lambda one: type(one).__name__)
def test_trials_that_run_at_once_are_in_different_places(settings: Any) -> None:
    sampler = FederatedSampler(agent_for(SPACE, "maximize", settings))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    together = threading.Barrier(4)

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -1, 1)
        together.wait(60)  # none ends before four have begun
        if trial.number % 5 == 0:
            raise ArithmeticError
        return -abs(x - 0.3)

    study.optimize(objective, n_trials=12, n_jobs=4, catch=(ArithmeticError,))
    points = [trial.system_attrs[POINT] for trial in study.trials]
    assert len(np.unique(points, axis=0)) == 12
    states = [trial.state for trial in study.trials]
    assert states.count(TrialState.FAIL) == 3
    assert states.count(TrialState.COMPLETE) == 9


@pytest.mark.parametrize("settings", METHODS)
def test_processes_that_ask_at_once_choose_different_settings(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither knows of the other's trial when it chooses."""
    space: dict[str, BaseDistribution] = {"n": IntDistribution(1, 6)}
    first = agent_for(space, settings=settings).first_points()[:1]
    study = optuna.create_study()
    chosen = []
    for _ in range(6):
        sampler = FederatedSampler(agent_for(space, settings=settings))
        # It was told of the finished trials only, of which there are none.
        monkeypatch.setattr(sampler, "_tell", lambda *_: (0, set()))
        monkeypatch.setattr(sampler.agent, "first_points", lambda: first.repeat(9, 0))
        monkeypatch.setattr(sampler.agent, "suggest", lambda _: first[0])
        study.sampler = sampler
        chosen.append(study.ask().suggest_int("n", 1, 6))
    assert sorted(chosen) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("settings", METHODS, ids=lambda one: type(one).__name__)
def test_a_trial_that_still_runs_counts_as_a_failed_one(settings: Any) -> None:
    """Also one of a process that is gone."""
    points = []
    for ended in (True, False):
        sampler = FederatedSampler(agent_for(SPACE, "maximize", settings))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for k in range(6):
            trial = study.ask(SPACE)
            if k != 4:
                study.tell(trial, trial.params["x"])
            elif ended:
                study.tell(trial, state=TrialState.FAIL)
        points.append([trial.system_attrs[POINT] for trial in study.trials])
    assert points[0] == points[1]


@pytest.mark.parametrize("settings", METHODS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("num_failed", [1, 3, 8])
def test_first_trials_may_fail_before_they_ask(settings: Any, num_failed: int) -> None:
    sampler = FederatedSampler(agent_for(SPACE, "maximize", settings))
    study = optuna.create_study(direction="maximize", sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        if trial.number < num_failed:
            raise ZeroDivisionError
        return -abs(trial.suggest_float("x", -1, 1) - 0.3)

    study.optimize(objective, n_trials=num_failed + 4, catch=(ZeroDivisionError,))
    points = [trial.system_attrs[POINT] for trial in study.trials[num_failed:]]
    assert len(np.unique(points, axis=0)) == 4


def test_a_trial_that_has_ended_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = FederatedSampler(agent_for(SPACE))
    study = optuna.create_study(sampler=sampler)
    study.optimize(_objective, n_trials=6)
    read: list[Any] = []
    to_unit = SearchSpace.to_unit

    def reading(space: SearchSpace, params: Any, *field: str) -> FloatArray:
        read.append(params)
        return to_unit(space, params, *field)

    monkeypatch.setattr(SearchSpace, "to_unit", reading)
    ended = [trial.params for trial in study.trials]
    study.ask().suggest_float("x", -1, 1)
    assert [params for params in ended if params in read] == ended[-1:]


def test_another_direction_is_refused() -> None:
    sampler = FederatedSampler(agent_for(SPACE, "maximize"))
    study = optuna.create_study(sampler=sampler, direction="minimize")
    with pytest.raises(ValueError, match=r"directions=\['minimize'\]"):
        study.ask(SPACE)


def test_a_sampler_makes_no_journal(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.sqlite"
    with pytest.raises(JournalError, match="There is no journal"):
        FederatedSampler.from_journal(missing)
    assert not missing.exists()
