"""Draw the curves of an experiment, and utility against epsilon."""

from __future__ import annotations

import itertools
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
    epsilon_of,
)
from flwr_fbo.study.experiment import TuningExperiment
from flwr_fbo.study.transfer import TransferExperiment

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
    "fts": ("#0072b2", "-", "D"),
    "fts-similar": ("#56b4e9", "--", "d"),
    "rgpe": ("#009e73", "--", "s"),
    "taf": ("#cc79a7", "-.", "x"),
    "taf-narrow": ("#e69f00", ":", "P"),
}


# What has no look of its own takes these in turn.
_COLORS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#8c564b")
_MARKERS = ("D", "s", "x", "P", "d", "*", "<")

Results = tuple[TuningExperiment, Sequence[Run]]
Look = tuple[str, str, str]


def _looks_of(experiment: Experiment) -> dict[str, Look]:
    """Return colour, line style and marker of each method.

    A curve's noise-only control has its colour, and is dotted.
    """
    known = experiment.known_methods
    looks: dict[str, Look] = {}
    for name in experiment.methods:
        look = _LOOKS.get(name)
        if look is not None and look not in looks.values():
            looks[name] = look
    controls = {known[name].noise_only: name for name in experiment.methods}
    others = [n for n in experiment.methods if n not in looks and n not in controls]
    taken = {part for look in looks.values() for part in look}
    colors = itertools.cycle(c for c in _COLORS if c not in taken)
    markers = itertools.cycle(m for m in _MARKERS if m not in taken)
    for name, color, marker in zip(others, colors, markers, strict=False):
        looks[name] = (color, "-" if known[name].noisy else "--", marker)
    for name in experiment.methods:
        if name not in looks:
            looks[name] = (looks[controls[name]][0], ":", "")
    return looks


def draw(experiment: Experiment, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG in the experiment's form: see `TuningExperiment`."""
    if isinstance(experiment, TuningExperiment) and experiment.form == "tradeoff":
        _draw_series(experiment, runs, path)
    else:
        _draw_convergence(experiment, runs, path)


def _draw_convergence(experiment: Experiment, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG: mean over runs as lines, one standard error as bands."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _new_figure()
    iterations = experiment.iterations
    looks = _looks_of(experiment)
    for name, curves in curves_by_method(experiment.methods, runs).items():
        mean = curves.mean(axis=0)
        color, style, marker = looks[name]
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
    axes.set_title(_title(experiment, runs), fontsize=10)
    if experiment.log_axes:
        axes.set(xscale="log", yscale="log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    many = len(experiment.methods) > 8
    axes.legend(frameon=False, fontsize=7 if many else None, ncols=2 if many else 1)
    _save(figure, axes, runs, path)


def _draw_series(experiment: TuningExperiment, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG: what is best in the end against epsilon, as the papers draw it.

    Each series of curves is a line, its noise-only controls a dotted one; what does not
    depend on epsilon is a level.
    """
    figure, axes = _new_figure()
    ends = {
        name: Estimate.of(curves[:, -1])
        for name, curves in curves_by_method(experiment.methods, runs).items()
    }
    looks = _looks_of(experiment)
    for name in experiment.methods:
        if not experiment.known_methods[name].noisy:
            _draw_level(axes, ends[name], looks[name], experiment.label_of(name))
    series = dict.fromkeys(s for c in experiment.curves.values() for s in c.series)
    for color, marker, label in zip(_COLORS, _MARKERS, series, strict=False):
        names = [n for n, curve in experiment.curves.items() if label in curve.series]
        controls = [str(experiment.known_methods[n].noise_only) for n in names]
        for members, style, suffix in (
            (names, "-", ""),
            (controls, ":", ", noise-only"),
        ):
            points = sorted(((epsilon_of(runs, n), ends[n]) for n in members), key=_x)
            _draw_points(axes, points, (color, style, marker), label + suffix)
    epsilons = [epsilon_of(runs, n) for n, c in experiment.curves.items() if c.series]
    _label_epsilon(axes, epsilons, [experiment.privacy.delta])
    axes.set_ylabel(
        f"best {experiment.task.unit}, iteration {experiment.num_iterations}"
    )
    axes.set_title(_title(experiment, runs), fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    _save(figure, axes, runs, path)


def _title(experiment: Experiment, runs: Sequence[Run]) -> str:
    seeds = _seeds(len(common_seeds(experiment.methods, runs)))
    return f"{experiment.name}: mean over {experiment.num_agents} agents and {seeds}"


def _draw_level(axes: Any, estimate: Estimate, look: Look, label: str) -> None:
    color, style, _ = look
    axes.axhline(estimate.mean, color=color, ls=style, lw=1.4, label=label)
    low = estimate.mean - estimate.standard_error
    high = estimate.mean + estimate.standard_error
    axes.axhspan(low, high, color=color, alpha=0.1, lw=0)


def _draw_points(
    axes: Any, points: Sequence[tuple[float, Estimate]], look: Look, label: str
) -> None:
    color, style, marker = look
    axes.errorbar(
        [epsilon for epsilon, _ in points],
        [estimate.mean for _, estimate in points],
        [estimate.standard_error for _, estimate in points],
        label=label,
        color=color,
        marker=marker,
        ls=style,
        capsize=3,
    )


def _label_epsilon(
    axes: Any, epsilons: Sequence[float], deltas: Sequence[float]
) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    ticks = _ticks(epsilons)
    axes.set_xticks(ticks, [f"{epsilon:.2g}" for epsilon in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"epsilon at delta = {', '.join(f'{d:.3g}' for d in deltas)} (PLD)")


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
    first = results[0][0]
    for experiment, _ in results:
        _require_same(first, experiment, ("task", "num_agents", "num_iterations"))
    allowed = f"1 to {first.num_iterations}"
    require(1 <= until <= first.num_iterations, "until", until, allowed)
    figure, axes = _new_figure()
    for preset in sorted({experiment.preset for experiment, _ in results}):
        group = [one for one in results if one[0].preset == preset]
        _draw_preset(axes, preset, group, until)
    deltas = sorted({experiment.privacy.delta for experiment, _ in results})
    _label_epsilon(axes, [_epsilon_of(*one) for one in results], deltas)
    axes.set_ylabel(f"best {first.task.unit}, mean of iterations 1 to {until}")
    axes.set_title(f"{first.task.name}: {first.num_agents} agents", fontsize=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    _save(figure, axes, [run for _, runs in results for run in runs], path)


def draw_lengths(
    results: Sequence[tuple[TransferExperiment, Sequence[Run]]], path: Path
) -> None:
    """Write a PNG: best value in the end against how many numbers an agent sends.

    Parameters
    ----------
    results : sequence of (TransferExperiment, runs)
        Of one task and its agents, with messages of different lengths.
    path : Path

    Raises
    ------
    ValueError
        If the results differ in more.
    """
    first = results[0][0]
    shared = ("task", "num_agents", "num_targets", "num_iterations", "methods")
    for experiment, _ in results:
        _require_same(first, experiment, shared)
    figure, axes = _new_figure()
    for name in first.methods:
        ends = [curves_by_method(e.methods, runs)[name][:, -1] for e, runs in results]
        lengths = [e.message_length(name) for e, _ in results]
        if all(lengths):
            points = sorted(zip(lengths, map(Estimate.of, ends), strict=True), key=_x)
            _draw_points(axes, points, _LOOKS[name], first.label_of(name))
        else:
            most = max(ends, key=len)
            _draw_level(axes, Estimate.of(most), _LOOKS[name], first.label_of(name))
    axes.set(xscale="log", xlabel="numbers in a message")
    axes.set_ylabel(f"best {first.task.unit}, iteration {first.num_iterations}")
    axes.set_title(f"{first.task.name}: mean over {first.num_targets} targets", size=10)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _x(point: tuple[float, Estimate]) -> float:
    return point[0]


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


def _require_same(first: Experiment, other: Experiment, names: Sequence[str]) -> None:
    for name in names:
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
        look = (_LOOKS[name][0], style, _LOOKS[name][2])
        label = f"{group[0][0].label_of(name)} ({preset})"
        if group[0][0].known_methods[name].noisy:
            points = sorted(estimates.items(), key=_x)
            _draw_points(axes, points, look, label)
        else:
            one = max(estimates.values(), key=lambda e: e.num_runs)
            _draw_level(axes, one, look, label)


def _utility(
    experiment: TuningExperiment, runs: Sequence[Run], name: str, until: int
) -> Estimate:
    curves = curves_by_method(experiment.methods, runs)[name]
    return Estimate.of(curves[:, 1 : until + 1].mean(axis=1))


def _seeds(number: int) -> str:
    if number == 1:
        return "1 seed"
    return f"{number} seeds, band: one standard error over seeds"
