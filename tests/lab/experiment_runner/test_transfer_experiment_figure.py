"""Figures of experiments in which targets learn from agents that have finished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from flwr_fbo.lab.experiment_runner.config import load_experiment
from flwr_fbo.lab.experiment_runner.figure import (
    _figure_of,
    new_figure,
    own_form,
    title_of,
)
from flwr_fbo.lab.experiment_runner.transfer_experiment import TransferExperiment
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun

TOML = """\
name = "transfer"
num_agents = 5
num_targets = 2
num_evaluations = 6
methods = ["alone", "random", "fts", "rgpe", "noise-only"]

[task]
name = "synthetic"
deviation = 0.5
num_exact = 2

[messages]
num_features = 12
"""


LONG = """
[curves.long]
label = "FTS, M = 20"
method = "fts"
num_features = 20
"""
FEW = """
[curves.few]
label = "FTS, N = 3"
method = "fts"
num_agents = 3
"""

Form = Literal["convergence", "lengths", "times", "agents"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "transfer.toml"


def _draw_own_form(axes: Any, experiment: Any, runs: Any) -> None:
    draw_form = own_form(experiment)
    assert draw_form is not None
    draw_form(axes, experiment, runs)


def _plan(file: Path, form: Form, curves: str = "") -> TransferExperiment:
    file.write_text(f'form = "{form}"\n' + TOML + curves)
    loaded = load_experiment(file)
    assert isinstance(loaded, TransferExperiment)
    return loaded


def _played(plan: TransferExperiment) -> list[TuningRun]:
    """Return runs, made up, of two seeds: each method's best value is its place.

    Each takes two targets four seconds more than the one before it.
    """
    return [
        TuningRun(
            method=name,
            seed=seed,
            epsilon=0.0,
            private=False,
            seconds=4.0 * (i + 1),
            best_so_far=[[i / 10] * plan.num_evaluations] * plan.num_targets,
            failed_trials=0,
        )
        for i, name in enumerate(plan.methods)
        for seed in (0, 1)
    ]


def _drawn(plan: TransferExperiment) -> tuple[dict[str, Any], list[str]]:
    """Return the points of lines with bars, and the labels of levels."""
    _, axes = new_figure()
    _draw_own_form(axes, plan, _played(plan))
    points = {bars.get_label(): bars.lines[0].get_xydata() for bars in axes.containers}
    levels = [
        line.get_label() for line in axes.get_lines() if len(line.get_xdata()) == 2
    ]
    return points, levels


def test_a_figure_shows_what_longer_messages_buy(file: Path) -> None:
    plan = _plan(file, "lengths", LONG)
    assert plan.places == {
        "alone": {"alone": 0},
        "random": {"random": 0},
        "fts": {"fts": 12, "long": 20},
        "noise-only": {"noise-only": 12, "long-noise-only": 20},
        "rgpe": {"rgpe": 12 + 12**2},
    }
    points, levels = _drawn(plan)
    values = {name: i / 10 for i, name in enumerate(plan.methods)}
    assert set(points) == {"FTS", "noise-only", "RGPE"}
    expected = [[12, values["fts"]], [20, values["long"]]]
    np.testing.assert_allclose(points["FTS"], expected)
    np.testing.assert_allclose(points["RGPE"], [[12 + 144, values["rgpe"]]])
    assert {"TS: 0.0000", "random: 0.1000"} <= set(levels)
    # Rows do not depend on it.
    assert replace(plan, form="convergence").to_dict() == plan.to_dict()


def test_a_figure_shows_what_more_agents_cost(file: Path) -> None:
    """Four seconds of two targets are two of one."""
    plan = _plan(file, "agents", FEW)
    assert plan.places == {
        "alone": {"alone": 0},
        "random": {"random": 0},
        "fts": {"fts": 5, "few": 3},
        "noise-only": {"noise-only": 5, "few-noise-only": 3},
        "rgpe": {"rgpe": 5},
    }
    points, levels = _drawn(plan)
    seconds = {name: 2.0 * (i + 1) for i, name in enumerate(plan.methods)}
    assert set(points) == {"FTS", "noise-only", "RGPE"}
    expected = [[3, seconds["few"]], [5, seconds["fts"]]]
    np.testing.assert_allclose(points["FTS"], expected)
    np.testing.assert_allclose(points["RGPE"], [[5, seconds["rgpe"]]])
    assert {"TS: 2", "random: 4"} <= set(levels)


def test_a_figure_shows_what_more_time_buys(file: Path) -> None:
    """Of one target: 4 s for two of them, and 6 evaluations."""
    plan = _plan(file, "times")
    _, axes = new_figure()
    _draw_own_form(axes, plan, _played(plan))
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert list(lines) == [
        f"{plan.label_of(name)}: {2 * (i + 1)} s" for i, name in enumerate(plan.methods)
    ]
    # From the first query on, after three initial points.
    np.testing.assert_allclose(lines["TS: 2 s"][:, 0], 2 * np.arange(1, 4) / 3)
    np.testing.assert_allclose(lines["random: 4 s"][:, 1], 0.1)


def test_a_title_says_that_a_curve_is_of_targets(file: Path) -> None:
    plan = _plan(file, "convergence")
    title = "transfer: mean over 2 targets\n2 seeds; band, bar: one standard error"
    assert title_of(plan, _played(plan)) == title
    for form in ("lengths", "times", "agents"):
        plan = _plan(file, form)
        assert _figure_of(plan, _played(plan)).axes[0].get_title() == title


@pytest.mark.parametrize(
    ("form", "curve", "names"),
    [("lengths", LONG, "'fts', 'long'"), ("agents", FEW, "'few', 'fts'")],
)
def test_each_curve_has_a_place_of_its_own(
    file: Path, form: Form, curve: str, names: str
) -> None:
    *_, setting, _ = curve.split("\n")
    with pytest.raises(ValueError, match=rf"curves=\[{names}\] is not allowed"):
        _plan(file, form, curve.replace(setting, "num_observations = 5"))
    no_rgpe = curve.replace('"fts"', '"rgpe"')
    file.write_text(f'form = "{form}"\n' + TOML.replace('"rgpe", ', "") + no_rgpe)
    with pytest.raises(ValueError, match="is not allowed: rgpe, too, beside its cur"):
        load_experiment(file)


def test_an_unknown_form_is_refused(file: Path) -> None:
    file.write_text('form = "length"\n' + TOML)
    with pytest.raises(ValueError, match="form='length' is not allowed"):
        load_experiment(file)
