"""Text that nobody else can steer a terminal or a reader's eye with.

Names come from whoever wrote a study or a file: a parameter's may have the escape
character in it, which clears a terminal, or a sign that reverses the text after it.
"""

from __future__ import annotations

import logging
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

# Control and format characters, but for tab and newline, and halves of a character.
_NOT_PRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Return the text with what cannot be seen in it written out.

    Examples
    --------
    >>> printable("C\x1b[2J")
    'C\\x1b[2J'
    """
    return _NOT_PRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return what is in nested mappings, by dotted name."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            pairs += flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", value))
    return pairs


def ranges_text(numbers: Sequence[int]) -> str:
    """Return increasing integers in few words.

    Examples
    --------
    >>> ranges_text([0, 1, 2, 5])
    '0 to 2, 5'
    """
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ", ".join(f"{a} to {b}" if b > a else str(a) for a, b in ranges)


class PrintableFilter(logging.Filter):
    """Lets every record of a logger pass, made printable: message and traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True; change the record."""
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info:
            lines = traceback.format_exception(*record.exc_info)
            record.exc_text = printable("".join(lines)).rstrip("\n")
        return True
