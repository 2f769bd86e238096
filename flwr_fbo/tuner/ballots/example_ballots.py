r"""Ballots that protect one example: weighted sums of a mean in a public range.

A client with n examples says of each trial how well all of them did together: n times
the mean of their values, scaled to [0, 1]. One example adds at most 1 to it, so the
noise need not hide more than one example, however many trials there are to compare.

Formal guarantees
-----------------
Let each example give each of K trials a value in [0, 1], and let :math:`s \in [0, n]^K`
be their sums. The ballot is :math:`P s` with :math:`P = I - 1 1^\top / K`, which leaves
all differences of trials as they are. If one example is replaced by another,
:math:`d = s - s'` is in :math:`[-1, 1]^K`. The squared norm :math:`\lVert P d \rVert^2
= \lVert d \rVert^2 - (1^\top d)^2 / K` is convex, so it is largest at a corner. With p
entries of +1 and K - p of -1 it is :math:`K - (2 p - K)^2 / K`, which is largest for p
nearest to K/2. So

.. math:: \Delta_K = \sqrt{K} \text{ for even } K, \qquad
   \Delta_K = \sqrt{K - 1/K} \text{ for odd } K,

and both are attained: an example that is right in half of the trials, and one that is
right in the others. :math:`\Delta_K` grows with K, so a ballot about some of the
trials, with P on these and 0 elsewhere, has at most the same. A client that counts with
w < n examples sends (w / n) P s: a shorter vector, and a shorter distance. Clipping to
a ball or to a box that does not depend on the values, brings no two ballots further
apart.

*Conditions.* The app gives each example, in each trial, a value within the range,
also where the model is not finite: ``numpy.clip(numpy.nan_to_num(loss, nan=high), low,
high)``. It replies with their mean, and with their number as ``num-examples``. Whether
it replies does not depend on an example. Then no example makes a mean invalid, and what
an invalid mean does is the same for neighbours: it counts as the worst value of all
examples. A mean outside the range, or NaN, shows that the app breaks the condition, and
the site's log says so. A mean of values that are out of range, but average within it,
cannot be seen; then nothing is promised. Means are floats: one in float32 adds about
n / 10**7 to the distance of neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, integer, number
from flwr_fbo._common.validation import require
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.tuner.ballots.ballots import Ballots, Draw, is_vector

MOST_EXAMPLES = 2**20
# A mean of floats may be outside the range by its rounding.
_ROUNDING = 1e-6
# So that no honest ballot is clipped, whatever its rounding.
_ROOM = 1.0 + 1e-9
# Standard deviation of the trials' true scores, in parts of the range, as expected.
_SPREAD = 0.1


@dataclass(frozen=True)
class ExampleBallots(Ballots):
    """Sums of the examples' values in each trial, less their mean over the trials.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots
    >>> ballots = ExampleBallots(0.0, 1.0, max_examples=10_000)
    >>> accuracies, num_examples = np.array([0.5, 0.75]), np.array([80.0, 80.0])
    >>> ballots.vector(accuracies, num_examples)  # 40 and 60 of 80 are right
    array([-10.,  10.])
    >>> ballots.distance(16), round(ballots.distance(5), 3)
    (4.0, 2.191)

    Attributes
    ----------
    low, high : float
        Range of an example's score, larger is better.
    max_examples : int
        Examples with which a client counts at most, from 1 to 2**20.
    """

    unit = EXAMPLE
    voices = "examples"
    keeps_luck = True  # the same examples are summed in each rung

    low: float = field(metadata=number(-1e9, 1e9))
    high: float = field(metadata=number(-1e9, 1e9))
    max_examples: int = field(metadata=integer(1, MOST_EXAMPLES))

    def __post_init__(self) -> None:
        check_fields(self)
        is_range = self.high - self.low >= 1e-9
        require(
            is_range, "high", self.high, f"above low={self.low:g}, by 1e-9 at least"
        )

    def negated(self) -> ExampleBallots:
        """Return the same for scores with the other sign."""
        return replace(self, low=-self.high, high=-self.low)

    def is_inside(self, scores: FloatArray) -> NDArray[np.bool_]:
        """Return which scores can be means of values in the range."""
        slack = _ROUNDING * (self.high - self.low)
        # A NaN compares false, as it should.
        return (scores >= self.low - slack) & (scores <= self.high + slack)

    def num_examples(self, scores: FloatArray, weights: FloatArray) -> int:
        """Return with how many examples a client counts: the fewest of any trial."""
        is_asked = weights > 0
        is_known = is_asked & self.is_inside(scores)
        known = weights[is_known if is_known.any() else is_asked]
        return int(min(known.min(), self.max_examples)) if len(known) else 0

    def vector(self, scores: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the sums, less their mean; constant where there is no valid score.

        Such a client has a vector of half its examples in each entry. It ranks no
        trial, and moves the sum of the released scores, which others do not.
        """
        is_asked, is_valid = weights > 0, (weights > 0) & self.is_inside(scores)
        count, ballot = self.num_examples(scores, weights), np.zeros(len(scores))
        if not is_valid.any():
            return np.full(len(scores), count / 2)
        parts = (scores[is_valid] - self.low) / (self.high - self.low)
        # What has failed counts as if each example had the worst value.
        ballot[is_valid] = count * np.clip(parts, 0.0, 1.0)
        # Of trials that it was not asked about it says nothing.
        ballot[is_asked] -= ballot[is_asked].mean()
        return ballot

    def capped(self, ballot: Any, num_trials: int, num_examples: int) -> Any:
        """Return what a client of so many examples may say at most."""
        if not is_vector(ballot, num_trials):
            return ballot
        count = min(max(num_examples, 0), self.max_examples)
        # All of its examples for one trial, and none for the others; or none for it.
        most = count * max(1.0 - 1.0 / num_trials, 0.5)
        short = np.clip(ballot, -most, most)
        limit, norm = _norm(num_trials, count) * _ROOM, float(np.linalg.norm(short))
        return short * (limit / norm) if norm > limit else short

    def norm(self, num_trials: int) -> float:
        """Return the norm of a ballot that puts half of the trials first."""
        return _norm(num_trials, self.max_examples) * _ROOM

    def distance(self, num_trials: int) -> float:
        """Return the sensitivity for one example that is replaced: see above."""
        return _sensitivity(num_trials)

    @classmethod
    def noise_std(cls, num_trials: int, num_voices: int, z: float) -> float:
        """Return z times the sensitivity, over all examples."""
        return z * _sensitivity(num_trials) / max(num_voices, 1)

    @staticmethod
    def chance(num_trials: int, num_voices: int, num_clients: int) -> float:
        """Return the variance of a mean of values in [0, 1]: a fourth over n at most.

        That is a binomial with chance 1/2. Models that are right about the same
        examples differ by less.
        """
        return 0.25 / max(num_voices, 1)

    @staticmethod
    def spread(num_trials: int) -> float:
        """Return a tenth of the range."""
        return _SPREAD

    @staticmethod
    def draws(rng: np.random.Generator, shape: tuple[int, int], *, agree: bool) -> Draw:
        """Return what draws means: evenly spaced ones, or as examples vary.

        A model that the examples favour by chance is favoured in all rungs, as these
        are the same examples: one draw a trial.
        """
        if agree:
            evenly = np.linspace(-(3**0.5), 3**0.5, shape[1]) * _SPREAD
            return lambda trials, *_: np.asarray(evenly[trials])
        luck = rng.standard_normal(shape)

        def draw(
            trials: NDArray[np.intp], num_voices: int, num_clients: int
        ) -> FloatArray:
            std = ExampleBallots.chance(shape[1], num_voices, num_clients) ** 0.5
            return np.asarray(std * np.take_along_axis(luck, trials, axis=1))

        return draw

    @staticmethod
    def silent(
        scores: FloatArray, noise_std: float, num_voices: int
    ) -> tuple[float, float]:
        """Return the number of examples at clients without scores: half of each."""
        std = 2 * num_voices * noise_std / len(scores) ** 0.5
        return 2 * num_voices * float(scores.mean()), std


def _norm(num_trials: int, num_examples: int) -> float:
    """Return the largest norm of a ballot of so many examples."""
    return num_examples * math.sqrt(max(num_trials, 2)) / 2


def _sensitivity(num_trials: int) -> float:
    """Return the largest change of a ballot by one example: see the module."""
    num = max(num_trials, 2)  # of one trial there is nothing to say
    return math.sqrt(num - (num % 2) / num)
