"""How often the defaults are beaten: where no trial is better, and where one is.

    python -m benchmarks.how_sure benchmarks/trained/*.jsonl [--draws 200]

Whole halvings are replayed as `FederationTuner` decides them. The null key changes
nothing: each client scores all trials alike. For the power, trials that were trained
(`benchmarks.trained_trials`) are drawn such that the best is better than the defaults
by .05 to .08 in test accuracy, or such that the defaults are those of the app.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.trained_trials import RUNGS
from benchmarks.tune_fedavg import Trials, read_trials
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuner.ballots import make_ballot
from flwr_fbo.tuner.choice import Chooser, PrivateChoice, survivors
from flwr_fbo.tuner.evidence import Lead, leads
from flwr_fbo.tuner.schedule import Halving

SCHEDULE = Halving(trials=16, rounds=(3, 9, 27))
EPSILONS, CLIENTS = (1.0, 2.0, 8.0), (10, 20, 50)
DELTA = 1e-3
GAP = (0.05, 0.08)

# From the rounds of a rung to the scores of all trials, shape (N, K).
Scores = Callable[[int], FloatArray]


@lru_cache(maxsize=64)
def _chooser(epsilon: float, num_clients: int, num_rungs: int, seed: int) -> Chooser:
    choice = PrivateChoice(epsilon, DELTA)
    return Chooser(choice, num_clients, num_rungs, noise_seed=seed)


def replay(
    scores_of: Scores, num_clients: int, epsilon: float, schedule: Halving, seed: int
) -> tuple[int, Lead | None]:
    """Return the best trial of the last rung, and its lead over the defaults."""
    rng = np.random.default_rng(seed)
    chooser = _chooser(epsilon, num_clients, len(schedule.rungs), seed)
    alive, trials, choices = list(range(schedule.trials)), [], []
    for number, rung in enumerate(schedule.rungs):
        everything = np.ones(len(alive), dtype=np.bool_)
        ballots = {
            client: make_ballot(scores, everything, "ranks", rng)
            for client, scores in enumerate(scores_of(rung.rounds)[:, alive])
        }
        trials.append(alive)
        choices.append(chooser.choose(number, ballots, len(alive)))
        place_kept = alive.index(0) if rung.num_survivors > 1 else None
        order = survivors(choices[-1].scores, rung.num_survivors, place_kept)
        alive = [alive[place] for place in order]
    return alive[0], leads(trials, choices, num_clients, "ranks")[0]


def is_beaten(best: int, lead: Lead | None) -> bool:
    """Return whether the defaults are beaten beyond chance."""
    return best != 0 and lead is not None and not lead.is_chance


def null_scores(num_clients: int, num_worse: int = 0) -> Scores:
    """Return scores that say nothing, but that some trials are worse."""
    scores = np.zeros((num_clients, SCHEDULE.trials))
    scores[:, SCHEDULE.trials - num_worse :] = -1.0
    return lambda rounds: scores


def drawn_scores(
    trials: Trials, num_clients: int, gap: tuple[float, float] | None, seed: int
) -> Scores | None:
    """Draw trials and clients of a task.

    Trial 0 is the app's defaults; with ``gap`` it is one that is worse than the best
    of those drawn by so much, and None if there is none.
    """
    rng = np.random.default_rng([seed, 5])
    final = trials.test[-1]
    picked = rng.permutation(len(final))[: SCHEDULE.trials]
    if gap is None:
        picked = np.array([0, *[n for n in picked if n != 0]])[: SCHEDULE.trials]
    else:
        worse = final[picked].max() - final[picked]
        places = np.flatnonzero((worse >= gap[0]) & (worse < gap[1]))
        if len(places) == 0:
            return None
        place = rng.choice(places)
        picked[[0, place]] = picked[[place, 0]]
    clients = rng.permutation(trials.scores.shape[1])[:num_clients]
    return lambda rounds: trials.scores[RUNGS.index(rounds)][clients][:, picked]


def num_beaten(
    epsilon: float, num_clients: int, seeds: Iterable[int], num_worse: int = 0
) -> int:
    """Return how often the defaults are beaten where no trial is better."""
    scores = null_scores(num_clients, num_worse)
    about = num_clients, epsilon, SCHEDULE
    return sum(is_beaten(*replay(scores, *about, seed)) for seed in seeds)


def kept(
    trials: Trials, epsilon: float, gap: tuple[float, float] | None, num_draws: int
) -> list[bool]:
    """Return whether the defaults are kept, in draws with a better trial."""
    drawn = (drawn_scores(trials, 20, gap, seed) for seed in range(num_draws))
    return [
        not is_beaten(*replay(scores, 20, epsilon, SCHEDULE, seed))
        for seed, scores in enumerate(drawn)
        if scores is not None
    ]


def _print_row(name: str, cells: Sequence[float]) -> None:
    print(f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    print("Beaten, though no trial is better:\n")
    print(f"| clients | {' | '.join(f'epsilon {e:g}' for e in EPSILONS)} |")
    for n in CLIENTS:
        seeds = range(options.draws)
        rates = [num_beaten(e, n, seeds) / options.draws for e in EPSILONS]
        _print_row(str(n), rates)
    for title, gap in (("a trial is .05 better", GAP), ("the app's defaults", None)):
        print(f"\nKept, 20 clients, {title}:\n")
        for path in options.files:
            trials = read_trials(path)
            name = f"{trials.task}, {trials.num_examples.mean():.0f} examples a client"
            found = [kept(trials, e, gap, options.draws) for e in EPSILONS]
            _print_row(name, [float(np.mean(one)) for one in found])


if __name__ == "__main__":
    main()
