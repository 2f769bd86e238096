"""How often the defaults are beaten: where no trial is better, and where one is.

    python -m benchmarks.how_sure benchmarks/trained/*.jsonl [--draws 200]

Whole halvings are replayed as `FederationTuner` decides them. Where no trial is better,
each client scores them at random, anew in each rung; or all alike, as with a key that
changes nothing. For the power, trials that were trained
(`benchmarks.trained_trials`) are drawn such that the best is better than the defaults
by .05 to .08 in test accuracy, or such that the defaults are those of the app.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.choice_methods import METHODS, Design
from benchmarks.trained_trials import RUNGS
from benchmarks.tune_fedavg import SCHEDULE, Trials, climb, drawn, read_trials
from flwr_fbo.tuner.evidence import Lead, leads

EPSILONS, CLIENTS = (1.0, 2.0, 8.0), (10, 20, 50)
GAP = (0.05, 0.08)


def replay(
    trials: Trials, num_clients: int, epsilon: float, seed: int
) -> tuple[int, Lead | None]:
    """Return the best trial of the last rung, and its lead over the defaults."""
    design = Design(num_clients, SCHEDULE.trials, epsilon)
    method = METHODS["ranks (ours)"]
    found = climb(trials, SCHEDULE, design, method, seed, keep_defaults=True)
    return found.best, leads(found.rows, num_clients)[0]


def is_beaten(best: int, lead: Lead | None) -> bool:
    """Return whether the defaults are beaten beyond chance."""
    return best != 0 and lead is not None and not lead.is_chance


def null_trials(
    num_clients: int, seed: int | None = None, num_worse: int = 0
) -> Trials:
    """Return trials of which none is better than the first, and some may be worse.

    Without a seed the others are alike for each client; with one its scores are random.
    """
    shape = len(RUNGS), num_clients, SCHEDULE.trials
    rng = np.random.default_rng(seed)
    scores = np.zeros(shape) if seed is None else rng.random(shape)
    scores[:, :, SCHEDULE.trials - num_worse :] -= 1.0
    test = scores.mean(axis=1)
    return Trials("null", test.T, scores, test, np.ones(num_clients))


def num_beaten(
    epsilon: float,
    num_clients: int,
    seeds: Iterable[int],
    *,
    is_random: bool = True,
    num_worse: int = 0,
) -> int:
    """Return how often the defaults are beaten where no trial is better."""
    beaten = 0
    for seed in seeds:
        trials = null_trials(num_clients, seed if is_random else None, num_worse)
        beaten += is_beaten(*replay(trials, num_clients, epsilon, seed))
    return beaten


def kept(
    trials: Trials, epsilon: float, gap: tuple[float, float] | None, num_draws: int
) -> list[bool]:
    """Return whether the defaults are kept, in draws with a better trial."""
    draws = (drawn(trials, 20, SCHEDULE.trials, seed, gap) for seed in range(num_draws))
    return [
        not is_beaten(*replay(one, 20, epsilon, seed))
        for seed, one in enumerate(draws)
        if one is not None
    ]


def _print_row(name: str, cells: Sequence[float]) -> None:
    print(f"| {name} | {' | '.join(f'{cell:.3f}' for cell in cells)} |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    for is_random, scored in ((True, "at random"), (False, "alike")):
        print(f"\nBeaten, though no trial is better, clients score {scored}:\n")
        print(f"| clients | {' | '.join(f'epsilon {e:g}' for e in EPSILONS)} |")
        for n in CLIENTS:
            seeds = range(options.draws)
            counts = [num_beaten(e, n, seeds, is_random=is_random) for e in EPSILONS]
            _print_row(str(n), [count / options.draws for count in counts])
    for title, gap in (("a trial is .05 better", GAP), ("the app's defaults", None)):
        print(f"\nKept, 20 clients, {title}:\n")
        for path in options.files:
            trials = read_trials(path)
            name = f"{trials.task}, {trials.num_examples.mean():.0f} examples a client"
            found = [kept(trials, e, gap, options.draws) for e in EPSILONS]
            _print_row(name, [float(np.mean(one)) for one in found])


if __name__ == "__main__":
    main()
