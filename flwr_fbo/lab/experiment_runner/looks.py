"""How curves look, and what all figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import (
    BLUE,
    COLORS,
    GREEN,
    VERMILION,
    drawable,
    in_legend,
)
from flwr_fbo._common.text import counted
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.curves import common_seeds
from flwr_fbo.lab.experiment_runner.methods import Look
from flwr_fbo.lab.experiment_runner.runs import Run

MARKERS = ("D", "s", "x", "P", "d", "*", "<")

# Looks that mean the same in all kinds of experiments.
OURS: Look = (BLUE, "-", "D")
OPEN: Look = (GREEN, "--", "s")
ALONE: Look = ("#000000", "-", "o")
RANDOM: Look = ("#7f7f7f", ":", "v")
UNINFORMED: Look = (VERMILION, "-.", "^")

Target = Path | IO[bytes]


def looks_of(experiment: Experiment) -> dict[str, Look]:
    """Return colour, line style and marker of each method.

    A noise-only control has its (first) curve's colour and marker, and is dotted.
    """
    known = experiment.known_methods
    own = {name: known[name].look for name in experiment.methods}
    looks: dict[str, Look] = {name: look for name, look in own.items() if look}
    names = reversed(experiment.methods)
    controls = {known[name].noise_only: name for name in names}
    others = [n for n in experiment.methods if n not in looks and n not in controls]
    taken = {part for look in looks.values() for part in look}
    colors = [color for color in COLORS if color not in taken] or list(COLORS)
    markers = [one for one in MARKERS if one not in taken] or list(MARKERS)
    for i, name in enumerate(others):
        again, color = divmod(i, len(colors))
        marker = markers[(color + again) % len(markers)]
        looks[name] = (colors[color], "-" if known[name].noisy else "--", marker)
    for name in experiment.methods:
        if name not in looks:
            of_curve = looks[controls[name]]
            looks[name] = (of_curve[0], ":", of_curve[2])
    return looks


def line_styles(
    experiment: Experiment, curves: Mapping[str, Sized]
) -> dict[str, dict[str, Any]]:
    """Return what matplotlib is to be told of the lines of methods."""
    looks = looks_of(experiment)
    return {
        name: {
            "color": looks[name][0],
            "linestyle": looks[name][1],
            "marker": looks[name][2],
            "markersize": 4,
            "markevery": max(1, len(curve) // 10),
            "label": in_legend(experiment.label_of(name)),
        }
        for name, curve in curves.items()
    }


def draw_mean(axes: Any, x: NDArray[Any], curves: FloatArray, **style: Any) -> None:
    """Draw the mean of curves, one a seed, and a band of one standard error."""
    mean = curves.mean(axis=0)
    axes.plot(x, mean, **style)
    if len(curves) > 1:
        error = curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
        color = style["color"]
        axes.fill_between(x, mean - error, mean + error, color=color, alpha=0.15, lw=0)


def title_of(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Return what the figure says of itself."""
    compared = counted(experiment.num_compared, experiment.compared)
    # Two lines: one would run into names beside the axes.
    title = drawable(f"{experiment.name}: mean over {compared}")
    return f"{title}\n{seeds_of(experiment, runs)}"


def seeds_of(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Return how many seeds a figure shows, and how it shows that."""
    number = len(common_seeds(experiment.methods, runs))
    bands = "" if number == 1 else "; band, bar: one standard error"
    return counted(number, "seed") + bands


def new_figure(num_panels: int = 1) -> tuple[Any, Any]:
    """Return a figure that no screen is needed for, and its axes; of several, all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = 8.0 if num_panels == 1 else 5.5 * num_panels
    figure = Figure(figsize=(width, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, num_panels)


def save(figure: Any, runs: Sequence[Run], path: Target) -> None:
    """Write the picture, and on it whether anybody was protected."""
    for axes in figure.axes:
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if not all(run.private for run in runs):
        figure.text(0.995, 0.005, "an experiment: not private", ha="right", fontsize=8)
    figure.savefig(path, dpi=150)
