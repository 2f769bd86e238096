"""Survivors: the trials that go on, by what was released and by nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots

# Share of the scores of the rung before: see `decision_scores`.
_CARRIED = 0.5
# What is expected before any ballot, see `defaults_margin`: by how many standard
# deviations of the trials the app's defaults are better than a setting that was drawn.
_TRUST = 1.6


def ballots_in(row: LedgerRow) -> type[Ballots]:
    """Return what the clients of a rung said of its trials."""
    return ExampleBallots if "num_examples" in row.facts else RankBallots


def voices_in(row: LedgerRow) -> int:
    """Return how many clients, or examples, a rung's evidence is of."""
    return int(row.facts.get("num_examples", row.facts["num_ballots"]))


def decision_scores(rows: Sequence[LedgerRow]) -> FloatArray:
    """Return the scores by which the trials of the last of some rungs are compared.

    Where sums of ballots are released with noise, they are what the rung released, plus
    half of the scores by which the rung before compared the same trials. Each release
    has noise of its own, so several say more than one, at no epsilon. A half, as trials
    that are ahead after few rounds of training need not stay so. Measured by
    `python -m benchmarks.halving_variants`.

    Exact means are compared as they are: there is no noise to average, and the later
    mean is the truer one.

    Parameters
    ----------
    rows : sequence of LedgerRow
        Scores that each of these rungs released, and their trials.
    """
    scores: FloatArray = rows[-1].vectors
    if rows[-1].facts.get("mechanism") != "gaussian":
        return scores
    before: dict[int, float] = {}
    for row in rows:
        trials = row.facts["trials"]
        # Trials without a score before, in the first rung, have nothing to carry.
        carried = np.array([before.get(trial, 0.0) for trial in trials])
        scores = carry(row.vectors, carried)
        before = dict(zip(trials, scores.tolist(), strict=True))
    return scores


def carry(scores: FloatArray, before: FloatArray) -> FloatArray:
    """Return what a rung released, plus half of what decided the rung before."""
    return scores + _CARRIED * before


def defaults_margin(
    num_trials: int, noise_std: float, ballots: type[Ballots] = RankBallots
) -> float:
    """Return the margin by which a score must be ahead of that of the app's defaults.

    Chosen is the trial whose expected score is largest, given what was released; so the
    expected loss is smallest. Without noise the scores of K trials would have a
    variance of ``tau**2``, see `Ballots.spread`: with ranks about 0.75 / K, as clients
    have much in common; with sums over examples a tenth of the range, squared. The
    defaults are expected to be 1.6 tau better than settings that were drawn at random:
    somebody chose them. After a score with the variance ``v`` of the noise, the
    expected value is a mean of score and expectation with the weights ``tau**2`` and
    ``v``. So the defaults are chosen unless another score is ahead of theirs by more
    than ``1.6 v / tau``: next to nothing with many clients, and much with few.

    The two numbers were chosen by replaying real trials, and by no client's data here:
    where the defaults are bad, and where they are the best of all, little is to be lost
    (`python -m benchmarks.one_training`).

    Parameters
    ----------
    num_trials : int
        K >= 1, of the rung.
    noise_std : float
        Of the score by which it is decided.
    ballots : type of Ballots
        What clients say of trials.
    """
    return _TRUST * noise_std**2 / ballots.spread(num_trials)


def carried_variance(noise_std: float, before: float) -> float:
    """Return the variance of the noise in what `carry` returns."""
    return noise_std**2 + _CARRIED**2 * before


def survivors_of(rows: Sequence[LedgerRow], num_survivors: int) -> list[int]:
    """Return the places of the trials that go on after the last of some rungs.

    Parameters
    ----------
    rows : sequence of LedgerRow
        Scores that each of these rungs released, and their trials.
    num_survivors : int
        Number of trials that go on, from 1 to K.
    """
    scores, last = decision_scores(rows), rows[-1].facts
    if last.get("mechanism") != "gaussian" or 0 not in last["trials"]:
        return survivors(scores, num_survivors)
    place = last["trials"].index(0)
    if 0 not in last.get("failed", ()):  # with which main fails, they are no choice
        variance = 0.0
        for row in rows:
            variance = carried_variance(row.facts["noise_std"][0], variance)
        scores = scores.copy()
        about = len(scores), variance**0.5, ballots_in(rows[-1])
        scores[place] += defaults_margin(*about)
    return survivors(scores, num_survivors)


def survivors(scores: FloatArray, num_survivors: int) -> list[int]:
    """Return which trials have the highest scores, the best first; ties to the first.

    Parameters
    ----------
    scores : ndarray of shape (K,)
        Scores of the trials, larger is better.
    num_survivors : int
        Number of trials that go on, from 1 to K.
    """
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order[:num_survivors]
