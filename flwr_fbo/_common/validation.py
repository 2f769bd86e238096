"""Checks whose error names the field, its value and what is allowed."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeGuard, get_args

# The largest number that a float holds.
MOST = sys.float_info.max


def require(condition: bool, field: str, value: object, allowed: str) -> None:
    """Raise ValueError unless ``condition`` holds."""
    if not condition:
        refuse(field, value, allowed)


def refuse(field: str, value: object, allowed: str) -> NoReturn:
    """Raise ValueError: for what is costly to say, or where types are narrowed."""
    raise ValueError(f"{field}={value!r} is not allowed: {allowed}.")


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a real number, not a bool and not NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # isnan would raise OverflowError for an int that no float holds.
    return isinstance(value, int) or not math.isnan(value)


def require_choice(field: str, value: object, literal: Any) -> None:
    """Raise ValueError unless ``value`` is one of a ``Literal``'s."""
    choices = get_args(literal)
    require(value in choices, field, value, f"one of {choices}")


def require_int(field: str, value: Any, minimum: int, most: int | None = None) -> None:
    """Raise ValueError unless ``value`` is an int from ``minimum`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        refuse(field, value, f"an integer >= {minimum}")
    if most is not None and value > most:
        refuse(field, value, f"at most {most}")


def require_bool(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a bool."""
    require(isinstance(value, bool), field, value, "True or False")


def require_number(
    field: str,
    value: Any,
    least: float = -MOST,
    most: float = MOST,
    *,
    above: float | None = None,
    below: float | None = None,
    allowed: str = "",
) -> None:
    """Raise ValueError unless ``value`` is a number within bounds.

    Parameters
    ----------
    field : str
        Name of the field, for the error.
    value : object
        Value of the field.
    least, most : float
        Bounds that are allowed themselves; ``most=math.inf`` allows infinity, too.
    above, below : float, optional
        Bounds that are not.
    allowed : str
        Text for the error; the bounds by default.
    """
    if not (
        is_number(value)
        and least <= value <= most
        and (above is None or value > above)
        and (below is None or value < below)
    ):
        if allowed:
            refuse(field, value, allowed)
        if least > -MOST and most < MOST:
            refuse(field, value, f"a number from {_short(least)} to {_short(most)}")
        low, high = least if least > -MOST else None, most if most < MOST else None
        bounds = ((">=", low), (">", above), ("<=", high), ("<", below))
        texts = [f" {sign} {_short(end)}" for sign, end in bounds if end is not None]
        kind = "a number" if most > MOST else "a finite number"
        refuse(field, value, kind + " and".join(texts))


def _short(bound: float) -> str:
    """Return a bound as people write it: 1e-6 and 1e100, without signs and zeros."""
    return re.sub(r"e(-?)\+?0*", r"e\1", f"{bound:g}")


def require_fraction(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a number between 0 and 1, both excluded."""
    expected = "a number between 0 and 1, both excluded"
    require_number(field, value, above=0, below=1, allowed=expected)


def require_index(field: str, value: Any, length: int) -> None:
    """Raise ValueError unless ``value`` is an int from 0 to ``length - 1``."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    require(is_int and 0 <= value < length, field, value, f"0 to {length - 1}")


def require_positive(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a positive, finite number."""
    require_number(field, value, above=0)


def require_name(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a text that can be seen."""
    seen = isinstance(value, str) and value.isprintable() and value.strip() != ""
    require(seen, field, value, "a printable name, not empty")


def require_instance(
    field: str, value: Any, *kinds: type, allowed: str = "", optional: bool = False
) -> None:
    """Raise ValueError unless ``value`` is an instance of one of the classes.

    Parameters
    ----------
    field : str
        Name of the field, for the error.
    value : object
        Value of the field.
    *kinds : type
        Classes that are allowed; one of them is enough.
    allowed : str
        Text for the error; the classes by default.
    optional : bool
        Whether None is allowed as well.
    """
    if not isinstance(value, kinds) and not (optional and value is None):
        refuse(field, value, allowed or " or ".join(map(_with_article, kinds)))


def _with_article(kind: type) -> str:
    name = kind.__name__
    # An abbreviation is spelt: an FTSSettings.
    letters = "AEFHILMNORSX" if name[:2].isupper() else "AEIOUaeiou"
    return f"an {name}" if name[0] in letters else f"a {name}"


def require_all(field: str, values: Any, kind: type, *, allowed: str) -> None:
    """Raise ValueError unless ``values`` is a list or tuple of instances of a class."""
    is_list = isinstance(values, list | tuple)
    if not (is_list and all(isinstance(value, kind) for value in values)):
        refuse(field, values, allowed)


def require_function(
    field: str, value: Any, allowed: str = "a function", *, optional: bool = False
) -> None:
    """Raise ValueError unless ``value`` can be called."""
    require(callable(value) or (optional and value is None), field, value, allowed)


def require_seed(field: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is None or an int from 0 to 2**128 - 1."""
    if value is not None:
        require_int(field, value, 0)
        require(value < 2**128, field, value, "an integer below 2**128")


def require_known(field: str, value: Any, known: Collection[str]) -> None:
    """Raise ValueError unless ``value`` is a known name; it names the nearest one."""
    if not (isinstance(value, str) and value in known):
        refuse(field, value, nearest(value, known))


def nearest(word: object, known: Iterable[str]) -> str:
    """Return the known words, for an error, with a hint at the nearest."""
    names = sorted(known)
    return f"one of {names}{did_you_mean(word, names)}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a hint at the nearest known word, for an error; empty without one."""
    close = difflib.get_close_matches(str(word), sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_folder(field: str, folder: str | Path | None) -> Path | None:
    """Return the folder as a path, or None.

    Raises
    ------
    ValueError
        If it is not absolute: a ServerApp's working directory is the SuperLink's.
    """
    if folder is None:
        return None
    is_valid = isinstance(folder, str | Path) and Path(folder).is_absolute()
    require(is_valid, field, folder, "an absolute path")
    return Path(folder)
