"""Draw the curves of an experiment, and utility against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flwr_fbo._validation import require
from flwr_fbo.strategies.dp_fts_de import PRESETS
from flwr_fbo.study.base import (
    Estimate,
    Experiment,
    Run,
    common_seeds,
    curves_by_method,
)
from flwr_fbo.study.experiment import TuningExperiment
from flwr_fbo.study.methods import METHODS, label_of

# Okabe & Ito's palette, told apart with any colour vision; styles for grey print.
_LOOKS = {
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
    "full": ("#e69f00", ":", "P"),
    "independent": ("#000000", "-", "o"),
}


Results = tuple[TuningExperiment, Sequence[Run]]


def draw(experiment: Experiment, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG: mean over runs as lines, one standard error as bands."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _new_figure()
    iterations = experiment.iterations
    for name, curves in curves_by_method(experiment, runs).items():
        mean = curves.mean(axis=0)
        color, style, marker = _LOOKS[name]
        axes.plot(
            iterations,
            mean,
            color=color,
            linestyle=style,
            marker=marker,
            markersize=4,
            markevery=max(1, len(mean) // 10),
            linewidth=1.6,
            label=experiment.label_of(name),
        )
        if len(curves) > 1:
            error = curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
            axes.fill_between(
                iterations, mean - error, mean + error, color=color, alpha=0.15, lw=0
            )
    x_label, y_label = experiment.axes
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(
        f"{experiment.name}: mean over {experiment.num_agents} agents and "
        + _seeds(len(common_seeds(experiment, runs))),
        fontsize=10,
    )
    if experiment.log_axes:
        axes.set(xscale="log", yscale="log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    _save(figure, axes, runs, path)


def draw_tradeoff(results: Sequence[Results], until: int, path: Path) -> None:
    """Write a PNG: utility against epsilon, one standard error as bars and bands.

    Parameters
    ----------
    results : sequence of (Experiment, runs)
        Of one task, number of agents and horizon.
    until : int
        Utility is the mean best value over iterations 1 to this.
    path : Path

    Raises
    ------
    ValueError
        If the results are not of one task, or there are not as many iterations.
    """
    from matplotlib.ticker import NullLocator

    first = results[0][0]
    for experiment, _ in results:
        _require_same(first, experiment)
    allowed = f"1 to {first.num_iterations}"
    require(1 <= until <= first.num_iterations, "until", until, allowed)
    figure, axes = _new_figure()
    for preset in sorted({experiment.preset for experiment, _ in results}):
        group = [one for one in results if one[0].preset == preset]
        _draw_preset(axes, preset, group, until)
    axes.set_xscale("log")
    ticks = _ticks([_epsilon_of(*one) for one in results])
    axes.set_xticks(ticks, [f"{epsilon:.2g}" for epsilon in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    deltas = sorted({experiment.privacy.delta for experiment, _ in results})
    axes.set_xlabel(f"epsilon at delta = {', '.join(f'{d:g}' for d in deltas)} (PLD)")
    axes.set_ylabel(f"best {first.task.unit}, mean of iterations 1 to {until}")
    axes.set_title(f"{first.task.name}: {first.num_agents} agents", fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    _save(figure, axes, [run for _, runs in results for run in runs], path)


def _new_figure() -> tuple[Any, Any]:
    """Return a figure that no screen is needed for, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _save(figure: Any, axes: Any, runs: Sequence[Run], path: Path) -> None:
    """Write the PNG, and on it whether the noise protected anybody."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if not all(run.private for run in runs):
        figure.text(0.995, 0.005, "seeded noise: not private", ha="right", fontsize=8)
    figure.savefig(path, dpi=150)


def _ticks(epsilons: Sequence[float]) -> list[float]:
    """Return where labels do not overlap: each a tenth or more above the last."""
    ticks: list[float] = []
    for epsilon in sorted(epsilons):
        if not ticks or epsilon > 1.1 * ticks[-1]:
            ticks.append(epsilon)
    return ticks


def _require_same(first: TuningExperiment, other: TuningExperiment) -> None:
    for name in ("task", "num_agents", "num_iterations"):
        expected = getattr(first, name)
        ok = getattr(other, name) == expected
        require(ok, name, getattr(other, name), f"{expected}, as in the first results")


def _epsilon_of(experiment: TuningExperiment, runs: Sequence[Run]) -> float:
    """Return what the private method spent."""
    spent = [run.epsilon for run in runs if run.method == "dp-fts-de"]
    require(len(spent) > 0, "results", experiment.name, "results of dp-fts-de")
    return max(spent)


def _draw_preset(axes: Any, preset: str, group: Sequence[Results], until: int) -> None:
    """Draw what does not depend on epsilon as lines, the rest as points."""
    style = "-" if PRESETS[preset].votes else ":"
    for name in group[0][0].methods:
        estimates = {
            _epsilon_of(experiment, runs): _utility(experiment, runs, name, until)
            for experiment, runs in group
        }
        color, _, marker = _LOOKS[name]
        label = f"{label_of(name, preset)} ({preset})"
        if METHODS[name].noisy:
            x = sorted(estimates)
            means = [estimates[e].mean for e in x]
            bars = [estimates[e].standard_error for e in x]
            looks = {"color": color, "marker": marker, "ls": style, "capsize": 3}
            axes.errorbar(x, means, bars, label=label, **looks)
        else:
            one = max(estimates.values(), key=lambda e: e.num_runs)
            axes.axhline(one.mean, color=color, ls=style, lw=1.4, label=label)
            low, high = one.mean - one.standard_error, one.mean + one.standard_error
            axes.axhspan(low, high, color=color, alpha=0.1, lw=0)


def _utility(
    experiment: TuningExperiment, runs: Sequence[Run], name: str, until: int
) -> Estimate:
    curves = curves_by_method(experiment, runs)[name]
    return Estimate.of(curves[:, 1 : until + 1].mean(axis=1))


def _seeds(number: int) -> str:
    if number == 1:
        return "1 seed"
    return f"{number} seeds, band: one standard error over seeds"
