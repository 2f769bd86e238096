"""Privacy spent by a sequence of releases, in Flower's terms.

Flower's accountants take integer sample and population sizes, so the sampling
probability q is handed over as a ratio of integers. The relation is add-or-remove-one:
an agent whose messages are zeroed adds nothing, as if it were not sampled.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    RdpAccountant,
    SamplingMethod,
)

from flwr_fbo._validation import is_number, require, require_int, require_positive

__all__ = [
    "PrivacySpent",
    "ReleaseAccountant",
    "calibrate_noise_multiplier",
    "check_epsilon",
    "sampling_ratio",
]

_LARGEST_POPULATION = 10**9


def sampling_ratio(q: float) -> Fraction:
    """Return q as a ratio of integers, rounded up where it is no short one."""
    ratio = Fraction(q).limit_denominator(_LARGEST_POPULATION)
    if abs(ratio - Fraction(q)) > Fraction(1, 10**15):
        ratio = Fraction(int(q * _LARGEST_POPULATION) + 1, _LARGEST_POPULATION)
    return min(ratio, Fraction(1))


class ReleaseAccountant:
    """Charges releases, one by one; reports epsilon by Flower's Renyi accountant.

    Parameters
    ----------
    sampling_probability : float
        q in (0, 1], the same in every release.
    delta : float
        In (0, 1): where epsilon is reported.
    """

    def __init__(self, sampling_probability: float, delta: float) -> None:
        ok = is_number(delta) and 0 < delta < 1
        require(ok, "delta", delta, "a number between 0 and 1, both excluded")
        self._ratio = sampling_ratio(sampling_probability)
        self._delta = float(delta)
        # Equal releases are composed at once: Renyi orders are slow to compute.
        self._charges: Counter[float] = Counter()

    def charge(self, noise_multiplier: float, num_releases: int = 1) -> None:
        """Add releases with noise ``noise_multiplier`` times their sensitivity."""
        require_positive("noise_multiplier", noise_multiplier)
        self._charges[noise_multiplier] += num_releases

    def spent(self) -> PrivacySpent:
        """Return epsilon at delta for all releases so far."""
        if not self._charges:
            return PrivacySpent(0.0, self._delta, 0, "rdp")
        accountant = RdpAccountant(
            PrivacyConfig(
                target_delta=self._delta,
                population_size=self._ratio.denominator,
                neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
                sampling_method=SamplingMethod.POISSON,
            )
        )
        with _quiet_absl():
            for noise_multiplier, count in self._charges.items():
                accountant.compose(self._event(noise_multiplier), count)
            return accountant.get_privacy_spent()

    def _event(self, noise_multiplier: float) -> GaussianPrivacyEvent:
        return GaussianPrivacyEvent(
            noise_multiplier=noise_multiplier,
            sample_size=self._ratio.numerator,
            population_size=self._ratio.denominator,
        )

    def state_dict(self) -> dict[str, object]:
        """Return the charges so far, as JSON."""
        return {"charges": sorted(self._charges.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._charges = Counter({float(z): int(k) for z, k in state["charges"]})


def check_epsilon(epsilon: Any) -> None:
    """Raise ValueError unless ``epsilon`` is a number from 1e-3 to 1e3."""
    ok = is_number(epsilon) and 1e-3 <= epsilon <= 1e3
    require(ok, "epsilon", epsilon, "a number from 1e-3 to 1e3")


def calibrate_noise_multiplier(
    epsilon: float, delta: float, sampling_probability: float, num_releases: int
) -> float:
    """Return the smallest noise multiplier z >= 0.1, to 0.1 %, that keeps to a budget.

    Parameters
    ----------
    epsilon : float
        From 1e-3 to 1e3.
    delta : float
        In (0, 1).
    sampling_probability : float
        q in (0, 1].
    num_releases : int
        Equal releases, >= 1.

    Raises
    ------
    ValueError
        If an argument is not allowed, or no z up to 1e6 is enough.
    """
    check_epsilon(epsilon)
    require_int("num_releases", num_releases, 1)

    def spends(noise_multiplier: float) -> float:
        accountant = ReleaseAccountant(sampling_probability, delta)
        accountant.charge(noise_multiplier, num_releases)
        return accountant.spent().epsilon

    # Epsilon falls as z grows: bracket, then bisect on a log scale.
    low, high = 0.1, 1.0
    while spends(high) > epsilon:
        low, high = high, 4.0 * high
        allowed = f"large enough for delta={delta} over {num_releases} releases"
        require(high <= 1e6, "epsilon", epsilon, allowed)
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spends(middle) <= epsilon else (middle, high)
    return high


@contextmanager
def _quiet_absl() -> Iterator[None]:
    """Silence dp-accounting on the Renyi orders it leaves out.

    Leaving an order out can only raise epsilon, and it says so for every order and
    every release. Without a root handler absl would install one, and every later line
    of Flower's log would be printed twice.
    """
    logger, handler = logging.getLogger("absl"), logging.NullHandler()
    level = logger.level
    logger.setLevel(logging.ERROR)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        logger.setLevel(level)
