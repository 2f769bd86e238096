"""Sampling of a release, the same for sampler and accountant."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from flwr_fbo._common.fields import ruled
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.guarantee import CLIENT, REPLACED_CLIENT, PrivacyUnit

Sampling = Literal["poisson", "fixed-size"]

_LARGEST_POPULATION = 10**9


@dataclass(frozen=True)
class Subsampling:
    """A sampling scheme in the integers that Flower's accountants take.

    Attributes
    ----------
    sampling : {"poisson", "fixed-size"}
        Sampling scheme: every agent on its own, or a fixed number of them.
    sample_size, population_size : int
        Their ratio is the sampling probability q. With ``"fixed-size"`` they are the
        B agents of a sample and the N of the study; with ``"poisson"`` only the ratio
        means something.
    """

    sampling: Sampling
    sample_size: int
    population_size: int

    @property
    def unit(self) -> PrivacyUnit:
        """Unit and adjacency of which accountants tell the amplification.

        In a sample of fixed size somebody else takes the place of whoever is left out.
        """
        return REPLACED_CLIENT if self.sampling == "fixed-size" else CLIENT

    @classmethod
    def poisson(cls, sampling_probability: float) -> Subsampling:
        """Return the scheme in which each agent is sampled with q on its own."""
        check_sampling_probability(sampling_probability)
        ratio = sampling_ratio(float(sampling_probability))
        return cls("poisson", ratio.numerator, ratio.denominator)

    @classmethod
    def fixed_size(cls, sampling_probability: float, num_agents: int) -> Subsampling:
        """Return the scheme in which exactly B = q N agents are sampled.

        Raises
        ------
        ValueError
            If q N is not within 1e-9 of an integer >= 1.
        """
        q = sampling_probability
        # A size that is only near would be drawn with one q, and counted with another.
        size = round(q * num_agents)
        expected = (
            f"B / {num_agents} with an integer B >= 1, where the sample size is fixed "
            f"(the nearest is {max(size, 1)} / {num_agents})"
        )
        is_integer = size >= 1 and abs(q * num_agents - size) <= 1e-9
        require(is_integer, "sampling_probability", q, expected)
        return cls("fixed-size", size, num_agents)


@lru_cache(maxsize=128)
def sampling_ratio(q: float) -> Fraction:
    """Return q as a ratio of integers, rounded up where no short ratio is equal to it.

    Parameters
    ----------
    q : float
        From 1e-9 to 1.
    """
    ratio = Fraction(q).limit_denominator(_LARGEST_POPULATION)
    if abs(ratio - Fraction(q)) > Fraction(1, 10**15):
        # Up: an accountant that is told less than q reports too small an epsilon.
        ratio = Fraction(int(q * _LARGEST_POPULATION) + 1, _LARGEST_POPULATION)
    return min(ratio, Fraction(1))


def check_sampling_probability(q: object) -> None:
    """Raise ValueError unless ``q`` is a number from 1e-9 to 1."""
    is_valid = is_number(q) and 1e-9 <= q <= 1
    require(is_valid, "sampling_probability", q, "a number in (0, 1], at least 1e-9")


# The rule of a field ``sampling_probability``.
PROBABILITY = ruled(lambda _, q: check_sampling_probability(q))
