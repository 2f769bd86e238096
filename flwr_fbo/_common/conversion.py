"""Conversion of values from NumPy, pandas and PyTorch to plain ones and arrays.

pandas and PyTorch are not imported: their objects are recognised by their methods.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import (
    did_you_mean,
    refuse,
    require,
    require_instance,
)

P = ParamSpec("P")
R = TypeVar("R")

# Numbers that keep a bound may exceed it by this share in single precision.
ROUNDING = 1e-6


def plain(value: Any) -> Any:
    """Return a number or text as one of Python's, and anything else as it is.

    NumPy scalars become plain, and so do arrays and tensors without axes. To compare a
    float32 with a bound NumPy rounds the bound, which the number could then exceed.
    Other numbers, such as fractions, become floats: they could not be recorded.

    Examples
    --------
    >>> plain(np.int64(3)), plain(np.array(0.5)), plain("ward")
    (3, 0.5, 'ward')
    """
    if type(value) in (int, float, str, bool):
        return value
    has_no_axes = getattr(value, "shape", None) == () and hasattr(value, "item")
    if isinstance(value, np.generic) or has_no_axes:
        value = value.item()
    if isinstance(value, Real) and not isinstance(value, int | float):
        return float(value)
    return value


def finite(value: Any) -> Any:
    """Return values for JSON: null in place of infinity and NaN, at any depth."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def take_plain(settings: Any) -> None:
    """Replace the NumPy numbers among a frozen dataclass's fields by plain ones."""
    for field in fields(settings):
        object.__setattr__(settings, field.name, plain(getattr(settings, field.name)))


def takes_plain(function: Callable[P, R]) -> Callable[P, R]:
    """Make NumPy numbers plain, and answer an unknown keyword with the nearest one.

    Python 3.13 answers like this by itself. Readers and tools see the function's own
    signature.
    """
    known = inspect.signature(function).parameters

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs.keys() - known:
            owner = function.__qualname__.removesuffix(".__init__")
            hint = did_you_mean(name, known) or f": it has {', '.join(list(known)[1:])}"
            raise TypeError(f"{owner}() has no parameter {name!r}{hint}")
        plain_args: Any = [args[0], *map(plain, args[1:])] if args else []
        plain_kwargs: Any = {name: plain(value) for name, value in kwargs.items()}
        return function(*plain_args, **plain_kwargs)

    return checked


def number(field: str, value: Any) -> float:
    """Return a number, True as 1; raise ValueError for anything else.

    Examples
    --------
    >>> number("reward", np.bool_(True))
    1.0
    """
    found = plain(value)
    if not isinstance(found, int | float):
        refuse(field, value, f"a number, and it is a {_kind(value)}")
    return float(found)


def whole_number(field: str, value: Any) -> int:
    """Return a whole number; raise ValueError for anything else, True included."""
    found = plain(value)
    if not isinstance(found, int) or isinstance(found, bool):
        refuse(field, value, f"an integer, and it is a {_kind(value)}")
    return int(found)


def float_array(field: str, value: Any) -> FloatArray:
    """Return a new array of floats, with NaN for None and missing values.

    Raises
    ------
    ValueError
        If ``value`` is not an array of numbers.
    """
    if hasattr(value, "detach"):  # a tensor, with a gradient or on a GPU
        value = value.detach().cpu().numpy()
    elif hasattr(value, "to_numpy"):  # pd.NA is not a float
        value = value.to_numpy(dtype=float, na_value=np.nan)
    elif isinstance(value, Iterable) and not isinstance(value, Collection | np.ndarray):
        value = list(value)
    try:
        return np.array(value, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        text = f"{field} is not allowed: an array of numbers, and it is a"
        raise ValueError(f"{text} {_kind(value)} ({error}).") from error


def names(field: str, value: Any) -> list[str]:
    """Return the names in a list, set, array or column of texts, as a list.

    Examples
    --------
    >>> names("eligible", np.array(["ward", "home"]))
    ['ward', 'home']
    """
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        refuse(field, value, f"a collection of names, and it is a {_kind(value)}")
    found = [plain(name) for name in value]
    for name in found:
        text = f"names, and this is a {_kind(name)}"
        require_instance(field, name, str, allowed=text)
    return found


def mapping(field: str, value: Any) -> Mapping[Any, Any]:
    """Return a dict, a row of a data frame, or a frame of one row, as a mapping."""
    if isinstance(value, Mapping):
        return value
    if _is_frame(value):
        text = f"one row, and it has {len(value)}: `iloc[i]` is one of them"
        require(len(value) == 1, field, f"<{_kind(value)}>", text)
        [value] = mappings(field, value)
    elif hasattr(value, "_asdict"):  # a row of `itertuples`
        value = value._asdict()
    elif hasattr(value, "to_dict"):  # a Series
        value = value.to_dict()
    if not isinstance(value, Mapping):
        text = f"a mapping, or a row of a data frame, and it is a {_kind(value)}"
        refuse(field, value, text)
    return value


def mappings(field: str, value: Any) -> list[Any]:
    """Return a data frame, or a list of what `mapping` takes, as a list.

    The members of a list are not checked.
    """
    if _is_frame(value):
        return list(value.to_dict("records"))
    if not isinstance(value, Iterable) or isinstance(value, Mapping | str):
        text = f"a list of mappings, or a data frame, and it is a {_kind(value)}"
        refuse(field, value, text)
    return list(value)


def within(values: FloatArray, sizes: FloatArray, largest: float) -> FloatArray:
    """Return rows whose sizes exceed a bound by rounding, scaled down to the bound.

    Rows of a larger size stay, to be refused.

    Examples
    --------
    >>> x = np.array([[0.6, 0.8000001], [3.0, 4.0]])
    >>> within(x, np.linalg.norm(x, axis=1), 1.0).round(7)
    array([[0.6, 0.8],
           [3. , 4. ]])
    """
    over = (sizes > largest) & (sizes <= largest * (1 + ROUNDING))
    if not over.any():
        return values
    factors = np.where(over, largest / np.where(over, sizes, 1.0), 1.0)
    return np.asarray(values * factors.reshape(-1, *[1] * (values.ndim - 1)))


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Any:
    """Return a ``pandas.DataFrame`` that has the columns even without rows.

    Raises
    ------
    ImportError
        If pandas is not installed; the message names the extra.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "to_dataframe needs pandas: pip install 'flwr-fbo[pandas]'."
        ) from error
    return pd.DataFrame([dict(row) for row in rows], columns=list(columns))


def _is_frame(value: Any) -> bool:
    return hasattr(value, "to_dict") and getattr(value, "ndim", 0) == 2


def _kind(value: Any) -> str:
    return type(value).__name__
