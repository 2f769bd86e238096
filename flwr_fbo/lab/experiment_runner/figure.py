"""Draw an experiment: curves against steps, or what a setting does in the end.

Such settings are epsilon and whatever is swept; of FTS (figs. 2 and 3) the length of
messages, the time and the number of agents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import (
    BLUE,
    COLORS,
    ORANGE,
    drawable,
    fonts_for,
    in_legend,
)
from flwr_fbo._common.text import counted
from flwr_fbo.lab.experiment_runner.base import Experiment, Run
from flwr_fbo.lab.experiment_runner.curves import (
    common_seeds,
    curves_by_method,
    epsilon_of,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import (
    FIELDS,
    METHODS,
    BanditExperiment,
    Point,
    Sweep,
    SweptField,
    Value,
    text_of,
)
from flwr_fbo.lab.experiment_runner.looks import (
    ALONE,
    MARKERS,
    OPEN,
    RANDOM,
    UNINFORMED,
    Look,
)
from flwr_fbo.lab.experiment_runner.transfer_experiment import TransferExperiment
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment
from flwr_fbo.lab.experiment_runner.tuning_table import OptimisationExperiment

Target = Path | IO[bytes]

# Tol's muted palette, where a figure has more lines than `COLORS`.
_MORE_COLORS: tuple[str, ...] = (
    *("#332288", "#44aa99", "#999933", "#882255", "#aa4499", "#117733"),
    *("#661100", "#6699cc", "#ddcc77", "#88ccee"),
)


def looks_of(experiment: Experiment) -> dict[str, Look]:
    """Return colour, line style and marker of each method.

    A noise-only control has its (first) curve's colour and marker, and is dotted.
    """
    known = experiment.known_methods
    chosen = {name: known[name].look for name in experiment.methods}
    looks: dict[str, Look] = {name: look for name, look in chosen.items() if look}
    names = reversed(experiment.methods)
    controls = {known[name].noise_only: name for name in names}
    others = [n for n in experiment.methods if n not in looks and n not in controls]
    taken = {part for look in looks.values() for part in look}
    colors = [color for color in (*COLORS, *_MORE_COLORS) if color not in taken]
    markers = [marker for marker in MARKERS if marker not in taken] or list(MARKERS)
    for i, name in enumerate(others):
        again, color = divmod(i, len(colors))
        marker = markers[(color + again) % len(markers)]
        looks[name] = (colors[color], "-" if known[name].noisy else "--", marker)
    for name in experiment.methods:
        if name not in looks:
            of_curve = looks[controls[name]]
            looks[name] = (of_curve[0], ":", of_curve[2])
    return looks


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
    """Return a figure that no screen is needed for, and its axes; of several, all.

    Four panels are in two rows, others in one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = 2 if num_panels == 4 else 1
    columns = num_panels // rows
    width = {1: 8.0, 2: 11.0}.get(columns, 4.4 * columns)
    figure = Figure(figsize=(width, 4.0 * rows + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns)
    return figure, axes if num_panels == 1 else axes.ravel()


def ends_of(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Estimate]:
    """Return what the methods' curves end at, as it is drawn."""
    curves = curves_by_method(experiment.methods, runs)
    return {
        name: Estimate.of(experiment.drawn(curve[:, -1]))
        for name, curve in curves.items()
    }


def draw_level(axes: Any, estimate: Estimate, look: Look, label: str) -> None:
    """Draw an estimate that does not depend on x, with one standard error."""
    color, style, _ = look
    mean, error = estimate.mean, estimate.standard_error
    axes.axhline(mean, color=color, ls=style, lw=1.4, label=in_legend(label))
    axes.axhspan(mean - error, mean + error, color=color, alpha=0.1, lw=0)


def draw_points(
    axes: Any, points: Sequence[tuple[float, Estimate]], look: Look, label: str
) -> None:
    """Draw estimates at their x, with bars of one standard error."""
    color, style, marker = look
    axes.errorbar(
        [x for x, _ in points],
        [estimate.mean for _, estimate in points],
        [estimate.standard_error for _, estimate in points],
        label=in_legend(label),
        color=color,
        marker=marker,
        ls=style,
        capsize=3,
    )


def label_values(
    axes: Any, scale: str, values: Sequence[float], texts: Sequence[str]
) -> None:
    """Put ticks on the x axis at some values only."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale(scale)
    axes.set_xticks(values, texts)
    axes.xaxis.set_minor_locator(NullLocator())


def name_beside(figure: Any) -> None:
    """Put the legend beside the axes."""
    # More names would be cut off at the lower edge.
    size = 8 if len(figure.axes[0].get_legend_handles_labels()[1]) <= 26 else 6.5
    figure.legend(loc="outside right upper", frameon=False, fontsize=size)


def draw_lengths(
    axes: Any, experiment: TransferExperiment, runs: Sequence[Run]
) -> None:
    """Draw what is best in the end against how many numbers an agent sends.

    A line for each method that sends messages, through its curves; a level for each
    that sends none. As in fig. 2 of the paper of FTS.
    """
    _draw_at_places(axes, experiment, ends_of(experiment, runs), ".4f")
    y_label = f"{experiment.drawn_unit}, evaluation {experiment.num_evaluations}"
    axes.set(xscale="log", xlabel="numbers in a message", ylabel=y_label)


def draw_times(axes: Any, experiment: TransferExperiment, runs: Sequence[Run]) -> None:
    """Draw the best value so far against a target's CPU time, objective included.

    As in fig. 3 of the paper of FTS. Queries are taken to last equally long, the mean
    over the runs of a method, and initial points no time: times compare only where all
    runs were made on one machine.
    """
    looks = looks_of(experiment)
    first, num_queries = experiment.num_initial, experiment.num_queries
    part = np.arange(1, num_queries + 1) / num_queries
    names = experiment.methods
    times = curves_by_method(names, runs, "seconds")
    for name, curves in curves_by_method(names, runs).items():
        seconds = times[name].mean() / experiment.num_targets
        color, style, _ = looks[name]
        label = in_legend(f"{experiment.label_of(name)}: {seconds:.2g} s")
        x, y = part * seconds, experiment.drawn(curves[:, first:])
        draw_mean(axes, x, y, color=color, ls=style, label=label)
    x_label = "CPU seconds of a target, on a log scale"
    axes.set(xscale="log", xlabel=x_label, ylabel=experiment.axes[1])


def draw_agents(axes: Any, experiment: TransferExperiment, runs: Sequence[Run]) -> None:
    """Draw a target's CPU time against how many agents there are, as in fig. 3d.

    A line for each method that sends messages, a level for each that sends none. Times
    compare only where all runs were made on one machine.
    """
    seconds = curves_by_method(experiment.methods, runs, "seconds")
    of_target = {
        name: Estimate.of(values / experiment.num_targets)
        for name, values in seconds.items()
    }
    _draw_at_places(axes, experiment, of_target, ".2g")
    axes.set(xlabel="agents", ylabel="CPU seconds of a target", ylim=(0, None))


def _draw_at_places(
    axes: Any,
    experiment: TransferExperiment,
    values: Mapping[str, Estimate],
    precision: str,
) -> None:
    """Draw a method's values at its curves' places, or as a level if it has none."""
    looks = looks_of(experiment)
    for base, places in experiment.places.items():
        label = experiment.label_of(base)
        if places[base]:
            names = sorted(places, key=places.__getitem__)
            points = [(places[name], values[name]) for name in names]
            draw_points(axes, points, looks[base], label)
        else:
            mean = format(values[base].mean, precision)
            draw_level(axes, values[base], looks[base], f"{label}: {mean}")


def draw_series(axes: Any, experiment: TuningExperiment, runs: Sequence[Run]) -> None:
    """Draw the error in the end against epsilon, as fig. 3 of the paper has it.

    Epsilon is the paper's, by its accountant; that by PLD is beside it. Each series of
    curves is a line; what does not depend on epsilon is a level.
    """
    ends, looks = ends_of(experiment, runs), looks_of(experiment)
    private = {name: c for name, c in experiment.curves.items() if c.series}
    for name in experiment.methods:
        if name not in private:
            is_control = experiment.known_methods[name].base == "noise-only"
            look = UNINFORMED if is_control else looks[name]
            label = "noise-only" if is_control else experiment.label_of(name)
            label = f"{label}: {ends[name].mean:.4f}"
            draw_level(axes, ends[name], look, label)
    ours = {name: epsilon_of(runs, name) for name in private}
    x = {name: experiment.published_epsilon(name) or ours[name] for name in private}
    series = dict.fromkeys(curve for c in private.values() for curve in c.series)
    for color, marker, label in zip((BLUE, ORANGE), MARKERS, series, strict=False):
        names = sorted(
            (n for n in private if label in private[n].series), key=x.__getitem__
        )
        points = [(x[name], ends[name]) for name in names]
        draw_points(axes, points, (color, "-", marker), f"DP-FTS-DE, {label}")
    # Random search is far away: it would press all others together.
    near = [estimate for name, estimate in ends.items() if name != "random"]
    means = np.array([estimate.mean for estimate in near])
    bars = np.nan_to_num([estimate.standard_error for estimate in near])
    low, high = (means - bars).min(), (means + bars).max()
    margin = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - margin, high + margin)
    beside = {x[name]: ours[name] for name in private}
    of_paper = experiment.privacy.sampling == "poisson"
    texts = {
        at: f"{at:.3g}\n({by_other:.2g})" if of_paper else f"{at:.3g}"
        for at, by_other in beside.items()
    }
    ticks = _ticks([*beside])
    label_values(axes, "log", ticks, [texts[at] for at in ticks])
    delta, accountant = experiment.privacy.delta, experiment.privacy.accountant.upper()
    by = f"by moments ({accountant})" if of_paper else f"by {accountant}"
    axes.set_xlabel(f"epsilon {experiment.unit.terms(delta)},\n{by}")
    axes.set_ylabel(f"{experiment.drawn_unit}, evaluation {experiment.num_evaluations}")


def _messages(experiment: TuningExperiment, runs: Sequence[Run]) -> Any:
    """Return three panels, against the lengthscale of messages.

    What a message says of its sender's objective; where points lie that agents follow;
    and what following gains over agents alone, beside following noise.
    """
    figure, (left, middle, right) = new_figure(num_panels=3)
    known = experiment.known_methods
    ran = [name for name in experiment.methods if name in {run.method for run in runs}]
    places = {name: experiment.lengthscale_of(name) for name in ran}
    ordered = sorted(ran, key=places.__getitem__)
    measured = [name for name in ordered if experiment.measures(name)]
    for axes, of in ((left, "correlation"), (middle, "percentile")):
        values = curves_by_method(measured, runs, of)
        points = [(places[name], Estimate.of(values[name])) for name in measured]
        draw_points(axes, points, OPEN, "FTS-DE")
    left.axhline(0.0, color=RANDOM[0], ls=RANDOM[1])
    left.set_ylabel("correlation of a message with the own objective")
    middle.axhline(0.5, color=RANDOM[0], ls=RANDOM[1], label="random points")
    middle.set(ylabel="percentile of followed points", ylim=(0.0, 1.0))
    sign = -1.0 if experiment.lower_is_better else 1.0
    curves = curves_by_method(ran, runs)
    for base in ("open", "private", "noise-only"):
        gains = [
            (places[name], Estimate.of(sign * (curves[name] - curves["alone"])[:, -1]))
            for name in ordered
            if base == known[name].base
        ]
        look = known[base].look
        if gains and look:
            draw_points(right, gains, look, known[base].label)
    right.axhline(0.0, color=ALONE[0], ls=ALONE[1], label="TS in sub-regions")
    right.set_ylabel(f"best {experiment.task.unit} in the end: gain over TS")
    ticks = sorted(set(places.values()))
    for axes in (left, middle, right):
        label_values(axes, "log", ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel("lengthscale of messages")
        axes.legend(frameon=False, fontsize=9)
    title = drawable(f"{experiment.name}: {experiment.num_agents} agents")
    num_seeds = counted(len(common_seeds(ran, runs)), "seed")
    figure.suptitle(f"{title}, {num_seeds}", fontsize=10)
    return figure


# What is drawn in each panel of a sweep, beside a private method: line and name.
_LINES: dict[str, tuple[Any, str]] = {
    "private": ("-", "private"),
    "noise-only": (":", "noise-only"),
    "open": ("--", "without noise"),
    "independent": ("-.", "agents alone"),
    "random": ((0, (1, 5)), "random play"),
}
_WITHOUT_NOISE = {"fed-ucb": "non-private", "cliques": "cliques-non-private"}


def _sweep(experiment: BanditExperiment, runs: Sequence[Run]) -> Any:
    """Return a panel for each private method, with a colour for each setting.

    Regret against the sweep's axis, or against trials where it has none. On log scales:
    agents that learn nothing would press all others together.
    """
    from matplotlib.lines import Line2D

    sweep = experiment.sweep
    assert sweep is not None
    lines = _lines_of(experiment, sweep.axis)
    bases = list(dict.fromkeys(base for base, _ in lines))
    panels = [b for b in bases if METHODS[b].noisy and METHODS[b].noise_only]
    settings = list(dict.fromkeys(others for _, others in lines if others)) or [()]
    colors = dict(zip(settings, (*COLORS, *_MORE_COLORS), strict=False))
    figure, made = new_figure(num_panels=len(panels))
    all_axes, used = np.atleast_1d(made), set[str]()
    for axes, panel in zip(all_axes, panels, strict=True):
        kinds = {
            panel: "private",
            METHODS[panel].noise_only: "noise-only",
            _WITHOUT_NOISE.get(panel, f"{panel}-open"): "open",
            "independent": "independent",
            "random": "random",
        }
        for (base, others), names in lines.items():
            if base in kinds:
                used.add(kinds[base])
                look = (colors.get(others, "#000000"), _LINES[kinds[base]][0], "o")
                _draw_line(axes, experiment, runs, names, look)
        axes.set_title(METHODS[panel].label, fontsize=10)
        axes.set(xlabel=experiment.axes[0], xscale="log", yscale="log")
        if sweep.axis is not None:
            _label_axis(axes, sweep, experiment)
    shared = [axes.get_ylim() for axes in all_axes]
    for axes in all_axes:
        axes.set_ylim(min(low for low, _ in shared), max(high for _, high in shared))
    all_axes[0].set_ylabel(
        f"{experiment.axes[1]}, {experiment.num_iterations:,} trials"
    )
    handles = [
        Line2D([], [], color=color, marker="s", ls="", label=_told(others))
        for others, color in colors.items()
        if others
    ]
    handles += [
        Line2D([], [], color="#7f7f7f", ls=style, label=label)
        for kind, (style, label) in _LINES.items()
        if kind in used
    ]
    figure.suptitle(
        f"{experiment.name}: {_fixed(experiment, sweep)}; {seeds_of(experiment, runs)}",
        fontsize=10,
    )
    figure.legend(
        handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9
    )
    return figure


def _draw_line(
    axes: Any,
    experiment: BanditExperiment,
    runs: Sequence[Run],
    names: Sequence[str],
    look: Look,
) -> None:
    """Draw a method at one setting: through the sweep's axis, or against trials."""
    assert experiment.sweep is not None
    axis, known = experiment.sweep.axis, experiment.known_methods
    curves = curves_by_method(names, runs)
    if axis is None:
        style = {"color": look[0], "linestyle": look[1], "linewidth": 1.5}
        draw_mean(axes, experiment.steps, curves[names[0]], **style)
    elif known[names[0]].depends_on(axis):
        places = _places(FIELDS[axis], experiment.sweep.values[axis])
        ends = {n: Estimate.of(curve[:, -1]) for n, curve in curves.items()}
        points = [(places[dict(known[n].point)[axis]], ends[n]) for n in names]
        draw_points(axes, sorted(points, key=itemgetter(0)), look, "")
    else:
        draw_level(axes, Estimate.of(curves[names[0]][:, -1]), look, "")


def _label_axis(axes: Any, sweep: Sweep, experiment: BanditExperiment) -> None:
    """Name the swept field and its values below a panel."""
    assert sweep.axis is not None
    field, values = FIELDS[sweep.axis], sweep.values[sweep.axis]
    places = [*_places(field, values).values()]
    scale = "linear" if field.scale == "names" else field.scale
    label_values(axes, scale, places, [text_of(value) for value in values])
    terms = experiment.unit.terms(experiment.privacy.delta)
    axes.set_xlabel(f"epsilon {terms}" if sweep.axis == "epsilon" else field.text)


def _lines_of(
    experiment: BanditExperiment, axis: str | None
) -> dict[tuple[str, Point], list[str]]:
    """Return the methods that make a line, by base method and what else is swept."""
    lines: dict[tuple[str, Point], list[str]] = {}
    for name in experiment.methods:
        method = experiment.known_methods[name]
        others = tuple(setting for setting in method.point if setting[0] != axis)
        lines.setdefault((method.base, others), []).append(name)
    return lines


def _told(settings: Iterable[tuple[str, Value]]) -> str:
    """Return settings of swept fields in letters."""
    return ", ".join(f"{FIELDS[n].letter} = {text_of(v)}" for n, v in settings)


def _fixed(experiment: BanditExperiment, sweep: Sweep) -> str:
    """Return the settings that all lines of a sweep share."""
    fixed = [name for name in FIELDS if name not in sweep.values]
    settings = ((name, experiment.setting(name)) for name in fixed)
    return _told((name, value) for name, value in settings if value is not None)


def _places(field: SweptField, values: Sequence[Value]) -> dict[Value, float]:
    """Return where values stand on the axis; names in order."""
    if field.scale == "names":
        return {value: float(i) for i, value in enumerate(values)}
    return {value: float(value) for value in values}


def _ticks(epsilons: Sequence[float]) -> list[float]:
    """Return where labels do not overlap: each a quarter or more above the last."""
    ticks: list[float] = []
    for epsilon in sorted(epsilons):
        if not ticks or epsilon > 1.25 * ticks[-1]:
            ticks.append(epsilon)
    return ticks


# Names of more lines than this stand beside a figure: below it they would be cut off.
_MOST_NAMES_BELOW = 12
# What draws a figure that does not show curves against steps, by its form.
_FORMS: dict[str, Callable[..., None]] = {
    "tradeoff": draw_series,
    "lengths": draw_lengths,
    "times": draw_times,
    "agents": draw_agents,
}


def own_form(experiment: Experiment) -> Callable[..., None] | None:
    """Return what draws it, where it has such a form."""
    return _FORMS.get(getattr(experiment, "form", ""))


def draw(experiment: Experiment, runs: Sequence[Run], path: Target) -> None:
    """Write a picture: curves against steps, or the experiment's own form.

    It says so if nobody was protected. A PNG, unless matplotlib's settings say
    otherwise.
    """
    names = [experiment.name, *map(experiment.label_of, experiment.methods)]
    with fonts_for("".join(names)):
        figure = _figure_of(experiment, runs)
        for axes in figure.axes:
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        if not all(run.private for run in runs):
            say_at_the_foot(figure, "an experiment: not private")
        figure.savefig(path, dpi=150)


def say_at_the_foot(figure: Any, text: str) -> None:
    """Put a line at the lower right, where it touches no label."""
    if figure.legends:  # beside or below which there is room
        figure.text(0.995, 0.005, text, ha="right", fontsize=8)
    else:  # for a label of the figure the layout makes room
        figure.supxlabel(text, x=0.995, ha="right", fontsize=8)


def _figure_of(experiment: Experiment, runs: Sequence[Run]) -> Any:
    if draw_form := own_form(experiment):
        figure, axes = new_figure()
        draw_form(axes, experiment, runs)
        axes.set_title(title_of(experiment, runs), fontsize=10)
        name_beside(figure)
        return figure
    if isinstance(experiment, TuningExperiment) and experiment.form == "messages":
        return _messages(experiment, runs)
    if isinstance(experiment, BanditExperiment) and experiment.sweep:
        return _sweep(experiment, runs)
    if experiment.counts_scalars:
        return _communication(experiment, runs)
    return _convergence(experiment, runs)


def _convergence(experiment: Experiment, runs: Sequence[Run]) -> Any:
    """Return the mean over runs as lines, one standard error as bands."""
    from matplotlib.ticker import MaxNLocator

    panels = _panels_of(experiment)
    figure, all_axes = new_figure(num_panels=len(panels))
    curves = curves_by_method(experiment.methods, runs)
    title = title_of(experiment, runs)
    for axes, names in zip(np.atleast_1d(all_axes), panels, strict=True):
        draw_curves(axes, experiment, {name: curves[name] for name in names})
        axes.set(xlabel=experiment.axes[0], ylabel=experiment.axes[1])
        if experiment.log_axes:
            axes.set(xscale="log", yscale="log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if isinstance(experiment, OptimisationExperiment):
            axes.set_ylim(experiment.y_range)
        if len(panels) > 1:
            corner = "upper right" if experiment.falls else "lower right"
            axes.legend(loc=corner, frameon=False, fontsize=8)
    if len(panels) > 1:
        figure.suptitle(title, fontsize=10)
        return figure
    axes.set_title(title, fontsize=10)
    if len(experiment.methods) > _MOST_NAMES_BELOW:
        name_beside(figure)
    else:
        _name_below(figure, axes)
    return figure


def _panels_of(experiment: Experiment) -> list[list[str]]:
    """Return the methods of each panel: one a series, all in one without any.

    What is in no series is in each panel.
    """
    if not isinstance(experiment, TuningExperiment):
        return [[*experiment.methods]]
    series = {n: m.curve.series for n, m in experiment.known_methods.items()}
    named = dict.fromkeys(curve for n in experiment.methods for curve in series[n])
    return [
        [n for n in experiment.methods if not series[n] or panel in series[n]]
        for panel in named
    ] or [[*experiment.methods]]


def _communication(experiment: Experiment, runs: Sequence[Run]) -> Any:
    """Return two panels: regret by round, and what was sent by then.

    On log scales: what learns nothing, or sends always, would press all others
    together. Who sends nothing is in the left one only.
    """
    figure, (left, right) = new_figure(num_panels=2)
    scalars = curves_by_method(experiment.methods, runs, "scalars")
    sent = {name: curves for name, curves in scalars.items() if curves.any()}
    draw_curves(left, experiment, curves_by_method(experiment.methods, runs))
    draw_curves(right, experiment, sent)
    x_label, y_label = experiment.axes
    left.set(xlabel=x_label, ylabel=y_label, yscale="log")
    right.set(xlabel=x_label, ylabel="scalars sent so far", yscale="log")
    title = drawable(f"{experiment.name}: {experiment.num_agents} agents")
    figure.suptitle(f"{title}, {seeds_of(experiment, runs)}", fontsize=10)
    _name_below(figure, left)
    return figure


def _name_below(figure: Any, axes: Any) -> None:
    """Put the names of the lines below: a search for the best place may take long."""
    names = axes.get_legend_handles_labels()
    for ncols in (4, 3, 2, 1):
        legend = figure.legend(
            *names, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9
        )
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        if ncols > 1:
            legend.remove()


def draw_curves(
    axes: Any, experiment: Experiment, curves: Mapping[str, NDArray[np.float64]]
) -> None:
    """Draw a line and a band a method; one line for methods that do the same."""
    shown = slice(experiment.first_shown, None)
    x, looks = experiment.steps[shown], looks_of(experiment)
    methods: dict[bytes, list[str]] = {}
    for name, curve in curves.items():
        same = np.ascontiguousarray(curve[:, shown]).tobytes()
        methods.setdefault(same, []).append(name)
    for names in methods.values():
        color, style, marker = looks[names[0]]
        labels = dict.fromkeys(in_legend(experiment.label_of(name)) for name in names)
        draw_mean(
            axes,
            x,
            experiment.drawn(curves[names[0]][:, shown]),
            color=color,
            linestyle=style,
            linewidth=1.6,
            marker=marker,
            markersize=4,
            markevery=max(1, len(x) // 10),
            label=" = ".join(labels),
        )
