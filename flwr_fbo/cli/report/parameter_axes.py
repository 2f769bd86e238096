"""How a report draws and words the ranges of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any
from unicodedata import east_asian_width

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)

from flwr_fbo._common.pictures import literal
from flwr_fbo._common.text import printable

# More slices, or axes side by side, do not fit a page that is 400 pixels wide.
MOST_SHOWN = 6
_MOST_LETTERS, _MOST_IN_LABEL = 12, 40


def number_of(value: Any, distribution: BaseDistribution) -> float:
    """Return where a value stands on its axis; choices stand in their order."""
    if isinstance(distribution, CategoricalDistribution):
        return float(distribution.choices.index(value))
    return float(value)


def name_choices(axis: Any, distribution: BaseDistribution) -> None:
    """Put a tick with a name at each choice of a category."""
    if isinstance(distribution, CategoricalDistribution):
        names = all_short(distribution.choices)
        axis.set_ticks(range(len(names)), names)


def is_log(distribution: BaseDistribution) -> bool:
    """Return whether a parameter is on a log scale."""
    return getattr(distribution, "log", False)


def is_whole(distribution: BaseDistribution) -> bool:
    """Return whether a parameter's values are whole numbers."""
    return isinstance(distribution, IntDistribution)


def range_in_words(distribution: Any) -> str:
    """Return which values a parameter can have."""
    if isinstance(distribution, CategoricalDistribution):
        return "one of " + ", ".join(map(str, distribution.choices))
    text = f"{distribution.low} to {distribution.high}"
    if distribution.log:
        text += ", on a log scale"
    if distribution.step not in (None, 1):
        text += f", in steps of {distribution.step}"
    return f"{text}, whole numbers" if is_whole(distribution) else text


def label_of(name: str) -> str:
    """Return a parameter's name as an axis has it."""
    return short(name, _MOST_IN_LABEL)


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
