"""What a client says about the trials of a rung: one bounded vector.

Capped ranks are the default. Replayed on real accuracies (`python -m
benchmarks.private_choice`) they are as good as votes where all clients are honest, and
unlike votes they hold where a third of the clients lie: a power makes the best trials
stand out, and the cap keeps one client from saying much of a single trial.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import numpy as np

from flwr_fbo._common.arrays import FloatArray

Ballot = Literal["ranks", "votes"]
# What clients are asked for; exact scores are not private.
MessageForm = Literal["ranks", "votes", "exact"]

_POWER, _CAP = 6, 0.75


@lru_cache(maxsize=64)
def ballot_entries(num_trials: int, form: Ballot) -> tuple[float, ...]:
    """Return the entries of a ballot, worst trial first: sum 0, norm 1.

    Of one trial there is nothing to say: 0. Of two both forms are the same.

    Parameters
    ----------
    num_trials : int
        >= 1.
    form : {"ranks", "votes"}
        ``"ranks"``: the sixth power of the rank over K, at most 0.75, centred and
        scaled. ``"votes"``: the best trial against all others.
    """
    ranks = np.arange(1, num_trials + 1, dtype=np.float64)
    entries = np.minimum((ranks / num_trials) ** _POWER, _CAP)
    if form == "votes":
        entries = (ranks == num_trials).astype(np.float64)
    entries -= entries.mean()
    norm = np.linalg.norm(entries)
    return tuple((entries / norm if norm > 0 else entries).tolist())


def make_ballot(
    scores: FloatArray,
    is_scored: np.ndarray[Any, np.dtype[np.bool_]],
    form: Ballot,
    rng: np.random.Generator,
) -> FloatArray:
    """Return a client's ballot, shape (K,), norm at most 1.

    Parameters
    ----------
    scores : ndarray of shape (K,)
        Larger is better. A score that is not finite is a failure: see below.
    is_scored : ndarray of bool, shape (K,)
        The ballot ranks these trials only; see below.
    form : {"ranks", "votes"}
    rng : numpy.random.Generator
        Draws for which of the best trials a vote is, if they tie.

    Notes
    -----
    On a part of the trials it has the entries of a ballot about as many, within those
    of a ballot about all: a client that has scored two trials could otherwise say more
    against one of them than a client that has scored all. What is left, so that the sum
    is 0, is shared by the other trials.

    Trials that tie share their ranks: each gets the mean of their entries. So a client
    that scores all trials alike says nothing, where a random order would add noise to
    the sum. A vote is for one trial. Failures rank below all finite scores, and tie. So
    a ballot of failures only is all zeros, like one without any scored trial. See
    `no_scores`.
    """
    ballot = np.zeros(len(scores))
    scored = np.flatnonzero(is_scored)
    values = np.where(np.isfinite(scores[scored]), scores[scored], -np.inf)
    if np.isfinite(values).any():
        entries = np.array(ballot_entries(len(scored), form))
        order = np.lexsort((rng.random(len(scored)), values))
        if form == "ranks":
            _, ties = np.unique(values[order], return_inverse=True)
            entries = (np.bincount(ties, entries) / np.bincount(ties))[ties]
        ballot[scored[order]] = entries
    num_others = len(scores) - len(scored)
    if num_others > 0:
        ballot = capped(ballot, len(scores), form)
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


def make_vote(ballot: Any, num_trials: int) -> int | None:
    """Return the trial that a ballot is for, or None if it is for none, or malformed.

    Parameters
    ----------
    ballot : Any
        What a client has sent.
    num_trials : int
        K.
    """
    if not is_ballot(ballot, num_trials) or not np.all(np.isfinite(ballot)):
        return None
    is_for_one = np.max(ballot) > max(0.0, np.min(ballot))
    return int(np.argmax(ballot)) if is_for_one else None


def capped(ballot: Any, num_trials: int, form: Ballot) -> Any:
    """Return a ballot whose entries are within those of an honest one.

    So a client that lies can say no more of a trial than one that does not. An honest
    ballot stays as it is, whatever number of trials it is about, and so does what is no
    ballot.
    """
    if not is_ballot(ballot, num_trials):
        return ballot
    entries = ballot_entries(num_trials, form)
    return np.clip(ballot, entries[0], entries[-1])


def is_ballot(ballot: Any, num_trials: int) -> bool:
    """Return whether it is an array of K numbers, NaN and inf included."""
    return (
        isinstance(ballot, np.ndarray)
        and ballot.shape == (num_trials,)
        and ballot.dtype.kind == "f"
        and ballot.dtype.itemsize <= 8
    )
