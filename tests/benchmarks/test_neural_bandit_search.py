"""The search for constants writes what it has found into the figure's file."""

import shutil
from pathlib import Path

from benchmarks.neural_bandit_search import HEADING, write_constants
from flwr_fbo.lab.experiment_runner.config import load_experiment
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    NonlinearBanditExperiment,
)

FIGURE = Path(__file__).parents[2] / "experiments/fed-go-ucb/fig2-hartmann.toml"
BEST = {
    "settings.ridge": 1e-6,
    "settings.regression.num_iterations": 300,
    "linear.threshold": 1.5,
    "glm.reward_range": [0.0, 3.4],
    "glm.curvature": 0.2,
}


def _loaded(path: Path) -> NonlinearBanditExperiment:
    experiment = load_experiment(path)
    assert isinstance(experiment, NonlinearBanditExperiment)
    return experiment


def test_constants_are_written_and_replaced(tmp_path: Path) -> None:
    path = Path(shutil.copy(FIGURE, tmp_path))
    before = _loaded(path)
    write_constants(path, BEST)
    after = _loaded(path)
    assert (after.settings.ridge, after.linear.threshold) == (1e-6, 1.5)
    assert after.settings.regression.num_iterations == 300
    assert (after.glm.reward_range, after.glm.curvature) == ((0.0, 3.4), 0.2)
    # What has no range stays, and so does the rest of the file.
    assert after.settings.regression.start == "zero"
    assert after.settings.num_refinements == before.settings.num_refinements
    assert (after.task, after.claims) == (before.task, before.claims)
    assert path.read_text().count(HEADING) == 1
    text = path.read_text()
    write_constants(path, BEST)
    assert path.read_text() == text
    # The identity link has no range of rewards.
    write_constants(path, {"glm.reward_range": None, "glm.curvature": 1.0})
    assert _loaded(path).glm.reward_range is None
