"""What epsilon and delta may be."""

from __future__ import annotations

from typing import Any

from flwr_fbo._common.validation import is_number, require, require_fraction

# Noise below this protects nothing (epsilon beyond 10^5), and where it is smaller still
# the arithmetic of an accountant overflows: dp-accounting 0.6 then says epsilon = 0.
LEAST_NOISE = 1e-3


def large_delta(num_agents: int) -> float:
    """Return above which delta a warning is due: 0.01, or a tenth of 1/N."""
    return min(1e-2, 0.1 / num_agents)


def check_delta(delta: Any) -> None:
    """Raise ValueError unless ``delta`` is a number in (0, 1)."""
    require_fraction("delta", delta)


def check_epsilon(epsilon: Any) -> None:
    """Raise ValueError unless ``epsilon`` is a number from 1e-3 to 1e3."""
    ok = is_number(epsilon) and 1e-3 <= epsilon <= 1e3
    require(ok, "epsilon", epsilon, "a number from 1e-3 to 1e3")
