"""Check that a study's decisions have regard to rewards, by a reference problem.

A server writes how a site decides. By some numbers a site plays by chance, whatever
actions are worth: where all of them look equally uncertain for as long as it plays
(a large width), where estimates stay near zero (a large ridge), or where noise hides
what sums say (a small epsilon). So what a study does is computed for one problem.

*The problem.* Four actions of the largest norm, at right angles. One gives the highest
reward in 90 % of its trials and the lowest in the others; with the other three it is
the other way round. With B half of the rewards' range, the mean rewards are 0.8 B above
and below its middle.

*The criterion.* Take a site with T trials, half of them of the best action and a sixth
of each other one. It has regard to rewards if the best action is then ahead by three
times what exploration and noise add for another one, and regularisation weighs no more
than another action's trials. In the mean, the best action has then
been played in more than half of the T trials: otherwise another action had a sixth of
them at some time, was played once more, and so was not behind.

A width that is a number is judged without noise, at T = 300; so is all of a site that
acts on its own data. Where it acts on noisy sums, or the width
is a formula, which is for all times at once, T is 10,000. Noise is that of the sums:
of one release in each total, where sites sum their blocks. The settings' ridge counts
only where there is no noise and a site does not average over ridges.

*What is not counted.* What a server does later: one that sends no totals, or false
ones, leads sites that act on released sums wherever it wants. A range that is declared
far wider than rewards are, or a `RewardTimeout` that ends before they come: then the
sums say nothing. A choice that one early reward has decided, as with a narrow width.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import EllipsoidSampling
from flwr_fbo.bandits.linear.settings import LinearUCBSettings

# T of a site without and with noise, and how the trials are shared.
FEW_TRIALS, MANY_TRIALS = 300, 10_000
SHARES = (1 / 2, 1 / 6, 1 / 6, 1 / 6)
# How far a mean reward is from the middle of the range, over half of the range.
EFFECT = 0.8
# By how many times what exploration and noise add the best action must be ahead.
MARGIN = 3.0
# Of the ridges that sites average over by evidence, the largest in the problem; in
# units of the longest action's square. With own data 30 trials of a fourth of it.
LARGEST_RIDGE = 7.5
# A reward that counts as known after less time, in seconds, never comes in time.
_LEAST_TIMEOUT = 1.0


def has_regard(
    settings: LinearUCBSettings, num_agents: int, std: float | None = None
) -> bool:
    """Return whether a site's decisions have regard to rewards.

    Parameters
    ----------
    settings : LinearUCBSettings
        Settings of the study.
    num_agents : int
        M >= 1, whose sums are added.
    std : float, optional
        Deviation, >= 0, of the noise on the diagonal of the sum of all releases. That
        of as many releases as agents unless given, each with the whole noise.
    """
    timeout = settings.reward_timeout
    if timeout is not None and timeout.seconds < _LEAST_TIMEOUT:
        return False
    releases = settings.releases
    alone = replace(releases, epsilon=math.inf, calibration="exact")
    without_noise = replace(settings, releases=alone)
    size, trial = releases.max_action_norm, releases.max_action_norm**2
    if releases.grid:  # where rewards are far larger than actions nothing is left
        trial = round(trial / releases.grid) * releases.grid
    share = trial / size**2
    # The settings' ridge is in nothing that a site chooses by, but without noise.
    has_ridge = releases.noise_std == 0 and not settings.uses_own_data
    ridge = settings.ridge if has_ridge else LARGEST_RIDGE * size**2
    if settings.fixed_width is not None:
        few = Confidence.of(without_noise, 1)
        if not _is_ahead(few, share, FEW_TRIALS, ridge, 0.0):
            return False
    if settings.uses_own_data:  # others count where own data speak for them
        return True
    if std is None:
        std = math.sqrt(num_agents) * releases.largest_std(1)
    summed = Confidence.of(settings, num_agents)
    shift = ridge if settings.uses_blocks else summed.shift
    return _is_ahead(summed, share, MANY_TRIALS, shift, std)


def _is_ahead(
    confidence: Confidence, share: float, num_trials: int, shift: float, std: float
) -> bool:
    """Return whether the best action is ahead after so many trials.

    ``share`` is what rounding leaves of a trial's square in the sums, ``shift`` what
    regularises them, and ``std`` the deviation of their noise.
    """
    settings, num_agents = confidence.settings, confidence.num_agents
    releases, exploration = settings.releases, settings.exploration
    size, effect = releases.max_action_norm, EFFECT * releases.max_reward
    counts = np.zeros(max(releases.dimension, len(SHARES)))
    counts[: len(SHARES)] = SHARES
    counts *= num_agents * num_trials * share * size**2
    precision = shift + counts
    ahead = effect * (counts / precision)[:2].sum()
    in_space = precision[: releases.dimension]
    width = float(confidence.choosing_width(np.log(in_space).sum(), in_space.min()))
    best, other = size / np.sqrt(precision[:2])
    added = width * (other - best)
    if isinstance(exploration, EllipsoidSampling):
        # The deviation of a coordinate in the unit ball is 1 / sqrt(d + 2).
        radius = exploration.radius / math.sqrt(releases.dimension + 2)
        added = width * radius * math.hypot(best, other)
    # Noise of the sums of x y, and of x x' times the parameter.
    hidden = std * (size / math.sqrt(2) + effect)
    added += hidden * math.hypot(*(1 / precision[:2]))
    return bool(ahead >= MARGIN * added and shift <= counts[1])
