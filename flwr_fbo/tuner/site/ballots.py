"""Ballots: one bounded vector of a client about the trials of a rung.

They are capped ranks. Replayed on real accuracies (`python -m
benchmarks.private_choice`) these are as good as votes where all clients are honest, and
unlike votes they hold where a third of the clients lie: a power makes the best trials
stand out, and the cap keeps one client from saying much of a single trial.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray

_POWER, _CAP = 6, 0.75


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
    is_ballot = (
        isinstance(ballot, np.ndarray)
        and ballot.shape == (num_trials,)
        and ballot.dtype.kind == "f"
        and ballot.dtype.itemsize <= 8
    )
    if not is_ballot:
        return ballot
    entries = ballot_entries(num_trials)
    return np.clip(ballot, entries[0], entries[-1])
