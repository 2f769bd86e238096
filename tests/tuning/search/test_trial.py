"""What a user writes: Optuna's suggest_*, plain dicts, limits, known-good settings."""

import math
from typing import Any

import numpy as np
import optuna
import pytest
from flwr.app import Context
from flwr.serverapp.exception import AggregationError

from flwr_fbo import InProcessGrid, tuning_app
from flwr_fbo.study.codec import StudyMismatchError
from flwr_fbo.tuning.search.agent import play_round
from flwr_fbo.tuning.search.trial import Trial
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    assert_same,
    make_objective,
    numpy_app,
    objective_of,
    run,
    strategy,
)

PARAMS = {"x": 0.5, "C": 1.0, "depth": 3}


def suggesting(trial: Trial) -> float:
    """The objective of client 0 in Optuna's words."""
    x = trial.suggest_float("x", -1.0, 1.0)
    log_c = np.log10(trial.suggest_float("C", 1e-3, 1e3, log=True))
    depth = trial.suggest_int("depth", 1, 9)
    return float(-(x**2) - 0.1 * log_c**2 - 0.01 * depth)


def test_optuna_objectives_run_unchanged() -> None:
    study = optuna.create_study(direction="maximize")
    study.enqueue_trial(PARAMS)
    study.optimize(suggesting, n_trials=1)  # type: ignore[arg-type]
    assert study.best_value == suggesting(Trial(PARAMS, SPACE))


def test_suggesting_and_reading_give_the_same_study() -> None:
    def mixed(context: Context) -> Any:
        if context.node_config["partition-id"] == 0:
            return suggesting
        return make_objective(context)

    _, agents = run(numpy_app(), num_rounds=3)
    _, others = run(tuning_app(mixed), num_rounds=3)
    assert_same(agents, others)


def test_a_trial_is_a_dict_and_more() -> None:
    choices = optuna.distributions.CategoricalDistribution(["a", None])
    trial = Trial({"k": None, "unused": 1}, {"k": choices})
    assert trial.suggest_categorical("k", ["a", None]) is None
    assert dict(**trial) == trial.params == {"k": None, "unused": 1}
    trial.report(0.5, step=1)
    assert trial.should_prune() is False
    trial.set_user_attr("note", 1)
    assert trial.user_attrs == {"note": 1}


ASKS: list[tuple[Any, str]] = [
    (lambda t: t.suggest_float("gamma", 0, 1), "does not declare"),
    (lambda t: t.suggest_float("x", -1.0, 2.0), "the study declares"),
    (lambda t: t.suggest_int("x", -1, 1), "the study declares"),
    (lambda t: t.study, "asks for trial.study, which"),
    (lambda t: t["gamma"], "does not declare: its space has"),
]


def test_another_space_is_the_apps_fault_and_no_failed_trial() -> None:
    for ask, words in ASKS:
        with pytest.raises(StudyMismatchError, match=words):
            ask(Trial(PARAMS, SPACE))

    def make(context: Context) -> Any:
        return ASKS[0][0] if context.node_config["partition-id"] == 1 else suggesting

    _, agents = run(tuning_app(make), num_rounds=2)
    lengths = [len(agent.values) for agent in agents]
    assert lengths == [5, 0, 5, 5]  # an error of the client, not of a trial


def test_a_pruned_trial_is_a_failed_one() -> None:
    def make(context: Context) -> Any:
        def objective(trial: Trial) -> float:
            if trial["x"] < 0:
                raise optuna.TrialPruned
            return objective_of(0)(trial)

        return objective

    _, agents = run(numpy_app(make), num_rounds=3)
    for agent in agents:
        for point, value in zip(agent.points, agent.values, strict=True):
            assert math.isnan(value) == (agent.space.from_unit(point)["x"] < 0)


def test_known_good_settings_come_first() -> None:
    good = [{"x": 0.1, "C": 250.0, "depth": 7}, {"x": -0.3, "C": 0.004, "depth": 1}]
    _, plain = run(numpy_app(), num_rounds=2)
    _, agents = run(tuning_app(make_objective, enqueue=good), num_rounds=2)
    for agent, other in zip(agents, plain, strict=True):
        first = [agent.space.from_unit(point) for point in agent.points[:2]]
        assert first == good
        np.testing.assert_array_equal(agent.points[2:6], other.points[:4])
        assert len(agent.points) == len(other.points) + 2


def test_a_known_good_setting_outside_the_space_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the site; what the server hears does not quote it."""
    bad = [{"x": 0.1, "C": 1e9, "depth": 7}]
    with pytest.raises(
        AggregationError, match=r"enqueue\[0\] does not fit the study's space"
    ):
        run(tuning_app(make_objective, enqueue=bad))
    assert "enqueue[0]: params['C']=1000000000.0" in caplog.text  # at the site


def test_a_client_may_declare_what_it_is_made_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"direction": "minimize"}, "declares direction='minimize', the study has"),
        ({"space": {"x": SPACE["x"]}}, "This client declares the space"),
    ]
    for declared, words in wrongs:
        (field,) = declared
        with pytest.raises(AggregationError, match=f"declares another {field} than"):
            run(tuning_app(make_objective, **declared))
        assert words in caplog.text  # at the site
    fitting: dict[str, Any] = {"direction": "maximize", "space": SPACE}
    _, agents = run(tuning_app(make_objective, **fitting), num_rounds=2)
    assert all(len(agent.values) == 5 for agent in agents)


def test_declarations_are_checked_at_once() -> None:
    with pytest.raises(ValueError, match="direction='up'"):
        tuning_app(make_objective, direction="up")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"space=\{\}"):
        tuning_app(make_objective, space={})


def test_the_server_is_not_told_what_the_site_s_code_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def make(context: Context) -> Any:
        if context.node_config["partition-id"] == 1:
            raise ValueError("could not convert 'Doe, Jane'")
        return objective_of(0)

    told: list[str | None] = []

    class Noting(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            replies = list(super().pull_messages(message_ids))
            told.extend(r.error.reason for r in replies if r.has_error())
            return replies

    strategy().start(Noting(tuning_app(make), NUM_AGENTS), num_rounds=2)
    assert len(told) == 2
    for reason in told:
        assert "make_objective failed: ValueError" in str(reason)
        assert "Jane" not in str(reason)
    assert "Jane" in caplog.text  # at the site


def test_what_is_no_objective_is_no_failed_trial() -> None:
    def make(context: Context) -> Any:
        return None if context.node_config["partition-id"] == 1 else objective_of(0)

    _, agents = run(tuning_app(make), num_rounds=2)
    assert [len(agent.values) for agent in agents] == [5, 0, 5, 5]


def test_trials_are_numbered() -> None:
    numbers = []

    def objective(trial: Trial) -> float:
        numbers.append(trial.number)
        return 0.5

    agent = run(numpy_app(), num_rounds=2)[1][0]
    fresh = type(agent).__new__(type(agent))
    fresh.__dict__.update(agent.__dict__)
    play_round(fresh, objective, 6, None, send_message=False)
    assert numbers == [len(agent.values) - 1]
