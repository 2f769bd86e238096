"""Charts of a report: SVG in the colours of the page; axes and names of parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from itertools import accumulate
from textwrap import fill
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from markupsafe import Markup, escape
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import BLUE, fonts_for, literal, without_glyph_warnings
from flwr_fbo._common.text import humanised, printable
from flwr_fbo.study.report.page import Figure

Parameter = tuple[str, BaseDistribution]

# More slices, or axes side by side, do not fit a page that is 400 pixels wide.
MOST_SHOWN = 6
_MOST_LETTERS, _MOST_IN_LABEL = 12, 40
# Longer labels are higher than the figure.
_MOST_IN_Y_LABEL = 32
# With longer names a legend's two columns are wider than the figure.
_MOST_IN_COLUMN = 22
# Inches: letters are 12 pixels high on a telephone, and 15 elsewhere.
_SIZE = (4.2, 3.2)
_MOST_LOG_TICKS = 6
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


def chart(
    name: str,
    caption: str,
    labels: tuple[str | Parameter, str | Parameter],
    draw: Callable[[Any], object],
    *,
    log_x: bool = False,
    log_y: bool = False,
    whole_x: bool = True,
    whole_y: bool = False,
) -> Figure:
    """Return what a function draws into the axes that it is given, and their legend.

    A linear axis that counts, such as rounds, has ticks at whole numbers only. An axis
    of a parameter has its scale, and a tick with a name for each choice. The function
    may replace labels and scales.

    Parameters
    ----------
    name : str
        Name that no other figure on the page has.
    caption : str
        What is to be seen, also for those who do not see it.
    labels : tuple of str or (str, distribution)
        Labels or parameters of the x axis and the y axis.
    draw : callable
        Takes matplotlib axes.
    log_x, log_y : bool
        Whether an axis is logarithmic.
    whole_x, whole_y : bool
        Whether an axis counts.
    """
    from matplotlib import rc_context

    x_label, log_x, whole_x, x_choices = _axis(labels[0], log_x, whole_x)
    y_label, log_y, whole_y, y_choices = _axis(labels[1], log_y, whole_y)

    def saved() -> str:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        figure = Canvas(figsize=_SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set(xlabel=x_label, ylabel=y_label)
        draw(axes)
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        _set_ticks(axes.xaxis, whole_x, x_choices)
        _set_ticks(axes.yaxis, whole_y, y_choices)
        axes.set_ylabel(fill(axes.get_ylabel(), _MOST_IN_Y_LABEL))
        axes.grid(alpha=0.25)
        handles, names = axes.get_legend_handles_labels()
        if handles:
            columns = 2 if max(map(len, names)) <= _MOST_IN_COLUMN else 1
            rows = math.ceil(len(names) / columns)
            figure.set_size_inches(_SIZE[0], _SIZE[1] + 0.2 * rows)
            below: Any = "outside lower center"
            figure.legend(handles, names, loc=below, ncols=columns, frameon=False)
        file = BytesIO()
        figure.savefig(file)
        return file.getvalue().decode()

    with rc_context({**_STYLE, "svg.hashsalt": name}), without_glyph_warnings():
        text = saved()
        # Whoever reads the page has fonts of their own: these measure the letters.
        with fonts_for(text) as fonts:
            text = saved() if fonts else text
    text = text[text.index("<svg") :]
    text = _OUTSIDE.sub("", _METADATA.sub("", text)).replace("xlink:href", "href")
    text = _NAME.sub(rf"\g<1>{name}-", _BLACK.sub("currentColor", text))
    label = f'<svg role="img" aria-label="{escape(caption)}"'
    return Figure(Markup(text.replace("<svg", label, 1)), caption)


def _axis(
    label: str | Parameter, log: bool, whole: bool
) -> tuple[str, bool, bool, Sequence[Any]]:
    """Return an axis' label, whether it is logarithmic or counts, and its choices."""
    if isinstance(label, str):
        return label, log, whole, ()
    name, distribution = label
    choices = getattr(distribution, "choices", ())
    log = getattr(distribution, "log", False)
    whole = isinstance(distribution, IntDistribution)
    return short(name, _MOST_IN_LABEL), log, whole, choices


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


def _set_ticks(axis: Any, whole: bool, choices: Sequence[Any]) -> None:
    from matplotlib.ticker import (
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
    )

    if choices:
        axis.set_ticks(range(len(choices)), all_short(choices))
    elif isinstance(axis.get_major_locator(), LogLocator):
        low, high = axis.get_view_interval()
        # Less than two powers of ten would be too few ticks.
        subs = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs, numticks=_MOST_LOG_TICKS))
        axis.set_major_formatter(FuncFormatter(lambda x, _: plain(x)))
        axis.set_minor_formatter(NullFormatter())
    elif whole:  # ticks of other axes may have been chosen by hand: they stay
        steps = [1, 2, 5, 10]
        ticks = MaxNLocator("auto", integer=True, min_n_ticks=1, steps=steps)
        axis.set_major_locator(ticks)


def plain(value: float) -> str:
    """Return a number as an axis has it."""
    return f"{value:,g}" if value < 1e5 else humanised(value)


def number_of(value: Any, distribution: BaseDistribution) -> float:
    """Return where a value stands on its axis; choices stand in their order."""
    if isinstance(distribution, CategoricalDistribution):
        return float(distribution.choices.index(value))
    return float(value)


def left_out(order: Sequence[str]) -> list[str]:
    """Say which parameters, the most important first, are not shown, if any."""
    names = ", ".join(order[MOST_SHOWN:])
    return [f"The charts leave out the less important ones: {names}."] if names else []


def short(value: Any, most: int = _MOST_LETTERS) -> str:
    """Return a name as matplotlib can draw it, in so many letters.

    Letters of China, Japan and Korea are as wide as two.
    """
    return literal(_cut(printable(str(value)), most))


def all_short(values: Iterable[Any]) -> list[str]:
    """Return what `short` does for each, but different names stay different."""
    texts = [printable(str(value)) for value in values]
    for at_end in (0, 5):
        cut = [_cut(text, _MOST_LETTERS, at_end) for text in texts]
        if len(set(cut)) == len(set(texts)):
            return [literal(text) for text in cut]
    return [short(f"{number} {text}") for number, text in enumerate(texts, 1)]


def _cut(text: str, most: int, at_end: int = 0) -> str:
    """Return a text of so many letters, with the last ones of a longer one."""
    if _num_within(text, most) == len(text):
        return text
    first = text[: _num_within(text, most - 1 - at_end)]
    last = text[len(text) - _num_within(text[::-1], at_end) :]
    return f"{first}…{last}"


def _num_within(text: str, most: int) -> int:
    """Return how many of the first characters are not wider than so many letters."""
    widths = accumulate(1 + (east_asian_width(c) in "WF") for c in text)
    return sum(width <= most for width in widths)
