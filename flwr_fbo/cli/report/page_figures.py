"""Figures of a report: SVG that takes the colours of the page it stands in."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from textwrap import fill
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import BLUE, fonts_for, without_glyph_warnings
from flwr_fbo._common.text import humanised
from flwr_fbo.cli.report.page import Figure

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

    with rc_context({**_STYLE, "svg.hashsalt": name}), without_glyph_warnings():
        text = _saved(draw)
        # Whoever reads the page has fonts of their own: these measure the letters.
        with fonts_for(text) as fonts:
            text = _saved(draw) if fonts else text
    text = text[text.index("<svg") :]
    text = _OUTSIDE.sub("", _METADATA.sub("", text)).replace("xlink:href", "href")
    text = _NAME.sub(rf"\g<1>{name}-", _BLACK.sub("currentColor", text))
    label = f'<svg role="img" aria-label="{escape(caption)}"'
    return Figure(Markup(text.replace("<svg", label, 1)), caption)


def _saved(draw: Callable[[Any], None]) -> str:
    file = BytesIO()
    draw(file)
    return file.getvalue().decode()


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

    A linear axis that counts, such as rounds, has ticks at whole numbers only. The
    function may replace labels and scales. For the name and the caption see `drawn`.
    """

    def save(file: Any) -> None:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure as Canvas

        figure = Canvas(figsize=_SIZE, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.set(xlabel=labels[0], ylabel=labels[1])
        draw(axes)
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        _set_ticks(axes.xaxis, whole_x)
        _set_ticks(axes.yaxis, whole_y)
        axes.set_ylabel(fill(axes.get_ylabel(), _MOST_IN_Y_LABEL))
        axes.grid(alpha=0.25)
        handles, names = axes.get_legend_handles_labels()
        if handles:
            columns = 2 if max(map(len, names)) <= _MOST_IN_COLUMN else 1
            rows = math.ceil(len(names) / columns)
            figure.set_size_inches(_SIZE[0], _SIZE[1] + 0.2 * rows)
            below: Any = "outside lower center"
            figure.legend(handles, names, loc=below, ncols=columns, frameon=False)
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


def _set_ticks(axis: Any, whole: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator

    # Ticks that were chosen by hand stay.
    if isinstance(axis.get_major_locator(), LogLocator):
        _use_plain_numbers(axis)
    elif whole:
        steps = [1, 2, 5, 10]
        ticks = MaxNLocator("auto", integer=True, min_n_ticks=1, steps=steps)
        axis.set_major_locator(ticks)


def _use_plain_numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    # Less than two powers of ten would be too few ticks.
    subs = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=_MOST_LOG_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda x, _: plain(x)))
    axis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """Return a number as an axis has it."""
    return f"{value:,g}" if value < 1e5 else humanised(value)


def values_in_words(pairs: Sequence[tuple[str, str]]) -> str:
    """Return names and values for a caption."""
    return "; ".join(f"{name} {value}" for name, value in pairs)
