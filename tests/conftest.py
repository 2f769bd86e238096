"""Settings of all tests, and their fixtures."""

import os

# Before NumPy is loaded: BLAS threads of tests that run at once wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

from tests.engine import flower_home, flwr_run, loopback_only

__all__ = ["flower_home", "flwr_run", "loopback_only"]

# A slow machine is no failure: speed is measured in benchmarks/, not in tests.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
