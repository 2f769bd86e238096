"""The replay of tuners that begin with a list."""

from pathlib import Path

import numpy as np

from benchmarks.listed_trials import finding_of, line_of, tuned
from benchmarks.trained_trials import SPACE
from benchmarks.tune_fedavg import read_trials

TRAINED = Path(__file__).parents[2] / "benchmarks" / "trained"


def test_a_tuner_that_is_replayed_lists_what_it_has_chosen() -> None:
    trials = read_trials(TRAINED / "har.jsonl")
    chosen = [0, *range(20, 35)]
    done = tuned(trials, chosen, np.arange(20), epsilon=1000.0, seed=1)
    found = finding_of(trials, chosen, done, epsilon=1000.0)
    assert len(found.settings) == 16
    points = [SPACE.to_unit(params) for params in found.settings]
    best = trials.points[chosen[done.best]]
    np.testing.assert_allclose(points[0], best, atol=1e-9)


def test_a_draw_has_the_same_tuner_without_a_list_whoever_was_earlier() -> None:
    tasks = [read_trials(TRAINED / f"{name}.jsonl") for name in ("har", "magic")]
    tasks.append(read_trials(TRAINED / "shuttle.jsonl"))
    one, two = (line_of(tasks, 0, num, 8.0, draw=3) for num in (1, 2))
    assert one[0] == two[0]
    assert min(*one, *two) >= 0.0
    # The defaults lose .086, and what was best elsewhere loses less.
    assert max(one[2], two[2]) < tasks[0].test[-1].max() - tasks[0].test[-1][0]
