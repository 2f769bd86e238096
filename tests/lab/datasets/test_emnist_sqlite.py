"""TFF's file of digits by writer: what is read, and what is refused."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from flwr_fbo.lab.datasets import emnist, emnist_sqlite
from flwr_fbo.lab.datasets.base import DataError
from flwr_fbo.lab.datasets.emnist_sqlite import parse_example
from tests.support.emnist_files import (
    TEST,
    TRAIN,
    data_folder_of,
    example_of,
    field_of,
    floats_feature,
    ints_feature,
    message_of,
    write_sqlite,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return data_folder_of(tmp_path, monkeypatch)


PIXELS = arrays(np.float32, 784, elements=st.floats(0, 1, width=32))


# A number, eight bytes, bytes, four bytes: of fields that nobody knows.
UNKNOWN = st.sampled_from(
    [b"", b"\x78\x05", b"\x79" + b"8" * 8, field_of(15, b"what"), b"\x7d1234"]
)


@given(
    pixels=PIXELS,
    label=st.integers(0, 9),
    packed=st.tuples(st.booleans(), st.booleans()),
    unknown=UNKNOWN,
    pixels_first=st.booleans(),
    more=st.dictionaries(st.sampled_from(["id", "", "pixel"]), UNKNOWN),
)
def test_what_is_written_is_read(
    pixels: NDArray[np.float32],
    label: int,
    packed: tuple[bool, bool],
    unknown: bytes,
    pixels_first: bool,
    more: dict[str, bytes],
) -> None:
    features = {
        "label": ints_feature([label], packed[0]),
        **more,
        "pixels": floats_feature(pixels.tolist(), packed[1]),
    }
    if pixels_first:
        features = dict(reversed(features.items()))
    image, found = parse_example(example_of(features, unknown))
    assert image.dtype == np.float32
    np.testing.assert_array_equal(image, 1 - pixels.reshape(28, 28))
    assert found == label


def _bad(pixels: bytes | None = None, label: bytes | None = None) -> bytes:
    return example_of(
        {
            "pixels": pixels or floats_feature([0.5] * 784),
            "label": label or ints_feature([3]),
        }
    )


BAD_MESSAGES: dict[str, tuple[object, str]] = {
    "text": ("pixels", "is no bytes but str"),
    "garbage": (b"\xff\xfe\xfd", "is no tf.train.Example"),
    "cut": (_bad()[:-5], "is no tf.train.Example"),
    "fewer pixels": (_bad(floats_feature([0.5] * 783)), "has 783 floats"),
    "integer pixels": (_bad(ints_feature([1] * 784)), "has 0 floats"),
    "NaN": (_bad(floats_feature([0.5] * 783 + [np.nan])), r"outside 0\.\.1"),
    "above 1": (_bad(floats_feature([1.001] + [0.5] * 783)), r"outside 0\.\.1"),
    "letter": (_bad(label=ints_feature([10])), r"has 'label' \[10\]"),
    "two labels": (_bad(label=ints_feature([1, 2])), r"has 'label' \[1, 2\]"),
}


@pytest.mark.parametrize(
    ("message", "reason"), BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys()
)
def test_a_wrong_message_is_refused_with_file_and_row(
    message: object, reason: str, folder: Path
) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_example(message)
    path = folder / "emnist" / "emnist_all.sqlite"
    write_sqlite(path, message=lambda n: message if n == 6 else message_of(n))
    assert len(emnist.partition(0).y_train) == 4  # whom it does not concern
    with pytest.raises(DataError) as error:
        emnist.partition(1)
    assert f"{path} is damaged" in str(error.value)
    assert "row 2 of examples" in str(error.value)


@given(
    st.binary(max_size=60) | st.integers(0, len(_bad()) - 1).map(lambda i: _bad()[:i])
)
def test_no_bytes_are_read_that_are_no_message(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"has|is"):
        parse_example(message)


@given(st.integers(0, len(_bad()) - 1), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_an_image(place: int, byte: int) -> None:
    message = bytearray(_bad())
    message[place] = byte
    try:
        image, label = parse_example(bytes(message))
    except ValueError:
        return
    assert image.shape == (28, 28)
    assert image.min() >= 0
    assert image.max() <= 1
    assert 0 <= label <= 9


def test_a_large_file_needs_little_memory(folder: Path) -> None:
    numbers = {
        (f"f{writer:04}", split): list(range(size))
        for writer in range(40)
        for split, size in ((TRAIN, 45), (TEST, 5))
    }
    path = folder / "emnist" / "emnist_all.sqlite"
    write_sqlite(path, numbers, {n: message_of(n) for n in range(45)}.__getitem__)
    emnist_sqlite.parse_example(message_of(0))  # what is made once
    tracemalloc.start()
    split = emnist.partition(39)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 6_000_000
    assert held < split.X_train.nbytes + split.X_validation.nbytes + 200_000
    assert peak < 1_000_000
