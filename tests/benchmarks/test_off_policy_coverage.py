"""Intervals cover the truth as often as they say, over simulated logs.

`python -m benchmarks.off_policy_coverage` does the same with 1,000 logs each.
"""

from functools import cache

import numpy as np
import pytest

from benchmarks.off_policy_coverage import LOGS, POLICIES, Coverage, coverage

# With fewer effective decisions the normal interval of SNIPS covers less, as for the
# greedy policy here; see `PolicyValue.effective_sample_size`.
ENOUGH = 100
FEW, MANY = 25, 300


@cache
def _coverage(log: str, num_logs: int) -> dict[tuple[str, str], Coverage]:
    return coverage(log == "learns", num_logs, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("log", LOGS)
def test_intervals_cover_the_truth(log: str, policy: str) -> None:
    found = _coverage(log, MANY)
    assert (found[policy, "ips"].effective_sample_size > ENOUGH) == (
        policy == "uniform"
    )
    for name in ("ips", "doubly_robust"):
        assert 0.92 <= found[policy, name].covered <= 0.98
    least = 0.92 if policy == "uniform" else 0.88
    assert least <= found[policy, "snips"].covered <= 0.98


@pytest.mark.parametrize("num_logs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("log", LOGS)
def test_ips_and_doubly_robust_are_unbiased(log: str, num_logs: int) -> None:
    for (_, name), one in _coverage(log, num_logs).items():
        if name != "snips":
            reach = 3.5 * np.std(one.errors) / np.sqrt(num_logs)
            assert abs(np.mean(one.errors)) < reach


@pytest.mark.parametrize("num_logs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("log", LOGS)
def test_a_right_model_makes_the_interval_narrower(log: str, num_logs: int) -> None:
    """Log by log: both estimators had the same decisions."""
    found = _coverage(log, num_logs)
    for policy in POLICIES:
        widths = found[policy, "ips"].widths, found[policy, "doubly_robust"].widths
        gains = np.subtract(*widths)
        assert np.mean(gains) > 5 * np.std(gains) / np.sqrt(num_logs)
        assert np.mean(gains > 0) > 0.99
