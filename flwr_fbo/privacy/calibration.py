"""The smallest noise that keeps to a budget of epsilon and delta."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from flwr_fbo._common.validation import require, require_int
from flwr_fbo.privacy.accounting import Method, ReleaseAccountant
from flwr_fbo.privacy.budget import check_epsilon
from flwr_fbo.privacy.sampling import Subsampling


def calibrate_noise_multiplier(
    epsilon: float,
    delta: float,
    sampling: float | Subsampling,
    num_releases: int,
    method: Method = "pld",
) -> float:
    """Return the smallest noise multiplier z, to 0.1 %, that keeps to a budget.

    Parameters
    ----------
    epsilon : float
        From 1e-3 to 1e3.
    delta, sampling, method
        See `ReleaseAccountant`.
    num_releases : int
        Equal releases, >= 1.

    Raises
    ------
    ValueError
        If an argument is not allowed, or no z up to 1e6 is enough.
    """
    require_int("num_releases", num_releases, 1)

    def spends(noise_multiplier: float) -> float:
        accountant = ReleaseAccountant(sampling, delta, method)
        accountant.charge(noise_multiplier, num_releases)
        return accountant.spent().epsilon

    return smallest_noise_multiplier(spends, epsilon)


def smallest_noise_multiplier(
    spends: Callable[[float], float], epsilon: float
) -> float:
    """Return the smallest z from 0.01 to 1e6, to 0.1 %, with ``spends(z) <= epsilon``.

    Parameters
    ----------
    spends : callable
        From z to the epsilon that the releases spend; it falls as z grows.
    epsilon : float
        From 1e-3 to 1e3.

    Raises
    ------
    ValueError
        If no z up to 1e6 is enough.
    """
    check_epsilon(epsilon)

    @cache  # brackets are asked for twice
    def excess(log_z: float) -> float:
        # Almost linear in log z, so that few steps are needed.
        return math.log(max(spends(math.exp(log_z)), 1e-9) / epsilon)

    low, high = math.log(0.25), 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(4.0)
        allowed = "larger, for so many releases at this delta: no z up to 1e6 is enough"
        require(high <= math.log(1e6), "epsilon", epsilon, allowed)
    while excess(low) <= 0:
        low, high = low - math.log(4.0), low
        if high < math.log(0.01):
            return 0.01
    from scipy.optimize import brentq

    # The root is known to 3e-4; one step of 5e-4 up is on its right side.
    z = math.exp(brentq(excess, low, high, xtol=3e-4))
    while spends(z) > epsilon:
        z *= 1.0005
    return z
