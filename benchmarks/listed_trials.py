"""What a list from earlier private tuners gives to the next one, replayed.

    python -m benchmarks.listed_trials benchmarks/trained/*.jsonl [--draws 100]

FILEs are what `benchmarks.trained_trials` has kept, one a task: the same 64 settings,
trained by six federations. In a draw a task is the next one; one, two or four of the
others, with clients and 15 settings of their own, have been tuned before, with the same
epsilon, by halving (16, 5 and 2 trials to rounds 3, 9 and 27), as `FederationTuner`
decides it. Digits at 20 and at 100 clients have the same data: neither is an earlier
task of the other. The list is made as `portfolio_of_studies` makes it. All have 20
clients and delta 1e-3.

Figures: the *loss* of test accuracy of the chosen trial, against the best of all 64,
if the 16 trials are the defaults and 15 that are drawn, and if listed ones take the
place of some of these; and the loss of the best listed setting itself: what a site's
own search would begin with. Differences are paired by draw, and ± is one standard
error over draws for these six tasks.

The size was chosen on these tasks, in trial runs of 60 draws with sizes of 3 to 8. So
was the way to make the list. The other way was a Gaussian process over the ranks of all
trials of all tuners, with a part that they share, from which the settings with the
largest expected best were taken one by one. Losses at epsilon 2 after four tuners were
.0086 without a list, and .0058 to .0075 with any of these.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.choice_methods import DELTA, Design, by_ballots
from benchmarks.trained_trials import SPACE
from benchmarks.tune_fedavg import SCHEDULE, Climbed, Trials, climb, read_trials
from flwr_fbo.tuner.records.portfolio_of_studies import Finding, merged, ordered_trials
from flwr_fbo.tuning.search.study_portfolio import SIZE, PortfolioSource

NUM_CLIENTS, EPSILONS, EARLIER = 20, (1.0, 2.0, 8.0), (1, 2, 4)
Places = NDArray[np.intp]
SAME_DATA = {"digits-20": "digits-100", "digits-100": "digits-20"}


def _part(trials: Trials, chosen: Sequence[int], clients: Places) -> Trials:
    """Return some trials of a task, as some of its clients see them."""
    return Trials(
        trials.task,
        trials.points[chosen],
        trials.scores[:, clients][:, :, chosen],
        trials.test[:, chosen],
        trials.num_examples[clients],
    )


def tuned(
    trials: Trials,
    chosen: Sequence[int],
    clients: Places,
    epsilon: float,
    seed: int,
) -> Climbed:
    """Return a private tuner of these trials; the first has the defaults."""
    design = Design(len(clients), len(chosen), epsilon)
    part = _part(trials, chosen, clients)
    return climb(part, SCHEDULE, design, by_ballots, seed, has_defaults=True)


def finding_of(
    trials: Trials, chosen: Sequence[int], done: Climbed, epsilon: float
) -> Finding:
    """Return what a list is made from, of a tuner that was replayed."""
    done.rows[-1].facts["survivors"] = [done.best]
    order = [chosen[trial] for trial in ordered_trials(done.rows)]
    settings = [SPACE.from_unit(trials.points[trial]) for trial in order]
    source = PortfolioSource("FederationTuner", NUM_CLIENTS, True, epsilon, DELTA)
    return Finding(SPACE, settings, source)


def line_of(
    tasks: Sequence[Trials], number: int, num_earlier: int, epsilon: float, draw: int
) -> tuple[float, float, float]:
    """Return three losses of a draw: without a list, with it, and of the list alone."""
    task = tasks[number]
    rng, own_rng = (np.random.default_rng([draw, number, k]) for k in range(2))

    def drawn(trials: Trials, rng: np.random.Generator) -> tuple[list[int], Places]:
        others = 1 + rng.permutation(len(trials.points) - 1)
        return [0, *others.tolist()], rng.permutation(trials.scores.shape[1])

    allowed = [
        one for one in tasks if one is not task and one.task != SAME_DATA.get(task.task)
    ]
    findings = []
    for place in rng.permutation(len(allowed))[:num_earlier]:
        earlier, (order, clients) = allowed[place], drawn(allowed[place], rng)
        about = order[: SCHEDULE.trials], clients[:NUM_CLIENTS], epsilon
        done = tuned(earlier, *about, int(rng.integers(2**31)))
        findings.append(finding_of(earlier, about[0], done, epsilon))
    listed = merged(findings, SIZE).settings
    known = {tuple(np.round(point, 6)): i for i, point in enumerate(task.points)}
    places = [known.get(tuple(np.round(SPACE.to_unit(p), 6))) for p in listed]
    own = [place for place in places if place is not None]
    order, clients = drawn(task, own_rng)
    seed = int(own_rng.integers(2**31))
    best, final = task.test[-1].max(), task.test[-1]
    losses = []
    for first in ([], own):
        every = dict.fromkeys([0, *first, *order])
        chosen = list(every)[: SCHEDULE.trials]
        done = tuned(task, chosen, clients[:NUM_CLIENTS], epsilon, seed)
        losses.append(float(best - final[chosen[done.best]]))
    return losses[0], losses[1], float(best - final[own].max())


def main() -> None:
    """Print the losses, by epsilon and number of earlier tuners."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=100)
    asked = parser.parse_args()
    tasks = [read_trials(path) for path in asked.files]
    print("| epsilon | earlier tuners | loss | with the list | gain | by task |")
    print("| --- " * 6 + "|")
    defaults = np.mean([one.test[-1].max() - one.test[-1][0] for one in tasks])
    alone = []
    for epsilon in EPSILONS:
        for num in EARLIER:
            rows = np.array(
                [
                    [line_of(tasks, k, num, epsilon, d) for d in range(asked.draws)]
                    for k in range(len(tasks))
                ]
            )
            gains = rows[..., 0] - rows[..., 1]
            errors = gains.std(axis=1, ddof=1) / asked.draws**0.5
            error = float(np.linalg.norm(errors)) / len(tasks)
            by_task = ", ".join(f"{mean:+.4f}" for mean in gains.mean(axis=1))
            print(
                f"| {epsilon:g} | {num} | {rows[..., 0].mean():.4f} "
                f"| {rows[..., 1].mean():.4f} | {gains.mean():+.4f} ± {error:.4f} "
                f"| {by_task} |",
                flush=True,
            )
            alone.append(f"{epsilon:g} and {num}: {rows[..., 2].mean():.3f}")
    print(f"\nLoss of the defaults {defaults:.3f}; of the best listed setting, by")
    print(f"epsilon and earlier tuners: {'; '.join(alone)}")


if __name__ == "__main__":
    main()
