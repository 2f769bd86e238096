"""How well trials are chosen privately, replayed from a table of accuracies.

    python -m benchmarks.private_choice TABLE [--draws 3000]

TABLE is a CSV file with a header; each row is a name, and the accuracies of federated
trainings with different settings, apart by spaces. In a draw K settings of a row are
the trials. A client's accuracy of a trial is the row's, plus differences of 0.05
between clients and between its trials, seen on 50 examples. The figure is the loss of
accuracy of the chosen trial against the best of the K, mean and standard error over
draws that all methods share; one rung, delta 1e-3.

A third of the clients lie together for the worst trial, each with what its form allows
at most. The last column is the control *noise-only*: every message is zeroed, and what
is left should be as good as *random choice*.

Methods: those of `flwr_fbo.tuner`, and what others do: the mean with Gaussian noise for
a norm of sqrt(K), or centred and clipped to norm 0.5; the mean with Laplace noise,
epsilon / K a trial (Kuo et al., MLSys 2023); five votes a client, the ballot of DP-Hype
(PoPETs 2026), whose norm is sqrt(5); the mean without noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.tuner.ballots import ballot_entries, make_ballot
from flwr_fbo.tuner.choice import PrivateChoice, PrivateChooser, survivors

FloatArray = NDArray[np.float64]

DELTA, NUM_EXAMPLES, DIFFERENCE, NUM_TOP = 1e-3, 50, 0.05, 5


@dataclass(frozen=True)
class Design:
    """One column of the table.

    Attributes
    ----------
    num_clients, num_trials : int
    epsilon : float
    num_liars : int
    noise_only : bool
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


DESIGNS = (
    Design(30, 16, 1.0),
    Design(30, 16, 2.0),
    Design(10, 16, 2.0),
    Design(30, 16, 1.0, num_liars=10),
    Design(30, 16, 2.0, num_liars=10),
    Design(30, 16, 2.0, noise_only=True),
)


@dataclass(frozen=True)
class Draw:
    """One draw, the same for all methods.

    Attributes
    ----------
    accuracies : ndarray of shape (K,)
    scores : ndarray of shape (N, K)
    seed : int
        Of noise and ties.
    """

    accuracies: FloatArray
    scores: FloatArray
    seed: int


def read_table(path: Path) -> list[FloatArray]:
    """Return the accuracies of each row."""
    lines = path.read_text().splitlines()[1:]
    return [np.array(line.split(",")[1].split(), dtype=np.float64) for line in lines]


def draw(tables: list[FloatArray], design: Design, seed: int) -> Draw:
    """Return the draw of a seed."""
    rng = np.random.default_rng(seed)
    table = tables[seed % len(tables)]
    accuracies = table[rng.choice(len(table), design.num_trials, replace=False)]
    shape = design.num_clients, design.num_trials
    own = rng.normal(0, DIFFERENCE, (shape[0], 1)) + rng.normal(0, DIFFERENCE, shape)
    chances = np.clip(accuracies + own, 0.01, 0.99)
    scores = rng.binomial(NUM_EXAMPLES, chances) / NUM_EXAMPLES
    return Draw(accuracies, scores, seed)


Method = Callable[[Design, Draw], int]


def by_ballots(choice: PrivateChoice, design: Design, drawn: Draw) -> int:
    """Choose as `FederationTuner` does at a rung, with the design's epsilon."""
    noise_only = design.noise_only
    choice = replace(choice, epsilon=design.epsilon, noise_only=noise_only)
    rng = np.random.default_rng([drawn.seed, 1])
    everything = np.ones(design.num_trials, dtype=np.bool_)
    ballots = {
        client: make_ballot(scores, everything, choice.ballot, rng)
        for client, scores in enumerate(drawn.scores)
    }
    lie = worst_ballot(choice, drawn.accuracies)
    ballots |= dict.fromkeys(range(design.num_liars), lie)
    chooser = PrivateChooser(choice, design.num_clients, 1, noise_seed=drawn.seed)
    scores = chooser.choose(0, ballots, design.num_trials).scores
    return survivors(scores, 1)[0]


def worst_ballot(choice: PrivateChoice, accuracies: FloatArray) -> FloatArray:
    """Return the ballot that does most for the worst trial, and against the best."""
    entries = ballot_entries(len(accuracies), choice.ballot)
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
    drawn: Draw,
) -> int:
    """Choose by a sum of messages, with Gaussian noise for their sensitivity."""
    rng = np.random.default_rng([drawn.seed, 2])
    messages = messages_of(drawn.scores)
    messages[: design.num_liars] = worst_message_of(drawn.accuracies)
    total = messages.sum(axis=0) * (not design.noise_only)
    z = 1.0 / gaussian_mu(design.epsilon, DELTA)
    noise = z * sensitivity_of(design.num_trials) * rng.standard_normal(len(total))
    return int(np.argmax(total + noise))


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


def laplace(design: Design, drawn: Draw) -> int:
    """Choose by the mean, each trial's with Laplace noise for epsilon / K."""
    rng = np.random.default_rng([drawn.seed, 3])
    scores = drawn.scores.copy()
    scores[: design.num_liars] = worst_first(drawn.accuracies)
    total = scores.sum(axis=0) * (not design.noise_only)
    scale = design.num_trials / design.epsilon
    return int(np.argmax(total + rng.laplace(0.0, scale, len(total))))


def without_noise(design: Design, drawn: Draw) -> int:
    """Choose by the exact mean."""
    scores = drawn.scores.copy()
    scores[: design.num_liars] = worst_first(drawn.accuracies)
    return int(np.argmax(scores.mean(axis=0)))


def at_random(design: Design, drawn: Draw) -> int:
    """Choose any trial."""
    return int(np.random.default_rng([drawn.seed, 4]).integers(design.num_trials))


OURS: dict[str, Method] = {
    "ranks (the default)": partial(by_ballots, PrivateChoice(1, DELTA)),
    "votes": partial(by_ballots, PrivateChoice(1, DELTA, ballot="votes")),
    "noisy max of votes": partial(
        by_ballots, PrivateChoice(1, DELTA, ballot="votes", last_rung="noisy-max")
    ),
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


def losses(
    tables: list[FloatArray], design: Design, method: Method, num_draws: int
) -> FloatArray:
    """Return the loss of accuracy in each draw."""
    draws = (draw(tables, design, seed) for seed in range(num_draws))
    return np.array(
        [one.accuracies.max() - one.accuracies[method(design, one)] for one in draws]
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, metavar="TABLE")
    parser.add_argument("--draws", type=int, default=3000)
    options = parser.parse_args()
    tables = read_table(options.table)
    print("| loss, s.e. in brackets |", " | ".join(map(str, DESIGNS)), "|")
    print("| --- |" + " --- |" * len(DESIGNS))
    for name, method in METHODS.items():
        cells = []
        for design in DESIGNS:
            found = losses(tables, design, method, options.draws)
            error = found.std() / len(found) ** 0.5
            cells.append(f"{found.mean():.4f} ({error:.4f})")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
