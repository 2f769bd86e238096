"""Ways to compare trials by what clients say of them: ours, others', and controls.

Ours is that of `flwr_fbo.tuner`: ranks. Others': one vote a client, released as a noisy
sum, or with the winner of the last rung alone by report-noisy-max (McKenna & Sheldon,
2020); the mean with Gaussian noise for a norm of sqrt(K), or centred and clipped to
norm 0.5; the mean with Laplace noise, epsilon / K a trial (Kuo et al., MLSys 2023);
five votes a client, the ballot of DP-Hype (PoPETs 2026), whose norm is sqrt(5).
Controls: the mean without noise, and a random choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.tuner.ballots.rank_ballots import ballot_entries, make_ballot
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.private_choice import PrivateChoice

DELTA, NUM_TOP = 1e-3, 5


@dataclass(frozen=True)
class Design:
    """Who takes part, and how much may be released.

    Attributes
    ----------
    num_clients, num_trials : int
    epsilon : float
        Of all rungs together.
    num_liars : int
        Clients that lie together for the worst trial, each with what its message allows
        at most.
    noise_only : bool
        The control: every message is zeroed.
    """

    num_clients: int
    num_trials: int
    epsilon: float
    num_liars: int = 0
    noise_only: bool = False

    def __str__(self) -> str:
        liars = f", {self.num_liars} lie" if self.num_liars else ""
        control = ", noise-only" if self.noise_only else ""
        return f"N={self.num_clients} eps={self.epsilon:g}{liars}{control}"


@dataclass(frozen=True)
class Question:
    """What is to be decided at the end of a rung, the same for all methods.

    Attributes
    ----------
    scores : ndarray of shape (N, K)
        What clients have seen of the trials, larger is better.
    accuracies : ndarray of shape (K,)
        What is true, and liars know.
    seed : int
        Of noise and ties.
    rung, num_rungs : int
    weights : ndarray of shape (N,), optional
        Of clients in a mean without noise; equal unless given.
    """

    scores: FloatArray
    accuracies: FloatArray
    seed: int
    rung: int = 0
    num_rungs: int = 1
    weights: FloatArray | None = None

    @property
    def num_trials(self) -> int:
        """K."""
        return len(self.accuracies)

    def rng(self, method: int) -> np.random.Generator:
        """Return a method's generator."""
        return np.random.default_rng([self.seed, self.rung, method])


# Returns a score a trial, larger is better, as a rung of the tuner does.
Method = Callable[[Design, Question], LedgerRow]


def by_ballots(design: Design, asked: Question) -> LedgerRow:
    """Compare as `FederationTuner` does, with the design's epsilon."""
    choice = PrivateChoice(design.epsilon, DELTA, noise_only=design.noise_only)
    chooser = chooser_of(choice, design.num_clients, asked.num_rungs, asked.seed)
    everything = np.ones(asked.num_trials, dtype=np.bool_)
    ballots = {
        client: make_ballot(scores, everything)
        for client, scores in enumerate(asked.scores)
    }
    lie = worst_ballot(ballot_entries(asked.num_trials), asked.accuracies)
    ballots |= dict.fromkeys(range(design.num_liars), lie)
    return chooser.choose(asked.rung, ballots, asked.num_trials)


def by_votes(last_by_max: bool, design: Design, asked: Question) -> LedgerRow:
    """Compare by one vote a client: by their noisy sum, or the last rung by its winner.

    That winner's score is 1, and that of all others 0. Its share of epsilon is one in
    the number of rungs: exponential noise of scale 1 / epsilon on each count, which one
    vote changes by 1.
    """
    epsilon, num_sums = design.epsilon, asked.num_rungs
    share = epsilon / num_sums
    if last_by_max:
        epsilon, num_sums = epsilon - share, num_sums - 1
    entries = vote_entries(asked.num_trials)
    votes, rng = np.zeros(asked.scores.shape), asked.rng(1)
    for client, scores in enumerate(asked.scores):
        order = np.lexsort((rng.random(asked.num_trials), scores))
        votes[client, order] = entries
    votes[: design.num_liars] = worst_ballot(entries, asked.accuracies)
    if asked.rung < num_sums:
        choice = PrivateChoice(epsilon, DELTA, noise_only=design.noise_only)
        chooser = chooser_of(choice, design.num_clients, num_sums, asked.seed)
        ballots = dict(enumerate(votes))
        release = chooser.release(asked.num_trials)
        sums = release.release(asked.rung, ballots, asked.num_trials)
        facts = {**release.facts(asked.rung), "num_ballots": len(votes)}
        return LedgerRow(asked.rung, {"mechanism": "gaussian", **facts}, sums[0])
    best = votes.argmax(axis=1)
    counts = np.bincount(best, minlength=asked.num_trials) * (not design.noise_only)
    noise_rng = generator(asked.seed, asked.rung, Purpose.RELEASE_NOISE)
    noisy = counts + noise_rng.exponential(1.0 / share, asked.num_trials)
    scores = np.zeros(asked.num_trials)
    scores[np.argmax(noisy)] = 1.0
    return LedgerRow(asked.rung, {"mechanism": "noisy-max"}, scores)


def vote_entries(num_trials: int) -> tuple[float, ...]:
    """Return the entries of a vote, the best trial last: sum 0, norm 1."""
    entries = np.zeros(num_trials)
    entries[-1] = 1.0
    entries -= entries.mean()
    return tuple((entries / np.linalg.norm(entries)).tolist())


# The rungs of a draw share one: it is the noise's calibration that takes time.
@lru_cache(maxsize=4)
def chooser_of(
    choice: PrivateChoice, num_clients: int, num_rungs: int, seed: int
) -> PrivateChooser:
    """Return what adds the noise of a draw."""
    return PrivateChooser(choice, num_clients, num_rungs, noise_seed=seed)


def worst_ballot(entries: Sequence[float], accuracies: FloatArray) -> FloatArray:
    """Return the ballot that does most for the worst trial, and against the best.

    Its entries are within those of an honest one, worst trial first.
    """
    lie = np.zeros(len(accuracies))
    order = np.argsort(accuracies)
    lie[order[0]] = entries[-1]
    left = 1.0 - entries[-1] ** 2
    for trial in order[:0:-1]:
        lie[trial] = -min(-entries[0], left**0.5)
        left = max(left - lie[trial] ** 2, 0.0)
    return lie


def by_sum(
    messages_of: Callable[[FloatArray], FloatArray],
    sensitivity_of: Callable[[int], float],
    worst_message_of: Callable[[FloatArray], FloatArray],
    design: Design,
    asked: Question,
) -> LedgerRow:
    """Compare by a sum of messages, with Gaussian noise for their sensitivity."""
    rng = asked.rng(2)
    messages = messages_of(asked.scores)
    messages[: design.num_liars] = worst_message_of(asked.accuracies)
    total = messages.sum(axis=0) * (not design.noise_only)
    z = _noise_multiplier(design.epsilon, asked.num_rungs)
    noise = z * sensitivity_of(asked.num_trials) * rng.standard_normal(len(total))
    return LedgerRow(asked.rung, {"mechanism": "gaussian"}, total + noise)


@lru_cache
def _noise_multiplier(epsilon: float, num_rungs: int) -> float:
    return calibrate_noise_multiplier(epsilon, DELTA, 1.0, num_rungs)


def clipped(scores: FloatArray, norm: float = 0.5) -> FloatArray:
    """Return centred scores with norms of at most ``norm``."""
    centred = scores - scores.mean(axis=-1, keepdims=True)
    norms = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.asarray(centred * np.minimum(1.0, norm / np.maximum(norms, 1e-12)))


def top_votes(scores: FloatArray) -> FloatArray:
    """Return 1 for the five best trials of each client, else 0."""
    votes: FloatArray = np.zeros(scores.shape)
    best = np.argsort(-scores, axis=-1, kind="stable")[..., :NUM_TOP]
    np.put_along_axis(votes, best, 1.0, axis=-1)
    return votes


def worst_first(accuracies: FloatArray) -> FloatArray:
    """Return scores that are 1 for the worst trial, else 0."""
    scores = np.zeros(len(accuracies))
    scores[np.argmin(accuracies)] = 1.0
    return scores


def laplace(design: Design, asked: Question) -> LedgerRow:
    """Compare by the mean, each trial's with Laplace noise for epsilon / K."""
    scores = asked.scores.copy()
    scores[: design.num_liars] = worst_first(asked.accuracies)
    total = scores.sum(axis=0) * (not design.noise_only)
    scale = asked.num_trials * asked.num_rungs / design.epsilon
    noise = asked.rng(3).laplace(0.0, scale, len(total))
    return LedgerRow(asked.rung, {"mechanism": "laplace"}, total + noise)


def without_noise(design: Design, asked: Question) -> LedgerRow:
    """Compare by the exact mean."""
    scores = asked.scores.copy()
    scores[: design.num_liars] = worst_first(asked.accuracies)
    means = np.average(scores, axis=0, weights=asked.weights)
    return LedgerRow(asked.rung, {"mechanism": "exact"}, means)


def at_random(design: Design, asked: Question) -> LedgerRow:
    """Prefer any trial."""
    scores = asked.rng(4).random(asked.num_trials)
    return LedgerRow(asked.rung, {"mechanism": "exact"}, scores)


OURS: dict[str, Method] = {
    "ranks (ours)": by_ballots,
    "votes": partial(by_votes, False),
    "noisy max of votes": partial(by_votes, True),
}
PRIVATE_BASELINES: dict[str, Method] = {
    "Gaussian mean, norm sqrt(K)": partial(
        by_sum, np.copy, lambda num_trials: num_trials**0.5, worst_first
    ),
    "Gaussian mean, centred, clipped to 0.5": partial(
        by_sum, clipped, lambda _: 0.5, lambda acc: clipped(worst_first(acc))
    ),
    "Laplace mean, epsilon / K": laplace,
    "DP-Hype's ballot: 5 votes": partial(
        by_sum, top_votes, lambda _: NUM_TOP**0.5, lambda acc: top_votes(-acc)
    ),
}
OTHERS: dict[str, Method] = {"random choice": at_random, "no noise": without_noise}
METHODS = {**OURS, **PRIVATE_BASELINES, **OTHERS}
