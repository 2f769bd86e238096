"""Tuners that are drawn at random: what noise, and ballots by chance, would choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots
from flwr_fbo.tuner.decisions.survivors import carried_variance, carry, defaults_margin

# Tuners that are drawn for a p-value.
_NUM_NULLS = 20_000


def std_of_lead(
    num_trials: int,
    num_voices: int,
    noise_std: float,
    num_clients: int,
    ballots: type[Ballots] = RankBallots,
) -> float:
    """Return the standard deviation of a difference of scores if trials are alike.

    Twice the variance of the noise, and that of what chance makes of the ballots.
    """
    by_chance = ballots.chance(num_trials, num_voices, num_clients)
    return math.sqrt(2 * (noise_std**2 + by_chance))


def stds_of_leads(
    plans: Sequence[tuple[int, int, float]],
    num_clients: int,
    ballots: type[Ballots] = RankBallots,
) -> FloatArray:
    """Return the standard deviation of a lead that is summed over rungs.

    Over the first rung, the first two, and so on, of trials that are alike. In each
    rung the lead is divided by `std_of_lead`, and has variance 1. The noise is another
    one in each; chance is the same where ballots keep it, and then adds up.

    Parameters
    ----------
    plans : sequence of tuple
        Numbers of trials and voices of each rung, and the noise of a score.
    num_clients : int
        N.
    ballots : type of Ballots
        What clients say of trials.
    """
    numbers = np.arange(1.0, len(plans) + 1)
    if not ballots.keeps_luck:
        return np.asarray(np.sqrt(numbers))
    by_chance = np.array(
        [
            math.sqrt(2 * ballots.chance(num_trials, num_voices, num_clients))
            / std_of_lead(num_trials, num_voices, noise_std, num_clients, ballots)
            for num_trials, num_voices, noise_std in plans
        ]
    )
    noise = numbers - np.cumsum(by_chance**2)
    return np.asarray(np.sqrt(noise + np.cumsum(by_chance) ** 2))


@lru_cache(maxsize=16)
def drawn_tuners(
    plans: tuple[tuple[int, int, float], ...],
    num_agents: int,
    agree: bool = False,
    ballots: type[Ballots] = RankBallots,
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], FloatArray]:
    """Draw tuners in which no trial is better: what they choose, and its lead.

    Whole tuners, as the best of many trials is ahead by chance in the rungs that it
    has survived, as `survivors_of` has it. The lead is that over the defaults; -inf
    where these are chosen: then they are not beaten. Where only some of the trials are
    as good as the defaults, and others are worse, there is less to select from, and
    leads are smaller.

    Parameters
    ----------
    plans : tuple of tuple
        Numbers of trials and voices of each rung, and the noise of a score.
    num_agents : int
        N.
    agree : bool
        The opposite: all clients order the trials alike, the defaults, trial 0, are the
        worst, and the last trial is the best.
    ballots : type of Ballots
        What clients say of trials.
    """
    rng = np.random.default_rng(0)  # so that the same record has the same p-value
    shape = _NUM_NULLS, plans[0][0]
    trials = np.tile(np.arange(shape[1]), (shape[0], 1))
    before, lead = np.zeros((2, *shape))
    variance, num_shared = 0.0, np.zeros(shape[0], dtype=np.intp)
    draw = ballots.draws(rng, shape, agree=agree)
    for number, (num_trials, num_voices, noise_std) in enumerate(plans):
        scores = draw(trials, num_voices, num_agents)
        scores = scores + rng.normal(0.0, noise_std, scores.shape)
        is_default = trials == 0
        has_default = is_default.any(axis=1)
        of_default = np.where(is_default, scores, 0.0).sum(axis=1, keepdims=True)
        std = std_of_lead(num_trials, num_voices, noise_std, num_agents, ballots)
        # Rungs without the defaults say nothing of a lead over them.
        lead += np.where(has_default[:, None], (scores - of_default) / std, 0.0)
        num_shared += has_default
        # As in `survivors_of`.
        before = carry(scores, before)
        variance = carried_variance(noise_std, variance)
        margin = defaults_margin(num_trials, variance**0.5, ballots)
        decided = before + margin * is_default
        left = plans[number + 1][0] if number + 1 < len(plans) else 1
        places = np.argsort(-decided, axis=1, kind="stable")[:, :left]
        trials = np.take_along_axis(trials, places, axis=1)
        before = np.take_along_axis(before, places, axis=1)
        lead = np.take_along_axis(lead, places, axis=1)
    # Trials do not come back: the rungs that two were in are the first ones.
    stds = stds_of_leads(plans, num_agents, ballots)
    drawn = lead[:, 0] / stds[np.maximum(num_shared, 1) - 1]
    chosen = trials[:, 0]
    return chosen, np.where(chosen == 0, -np.inf, drawn)
