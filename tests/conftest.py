"""Settings of all tests, and their fixtures."""

import os

# Before NumPy is loaded: BLAS threads of tests that run at once wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from tests.deployed import federation
from tests.engine import flower_home, flwr_run, loopback_only

__all__ = ["federation", "flower_home", "flwr_run", "loopback_only"]

# A slow machine is no failure: speed is measured in benchmarks/, not in tests.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, half of them in each of two workers.

    A worker begins with its half of the list: at the end it would wait for the other.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    cut = len(items) // 2 - len(slow[::2])
    items[:] = [*slow[::2], *fast[:cut], *slow[1::2], *fast[cut:]]
