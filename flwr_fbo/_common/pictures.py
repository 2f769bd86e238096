"""Pictures: their colours, and fonts or code points for letters of any script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from warnings import catch_warnings, filterwarnings

# Okabe & Ito's palette, told apart with any colour vision; styles for grey print.
# A method without a look of its own takes these in turn.
COLORS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#8c564b")
BLUE, GREEN, PINK, ORANGE, SKY, VERMILION, BROWN = COLORS

# With a glyph for all letters, which shows none of them.
_LAST_RESORT = "LastResort"


@contextmanager
def fonts_for(text: str) -> Iterator[list[str]]:
    """Have matplotlib use more fonts of this machine, if they have letters of a text.

    Gives their names.
    """
    from matplotlib import rc_context, rcParams

    fonts = list(dict.fromkeys(filter(None, map(_font_with, _missing(text)))))
    with rc_context({"font.family": [*rcParams["font.family"], *fonts]}):
        yield fonts


@contextmanager
def without_glyph_warnings() -> Iterator[None]:
    """Ignore that fonts lack letters: where these stay text, the reader has fonts.

    And that Matplotlib does not join letters: whoever shows the text does.
    """
    with catch_warnings():
        filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        filterwarnings("ignore", "Matplotlib currently does not", UserWarning)
        yield


def spelt(text: str) -> str:
    """Return a text with the code points of letters that no font in use has.

    Examples
    --------
    >>> spelt("C of ward \U0001f6f8")
    'C of ward [U+1F6F8]'
    """
    missing = _missing(text)
    if not missing:
        return text
    run, letter = f"[{re.escape(''.join(missing))}]+", "U+{:04X}"
    return re.sub(
        run,
        lambda found: f"[{' '.join(letter.format(ord(c)) for c in found[0])}]",
        text,
    )


def _missing(text: str) -> list[str]:
    """Return the letters that the fonts in use lack, in order, each once."""
    if text.isascii():
        return []
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont

    known: set[int] = set()
    for family in rcParams["font.family"]:
        with suppress(ValueError):  # matplotlib passes over a font that is not there
            properties = FontProperties(family=[family])
            known |= _letters(str(findfont(properties, fallback_to_default=False)))
    return [letter for letter in dict.fromkeys(text) if ord(letter) not in known]


def _font_with(letter: str) -> str | None:
    """Return the first font of this machine that has a letter, if there is one."""
    from matplotlib.font_manager import fontManager

    for font in fontManager.ttflist:
        if _LAST_RESORT not in font.fname and ord(letter) in _letters(font.fname):
            return font.name
    return None


@cache
def _letters(path: str) -> frozenset[int]:
    """Return the code points that a font has glyphs for."""
    from matplotlib.font_manager import get_font

    try:
        return frozenset(get_font(path).get_charmap())
    except (OSError, RuntimeError):  # removed since, or no font
        return frozenset()


def literal(label: str) -> str:
    """Return a label as matplotlib shows it, and reads no formula in it."""
    return label.replace("$", r"\$")


def drawable(label: str) -> str:
    """Return a label as it is drawn, with code points for letters that no font has.

    Where letters stay text in the file, the reader's own fonts show them.
    """
    from matplotlib import rcParams

    return literal(label if rcParams["svg.fonttype"] == "none" else spelt(label))


def in_legend(label: str) -> str:
    """Return a label as a legend shows it, which leaves out those that begin with _."""
    hair_space = "\u200a" if label.startswith("_") else ""
    return hair_space + drawable(label)
