"""Arrays as bytes, in the form of NumPy's .npy files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from io import BytesIO
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_npy(arrays: Iterable[NDArray[Any]]) -> list[bytes]:
    """Return each array as bytes.

    Raises
    ------
    ValueError
        If it has Python objects, which NumPy would pickle.
    """
    contents = []
    for array in map(np.asarray, arrays):
        # As `np.save` does, but that most headers have been written before.
        is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
        header = _header(array.shape, is_fortran, array.dtype)
        contents.append(header + array.tobytes("F" if is_fortran else "C"))
    return contents


@lru_cache(maxsize=128)
def _header(shape: tuple[int, ...], is_fortran: bool, dtype: np.dtype[Any]) -> bytes:
    stream = BytesIO()
    empty = np.empty(0, dtype)
    about = np.lib.format.header_data_from_array_1_0(empty)
    about |= {"shape": shape, "fortran_order": is_fortran}
    if dtype.hasobject:
        raise ValueError("an array of Python objects would be a pickle")
    np.lib.format.write_array_header_1_0(stream, about)
    return stream.getvalue()


def from_npy(contents: Iterable[bytes]) -> list[NDArray[Any]]:
    """Return the arrays that `to_npy` was given.

    Raises
    ------
    ValueError
        If the bytes are not an array.
    """
    arrays = []
    try:
        for content in contents:
            # As `np.load` does, but that most headers have been read before.
            start = _HEAD.size + _HEAD.unpack_from(content)[-1]
            shape, fortran_order, dtype = _read_header(content[:start])
            array = np.frombuffer(content, dtype, offset=start).copy()
            arrays.append(array.reshape(shape, order="F" if fortran_order else "C"))
    # NumPy's parser of headers has ten kinds of errors for bytes that it cannot read.
    except Exception as error:
        raise ValueError(f"an array cannot be read: {error!r}") from error
    return arrays


# Head of format 1.0, which `np.save` chooses: magic, version, length of the rest.
_HEAD = Struct("<6s2sH")


@lru_cache(maxsize=128)
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = BytesIO(header)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("an array of another format")
    return np.lib.format.read_array_header_1_0(stream)


def to_json_array(value: Any) -> NDArray[np.uint8]:
    """Return a JSON value as an array, to be stored among others."""
    text = json.dumps(value, separators=(",", ":"))
    return np.frombuffer(text.encode(), dtype=np.uint8)


def from_json_array(array: NDArray[np.uint8]) -> Any:
    """Return what `to_json_array` was given."""
    return json.loads(array.tobytes())
