"""The landmine fields: the published ones, their halves, and what no field is."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat
from sklearn.model_selection import train_test_split

from flwr_fbo.lab.datasets.landmine import NUM_FIELDS, partition
from tests.support.landmine import LANDMINE, needs_landmine

# As counted from the authors' file.
ROWS = """690 690 689 508 509 509 510 511 508 509 689 688 508 510 507
          445 449 448 449 449 451 454 447 449 445 448 448 454 449"""


MINES = """40 48 39 19 22 29 29 26 31 15 38 35 27 31 17
           32 27 31 30 37 33 39 17 41 31 36 36 26 42"""


@needs_landmine
def test_the_fields_are_the_published_ones() -> None:
    fields = [partition(i) for i in range(NUM_FIELDS)]
    rows = [len(f.y_train) + len(f.y_validation) for f in fields]
    mines = [int(f.y_train.sum() + f.y_validation.sum()) for f in fields]
    assert rows == [int(n) for n in ROWS.split()]
    assert mines == [int(n) for n in MINES.split()]
    for field in fields:
        assert field.X_train.shape == (len(field.y_train), 9)
        assert field.X_validation.shape == (len(field.y_validation), 9)
        assert field.X_train.dtype == np.float64
        assert field.y_train.dtype == np.int64


@needs_landmine
def test_the_halves_are_the_published_ones() -> None:
    content = loadmat(Path(os.environ["FLWR_FBO_DATA"], LANDMINE))
    for index in (0, 14, 28):
        X, y = content["feature"][0, index], content["label"][0, index].ravel()
        halves = train_test_split(X, y, test_size=0.5, stratify=y, random_state=0)
        field = partition(index)
        ours = (field.X_train, field.X_validation, field.y_train, field.y_validation)
        for mine, expected in zip(ours, halves, strict=True):
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("index", [-1, 29, True])
def test_landmine_names_a_bad_field(index: Any) -> None:
    with pytest.raises(ValueError, match=f"index={index!r} is not allowed: 0 to 28"):
        partition(index)
