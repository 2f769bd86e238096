"""Epsilon, delta and mu: what they may be, and the exact curve of Gaussian noise.

Noise of mu^-1 times the L2 sensitivity is mu-GDP (Dong, Roth & Su, 2022), and that is
the same as one curve of (epsilon, delta): theorem 8 of Balle & Wang, 2018.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from flwr_fbo._common.fields import ruled
from flwr_fbo._common.validation import is_number, require, require_fraction

# dp-accounting inverts the same curve (`get_epsilon_gaussian`), to a tolerance on
# either side. Here epsilon is never too small, and mu never too large; and scipy.stats,
# which is slow to import, is not needed.

# Noise below this protects nothing (epsilon beyond 10^5), and where it is smaller still
# the arithmetic of an accountant overflows: dp-accounting 0.6 then says epsilon = 0.
LEAST_NOISE = 1e-3


def check_delta(delta: Any) -> None:
    """Raise ValueError unless ``delta`` is a number in (0, 1)."""
    require_fraction("delta", delta)


def check_epsilon(epsilon: Any) -> None:
    """Raise ValueError unless ``epsilon`` is a number from 1e-3 to 1e3."""
    is_valid = is_number(epsilon) and 1e-3 <= epsilon <= 1e3
    require(is_valid, "epsilon", epsilon, "a number from 1e-3 to 1e3")


def _require_epsilon(field: str, value: Any) -> None:
    is_valid = is_number(value) and (1e-3 <= value <= 1e3 or value == math.inf)
    require(is_valid, field, value, "a number from 1e-3 to 1e3, or infinite")


def _require_delta(field: str, value: Any) -> None:
    is_valid = is_number(value) and 1e-15 <= value < 1
    require(is_valid, field, value, "a number from 1e-15 to below 1")


# The rules of fields that `gaussian_mu` takes.
EPSILON, DELTA = ruled(_require_epsilon), ruled(_require_delta)


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

    # In logarithms: exp(epsilon) overflows from 710 on, where Phi underflows.
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


def poisson_epsilon(
    entries: tuple[tuple[float, float, int], ...],
    delta: float,
    *,
    replaced: bool = False,
) -> float:
    """Return epsilon at ``delta`` of Poisson-sampled Gaussian mechanisms, by ``pld``.

    Parameters
    ----------
    entries : tuple of (float, float, int)
        Sampling probability, noise multiplier and number of releases; one at least.
    delta : float
        In (0, 1).
    replaced : bool
        Whether a contribution that is sampled with q < 1 is replaced by another, and
        not by zeros: noise is z times the largest norm of one. With q = 1 noise is z
        times the largest distance of two contributions, whichever they are.
    """
    if all(q == 1.0 for q, _, _ in entries):
        # Independent Gaussian mechanisms compose as one: their mu^2 = 1/z^2 add up.
        squares = sum(count * (1.0 / z) ** 2 for _, z, count in entries)
        return gaussian_epsilon(delta, math.sqrt(squares))
    # It loads SciPy's signal processing, which only some studies need.
    from flwr_fbo.privacy.loss_distribution import sampled_epsilon

    return sampled_epsilon(entries, delta, replaced=replaced)


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
    _require_epsilon("epsilon", epsilon)
    _require_delta("delta", delta)
    if epsilon == math.inf:
        return math.inf
    # Bisection, not a root finder: delta grows with mu, and ``low`` is then always a
    # mu whose delta was computed and is small enough.
    low, high = math.log(1e-5), math.log(1e3)
    while high - low > 1e-10:
        middle = (low + high) / 2
        if gaussian_delta(epsilon, math.exp(middle)) <= delta:
            low = middle
        else:
            high = middle
    # A little short, so that rounding cannot exceed delta.
    return math.exp(low) * (1 - 1e-9)
