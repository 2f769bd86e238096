"""Samples of agents: the ratio that an accountant counts, and what is refused."""

from fractions import Fraction
from typing import Any

import pytest

from flwr_fbo.privacy.guarantee import CLIENT, REPLACED_CLIENT
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.sampling import Subsampling, sampling_ratio


def _fixed_size(**change: Any) -> ReleaseSettings:
    plain = {"num_agents": 20, "sampling_probability": 0.35, "sampling": "fixed-size"}
    return ReleaseSettings(**{**plain, **change})


@pytest.mark.parametrize(("num_agents", "q"), [(3, 1 / 3 + 1e-8), (100, 1e-3)])
def test_a_sample_of_broken_size_is_refused(num_agents: int, q: float) -> None:
    with pytest.raises(ValueError, match="an integer B >= 1"):
        _fixed_size(num_agents=num_agents, sampling_probability=q)
    assert _fixed_size(num_agents=3, sampling_probability=1 / 3).subsampling == (
        Subsampling("fixed-size", 1, 3)
    )


# The last one is no ratio of short integers, and the nearest one is below it.
@pytest.mark.parametrize("q", [1 / 3, 1.0, 0.123456789012345, 1e-6, 0.100000000001])
def test_sampling_ratio_is_never_below(q: float) -> None:
    ratio = sampling_ratio(q)
    assert ratio >= Fraction(q) - Fraction(1, 10**15)
    assert float(ratio) == pytest.approx(q, abs=2e-9)
    assert ratio.denominator <= 10**9


def test_the_scheme_says_whom_its_epsilon_protects() -> None:
    """Somebody else takes the place of whoever is left out of a fixed-size sample."""
    assert Subsampling.poisson(0.5).unit == CLIENT
    assert Subsampling.fixed_size(0.5, 4).unit == REPLACED_CLIENT
