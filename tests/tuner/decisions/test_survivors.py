"""The trials of a rung that go on."""

import numpy as np
import pytest

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.decisions.survivors import (
    decision_scores,
    defaults_margin,
    survivors,
    survivors_of,
)


def test_survivors_are_in_order_and_ties_go_to_the_first() -> None:
    assert survivors(np.array([0.1, 0.5, 0.5, 0.9]), 3) == [3, 1, 2]
    assert survivors(np.array([-np.inf, -np.inf]), 1) == [0]


def _released(
    trials: list[int], *scores: float, mechanism: str = "gaussian"
) -> LedgerRow:
    return LedgerRow(0, {"mechanism": mechanism, "trials": trials}, np.array(scores))


def test_half_of_what_decided_a_rung_is_carried_into_the_next() -> None:
    rows = [
        _released([0, 1, 2, 3], 0.0, 5.0, 0.4, 0.8),
        _released([3, 0, 2], 0.1, 0.2, 0.3),
        _released([2, 3], 1.0, 2.0),
    ]
    found = [decision_scores(rows[:n]).tolist() for n in (1, 2, 3)]
    assert found[0] == [0.0, 5.0, 0.4, 0.8]
    assert found[1] == pytest.approx([0.1 + 0.4, 0.2, 0.3 + 0.2])
    assert found[2] == pytest.approx([1.0 + 0.25, 2.0 + 0.25])
    assert rows[2].vectors.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mechanism", ["exact", "server"])
def test_exact_scores_are_taken_as_they_are(mechanism: str) -> None:
    rows = [
        _released([0, 1, 2], -np.inf, 9.0, 8.0, mechanism=mechanism),
        _released([1, 2], 0.0, 1.0, mechanism=mechanism),
    ]
    assert decision_scores(rows).tolist() == [0.0, 1.0]


def test_the_defaults_margin_grows_with_the_noise_from_nothing() -> None:
    assert defaults_margin(16, 0.0) == 0.0
    few, many = defaults_margin(2, 0.5), defaults_margin(2, 0.05)
    assert few == pytest.approx(100 * many)
    rows = [
        LedgerRow(
            0,
            {"mechanism": "gaussian", "trials": [4, 0, 7], "noise_std": [noise]},
            np.array([0.3, 0.2, -0.5]),
        )
        for noise in (0.01, 0.5)
    ]
    assert [survivors_of([row], 2) for row in rows] == [[0, 1], [1, 0]]
    rows[1].facts["failed"] = [0]
    assert survivors_of([rows[1]], 1) == [0]
