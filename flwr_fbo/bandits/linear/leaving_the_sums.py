"""A site's private rule to leave the sums of blocks: they do not fit its own rewards.

With each block a site measures how far its rewards were below what the totals promised
when they came. That has noise of its own, which is charged. A site that leaves sends
empty blocks with its part of the noise, so that nobody can tell, and acts on its own
clean data. Nothing that it does later is in any block: the whole promise holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.gaussian import gaussian_epsilon

# Share of a study's mu^2 that misfits have; the blocks' sums have the rest, and 1.12
# times the noise that they would have without.
LEAVE_SHARE = 0.2
# A misfit of so many deviations of its noise, and of such a share of the rewards' range
# a trial, is believed.
_LEAVE_DEVIATIONS, _LEAST_MISFIT = 2.25, 0.15


def summed_releases(releases: ContinualSettings) -> ContinualSettings:
    """Return the settings of the sums of blocks, whose sites may leave.

    Raises
    ------
    ValueError
        If so small an epsilon cannot be shared with misfits.
    """
    if math.isinf(releases.epsilon):
        return releases
    mu = releases.mu * math.sqrt(1 - LEAVE_SHARE)
    return replace(releases, epsilon=gaussian_epsilon(releases.delta, mu))


@dataclass(frozen=True)
class Misfit:
    """How far a block's rewards were below what the totals promised, under noise.

    Formal guarantees
    -----------------
    Adjacency: one trial of the block replaced by another, with whatever action and
    reward. The misfit is the sum over the block's trials of e - y, with y the reward
    and e the expected one by the totals that the site had when y came. Both are in the
    range of length 2 B: one trial moves it by 4 B at most. Those totals have been
    released, and do not have the trial. With noise of deviation 4 B / mu it is
    mu-GDP. A trial is in one block, and misfits of different blocks are of different
    trials: together they are mu-GDP, and with the blocks' sums sqrt(mu^2 + mu_sums^2)
    (Dong, Roth & Su, 2022). Whether the site leaves is post-processing.

    Attributes
    ----------
    settings : LinearUCBSettings
        Settings of the study.
    mu : float
        mu > 0 of all misfits of a site together.
    """

    settings: LinearUCBSettings
    mu: float

    @property
    def std(self) -> float:
        """Deviation of the noise, in rewards."""
        return 4 * self.settings.releases.max_reward / self.mu

    def leaves(self, misfit: float, num_trials: int) -> bool:
        """Return whether a site with that noisy misfit of a block leaves.

        Parameters
        ----------
        misfit : float
            Sum of e - y over the block, with the noise.
        num_trials : int
            Number of the block's trials that came after totals, which a replaced trial
            does not change.
        """
        most = 2 * self.settings.releases.max_reward
        return misfit > max(
            _LEAVE_DEVIATIONS * self.std, _LEAST_MISFIT * most * num_trials
        )
