"""What tests of DP-SGD with Opacus share."""

import importlib.util
import os

import pytest

needs_opacus = pytest.mark.skipif(
    importlib.util.find_spec("opacus") is None
    and not os.environ.get("FLWR_FBO_REQUIRE_TORCH"),
    reason="Opacus is not installed",
)
