"""Figures of a report: SVG that takes the colours of the page it stands in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import cycle
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from flwr_fbo._text import printable
from flwr_fbo.cli.report.page import Figure
from flwr_fbo.experiment_runner.base import Experiment
from flwr_fbo.experiment_runner.looks import BLUE, line_styles
from flwr_fbo.experiment_runner.wording import humanised
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.recommendation import ReleasedFunction

FloatArray = NDArray[np.float64]

# Points of a released function along an axis, and along the side of a map.
_NUM_PLACES, _MAP_SIDE = 101, 41
# Inches: letters stay readable on a telephone, which shows it at two thirds.
_SIZE = (4.6, 3.5)
_STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "savefig.format": "svg",
    "savefig.transparent": True,
    "svg.fonttype": "none",  # letters that can be searched, and read aloud
}
_BLACK = re.compile(r"#000000\b")
_NAME = re.compile(r'(\bid="|href="#|url\(#)')
# References that HTML does without, and what only a file needs.
_OUTSIDE = re.compile(r'\s+xmlns(:\w+)?="[^"]*"')
_METADATA = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)


def drawn(name: str, caption: str, draw: Callable[[Any], None]) -> Figure:
    """Return what a function draws into the file that it is given.

    Parameters
    ----------
    name : str
        Of no other figure on the page.
    caption : str
        Says what is to be seen, for those who do not see it, too.
    draw : callable
        Takes a binary file, and saves a matplotlib figure to it.
    """
    from matplotlib import rc_context

    file = BytesIO()
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        draw(file)
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    text = _OUTSIDE.sub("", _METADATA.sub("", text)).replace("xlink:href", "href")
    text = _NAME.sub(rf"\g<1>{name}-", _BLACK.sub("currentColor", text))
    label = f'<svg role="img" aria-label="{escape(caption)}"'
    return Figure(Markup(text.replace("<svg", label, 1)), caption)


def chart(
    name: str,
    caption: str,
    labels: tuple[str, str],
    draw: Callable[[Any], object],
    log_x: bool = False,
    log_y: bool = False,
    whole_x: bool = True,
    whole_y: bool = False,
) -> Figure:
    """Return what a function draws into the axes that it is given, and their legend.

    A linear axis that counts, such as rounds, has ticks at whole numbers only. For the
    name and the caption see `drawn`.
    """

    def save(file: Any) -> None:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        figure = Canvas(figsize=_SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        draw(axes)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        _set_ticks(axes.xaxis, log_x, whole_x)
        _set_ticks(axes.yaxis, log_y, whole_y)
        axes.grid(alpha=0.25)
        handles, names = axes.get_legend_handles_labels()
        if handles:
            rows = (len(names) + 1) // 2
            figure.set_size_inches(_SIZE[0], _SIZE[1] + 0.2 * rows)
            below: Any = "outside lower center"
            figure.legend(handles, names, loc=below, ncols=2, frameon=False)
        figure.savefig(file)

    return drawn(name, caption, save)


def by_round(
    name: str, caption: str, y_label: str, values: FloatArray, whole: bool = False
) -> Figure:
    """Return a chart of one value after each of rounds 1, 2 and so on.

    ``whole`` values, which count something, have ticks at whole numbers only.
    """

    def draw(axes: Any) -> None:
        rounds = np.arange(1, len(values) + 1)
        axes.plot(rounds, values, color=BLUE, drawstyle="steps-post", marker=".")
        axes.set_ylim(0, None)

    return chart(name, caption, ("round", y_label), draw, whole_y=whole)


def slices(
    name: str, caption: str, space: SearchSpace, released: ReleasedFunction
) -> Figure:
    """Return a chart of the released function along each axis, through its best."""
    places = np.linspace(0.0, 1.0, _NUM_PLACES)

    def draw(axes: Any) -> None:
        styles = cycle(["-", "--", ":", "-."])
        for i, (parameter, style) in enumerate(
            zip(space.distributions, styles, strict=False)
        ):
            x = np.tile(released.best, (_NUM_PLACES, 1))
            x[:, i] = places
            axes.plot(
                places,
                released.function(space.snap_discrete(x)),
                style,
                label=printable(parameter),
            )
        threshold = released.recommendation.threshold
        if threshold is not None:
            label = "chance and noise"
            axes.axhline(threshold, color="#7f7f7f", lw=1, label=label)

    labels = ("position in the parameter's range", "released score")
    return chart(name, caption, labels, draw, whole_x=False)


def score_map(
    name: str, caption: str, space: SearchSpace, released: ReleasedFunction
) -> Figure:
    """Return a map of the released function of two parameters."""
    side = np.linspace(0.0, 1.0, _MAP_SIDE)
    grid = np.array([(x, y) for y in side for x in side])
    values = released.function(space.snap_discrete(grid)).reshape(_MAP_SIDE, _MAP_SIDE)

    def draw(axes: Any) -> None:
        shades = axes.contourf(side, side, values, levels=10, cmap="Blues")
        axes.figure.colorbar(shades, ax=axes, label="released score")
        axes.plot(*released.best, "x", color="#d62728", ms=9, mew=2)

    names = map(printable, space.distributions)
    labels = tuple(f"{name}, position in its range" for name in names)
    assert len(labels) == 2
    return chart(name, caption, (labels[0], labels[1]), draw, whole_x=False)


def by_method(
    name: str,
    caption: str,
    y_label: str,
    experiment: Experiment,
    curves: Mapping[str, FloatArray],
    log_y: bool = False,
) -> Figure:
    """Return a chart of what grows in steps, a line a method."""

    def draw(axes: Any) -> None:
        for method, style in line_styles(experiment, curves).items():
            x, y = experiment.steps, curves[method]
            axes.plot(x, y, drawstyle="steps-post", **style)
        if not log_y:
            axes.set_ylim(0, None)

    labels = (experiment.axes[0], y_label)
    return chart(name, caption, labels, draw, experiment.log_axes, log_y)


def _set_ticks(axis: Any, log: bool, whole: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    if log:
        _use_plain_numbers(axis)
    elif whole:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _use_plain_numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda x, _: _plain(x)))
    low, high = axis.get_view_interval()
    if high < 10 * low:  # perhaps no power of ten is in between
        axis.set_minor_formatter(FuncFormatter(lambda x, _: _plain(x)))
    else:
        axis.set_minor_formatter(NullFormatter())


def _plain(value: float) -> str:
    return f"{value:,g}" if value < 1e5 else humanised(value)


def values_in_words(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names and values for a caption."""
    return "; ".join(f"{name} {value}" for name, value in pairs)
