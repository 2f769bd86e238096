"""Names in any script are told apart in pictures, and matplotlib warns of nothing."""

import doctest
import re
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib import mathtext, rcParams

from flwr_fbo._common import pictures
from flwr_fbo._common.pictures import drawable, fonts_for, in_legend, spelt
from flwr_fbo.lab.experiment_runner.config import load_experiment
from flwr_fbo.lab.experiment_runner.figure import draw
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment, run_one
from flwr_fbo.study.report.charts import all_short, chart, short

# Its import warns, where Matplotlib is older than a package beneath it.
assert mathtext
pytestmark = pytest.mark.filterwarnings("error")

# Not in DejaVu Sans, and in a font that comes with matplotlib.
SCRIPT_A, ITS_FONT = "\U0001d49c", "STIXGeneral"
NAMES = [
    "学習率",
    "正則化",
    "معدل",
    "שיעור",
    "दर",
    "🚀",
    "x" * 300,
    "$a$",
    "_lr",
    "a_b",
]


def test_a_font_of_this_machine_is_used_where_it_has_the_letters() -> None:
    before = list(rcParams["font.family"])
    assert spelt(SCRIPT_A) == "[U+1D49C]"
    with fonts_for(f"A {SCRIPT_A}") as fonts:
        assert fonts == [ITS_FONT]
        assert rcParams["font.family"] == [*before, ITS_FONT]
        assert spelt(SCRIPT_A) == SCRIPT_A
    assert rcParams["font.family"] == before
    with fonts_for("plain, and Ελλάδα") as fonts:
        assert fonts == []


def test_other_letters_are_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_font_with", lambda letter: None)
    assert spelt("rate of 学習 $x$") == "rate of [U+5B66 U+7FD2] $x$"
    names = [drawable(name) for name in NAMES]
    assert len(set(names)) == len(NAMES)
    assert in_legend("_lr").lstrip("\u200a") == "_lr"
    assert not in_legend("_lr").startswith("_")


def test_long_names_stay_different() -> None:
    assert short("a very long name") == "a very long…"
    assert short("機械学習の学習率") == "機械学習の…"
    shown = all_short(["resnet50-pretrained-v1", "resnet50-pretrained-v2", "other"])
    assert shown == ["resnet…ed-v1", "resnet…ed-v2", "other"]
    alike = [f"{'a' * 20}{i}{'b' * 20}" for i in range(3)]
    assert len(set(all_short(alike))) == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_page_keeps_the_text(name: str) -> None:
    def drawing(axes: Any) -> None:
        axes.plot([0, 1], [0, 1], label=in_legend(name[:40]))
        axes.xaxis.set_ticks([0, 1], all_short([name, "other"]))

    figure = chart("one", "A chart.", (short(name), "y"), drawing)
    shown = re.sub("<[^>]*>", "", figure.svg)
    assert name[:3] in shown
    assert "U+" not in shown


TOML = """\
name = "names"
description = "A figure"
num_agents = 2
num_evaluations = 10
num_seeds = 1
methods = ["alone", "random"]

[task]
name = "synthetic"

[privacy]
noise_multiplier = 1.0
delta = 1e-2

[curves.first]
label = "学習率 🚀"
method = "open"

[curves.second]
label = "_正則化"
method = "open"
"""


def test_a_picture_has_all_names(tmp_path: Path) -> None:
    (tmp_path / "names.toml").write_text(TOML)
    experiment = load_experiment(tmp_path / "names.toml")
    assert isinstance(experiment, TuningExperiment)
    assert {"学習率 🚀", "_正則化"} <= set(map(experiment.label_of, experiment.methods))
    runs = [run_one(experiment, method, 0) for method in experiment.methods]
    file = BytesIO()
    draw(experiment, runs, file)
    assert file.getvalue().startswith(b"\x89PNG")


def test_the_example_prints_what_it_shows() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert doctest.testmod(pictures).failed == 0
