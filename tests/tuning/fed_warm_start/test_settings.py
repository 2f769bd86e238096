"""Settings of FedWarmStart: its cohorts, and what is refused."""

import pytest

from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    default_cohorts,
)


def test_cohorts_share_the_slots() -> None:
    cohorts = Cohorts(10, (4, 3), 1.0)
    assert [cohorts.cohort_of(n) for n in range(10)] == [0] * 4 + [1] * 3 + [2] * 3
    assert list(cohorts.slots(1)) == [4, 5, 6]
    assert default_cohorts(30, 1.445) == (9, 10)
    assert default_cohorts(10, 0.48) == (4, 3)
    assert default_cohorts(8, 0.48) == (4,)
    assert default_cohorts(9, 1.445) == ()


@pytest.mark.parametrize("sizes", [(10,), (0, 3), (3.0,)])
def test_cohorts_that_leave_nobody_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cohort_sizes="):
        Cohorts(10, sizes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_features", 2000),
        ("num_initial", 2),
        ("num_led", 0),
    ],
)
def test_settings_name_what_is_wrong(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}"):
        FedWarmStartSettings(**{name: value})
