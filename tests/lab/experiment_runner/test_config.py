"""The file of an experiment: what it says, and typos in it."""

from dataclasses import replace
from pathlib import Path

import pytest

from flwr_fbo.lab.experiment_runner.config import (
    builtin_experiments,
    experiment_of,
    load_experiment,
)
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    NonlinearBanditExperiment,
)
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    TuningExperiment,
    TuningPrivacy,
    run_one,
    usual_methods,
)
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from tests.support.experiments import LEAN, TOML, written


def test_an_experiment_is_a_toml(tmp_path: Path) -> None:
    experiment = load_experiment(written(tmp_path / "mine.toml", TOML))
    assert isinstance(experiment, TuningExperiment)
    assert experiment.task == SyntheticTask(alpha=0.5)
    assert experiment.privacy == TuningPrivacy(
        1e-3, noise_multiplier=1.0, sampling_probability=0.35
    )
    assert experiment.methods == usual_methods(experiment)
    assert experiment_of(experiment.to_dict()) == replace(experiment, num_seeds=5)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"synthetic"', '"syntetic"', "name='syntetic' .*did you mean 'synth"),
        ("num_agents = 4", "num_agents = 0", "num_agents=0 is not allowed"),
        ("num_agents = 4", "", "num_agents is missing"),
        ('name = "synthetic"', "", "task.name is missing: one of"),
        ("delta = 1e-3", "delta = nan", "delta=nan is not allowed"),
        ("alpha = 0.5", "noisy = true", r"task.noisy is not known: one of \['alpha'"),
        (
            "num_seeds = 2",
            'methods = ["alon"]',
            "methods='alon' .*did you mean 'alone'",
        ),
        (
            "num_seeds = 2",
            'methods = ["private", "alone"]',
            r"private beside its controls: \['noise-only', 'random'\] missing",
        ),
        ('"mine"', '"../mine"', "name='../mine' is not allowed"),
        ("[task]", "[task", "is no TOML: .*line 8"),
    ],
)
def test_a_typo_in_a_toml_is_named(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in TOML
    path = written(tmp_path / "mine.toml", TOML.replace(old, new))
    with pytest.raises(ValueError, match=words) as error:
        load_experiment(path)
    assert str(path) in str(error.value)


def test_built_in_experiments_are_complete() -> None:
    for name, path in builtin_experiments().items():
        experiment = load_experiment(path)
        assert experiment.name == name
        assert 0 < len(experiment.description) < 80
        controls = {"random", "alone", "private", "noise-only"}
        if isinstance(experiment, TuningExperiment) and experiment.base.agent.is_lean:
            assert experiment.num_evaluations == 30
            if experiment.list_first:
                controls |= {"list", "blind"}
                assert len(experiment.methods) == 6
            elif "liars" not in experiment.methods:
                controls |= {"open", "blind", "portfolio", "random-start"}
        if isinstance(experiment, BanditExperiment):
            controls = {"independent", "fed-ucb", "noise-only"}
        elif isinstance(experiment, NonlinearBanditExperiment):
            controls = {"random", "n-go-ucb", "fed-go-ucb", "no-phase-one"}
        assert set(experiment.methods) >= controls


def test_an_experiment_may_name_its_epsilon() -> None:
    run = run_one(LEAN, "private", 0)
    assert 1.9 < run.epsilon <= 2.0
    with pytest.raises(ValueError, match=r"epsilon=2\.0 is not allowed: None where"):
        TuningPrivacy(1e-3, noise_multiplier=1.0, epsilon=2.0)
    with pytest.raises(ValueError, match="noise_multiplier=None is not allowed"):
        TuningPrivacy(1e-3)
