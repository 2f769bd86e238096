"""Ballots that protect a client: capped ranks of a rung's trials, of norm 1.

Replayed on real accuracies (`python -m benchmarks.private_choice`) capped ranks are as
good as votes where all clients are honest, and unlike votes they hold where a third of
the clients lie: a power makes the best trials stand out, and the cap keeps one client
from saying much of a single trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.tuner.ballots.ballots import Ballots, Draw, is_vector

_POWER, _CAP = 6, 0.75
# Clients that are drawn for a sum of ballots by chance: the sum of so many is normal
# enough to be scaled up for more.
_MOST_CLIENTS = 32
# How much of their votes clients are expected to have in common.
_AGREEMENT = 0.75


@lru_cache(maxsize=64)
def ballot_entries(num_trials: int) -> tuple[float, ...]:
    """Return the entries of a ballot, worst trial first: sum 0, norm 1.

    The sixth power of the rank over K >= 1, at most 0.75, centred and scaled. Of one
    trial there is nothing to say: 0.
    """
    ranks = np.arange(1, num_trials + 1, dtype=np.float64)
    entries = np.minimum((ranks / num_trials) ** _POWER, _CAP)
    entries -= entries.mean()
    norm = np.linalg.norm(entries)
    return tuple((entries / norm if norm > 0 else entries).tolist())


def make_ballot(
    scores: FloatArray, is_scored: np.ndarray[Any, np.dtype[np.bool_]]
) -> FloatArray:
    """Return a client's ballot, shape (K,), norm at most 1.

    Parameters
    ----------
    scores : ndarray of shape (K,)
        Larger is better. A score that is not finite is a failure: see below.
    is_scored : ndarray of bool, shape (K,)
        The ballot ranks these trials only; see below.

    Notes
    -----
    On a part of the trials it has the entries of a ballot about as many, within those
    of a ballot about all: a client that has scored two trials could otherwise say more
    against one of them than a client that has scored all. What is left, so that the sum
    is 0, is shared by the other trials.

    Trials that tie share their ranks: each gets the mean of their entries. So a client
    that scores all trials alike says nothing, where a random order would add noise to
    the sum. Failures rank below all finite scores, and tie. So a ballot of failures
    only is all zeros, like one without any scored trial. See `no_scores`.
    """
    ballot = np.zeros(len(scores))
    scored = np.flatnonzero(is_scored)
    values = np.where(np.isfinite(scores[scored]), scores[scored], -np.inf)
    if np.isfinite(values).any():
        entries = np.array(ballot_entries(len(scored)))
        order = np.argsort(values)
        _, ties = np.unique(values[order], return_inverse=True)
        ballot[scored[order]] = (np.bincount(ties, entries) / np.bincount(ties))[ties]
    num_others = len(scores) - len(scored)
    if num_others > 0:
        ballot = capped(ballot, len(scores))
        ballot[~is_scored] = -ballot.sum() / num_others
    return ballot


def no_scores(num_trials: int) -> FloatArray:
    """Return the ballot of a client that was asked, and has no finite score at all.

    It has norm 1 and is the same for all trials: it ranks none of them, but moves the
    sum of the released scores, which other ballots do not. So the server learns about
    how many clients have no scores, by the same release and under the same guarantee.

    Parameters
    ----------
    num_trials : int
        K >= 1.
    """
    return np.full(num_trials, num_trials**-0.5)


def capped(ballot: Any, num_trials: int) -> Any:
    """Return a ballot whose entries are within those of an honest one.

    So a client that lies can say no more of a trial than one that does not. An honest
    ballot stays as it is, whatever number of trials it is about, and so does what is no
    ballot.
    """
    if not is_vector(ballot, num_trials):
        return ballot
    entries = ballot_entries(num_trials)
    return np.clip(ballot, entries[0], entries[-1])


@dataclass(frozen=True)
class RankBallots(Ballots):
    """Ranks of the trials, in a vector of norm 1: see `make_ballot`."""

    unit = CLIENT
    voices = "clients"
    keeps_luck = False

    def vector(self, scores: FloatArray, weights: FloatArray) -> FloatArray:
        """Return the ranks; a constant vector where no score is finite."""
        is_scored = weights > 0
        if not np.isfinite(scores[is_scored]).any():
            return no_scores(len(scores))
        return make_ballot(scores, is_scored)

    def capped(self, ballot: Any, num_trials: int, num_examples: int) -> Any:
        """Return a ballot within the entries of an honest one: see `capped`."""
        return capped(ballot, num_trials)

    def norm(self, num_trials: int) -> float:
        """Return 1, whatever the number of trials."""
        return 1.0

    def distance(self, num_trials: int) -> None:
        """Return None: a client's ballot is compared with zeros."""
        return

    @classmethod
    def noise_std(cls, num_trials: int, num_voices: int, z: float) -> float:
        """Return z / N."""
        return z / num_voices

    @staticmethod
    def chance(num_trials: int, num_voices: int, num_clients: int) -> float:
        """Return the variance of an entry of the mean, in random order.

        The entries of a ballot sum to 0 and have norm 1. The difference of two of them
        has the variance 2 / K + 2 / (K (K - 1)) = 2 / (K - 1): half of it is this.
        """
        return num_voices / (num_clients**2 * (num_trials - 1))

    @staticmethod
    def spread(num_trials: int) -> float:
        """Return the square root of .75 / K, as clients have much in common."""
        return math.sqrt(_AGREEMENT / num_trials)

    @staticmethod
    def draws(rng: np.random.Generator, shape: tuple[int, int], *, agree: bool) -> Draw:
        """Return what draws means of ballots: in one order, or in random orders."""

        def draw(
            trials: NDArray[np.intp], num_voices: int, num_clients: int
        ) -> FloatArray:
            entries = np.tile(ballot_entries(trials.shape[1]), (len(trials), 1))
            if agree:
                ranks = np.argsort(np.argsort(trials, axis=1), axis=1)
                sums = num_voices * np.take_along_axis(entries, ranks, axis=1)
                return np.asarray(sums / num_clients)
            num_drawn, sums = min(num_voices, _MOST_CLIENTS), np.zeros_like(entries)
            for _ in range(num_drawn):
                sums += rng.permuted(entries, axis=1)
            # More ballots than were drawn: their sum is wider by the root of the ratio.
            sums *= math.sqrt(num_voices / max(num_drawn, 1))
            return sums / num_clients

        return draw

    @staticmethod
    def silent(
        scores: FloatArray, noise_std: float, num_voices: int
    ) -> tuple[float, float]:
        """Return the number of clients without scores: only these move the sum."""
        in_common = float(scores.sum()) / len(scores) ** 0.5
        return num_voices * in_common, num_voices * noise_std
