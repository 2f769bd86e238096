"""Draw what more epsilon buys, or any setting that is swept."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from flwr_fbo._common.pictures import COLORS
from flwr_fbo._common.validation import require
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.curves import curves_by_method, epsilon_of
from flwr_fbo.lab.experiment_runner.ends import (
    draw_level,
    draw_points,
    ends_of,
    in_the_end,
    label_values,
    name_beside,
    set_title,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.linear_bandit_methods import METHODS
from flwr_fbo.lab.experiment_runner.looks import (
    MARKERS,
    Target,
    looks_of,
    new_figure,
    seeds_of,
    title_of,
)
from flwr_fbo.lab.experiment_runner.methods import Look
from flwr_fbo.lab.experiment_runner.runs import Run
from flwr_fbo.lab.experiment_runner.sweep import (
    FIELDS,
    Point,
    Sweep,
    SweptField,
    Value,
    label_at,
    text_of,
)
from flwr_fbo.lab.experiment_runner.tuning_design import TuningPrivacy
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment

# Of the lines of a method, at one value each of what else is swept.
_STYLES = ("-", "--", "-.")
# Of our own strategies, beside the published one.
_STYLES_OF_SETTINGS = {"FedVote": "-", "FedWarmStart": "--"}

Results = tuple[TuningExperiment, Sequence[Run]]


def draw_series(axes: Any, experiment: TuningExperiment, runs: Sequence[Run]) -> None:
    """Draw what is best in the end against epsilon, as the papers draw it.

    Each series of curves is a line, its noise-only controls a dotted one; what does not
    depend on epsilon is a level.
    """
    ends = ends_of(experiment, runs)
    looks = looks_of(experiment)
    known = experiment.known_methods
    levels = [name for name in experiment.methods if not known[name].noisy]
    for name in levels:
        label = f"{experiment.label_of(name)}: {ends[name].mean:.4f}"
        draw_level(axes, ends[name], looks[name], label)
    taken = {part for name in levels for part in looks[name]}
    colors = [color for color in COLORS if color not in taken]
    series = dict.fromkeys(s for c in experiment.curves.values() for s in c.series)
    for color, marker, label in zip(colors, MARKERS, series, strict=False):
        names = [n for n, curve in experiment.curves.items() if label in curve.series]
        names.sort(key=lambda name: epsilon_of(runs, name))
        x = [epsilon_of(runs, name) for name in names]
        controls = [str(known[name].noise_only) for name in names]
        for members, style in ((names, "-"), (controls, ":")):
            points = list(zip(x, (ends[name] for name in members), strict=True))
            suffix = "" if members is names else ", noise-only"
            draw_points(axes, points, (color, style, marker), label + suffix)
    # Random search is far away: it would press all others together.
    near = [estimate for name, estimate in ends.items() if name != "random"]
    means = np.array([estimate.mean for estimate in near])
    bars = np.nan_to_num([estimate.standard_error for estimate in near])
    low, high = (means - bars).min(), (means + bars).max()
    margin = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - margin, high + margin)
    epsilons = [epsilon_of(runs, n) for n, c in experiment.curves.items() if c.series]
    _label_epsilon(axes, epsilons, [experiment.privacy])
    axes.set_ylabel(in_the_end(experiment))
    set_title(axes, title_of(experiment, runs))


def draw_tradeoff(results: Sequence[Results], until: int | None, path: Target) -> None:
    """Write a PNG: utility against epsilon, one standard error as bars and bands.

    Parameters
    ----------
    results : sequence of (Experiment, runs)
        Of one task, number of agents and horizon.
    until : int, optional
        Utility is the mean best value over evaluations 1 to this; all unless given.
    path : Path or binary file

    Raises
    ------
    ValueError
        If the results are not of one task, or there are not as many evaluations.
    """
    first = results[0][0]
    for experiment, _ in results:
        _require_same(first, experiment, ("task", "num_agents", "num_evaluations"))
    last = first.num_evaluations
    until = last if until is None else until
    require(1 <= until <= last, "until", until, f"1 to {last}")
    figure, axes = new_figure()
    for setting in sorted({experiment.setting for experiment, _ in results}):
        group = [one for one in results if one[0].setting == setting]
        _draw_setting(axes, setting, group, until)
    settings = [experiment.privacy for experiment, _ in results]
    _label_epsilon(axes, [_epsilon_of(*one) for one in results], settings)
    axes.set_ylabel(f"best {first.task.unit}, mean of evaluations 1 to {until}")
    title = f"{first.task.name}: {first.num_agents} agents"
    set_title(axes, title)
    name_beside(figure, [run for _, runs in results for run in runs], path)


def draw_sweep(axes: Any, experiment: BanditExperiment, runs: Sequence[Run]) -> None:
    """Draw an agent's regret after all trials against what is swept.

    A line for each method and value of whatever else is swept, dotted for noise-only; a
    level where the axis has no part in it. The regret is on a log scale: agents that
    learn nothing would press all others together.
    """
    sweep = experiment.sweep
    assert sweep is not None
    assert sweep.axis is not None
    ends = ends_of(experiment, runs)
    field, values = FIELDS[sweep.axis], sweep.values[sweep.axis]
    places = _places(field, values)
    lines = _lines_of(experiment, sweep.axis)
    variants = list(dict.fromkeys(others for _, others in lines))
    for (base, others), names in lines.items():
        look = _look_of(base, variants.index(others), len(variants))
        label = label_at(experiment.plain(names[0]).label_of(base), others)
        methods = [experiment.known_methods[name] for name in names]
        if methods[0].depends_on(sweep.axis):
            if field.scale == "names":  # nothing lies between two of them
                look = (look[0], "", look[2])
            pairs = [(places[dict(m.point)[sweep.axis]], ends[m.name]) for m in methods]
            draw_points(axes, sorted(pairs, key=itemgetter(0)), look, label)
        else:
            end = ends[names[0]]
            draw_level(axes, end, look, f"{label}: {end.mean:.3g}")
    scale = "linear" if field.scale == "names" else field.scale
    texts = [text_of(value) for value in values]
    label_values(axes, scale, [places[value] for value in values], texts)
    y_label = f"{experiment.axes[1]}, {experiment.num_iterations:,} trials"
    axes.set(xlabel=field.text, ylabel=y_label, yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    # Three lines: in one, names and settings would run into those beside the axes.
    title = f"{experiment.name}\n{_fixed(experiment, sweep)}"
    set_title(axes, f"{title}\n{seeds_of(experiment, runs)}")


def _lines_of(
    experiment: BanditExperiment, axis: str
) -> dict[tuple[str, Point], list[str]]:
    """Return the methods that make a line, by base method and what else is swept."""
    lines: dict[tuple[str, Point], list[str]] = {}
    for name in experiment.methods:
        method = experiment.known_methods[name]
        others = tuple(one for one in method.point if one[0] != axis)
        lines.setdefault((method.base, others), []).append(name)
    return lines


def _look_of(base: str, variant: int, num_variants: int) -> Look:
    """Return a method's colour, and style and marker of one of its lines."""
    color, _, marker = METHODS[base].look or (COLORS[0], "-", MARKERS[0])
    if num_variants > 1:
        marker = MARKERS[variant % len(MARKERS)]
    noise_only = METHODS[base].noisy and not METHODS[base].releases
    style = ":" if noise_only else _STYLES[variant % len(_STYLES)]
    return color, style, marker


def _fixed(experiment: BanditExperiment, sweep: Sweep) -> str:
    """Return the settings that all lines of a sweep share."""
    fixed = [name for name in FIELDS if name not in sweep.values]
    if experiment.graph is None:
        fixed = [name for name in fixed if name not in ("graph", "hops")]
    settings = [(FIELDS[name].letter, experiment.setting(name)) for name in fixed]
    return ", ".join(f"{n} = {text_of(v)}" for n, v in settings if v is not None)


def _places(field: SweptField, values: Sequence[Value]) -> dict[Value, float]:
    """Return where values stand on the axis; names in order."""
    if field.scale == "names":
        return {value: float(i) for i, value in enumerate(values)}
    return {value: float(value) for value in values}


def _draw_either(
    axes: Any,
    points: Sequence[tuple[float, Estimate]],
    varies: bool,
    look: Look,
    label: str,
) -> None:
    """Draw points, or the level with the most runs where x has no part in them."""
    if varies:
        draw_points(axes, sorted(points, key=itemgetter(0)), look, label)
    else:
        level = max((end for _, end in points), key=lambda end: end.num_runs)
        draw_level(axes, level, look, label)


def _label_epsilon(
    axes: Any, epsilons: Sequence[float], settings: Sequence[TuningPrivacy]
) -> None:
    ticks = _ticks(epsilons)
    label_values(axes, "log", ticks, [f"{tick:.2g}" for tick in ticks])
    deltas = ", ".join(f"{d:.3g}" for d in sorted({s.delta for s in settings}))
    accountants = ", ".join(sorted({s.accountant.upper() for s in settings}))
    axes.set_xlabel(f"epsilon at delta = {deltas} ({accountants})")


def _ticks(epsilons: Sequence[float]) -> list[float]:
    """Return where labels do not overlap: each a quarter or more above the last."""
    ticks: list[float] = []
    for epsilon in sorted(epsilons):
        if not ticks or epsilon > 1.25 * ticks[-1]:
            ticks.append(epsilon)
    return ticks


def _require_same(first: Experiment, other: Experiment, names: Sequence[str]) -> None:
    for name in names:
        expected = getattr(first, name)
        ok = getattr(other, name) == expected
        require(ok, name, getattr(other, name), f"{expected}, as in the first results")


def _epsilon_of(experiment: TuningExperiment, runs: Sequence[Run]) -> float:
    """Return what the private method spent."""
    spent = [run.epsilon for run in runs if run.method == "private"]
    require(len(spent) > 0, "results", experiment.name, "results of private")
    return max(spent)


def _draw_setting(
    axes: Any, setting: str, group: Sequence[Results], until: int
) -> None:
    """Draw what does not depend on epsilon as lines, the rest as points."""
    first = group[0][0]
    style = _STYLES_OF_SETTINGS.get(first.strategy, ":")
    looks = looks_of(first)
    for name in first.methods:
        points = [
            (_epsilon_of(experiment, runs), _utility(experiment, runs, name, until))
            for experiment, runs in group
            if name in experiment.methods
        ]
        look = (looks[name][0], style, looks[name][2])
        varies = first.known_methods[name].noisy
        _draw_either(axes, points, varies, look, f"{first.label_of(name)} ({setting})")


def _utility(
    experiment: TuningExperiment, runs: Sequence[Run], name: str, until: int
) -> Estimate:
    curves = curves_by_method(experiment.methods, runs)[name]
    return Estimate.of(curves[:, :until].mean(axis=1))
