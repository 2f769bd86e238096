"""Settings of linear bandits: when they synchronise, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits.linear.settings import geometric_schedule
from tests.support.confidence import confidence


def test_geometric_schedule() -> None:
    assert geometric_schedule(1600, 4, 100) == [100, 200, 400, 800]
    assert geometric_schedule(100, 1, 7) == [7]
    assert geometric_schedule(20, 16, 1) == [*range(1, 16), 17]
    assert geometric_schedule(20, 15, 5) == [*range(5, 20)]  # after every trial
    with pytest.raises(ValueError, match="num_releases=16 is not allowed"):
        geometric_schedule(20, 16, 5)
    with pytest.raises(ValueError, match="num_releases"):
        geometric_schedule(20, 2, 20)


@pytest.mark.parametrize(("trials", "first"), [(100, 20), (60, 59)])
def test_any_number_of_synchronisations_can_be_scheduled(
    trials: int, first: int
) -> None:
    for n in range(1, trials - first + 1):
        times = geometric_schedule(trials, n, first)
        assert (len(times), times[0]) == (n, first)
        assert np.all(np.diff([*times, trials]) > 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_agents", 0),
        ("alpha", math.nan),
        ("width", "wide"),
    ],
)
def test_bad_settings(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}={value!r} is not allowed"):
        confidence(**{field: value})
