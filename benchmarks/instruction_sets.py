"""Short seeded studies on two instruction sets: how many end with the same values.

    python -m benchmarks.instruction_sets [--iterations 3] [--without X86_V4] [--blas X]

Every study is run twice on this machine, once as it is and once in a process whose
NumPy may not use some of the processor's instructions (``NPY_DISABLE_CPU_FEATURES``) or
whose OpenBLAS takes the kernels of an older one (``OPENBLAS_CORETYPE``). Two runs end
with the same values if no number of their results differs by more than 1e-6, absolutely
or relatively. `docs/research/experiments.md` shows what came out.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed

# The largest difference of two numbers that count as equal.
TOLERANCE = 1e-6
_OURS = {"epsilon": 2.0, "delta": 1e-3}
_PUBLISHED = {"noise_multiplier": 1.0, "sampling_probability": 0.35, "delta": 1e-3}
_SETTINGS = (
    ("FedVote", None),
    ("FedWarmStart", None),
    ("DPFTSDE", "paper"),
    ("DPFTSDE", "paper-synthetic"),
)
_TUNING = ("alone", "random", "open", "private", "noise-only")


@dataclass(frozen=True)
class Study:
    """One method of an experiment on one seed.

    Attributes
    ----------
    group : str
        What the table counts it to.
    experiment : dict
        As a TOML would give it.
    method : str
    seed : int
    """

    group: str
    experiment: dict[str, Any]
    method: str
    seed: int


def studies(num_iterations: int) -> list[Study]:
    """Return the studies: tuning tasks with every preset, and bandits of every kind."""
    return [*_tuning_studies(num_iterations), *_bandit_studies(num_iterations)]


def _tuning_studies(num_iterations: int) -> Iterator[Study]:
    tasks: dict[str, tuple[dict[str, Any], int]] = {
        "digits": ({"name": "digits"}, 6),
        "synthetic": ({"name": "synthetic"}, 12),
    }
    if "FLWR_FBO_DATA" in os.environ:
        tasks["landmine, noisy"] = ({"name": "landmine", "noisy": True}, 5)
    for name, (task, num_seeds) in tasks.items():
        for strategy, preset in _SETTINGS:
            lean = preset is None
            experiment = {
                "name": "short",
                "num_agents": 6,
                "num_evaluations": 10 + num_iterations,
                "strategy": strategy,
                "preset": preset,
                "task": task,
                "methods": _TUNING,
                "privacy": _OURS if lean else _PUBLISHED,
            }
            for method in ("alone", "open", "private"):
                for seed in range(num_seeds):
                    yield Study(
                        f"{name}, {preset or strategy}", experiment, method, seed
                    )


def _bandit_studies(num_iterations: int) -> Iterator[Study]:
    linear: dict[str, Any] = {
        "name": "short",
        "num_agents": 6,
        "num_iterations": 100 * num_iterations,
        "first_synchronisation": 20,
        "task": {"name": "linear-bandit"},
        "privacy": {"epsilon": 1.0, "delta": 0.1},
    }
    for method in ("fed-ucb", "paper", "full", "non-private", "independent"):
        for seed in range(4):
            yield Study("linear bandits", linear, method, seed)
    function: dict[str, Any] = {
        "name": "short",
        "num_agents": 4,
        "num_iterations": 4 * num_iterations,
        "task": {"name": "function-bandit", "function": "cosine"},
    }
    for method in (
        "fed-go-ucb",
        "one-go-ucb",
        "dislinucb",
        "fed-glb-ucb",
        "approx-dis-kernel-ucb",
    ):
        for seed in range(4):
            yield Study("non-linear bandits", function, method, seed)


def play(study: Study) -> Any:
    """Return the numbers of a study's run, but for how long it took.

    In a process of its own, whose log is switched off.
    """
    from flwr_fbo.lab.experiment_runner.config import experiment_of

    logging.disable(logging.WARNING)
    experiment = experiment_of(study.experiment)
    (run,) = experiment.play([study.method], study.seed)
    values = json.loads(run.to_json())
    del values["seconds"]
    return values


def differ(one: Any, other: Any) -> float:
    """Return the largest difference between two results; infinite if none is given.

    The smaller of the absolute and the relative difference counts.
    """
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((differ(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((differ(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        apart = abs(one - other)
        return min(apart, apart / max(abs(one), abs(other))) if apart else 0.0
    return 0.0 if one == other else np.inf


def _record(num_iterations: int, jobs: int) -> None:
    """Print the results of all studies, a line each."""
    results = Parallel(n_jobs=jobs)(delayed(play)(s) for s in studies(num_iterations))
    for values in results:
        print(json.dumps(values))


def _recorded(environment: dict[str, str], options: argparse.Namespace) -> list[Any]:
    """Return the results of all studies in a process with another environment."""
    command = [sys.executable, "-m", "benchmarks.instruction_sets", "--record"]
    command += [f"--iterations={options.iterations}", f"--jobs={options.jobs}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    """Run all studies twice, and print how many end with the same values."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--without", default="X86_V4", help="instructions of NumPy")
    parser.add_argument("--blas", help="kernels of OpenBLAS: Haswell, Nehalem, ...")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.record:
        _record(options.iterations, options.jobs)
        return
    other = {"NPY_DISABLE_CPU_FEATURES": options.without}
    if options.blas:
        other = {"OPENBLAS_CORETYPE": options.blas}
    results = _recorded({}, options), _recorded(other, options)
    counted, equal = Counter[str](), Counter[str]()
    for study, one, two in zip(studies(options.iterations), *results, strict=True):
        apart = differ(one, two)
        counted[study.group] += 1
        equal[study.group] += apart <= TOLERANCE
        if apart > TOLERANCE:
            print(
                f"{study.group}, {study.method}, seed {study.seed}: {apart:.2g} apart"
            )
    for group, num in counted.items():
        print(f"{group:30} {equal[group]:4} of {num:4}")
    share = equal.total() / counted.total()
    print(f"{'all':30} {equal.total():4} of {counted.total():4}: {share:.1%}")


if __name__ == "__main__":
    main()
