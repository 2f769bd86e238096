"""A baseline arm that a site's rewards must not fall far below: conservative bandits.

The rule is that of Kazerouni, Ghavamzadeh, Abbasi-Yadkori & Van Roy, *Conservative
contextual linear bandits* (NeurIPS 2017), for rewards of the baseline that are not
known: another arm is played only if, whatever theta in the confidence set is true, the
expected rewards of all decisions so far, with this one, are at least 1 - a of those
that the baseline would have had. Else the baseline is played. With x_i played, b_i the
baseline's features, and rewards m + x'theta >= 0 (m is the middle of their range), that
is, for n decisions,

    min over theta of z'theta + a m n >= 0,    z = sum (x_i - (1 - a) b_i).

*Proof.* At n = 0 it is 0. Where another arm is played, it is >= 0 for the true theta,
as that is in the set. Where the baseline is played, it grows by a (m + b'theta) >= 0.
So it is never below 0, if the sets hold: all together with probability 1 - alpha.

A decision that is cancelled was not carried out: it is taken from z and n. If another
arm was played on the strength of it, the sum may then be below 0. Until it no longer
is, the baseline is played.

In the journal are

    baseline      arm, the share a, and the number of the first decision that counts
    baseline-sum  z, and n behind it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.site.decision import Decision, Offer
from flwr_fbo.journal.npy import from_json_array, to_json_array


@dataclass(frozen=True, eq=False)
class Baseline:
    """The rule of a site, and what its decisions so far add up to.

    Attributes
    ----------
    arm : str
        Name of the baseline arm.
    at_most_worse : float
        Share a, above 0 and below 1.
    first : int
        Number of the first decision that counts: earlier ones were not under the rule.
    total : ndarray of shape (d + 1,)
        z, and the number of decisions behind it.
    """

    arm: str
    at_most_worse: float
    first: int
    total: FloatArray

    @classmethod
    def of(cls, state: Mapping[str, NDArray[Any]]) -> Self | None:
        """Return the rule in a journal's arrays, if the site has one."""
        if "baseline" not in state:
            return None
        rule = from_json_array(state["baseline"])
        if rule is None:
            return None
        arm, share, first = rule
        return cls(arm, share, first, state["baseline-sum"])

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What records it."""
        rule = to_json_array([self.arm, self.at_most_worse, self.first])
        return {"baseline": rule, "baseline-sum": self.total}

    def totals(self, offer: Offer) -> FloatArray:
        """Return the total after each action of an offer, shape (K, d + 1)."""
        return self.total + self._added(offer.arms, offer.features)

    def _added(self, arms: tuple[str, ...], x: FloatArray) -> FloatArray:
        """Return what each action of a decision adds, shape (K, d + 1)."""
        added = x - (1 - self.at_most_worse) * x[arms.index(self.arm)]
        return np.column_stack([added, np.ones(len(x))])

    def after(self, offer: Offer, index: int) -> Self:
        """Return it after a decision; the same if the arm was not possible then."""
        if self.arm not in offer.arms:
            return self
        return replace(self, total=self.totals(offer)[index])

    def without(self, decision: Decision) -> Self:
        """Return it without a decision, which was not carried out."""
        if decision.number < self.first or self.arm not in decision.arms:
            return self
        added = self._added(decision.arms, decision.features)[decision.chosen]
        return replace(self, total=self.total - added)

    def guarded(
        self, offer: Offer, probabilities: FloatArray, least: FloatArray
    ) -> FloatArray:
        """Return probabilities where arms that are not allowed give theirs away.

        Parameters
        ----------
        offer : Offer
            Actions, with the arm.
        probabilities : ndarray of shape (K,)
            Probabilities without the rule.
        least : ndarray of shape (K,)
            Least of z'theta + a m n after each action.
        """
        row = np.where(least >= 0, probabilities, 0.0)
        place = offer.arms.index(self.arm)
        row[place] = 0.0
        row[place] = 1 - row.sum()
        return row
