"""How curves look, and what all figures share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from flwr_fbo.experiment_runner.base import Experiment, Run
from flwr_fbo.experiment_runner.curves import common_seeds
from flwr_fbo.experiment_runner.tuning_experiment import TuningExperiment

# Okabe & Ito's palette, told apart with any colour vision; styles for grey print.
LOOKS = {
    "ts": ("#000000", "-", "o"),
    "random": ("#7f7f7f", ":", "v"),
    "fts-de": ("#009e73", "--", "s"),
    "dp-fts-de": ("#0072b2", "-", "D"),
    "noise-only": ("#d55e00", "-.", "^"),
    "liars": ("#cc79a7", "--", "x"),
    "blind": ("#e69f00", ":", "P"),
    "fed-ucb": ("#0072b2", "-", "D"),
    "fed-ucb-raw": ("#56b4e9", "--", "d"),
    "paper": ("#cc79a7", "--", "x"),
    "non-private": ("#009e73", "--", "s"),
    "cliques": ("#e69f00", "--", "s"),
    "cliques-non-private": ("#8c564b", ":", "*"),
    "full": ("#e69f00", ":", "P"),
    "independent": ("#000000", "-", "o"),
    "fts": ("#0072b2", "-", "D"),
    "fts-similar": ("#56b4e9", "--", "d"),
    "rgpe": ("#009e73", "--", "s"),
    "taf": ("#cc79a7", "-.", "x"),
    "taf-narrow": ("#e69f00", ":", "P"),
    "fed-go-ucb": ("#0072b2", "-", "D"),
    "one-go-ucb": ("#009e73", "--", "s"),
    "n-go-ucb": ("#000000", "-", "o"),
    "dislinucb": ("#cc79a7", "-.", "x"),
    "fed-glb-ucb": ("#56b4e9", "--", "d"),
    "approx-dis-kernel-ucb": ("#8c564b", ":", "*"),
    "no-phase-one": ("#e69f00", ":", "P"),
    "each-once": ("#d55e00", "-.", "^"),
}


# What has no look of its own takes these in turn.
COLORS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#8c564b")
MARKERS = ("D", "s", "x", "P", "d", "*", "<")

Look = tuple[str, str, str]
Target = Path | IO[bytes]


def looks_of(experiment: Experiment) -> dict[str, Look]:
    """Return colour, line style and marker of each method.

    A curve's noise-only control has its colour and marker, and is dotted.
    """
    known = experiment.known_methods
    curves = experiment.curves if isinstance(experiment, TuningExperiment) else {}
    fixed = [n for n in experiment.methods if n in LOOKS and n not in curves]
    looks: dict[str, Look] = {name: LOOKS[name] for name in fixed}
    controls = {known[name].noise_only: name for name in experiment.methods}
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


def literal(label: str) -> str:
    """Return a label as matplotlib shows it, and reads no formula in it."""
    return label.replace("$", r"\$")


def title_of(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Return what the figure says of itself."""
    agents = f"mean over {experiment.num_compared} agents"
    return f"{experiment.name}: {agents}, {seeds_of(experiment, runs)}"


def seeds_of(experiment: Experiment, runs: Sequence[Run]) -> str:
    """Return how many seeds a figure shows, and how it shows that."""
    number = len(common_seeds(experiment.methods, runs))
    if number == 1:
        return "1 seed"
    return f"{number} seeds; band, bar: one standard error"


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
