"""Successive halving of federated trainings, replayed for all ways to compare trials.

    python -m benchmarks.tune_fedavg FILE ... [--draws 1000]

FILEs are what `benchmarks.trained_trials` has kept, one a task. In a draw halving
begins with the app's defaults and others of a file's trials, at all clients. Rungs are
at rounds 3, 9 and 27, of 16, 5 and 2 trials; what clients say of them are the models'
accuracies on their own validation data. The best score is chosen; as in the tuner,
sums with Gaussian noise are carried to the next rung, whatever is summed. The figure is
the loss of test accuracy of the trial that is chosen, against the best of the file's
after 27 rounds: mean over draws that all methods share, with standard errors for these
trainings. `benchmarks.choice_methods` says what the rows are; epsilon is that of all
releases together, at delta 1e-3.

Endpoint, written down before the run: the loss of ``ranks (ours)`` at epsilon 2,
in the mean over tasks, beside that of each private baseline, of *random choice* and of
the *defaults*; *noise-only* as good as *random choice*.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from joblib import Parallel, delayed

from benchmarks.choice_methods import METHODS, Design, Method, Question
from benchmarks.trained_trials import RUNGS, SPACE, read_lines
from flwr_fbo import Halving
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.decisions.survivors import decision_scores, survivors, survivors_of

SCHEDULE = Halving(trials=16, rounds=RUNGS)

# Epsilon, the share of clients that lie, and whether it is the control noise-only.
COLUMNS = ((1.0, 0.0, False), (2.0, 0.0, False), (2.0, 1 / 3, False), (2.0, 0.0, True))


@dataclass(frozen=True)
class Trials:
    """The trials of a task, as far as they are kept.

    Attributes
    ----------
    task : str
    points : ndarray of shape (T, D)
        Their settings in the unit cube.
    scores : ndarray of shape (rungs, N, T)
        Each client's validation accuracy.
    test : ndarray of shape (rungs, T)
        Accuracy on what no client trains on or validates with.
    num_examples : ndarray of shape (N,)
        That clients validate with.
    """

    task: str
    points: FloatArray
    scores: FloatArray
    test: FloatArray
    num_examples: FloatArray


def read_trials(path: Path) -> Trials:
    """Return the trials of a file."""
    lines = read_lines(path)
    num_examples = np.array(lines[0]["num_examples"], dtype=np.float64)
    correct = [[rung["correct"] for rung in line["rungs"]] for line in lines]
    test = [[rung["test"] for rung in line["rungs"]] for line in lines]
    scores = np.array(correct) / num_examples
    return Trials(
        lines[0]["task"],
        np.array([SPACE.to_unit(line["settings"]) for line in lines]),
        scores.transpose(1, 2, 0),
        np.array(test).T,
        num_examples,
    )


def drawn(
    trials: Trials,
    num_clients: int,
    num_trials: int,
    seed: int,
    gap: tuple[float, float] | None = None,
) -> Trials | None:
    """Draw clients and trials of a task.

    Parameters
    ----------
    trials : Trials
    num_clients, num_trials : int
    seed : int
    gap : tuple of float, optional
        The first trial is one that is worse than the best of those drawn by so much, in
        test accuracy; None is returned if there is none. Unless given, the first are
        the app's defaults.
    """
    rng = np.random.default_rng([seed, 5])
    final = trials.test[-1]
    picked = rng.permutation(len(final))
    if gap is None:
        picked = np.array([0, *picked[picked != 0]])
    picked = picked[:num_trials]
    if gap is not None:
        worse = final[picked].max() - final[picked]
        places = np.flatnonzero((worse >= gap[0]) & (worse < gap[1]))
        if len(places) == 0:
            return None
        place = rng.choice(places)
        picked[[0, place]] = picked[[place, 0]]
    clients = rng.permutation(trials.scores.shape[1])[:num_clients]
    return Trials(
        trials.task,
        trials.points[picked],
        trials.scores[:, clients][:, :, picked],
        trials.test[:, picked],
        trials.num_examples[clients],
    )


# From what each rung released, to what the last is decided by.
Decide = Callable[[Sequence[LedgerRow]], FloatArray]


class Climbed(NamedTuple):
    """A halving that was replayed.

    Attributes
    ----------
    best : int
        The trial with the best score of the last rung.
    rows : list of LedgerRow
        What each rung released, and of which trials.
    """

    best: int
    rows: list[LedgerRow]


def climb(
    trials: Trials,
    schedule: Halving,
    design: Design,
    method: Method,
    seed: int,
    has_defaults: bool = False,
    decide: Decide = decision_scores,
) -> Climbed:
    """Replay halving as `FederationTuner` decides it, from the first trials drawn.

    With ``has_defaults`` the first of them are the app's, with a margin.
    """
    alive = list(range(schedule.trials))
    climbed = Climbed(0, [])
    for number, rung in enumerate(schedule.rungs):
        at = RUNGS.index(rung.rounds)
        asked = Question(
            trials.scores[at][:, alive],
            trials.test[at][alive],
            seed,
            number,
            len(schedule.rungs),
            trials.num_examples,
        )
        climbed.rows.append(method(design, asked))
        climbed.rows[-1].facts["trials"] = alive
        order = survivors(decide(climbed.rows), rung.num_survivors)
        if has_defaults:
            order = survivors_of(climbed.rows, rung.num_survivors)
        alive = [alive[place] for place in order]
    return climbed._replace(best=alive[0])


def losses(
    trials: Trials,
    schedule: Halving,
    design: Design,
    method: Method | None,
    num_draws: int,
) -> FloatArray:
    """Return the loss of test accuracy in each draw; of the defaults for None."""
    found = []
    for seed in range(num_draws):
        one = drawn(trials, design.num_clients, schedule.trials, seed)
        assert one is not None
        best = method and climb(one, schedule, design, method, seed).best
        found.append(trials.test[-1].max() - one.test[-1][best or 0])
    return np.array(found)


def _cell(found: Sequence[FloatArray]) -> str:
    errors = [one.std(ddof=1) / len(one) ** 0.5 for one in found]
    error = float(np.linalg.norm(errors)) / len(found)
    return f"{np.mean(found):.4f} ({error:.4f})"


def print_table(
    title: str, tables: Sequence[Trials], rows: Mapping[str, Sequence[FloatArray]]
) -> None:
    """Print the losses of each row by task, and the mean over tasks last."""
    print(f"\n| {title} |", " | ".join(one.task for one in tables), "| mean |")
    print("| --- |" + " --- |" * (len(tables) + 1))
    for name, found in rows.items():
        cells = [*(_cell([one]) for one in found), _cell(found)]
        print(f"| {name} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    """Print a table for each setting of privacy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--draws", type=int, default=1000)
    asked = parser.parse_args()
    tables = [read_trials(path) for path in asked.files]

    def found(
        method: Method | None,
        schedule: Halving,
        epsilon: float,
        share: float = 0.0,
        noise_only: bool = False,
    ) -> list[FloatArray]:
        losses_of: list[FloatArray] = Parallel(n_jobs=-1)(
            delayed(losses)(
                trials,
                schedule,
                Design(n, schedule.trials, epsilon, int(share * n), noise_only),
                method,
                asked.draws,
            )
            for trials in tables
            for n in [len(trials.num_examples)]
        )
        return losses_of

    for column in COLUMNS:
        epsilon, share, noise_only = column
        lies = ", a third lies" if share else ""
        control = ", noise-only" if noise_only else ""
        methods = {**METHODS, "defaults": None}
        rows = {name: found(one, SCHEDULE, *column) for name, one in methods.items()}
        print_table(f"epsilon {epsilon:g}{lies}{control}", tables, rows)


if __name__ == "__main__":
    # By its name, so that other processes find what they are to do.
    from benchmarks.tune_fedavg import main as named_main

    named_main()
