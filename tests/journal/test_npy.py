"""Arrays as bytes: written as NumPy writes them, and damage is named."""

from io import BytesIO

import numpy as np
import pytest

from flwr_fbo.journal.npy import from_npy, to_npy


def test_arrays_are_written_as_numpy_writes_them() -> None:
    for array in (
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(24).reshape(2, 3, 4)[:, ::2],
        np.array(1.5),
        np.empty((3, 0), dtype="<U7"),
        np.zeros(2, dtype=[("a", "<i4"), ("b", ">f8", 3)]),
    ):
        buffer = BytesIO()
        np.save(buffer, array, allow_pickle=False)
        assert to_npy([array, array]) == 2 * [buffer.getvalue()]


def test_damaged_bytes_of_an_array_are_a_value_error() -> None:
    [content] = to_npy([np.arange(6.0).reshape(2, 3)])
    for bit in range(8 * (len(content) - 48)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            from_npy([bytes(damaged)])
        except ValueError:
            continue
    for length in range(len(content)):
        with pytest.raises(ValueError, match="array"):
            from_npy([content[:length]])
