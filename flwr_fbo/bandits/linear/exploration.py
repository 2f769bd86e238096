"""Choice of a linear bandit within its belief: by optimism, or by chance.

Where agents act on what was released only, all of them believe the same between two
synchronisations. With `Optimism` they all play the same action for the same context,
and what an agent would have earned by another policy cannot be told from what it has
recorded. The other two draw the action, and the probability of what was drawn, its
*propensity*, is recorded: sites explore differently, and
`flwr_fbo.bandits.evaluate_policy` can value other policies on a site's own decisions.

A choice is made of released sums, of the actions that are offered, and of chance. So it
is post-processing, whatever the kind of exploration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray, all_best, first_best
from flwr_fbo._common.fields import check_fields, integer, number
from flwr_fbo._common.random import Purpose, generator, uniform_in_ball
from flwr_fbo._common.validation import (
    require,
    require_instance,
    require_known,
)

# Rewards that are computed together, 8 bytes each: enough to be fast.
_VALUES_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Exploration(ABC):
    """Base of the kinds of exploration."""

    kind: ClassVar[str]

    @property
    def largest_uniform_share(self) -> float:
        """The largest share of decisions that is made without regard to rewards."""
        return 0.0

    @abstractmethod
    def probabilities(
        self,
        mean: FloatArray,
        directions: FloatArray,
        widths: FloatArray,
        rngs: Sequence[np.random.Generator],
    ) -> FloatArray:
        """Return the probability of each action in A decisions, shape (A, K).

        Parameters
        ----------
        mean : ndarray of shape (A, K)
            Estimated rewards.
        directions : ndarray of shape (A, K, d)
            Directions in which rewards vary in the ellipsoid: see `Ellipsoid.rewards`.
        widths : ndarray of shape (A,)
            Widths of the ellipsoid, >= 0.
        rngs : sequence of A numpy.random.Generator
            Generators that the decisions draw from. The probabilities are exact, given
            the draws.
        """


@dataclass(frozen=True)
class Optimism(Exploration):
    """Play the action with the largest upper confidence bound: FedUCB as published.

    Actions with equally large bounds are drawn with equal probability, as all arms of
    one context are before the first release if each has a block of its own. So a
    propensity is 1 over the number of such actions, mostly 1.

    Examples
    --------
    >>> from flwr_fbo.bandits import Optimism
    >>> Optimism().largest_uniform_share
    0.0
    """

    kind: ClassVar[str] = "optimism"

    def probabilities(
        self,
        mean: FloatArray,
        directions: FloatArray,
        widths: FloatArray,
        rngs: Sequence[np.random.Generator],
    ) -> FloatArray:
        """Return equal ones for the largest bounds, and 0 for others."""
        return shared_by_best(mean + _radii(directions, widths))


@dataclass(frozen=True)
class EllipsoidSampling(Exploration):
    """Play what is best for one of S parameters, drawn within the ellipsoid.

    Parameters are drawn uniformly. With c_a of the S having action a as their best, its
    probability is (1 - gamma) c_a / S + gamma / K.

    Examples
    --------
    >>> from flwr_fbo.bandits import (
    ...     ContinualSettings,
    ...     EllipsoidSampling,
    ...     LinearUCBSettings,
    ... )
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> sampling = EllipsoidSampling(uniform_share=0.1)
    >>> settings = LinearUCBSettings(
    ...     releases, "released", exploration=sampling
    ... )

    Attributes
    ----------
    num_draws : int
        S, from 1 to 10,000.
    uniform_share : float
        gamma, from 1e-12 to 1. No propensity of K actions is below gamma / K, so that
        importance weights are at most K / gamma; and a share of gamma of all trials is
        played without regard to their rewards. At 0 an action that no draw prefers
        could not be chosen, and what it gives could not be evaluated.
    radius : float
        Share of the ellipsoid's width that parameters are drawn within, from 1e-9 to 1.
        At 1 all are drawn that the releases do not rule out, at any time and for any
        agent, which with noise is nearly all there are: that is too many to explore.
    """

    num_draws: int = field(default=64, metadata=integer(1, 10_000))
    uniform_share: float = field(default=0.01, metadata=number(1e-12, 1))
    radius: float = field(default=0.1, metadata=number(1e-9, 1))

    kind: ClassVar[str] = "ellipsoid-sampling"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def largest_uniform_share(self) -> float:
        """Gamma."""
        return self.uniform_share

    def probabilities(
        self,
        mean: FloatArray,
        directions: FloatArray,
        widths: FloatArray,
        rngs: Sequence[np.random.Generator],
    ) -> FloatArray:
        """Return them by counting."""
        num_decisions, num_actions, d = directions.shape
        counts = np.empty(mean.shape)
        at_once = max(1, _VALUES_AT_ONCE // (self.num_draws * num_actions))
        for first in range(0, num_decisions, at_once):
            some = slice(first, first + at_once)
            points = np.empty((len(rngs[some]), self.num_draws, d))
            for rng, out in zip(rngs[some], points, strict=True):
                uniform_in_ball(rng, out, np.empty(self.num_draws))
            points *= self.radius * widths[some, None, None]
            # Action by action, which is faster than draw by draw.
            values = directions[some] @ np.swapaxes(points, 1, 2)
            values += mean[some, :, None]
            best = first_best(np.swapaxes(values, 1, 2))
            for row, chosen in zip(counts[some], best, strict=True):
                row[:] = np.bincount(chosen, minlength=num_actions)
        share = self.uniform_share
        # In this order exactly 1, and not a bit more, for an action that is alone.
        probabilities = (1 - share) * (counts / self.num_draws) + share / num_actions
        return np.asarray(probabilities)


@dataclass(frozen=True)
class InverseGapWeighting(Exploration):
    """Play actions with lower estimates less often.

    With estimates m_a, the best of them m, and u the mean over the K actions of
    w ||x||_{V^-1}, half of an action's confidence interval,

        p_a = 1 / (K (1 + scale (m - m_a) / u)),

    and the best action has what remains: the weighting of Abe & Long (1999, section 3)
    and of Foster & Rakhlin (2020, algorithm 1), with gamma = scale K / u. It is a
    closed form: nothing is drawn but the action.

    Examples
    --------
    >>> from flwr_fbo.bandits import (
    ...     ContinualSettings,
    ...     InverseGapWeighting,
    ...     LinearUCBSettings,
    ... )
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(
    ...     releases, "released", exploration=InverseGapWeighting()
    ... )

    Attributes
    ----------
    scale : float
        From 1e-12 to 1e12. At 0 actions would be uniform; the larger, the greedier.
    """

    scale: float = field(default=30.0, metadata=number(1e-12, 1e12))

    kind: ClassVar[str] = "inverse-gap-weighting"

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def largest_uniform_share(self) -> float:
        """1: any scale is allowed, and with a small one all actions are alike."""
        return 1.0

    def probabilities(
        self,
        mean: FloatArray,
        directions: FloatArray,
        widths: FloatArray,
        rngs: Sequence[np.random.Generator],
    ) -> FloatArray:
        """Return them by the closed form."""
        best = first_best(mean)[:, None]
        gaps = np.maximum(np.take_along_axis(mean, best, axis=1) - mean, 0.0)
        uncertainty = _radii(directions, widths).mean(axis=1, keepdims=True)
        # K (1 + scale gap / u), with u in the numerator: it may be zero.
        total = np.maximum(uncertainty + self.scale * gaps, np.finfo(float).tiny)
        probabilities = uncertainty / total / mean.shape[-1]
        np.put_along_axis(probabilities, best, 0.0, axis=1)
        rest = 1.0 - probabilities.sum(axis=1, keepdims=True)
        np.put_along_axis(probabilities, best, rest, axis=1)
        return np.asarray(probabilities)


def shared_by_best(bounds: FloatArray) -> FloatArray:
    """Return equal probabilities for each row's largest bounds, shape (A, K)."""
    best = all_best(bounds)
    return np.asarray(best / best.sum(axis=-1, keepdims=True))


_KINDS: dict[str, type[Exploration]] = {
    kind.kind: kind for kind in (Optimism, EllipsoidSampling, InverseGapWeighting)
}


def exploration_kind(fields: Any) -> type[Exploration]:
    """Return the class whose JSON these are: what ``to_dict`` gave.

    Raises
    ------
    ValueError
        If the kind is unknown.
    """
    require_instance("exploration", fields, Mapping, allowed="a mapping")
    kind = fields.get("kind")
    require_known("exploration.kind", kind, _KINDS)
    return _KINDS[str(kind)]


def drawn(probabilities: FloatArray, rng: np.random.Generator) -> tuple[int, float]:
    """Draw an index, and return its probability too; one of probability 0 never."""
    sums = np.cumsum(probabilities)
    # With absurd settings their sum is NaN.
    require(bool(sums[-1] > 0), "probabilities", probabilities, "finite numbers")
    # The last is 1 then, whatever the rounding, and above what is drawn.
    sums /= sums[-1]
    index = int(np.searchsorted(sums, rng.random(), side="right"))
    return index, float(probabilities[index])


def exploration_rng(seed: int, slot: int, trial: int) -> np.random.Generator:
    """Return what an agent explores with in a trial of an experiment."""
    return generator(seed, slot, trial, Purpose.EXPLORATION)


def _radii(directions: FloatArray, widths: FloatArray) -> FloatArray:
    """Return w ||x||_{V^-1}: half of each action's confidence interval."""
    lengths = np.sqrt(np.einsum("aki,aki->ak", directions, directions))
    return np.asarray(widths[:, None] * lengths)
