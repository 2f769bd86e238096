"""How well trials are chosen privately, replayed from a table of accuracies.

    python -m benchmarks.private_choice TABLE [--draws 3000]

TABLE is a CSV file with a header; each row is a name, and the accuracies of federated
trainings with different settings, apart by spaces. In a draw K settings of a row are
the trials. A client's accuracy of a trial is the row's, plus differences of 0.05
between clients and between its trials, seen on 50 examples. The figure is the loss of
accuracy of the chosen trial against the best of the K, mean and standard error over
draws that all methods share; one rung, delta 1e-3. `benchmarks.choice_methods` says
what the rows are, and how liars lie. The last column is the control *noise-only*, which
should be as good as *random choice*.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.choice_methods import METHODS, Design, Method, Question
from flwr_fbo._common.arrays import FloatArray

NUM_EXAMPLES, DIFFERENCE = 50, 0.05

DESIGNS = (
    Design(30, 16, 1.0),
    Design(30, 16, 2.0),
    Design(10, 16, 2.0),
    Design(30, 16, 1.0, num_liars=10),
    Design(30, 16, 2.0, num_liars=10),
    Design(30, 16, 2.0, noise_only=True),
)


def read_table(path: Path) -> list[FloatArray]:
    """Return the accuracies of each row."""
    lines = path.read_text().splitlines()[1:]
    return [np.array(line.split(",")[1].split(), dtype=np.float64) for line in lines]


def draw(tables: list[FloatArray], design: Design, seed: int) -> Question:
    """Return what is asked in the draw of a seed."""
    rng = np.random.default_rng(seed)
    table = tables[seed % len(tables)]
    accuracies = table[rng.choice(len(table), design.num_trials, replace=False)]
    shape = design.num_clients, design.num_trials
    own = rng.normal(0, DIFFERENCE, (shape[0], 1)) + rng.normal(0, DIFFERENCE, shape)
    chances = np.clip(accuracies + own, 0.01, 0.99)
    scores = rng.binomial(NUM_EXAMPLES, chances) / NUM_EXAMPLES
    return Question(scores, accuracies, seed)


def losses(
    tables: list[FloatArray], design: Design, method: Method, num_draws: int
) -> FloatArray:
    """Return the loss of accuracy in each draw."""
    asked = (draw(tables, design, seed) for seed in range(num_draws))
    return np.array(
        [
            one.accuracies.max()
            - one.accuracies[np.argmax(method(design, one).vectors)]
            for one in asked
        ]
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
