"""What `tests/lab/tasks/test_emnist.py` and others share."""

import importlib.util
import os

import pytest

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None
    and not os.environ.get("FLWR_FBO_REQUIRE_TORCH"),
    reason="PyTorch, the extra torch, is not installed",
)
