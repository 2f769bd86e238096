"""How all benchmarks measure, and how they report.

What is compared runs alternately in one process, so that whatever else the machine
does befalls all alike. A figure is the ratio of two medians; its spread is the middle
half of the ratios of paired runs.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from flwr_fbo._common.arrays import FloatArray

Clock = Callable[[], float]

_LIBRARIES = (
    "flwr",
    "numpy",
    "scipy",
    "scikit-learn",
    "optuna",
    "torch",
    "botorch",
    "gpytorch",
    "jax",
    "jax-privacy",
    "opendp",
)


def alternate(
    works: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Clock = time.process_time,
) -> dict[str, FloatArray]:
    """Return the seconds of each call, shape (repeats,), after one that warms up.

    Parameters
    ----------
    works : mapping of str to callable
    repeats : int
        Every work is called once in each turn.
    clock : callable
        CPU time of this process unless another is given.
    """
    seconds = np.zeros((repeats, len(works)))
    for work in works.values():
        work()
    for row in seconds:
        for i, work in enumerate(works.values()):
            began = clock()
            work()
            row[i] = clock() - began
    return dict(zip(works, seconds.T, strict=True))


@dataclass(frozen=True)
class Bar:
    """What a row is held to.

    Attributes
    ----------
    text : str
        As it is shown: "at least 10".
    met : bool
    used : float, optional
        What is used of what the bar allows: above 1 it is missed. None where it is no
        matter of size.
    """

    text: str
    met: bool
    used: float | None = None

    @classmethod
    def at_least(cls, value: float, limit: float, unit: str = "") -> Bar:
        """Return a bar that ``value`` must reach."""
        return cls(f"at least {limit:g}{unit}", value >= limit, limit / value)

    @classmethod
    def at_most(cls, value: float, limit: float, unit: str = "") -> Bar:
        """Return a bar that ``value`` must not exceed."""
        return cls(f"at most {limit:g}{unit}", value <= limit, value / limit)


@dataclass(frozen=True)
class Row:
    """How much longer one thing takes than another.

    Attributes
    ----------
    what : str
    slower, faster : str
        Their names; the ratio is the first one's time over the second one's.
    seconds : tuple of two floats
        Their medians; in ``unit``, if that is not seconds.
    ratio, low, high : float
        Of the medians; quartiles of the paired ratios.
    quality : str
        Of what both give: the same figure of each.
    bar : Bar, optional
    unit : str
    """

    what: str
    slower: str
    faster: str
    seconds: tuple[float, float]
    ratio: float
    low: float
    high: float
    quality: str = ""
    bar: Bar | None = None
    unit: str = "s"


def compare(
    what: str,
    seconds: Mapping[str, FloatArray],
    slower: str,
    faster: str,
    *,
    quality: str = "",
    bar: Callable[[Row], Bar] | None = None,
    unit: str = "s",
) -> Row:
    """Return the row of two of the works that `alternate` has timed.

    Parameters
    ----------
    bar : callable, optional
        Takes the row without a bar.
    """
    first, second = seconds[slower], seconds[faster]
    medians = float(np.median(first)), float(np.median(second))
    low, high = (float(q) for q in np.percentile(first / second, (25, 75)))
    values = (what, slower, faster, medians, medians[0] / medians[1], low, high)
    row = Row(*values, quality, unit=unit)
    return row if bar is None else replace(row, bar=bar(row))


@dataclass(frozen=True)
class Section:
    """One subject's rows, and what is to be said of them.

    Attributes
    ----------
    title : str
    text : str
        How it was measured.
    rows : sequence of Row
    """

    title: str
    text: str
    rows: Sequence[Row]

    def to_markdown(self) -> str:
        """Return heading, text and table."""
        head = "| | A | B | A / B (middle half) | quality | bar |"
        lines = [head, "|---|---|---|--:|---|---|"]
        for row in self.rows:
            times = zip((row.slower, row.faster), row.seconds, strict=True)
            cells = [f"{name}: {amount(value, row.unit)}" for name, value in times]
            ratio = f"**{figure(row.ratio)}** ({figure(row.low)}-{figure(row.high)})"
            bar = "" if row.bar is None else row.bar.text
            if row.bar is not None:
                bar += ": met" if row.bar.met else ": **missed**"
            shown = (row.what, *cells, ratio, row.quality, bar)
            lines.append(f"| {' | '.join(shown)} |")
        return "\n".join([f"## {self.title}", "", self.text, "", *lines, ""])

    @classmethod
    def of_json(cls, fields: Mapping[str, Any]) -> Section:
        """Return the section whose fields were written as JSON."""
        rows = []
        for row in fields["rows"]:
            bar = None if row["bar"] is None else Bar(**row["bar"])
            rows.append(Row(**{**row, "seconds": tuple(row["seconds"]), "bar": bar}))
        return cls(fields["title"], fields["text"], rows)


def figure(value: float) -> str:
    """Return a number with three digits, or all of them where it has more."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{figure(seconds / size)} {unit}"
    return f"{figure(seconds / 1e-6)} µs"


def amount(value: float, unit: str) -> str:
    """Return a time, or another value with its unit."""
    return duration(value) if unit == "s" else f"{figure(value)} {unit}"


def surroundings() -> str:
    """Return machine, versions and BLAS, which the times depend on."""
    import scipy.linalg  # noqa: F401  (loads its BLAS, as every subject does)

    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    blas = {
        f"{p['internal_api']} {p['version']} ({p['num_threads']} threads)"
        for p in threadpool_info()
        if p["user_api"] == "blas"
    }
    libraries = [f"{name} {found}" for name in _LIBRARIES if (found := _version(name))]
    return ", ".join(
        [
            f"{model} ({os.cpu_count()} CPUs)",
            f"Python {platform.python_version()}",
            *libraries,
            *sorted(blas),
        ]
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def draw(sections: Iterable[Section], path: Path) -> None:
    """Draw how near to its bar each section comes, by the row that comes nearest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    hardest = {
        section.title: max(held, key=lambda held: held[1])
        for section in sections
        if (held := list(_held(section)))
    }
    page = Figure((10.0, 0.42 * len(hardest) + 1.2), dpi=110, layout="constrained")
    canvas: Any = FigureCanvasAgg(page)
    _draw_bars(page.subplots(), hardest)
    canvas.draw()
    # It has no colours.
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., 0]).save(path, optimize=True)


def _held(section: Section) -> Iterator[tuple[Row, float]]:
    """Yield the rows with a bar that is a matter of size, and what they use of it."""
    for row in section.rows:
        if row.bar is not None and row.bar.used is not None:
            yield row, row.bar.used


def _draw_bars(axes: Any, hardest: Mapping[str, tuple[Row, float]]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    labels = []
    for place, (title, (row, used)) in enumerate(hardest.items()):
        assert row.bar is not None
        axes.barh(
            place, used, left=0.0, height=0.55, color="0.7" if used <= 1 else "0.3"
        )
        pair = (
            row.slower if row.slower == row.faster else f"{row.slower} / {row.faster}"
        )
        labels.append(f"{title}\n{row.what}: {pair}, {row.bar.text}")
        axes.text(used, place, f"  {used:.2g}", va="center", fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1.2)
    most = max([used for _, used in hardest.values()], default=1.0)
    least = min([used for _, used in hardest.values()], default=1.0)
    axes.set(xscale="log", xlim=(0.5 * min(least, 1.0), 2.5 * max(most, 1.0)))
    axes.set(yticks=range(len(labels)), ylim=(len(labels) - 0.5, -0.5))
    axes.set_yticklabels(labels, fontsize=7)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(
        "used of what the bar allows (line: the bar; dark: missed)", fontsize=8
    )
    axes.set_title(
        "Of each section of the table, the row nearest to its bar", fontsize=9
    )
    axes.spines[["top", "right"]].set_visible(False)
