"""The digits: dealt out once, and what no partition may be."""

from typing import Any

import numpy as np
import pytest

from flwr_fbo.lab.datasets.digits import partition


def test_digits_are_dealt_out_once() -> None:
    parts = [partition(i, 20, seed=3) for i in range(20)]
    sizes = [len(p.y_train) + len(p.y_validation) for p in parts]
    assert sum(sizes) == 1797
    assert min(sizes) >= 20
    for part in parts:
        assert abs(len(part.y_train) - len(part.y_validation)) <= 1
        assert len(set(part.y_train)) > 1
        assert part.X_train.shape == (len(part.y_train), 64)
    again = partition(7, 20, seed=3)
    np.testing.assert_array_equal(again.X_train, parts[7].X_train)
    other = partition(7, 20, seed=4)
    assert other.X_train.shape != again.X_train.shape or not np.array_equal(
        other.X_train, again.X_train
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((20, 20, 0), "index=20"),
        ((0, 41, 0), "num_partitions=41"),
        ((0, 20, -1), "seed=-1"),
    ],
)
def test_bad_partitions_are_named(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        partition(*arguments)
    assert words in str(error.value)
