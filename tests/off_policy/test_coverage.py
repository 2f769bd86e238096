"""Intervals cover the truth as often as they say, over simulated logs.

`python -m benchmarks.off_policy_coverage` does the same with 1,000 logs each.
"""

from functools import cache

import numpy as np
import pytest

from benchmarks.off_policy_coverage import LOGS, POLICIES, Coverage, coverage

NUM_LOGS = 300
# With fewer effective decisions the normal interval of SNIPS covers less, as for the
# greedy policy here; see `PolicyValue.effective_sample_size`.
ENOUGH = 100


@cache
def _coverage(log: str) -> dict[tuple[str, str], Coverage]:
    return coverage(log == "learns", NUM_LOGS, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("log", LOGS)
def test_intervals_cover_the_truth(log: str, policy: str) -> None:
    found = _coverage(log)
    assert (found[policy, "ips"].effective_sample_size > ENOUGH) == (
        policy == "uniform"
    )
    for name in ("ips", "doubly_robust"):
        assert 0.92 <= found[policy, name].covered <= 0.98
    least = 0.92 if policy == "uniform" else 0.88
    assert least <= found[policy, "snips"].covered <= 0.98


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("log", LOGS)
def test_ips_and_doubly_robust_are_unbiased(log: str, policy: str) -> None:
    for name in ("ips", "doubly_robust"):
        errors = _coverage(log)[policy, name].errors
        assert abs(np.mean(errors)) < 3.5 * np.std(errors) / np.sqrt(NUM_LOGS)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("log", LOGS)
def test_a_right_model_makes_the_interval_narrower(log: str, policy: str) -> None:
    """Log by log: both estimators had the same decisions."""
    found = _coverage(log)
    widths = found[policy, "ips"].widths, found[policy, "doubly_robust"].widths
    gains = np.subtract(*widths)
    assert np.mean(gains) > 5 * np.std(gains) / np.sqrt(NUM_LOGS)
    assert np.mean(gains > 0) > 0.99
