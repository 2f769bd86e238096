"""Replies are read as Flower reads them, whatever their bytes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from flwr_fbo import _compat
from flwr_fbo._compat import reply_arrays


def _read(array: Array) -> np.ndarray[Any, Any]:
    [read] = reply_arrays(RecordDict({"arrays": ArrayRecord({"0": array})}))
    return read


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(-1, 1, 512),
        np.asfortranarray(np.ones((2, 3))),
        np.array(2.5),
        np.zeros((0, 4)),
        np.array([1, np.nan, np.inf], np.float32),
        np.arange(4.0).astype(">f8"),
        np.ones((1,) * 30),
    ],
    ids=lambda values: f"{values.dtype}{values.shape}",
)
def test_an_array_is_what_flower_makes_of_it(values: np.ndarray[Any, Any]) -> None:
    array = Array(values)
    expected, read = array.numpy(), _read(array)
    assert (read.dtype, read.shape) == (expected.dtype, expected.shape)
    assert read.tobytes() == expected.tobytes()
    assert read.flags.writeable


def test_numpy_is_not_asked_about_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Array, "numpy", None)
    assert np.array_equal(_read(Array(np.arange(3.0))), np.arange(3.0))


GOOD = Array(np.arange(8.0))


@pytest.mark.parametrize(
    "data",
    [
        GOOD.data[:-1],
        GOOD.data.replace(b"(8,)", b"(9,)"),
        GOOD.data.replace(b"(8,)", b"(-8"),
        GOOD.data.replace(b"<f8", b"|O8"),
        b"no array",
    ],
)
def test_what_numpy_refuses_is_refused(data: bytes) -> None:
    array = Array(GOOD.dtype, GOOD.shape, GOOD.stype, data)
    with pytest.raises(Exception) as expected:  # noqa: PT011  (of many kinds)
        array.numpy()
    with pytest.raises(expected.type):
        _read(array)


def test_another_serialisation_is_refused() -> None:
    array = Array(GOOD.dtype, GOOD.shape, "pickle", GOOD.data)
    with pytest.raises(TypeError):
        _read(array)


def test_what_is_remembered_of_headers_is_bounded() -> None:
    for size in range(100):
        _read(Array(np.zeros(size + 1)))
    assert _compat._form.cache_info().currsize <= 64
