"""Decisions as rows of a data frame."""

import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits.site.decision import Decision, decisions_frame

pd: Any = pytest.importorskip("pandas")


def test_a_frame_has_a_row_a_decision() -> None:
    arms, features = ("ward", "home"), np.eye(2)
    log = [
        Decision(3, 1.5, {"age": 71}, arms, features, 1, 0.9, -0.5),
        Decision(4, 2.5, None, ("0",), np.ones((1, 2)), 0, 1.0, math.nan),
    ]
    expected = pd.DataFrame(
        {
            "number": [3, 4],
            "time": [1.5, 2.5],
            "context": [{"age": 71}, None],
            "eligible": [["ward", "home"], ["0"]],
            "action": ["home", "0"],
            "reward": [-0.5, math.nan],
            "pscore": [0.9, 1.0],
        }
    )
    pd.testing.assert_frame_equal(decisions_frame(log), expected)


def test_an_empty_log_has_the_columns_too() -> None:
    columns = "number time context eligible action reward pscore"
    assert list(decisions_frame([]).columns) == columns.split()
