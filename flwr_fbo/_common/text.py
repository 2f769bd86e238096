"""Text: made safe to print, put into words, and written to files.

Names come from whoever wrote a study or a file: a parameter's may have the escape
character in it, which clears a terminal, or a sign that reverses the text after it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Control and format characters, but for tab and newline, and halves of a character.
_NOT_PRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

_UNITS = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


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


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: 1 release, 2 releases."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def short_value(value: Any) -> str:
    """Return a value for reading: numbers with four digits, bools as in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def humanised(value: float, error: float = math.nan, sign: str = "") -> str:
    """Return a count by three digits and a unit: 81.5 M, or with an error 81.5 ± 1.2 M.

    Parameters
    ----------
    value : float
        The count, of any sign and size.
    error : float
        Left out where it is NaN.
    sign : str
        ``"+"`` for differences.
    """
    factor, unit = next(
        (entry for entry in _UNITS if abs(value) >= entry[0]), (1.0, "")
    )
    digits = max(3 - len(f"{abs(value) / factor:.0f}"), 0) if unit else 0
    number = f"{value / factor:{sign}.{digits}f}"
    if math.isfinite(error):
        number += f" ± {error / factor:.{digits}f}"
    return number + unit


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


def agents_text(slots: Sequence[int]) -> str:
    """Return increasing slots in words, such as ``"agents 0 to 2, 5"``."""
    return f"agent{'' if len(slots) == 1 else 's'} {ranges_text(slots)}"


def made_printable(record: logging.LogRecord) -> bool:
    """Make message and traceback of a log's record printable: a filter that passes all.

    Returns
    -------
    bool
        True.
    """
    record.msg, record.args = printable(record.getMessage()), None
    if record.exc_info:
        lines = traceback.format_exception(*record.exc_info)
        record.exc_text = printable("".join(lines)).rstrip("\n")
    return True


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically; only its owner can read it.

    Raises
    ------
    OSError
        If it cannot be written. A file that had the name before is unchanged then.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            # On the disk before it has its name: after a crash the name is never that
            # of a file whose text is lost.
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
