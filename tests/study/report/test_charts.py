"""Charts of reports: whole numbers, few ticks, and whole names."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flwr_fbo.study.report import charts
from flwr_fbo.study.report.page import Figure, Section, render


def _ticks(text: str, axis: str) -> Iterator[str]:
    """Yield the labels along an axis of the only figure of a page."""
    label = rf'<g id="[\w-]*{axis}tick_\d+">.*?<text[^>]*>(.*?)</text>'
    yield from re.findall(label, text, re.DOTALL)


@pytest.mark.parametrize(("num_rounds", "most"), [(1, 1.0), (2, 3.0), (30, 20.0)])
def test_agents_and_rounds_are_whole_numbers(num_rounds: int, most: float) -> None:
    values = np.full(num_rounds, most)
    caption = "Chart of how many agents answered."
    figure = charts.by_round("a", caption, "agents", values, whole=True)
    text = render_figure(figure)
    for axis in "xy":
        labels = list(_ticks(text, axis))
        assert labels
        assert all(re.fullmatch(r"\d+", label) for label in labels), labels


@pytest.mark.parametrize(("low", "high"), [(11.5, 12.2), (1e-6, 1e3)])
def test_log_axes_have_some_ticks_but_not_many(low: float, high: float) -> None:
    figure = charts.chart(
        "a",
        "Chart of two points.",
        ("x", "y"),
        lambda axes: axes.plot([low, high], [low, high]),
        log_x=True,
        log_y=True,
    )
    texts = re.findall(r"<text[^>]*>([\d.,e-]+)</text>", figure.svg)
    numbers = [float(text.replace(",", "")) for text in texts]
    inside = [number for number in numbers if low <= number <= high]
    # On both axes together.
    assert 4 <= len(inside) <= 16, texts


@pytest.mark.parametrize(("letters", "num_columns"), [(8, 2), (30, 1)])
def test_names_in_a_legend_are_not_cut_off(letters: int, num_columns: int) -> None:
    names = [f"{i}" * letters for i in range(4)]

    def draw(axes: Any) -> None:
        for name in names:
            axes.plot([0, 1], label=name)

    svg = charts.chart("a", "Chart of four lines.", ("x", "y"), draw).svg
    places = [re.search(rf'<text[^>]* x="([\d.]+)"[^>]*>{n}<', svg) for n in names]
    starts = {place[1] for place in places if place}
    assert len(starts) == num_columns, starts


def render_figure(figure: Figure) -> str:
    """Return a page of one figure."""
    return render("", "", [Section("", [figure])])
