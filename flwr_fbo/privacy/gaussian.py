"""What the Gaussian mechanism gives, exactly: mu, epsilon and delta.

Noise of mu^-1 times the L2 sensitivity is mu-GDP (Dong, Roth & Su, 2022), and that is
the same as one curve of (epsilon, delta): theorem 8 of Balle & Wang, 2018.
"""

from __future__ import annotations

import math
from functools import lru_cache

from flwr_fbo._common.validation import is_number, require


def gaussian_delta(epsilon: float, mu: float, minus: float = 0.0) -> float:
    """Return delta at ``epsilon`` of a Gaussian mechanism, less ``minus``.

    delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu)

    Parameters
    ----------
    epsilon : float
        >= 0.
    mu : float
        Sensitivity over noise, > 0.
    """
    from scipy.special import log_ndtr

    log_first = log_ndtr(mu / 2 - epsilon / mu)
    log_second = epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    # The difference of two numbers that can be equal to many digits.
    delta = -math.exp(log_first) * math.expm1(min(0.0, log_second - log_first))
    return float(delta) - minus


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon of a Gaussian mechanism at ``delta``.

    To 1e-9 of it, and 1e-12.

    Parameters
    ----------
    delta : float
        In (0, 1).
    mu : float
        Sensitivity over noise, > 0. Below 1e-4 delta is exact no more, and what is
        added to epsilon makes up for it: 1e-12.
    """
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    from scipy.optimize import brentq

    # Where the first term alone is below delta, as Phi(-x) <= exp(-x^2 / 2).
    most = mu * (mu / 2 + math.sqrt(-2.0 * math.log(delta)))
    found = brentq(
        gaussian_delta, 0.0, most, (mu, delta), xtol=1e-15, rtol=1e-12, maxiter=500
    )
    root = float(found)
    # A little more, so that rounding cannot fall short.
    return root * (1.0 + 1e-9) + 1e-12


@lru_cache(maxsize=128, typed=True)  # True is not allowed, and equals 1.0
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu, to 1e-9, whose mechanism is (epsilon, delta)-DP.

    Parameters
    ----------
    epsilon : float
        From 1e-3 to 1e3; or infinite: so is mu, and no noise is needed.
    delta : float
        From 1e-15 to below 1.

    Raises
    ------
    ValueError
        If an argument is not allowed.
    """
    ok = is_number(epsilon) and (1e-3 <= epsilon <= 1e3 or epsilon == math.inf)
    require(ok, "epsilon", epsilon, "a number from 1e-3 to 1e3, or infinite")
    ok = is_number(delta) and 1e-15 <= delta < 1
    require(ok, "delta", delta, "a number from 1e-15 to below 1")
    if epsilon == math.inf:
        return math.inf
    low, high = math.log(1e-5), math.log(1e3)
    while high - low > 1e-10:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, math.exp(middle)) <= delta:
            low = middle
        else:
            high = middle
    # A little short, so that rounding cannot exceed delta.
    return math.exp(low) * (1 - 1e-9)
