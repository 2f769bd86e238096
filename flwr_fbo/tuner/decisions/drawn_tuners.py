"""Tuners that are drawn at random: what noise, and ballots by chance, would choose."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuner.decisions.survivors import carried_variance, carry, defaults_margin
from flwr_fbo.tuner.site.ballots import ballot_entries

# Tuners that are drawn for a p-value, and clients that are drawn for each: the sum of
# so many ballots is normal enough to be scaled up for more.
_NUM_NULLS, _MOST_CLIENTS = 20_000, 32


def std_of_lead(
    num_trials: int, num_ballots: int, noise_std: float, num_agents: int
) -> float:
    """Return the standard deviation of a difference of scores if trials are alike.

    Twice the variance of the noise, and that of the ballots: the entries of one are in
    random order then, and as they sum to 0 and have norm 1, their difference has the
    variance 2 / K + 2 / (K (K - 1)) = 2 / (K - 1).
    """
    of_ballots = num_ballots / (num_agents**2 * (num_trials - 1))
    return math.sqrt(2 * (noise_std**2 + of_ballots))


@lru_cache(maxsize=16)
def drawn_tuners(
    plans: tuple[tuple[int, int, float], ...], num_agents: int, agree: bool = False
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
        Numbers of trials and ballots of each rung, and the noise of a score.
    num_agents : int
        N.
    agree : bool
        The opposite: all clients order the trials alike, the defaults, trial 0, are the
        worst, and the last trial is the best.
    """
    rng = np.random.default_rng(0)  # so that the same record has the same p-value
    shape = _NUM_NULLS, plans[0][0]
    trials = np.tile(np.arange(shape[1]), (shape[0], 1))
    before, lead = np.zeros((2, *shape))
    variance, num_shared = 0.0, np.zeros(shape[0])
    for number, (num_trials, num_ballots, noise_std) in enumerate(plans):
        entries = np.tile(ballot_entries(num_trials), (_NUM_NULLS, 1))
        num_drawn = min(num_ballots, _MOST_CLIENTS)
        sums = np.zeros_like(entries)
        if agree:
            ranks = np.argsort(np.argsort(trials, axis=1), axis=1)
            sums += num_ballots * np.take_along_axis(entries, ranks, axis=1)
        else:
            for _ in range(num_drawn):
                sums += rng.permuted(entries, axis=1)
            # More ballots than were drawn: their sum is wider by the root of the ratio.
            sums *= math.sqrt(num_ballots / max(num_drawn, 1))
        scores = sums / num_agents + rng.normal(0.0, noise_std, sums.shape)
        is_default = trials == 0
        has_default = is_default.any(axis=1)
        of_default = np.where(is_default, scores, 0.0).sum(axis=1, keepdims=True)
        std = std_of_lead(num_trials, num_ballots, noise_std, num_agents)
        # Rungs without the defaults say nothing of a lead over them.
        lead += np.where(has_default[:, None], (scores - of_default) / std, 0.0)
        num_shared += has_default
        # As in `survivors_of`.
        before = carry(scores, before)
        variance = carried_variance(noise_std, variance)
        decided = before + defaults_margin(num_trials, variance**0.5) * is_default
        left = plans[number + 1][0] if number + 1 < len(plans) else 1
        places = np.argsort(-decided, axis=1, kind="stable")[:, :left]
        trials = np.take_along_axis(trials, places, axis=1)
        before = np.take_along_axis(before, places, axis=1)
        lead = np.take_along_axis(lead, places, axis=1)
    drawn = lead[:, 0] / np.sqrt(np.maximum(num_shared, 1))
    chosen = trials[:, 0]
    return chosen, np.where(chosen == 0, -np.inf, drawn)
