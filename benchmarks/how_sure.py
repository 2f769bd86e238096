"""How often the defaults are beaten where no trial is better, and chosen where one is.

    python -m benchmarks.how_sure benchmarks/trained/*.jsonl [--draws 200]

Whole halvings are replayed as `FederationTuner` decides them. Where no trial is better,
each client scores them at random, anew in each rung; or all alike, as with a key that
changes nothing. Else trials that were trained (`benchmarks.trained_trials`) are drawn:
such that the defaults are those of the app, that another one is better by .05 to .08 in
test accuracy, or that the defaults are the best of all. The last table has the loss of
test accuracy against the best trial of a draw.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.choice_methods import DELTA, METHODS, Design
from benchmarks.trained_trials import RUNGS
from benchmarks.tune_fedavg import SCHEDULE, Trials, climb, drawn, read_trials
from flwr_fbo.tuner.decisions.enough_voices import lost_if_all_agree
from flwr_fbo.tuner.decisions.lead_over_defaults import Lead, lead_over_defaults
from flwr_fbo.tuner.private_choice import PrivateChoice

EPSILONS, CLIENTS, FEW = (1.0, 2.0, 8.0), (10, 20, 50), (5, 10, 20)
GAP = (0.05, 0.08)
GAPS = {"the app's defaults": None, "a trial is .05 better": GAP, "best": (0.0, 0.001)}


def replay(
    trials: Trials, num_clients: int, epsilon: float, seed: int
) -> tuple[int, Lead | None]:
    """Return the trial that is chosen, and its lead over the defaults."""
    design = Design(num_clients, SCHEDULE.trials, epsilon)
    method = METHODS["ranks (ours)"]
    found = climb(trials, SCHEDULE, design, method, seed, has_defaults=True)
    return found.best, lead_over_defaults(found.rows, num_clients)


def is_beaten(best: int, lead: Lead | None) -> bool:
    """Return whether the model of the defaults is beaten beyond chance."""
    return best != 0 and lead is not None and lead.is_of_model


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


def found(
    trials: Trials,
    epsilon: float,
    num_clients: int,
    gap: tuple[float, float] | None,
    num_draws: int,
) -> tuple[list[bool], list[float]]:
    """Return whether the defaults are chosen, and the loss, in each draw."""
    kept, losses = [], []
    for seed in range(num_draws):
        one = drawn(trials, num_clients, SCHEDULE.trials, seed, gap)
        if one is not None:
            best, _ = replay(one, num_clients, epsilon, seed)
            kept.append(best == 0)
            losses.append(float(one.test[-1].max() - one.test[-1][best]))
    return kept, losses


def share_lost(
    trials: Trials, epsilon: float, num_clients: int, num_draws: int
) -> float:
    """Return which part of what the best trial gains over the defaults is lost."""
    losses = found(trials, epsilon, num_clients, None, num_draws)[1]
    draws = [
        drawn(trials, num_clients, SCHEDULE.trials, seed) for seed in range(num_draws)
    ]
    gains = [one.test[-1].max() - one.test[-1][0] for one in draws if one is not None]
    return float(np.mean(losses) / np.mean(gains))


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
    tasks = [read_trials(path) for path in options.files]
    cells = {
        (title, n, epsilon): np.array(
            [
                [np.mean(one) for one in found(task, epsilon, n, gap, options.draws)]
                for task in tasks
            ]
        ).mean(axis=0)
        for title, gap in GAPS.items()
        for n in FEW
        for epsilon in EPSILONS
    }
    for place, what in enumerate(("Defaults chosen", "Loss of accuracy")):
        for title in GAPS:
            print(f"\n{what}, {title}, mean over tasks:\n")
            print(f"| clients | {' | '.join(f'epsilon {e:g}' for e in EPSILONS)} |")
            for n in FEW:
                row = [float(cells[title, n, e][place]) for e in EPSILONS]
                _print_row(str(n), row)
    print("\nPart of the gain that is lost, at epsilon .5, 1, 2 and 8:\n")
    for n in (5, 10, 15, 20, 50, 100):
        privacy = [PrivateChoice(e, DELTA) for e in (0.5, *EPSILONS)]
        agreed = [lost_if_all_agree(SCHEDULE.sizes, n, one)[0] for one in privacy]
        _print_row(f"{n}, all agree", agreed)
        able = [task for task in tasks if task.scores.shape[1] >= n]
        real = [
            float(np.mean([share_lost(task, e, n, options.draws) for task in able]))
            for e in (0.5, *EPSILONS)
        ]
        _print_row(f"{n}, {len(able)} tasks", real)


if __name__ == "__main__":
    main()
