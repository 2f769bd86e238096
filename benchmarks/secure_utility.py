"""What secure aggregation costs in utility, beside a trusted server and beside alone.

    python -m benchmarks.secure_utility play rows.jsonl [--seeds 10] [--jobs 2]
    python -m benchmarks.secure_utility show rows.jsonl

**Endpoint**, written down before the first run: the mean over evaluations 1 to 30, over
30 sites and over seeds, of a site's best value so far, at epsilon 2 and delta 1e-3; and
its gain over the same sites alone, paired by seed, with standard errors over seeds. No
bar is set. `FedVote` plays the synthetic functions that sites nearly share;
`FedWarmStart` tunes support vector machines on digits. Both are the package's own
tasks, with the strategies' defaults. Arms:

- *alone*, *trusted*, *noise-only*: as in the experiments of `flwr-fbo run`. Noise-only
  is the trusted server's release with every message zeroed.
- *secure, H*: ``SecureAggregation(honest=H)``. All sites answer, so the noise is
  sqrt(n / H) times the trusted server's, where n sites are in a sum.

All sites of `FedVote` are in one sum. The cohorts of `FedWarmStart` are summed one by
one, and have 9 and 10 sites here. So H is 6 or 8 there: two thirds of the smaller
cohort, or all but one of it, as are 20 and 29 of 30.

Secure arms are whole studies over `InProcessGrid` with all five exchanges. Sites draw
their noise from the operating system's entropy, which cannot be seeded. So a seed
decides functions, data and the sites' own draws, and another run of the secure arms
gives other numbers. The trusted arms have seeded noise.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context

from benchmarks.rows import read_rows
from benchmarks.warm_start import add_missing
from flwr_fbo import FedVote, FedWarmStart, InProcessGrid, Seeds, tuning_app
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    TuningExperiment,
    TuningPrivacy,
    last_iteration,
    run_one,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds as RunSeeds
from flwr_fbo.lab.tasks.base import Task
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

NUM_SITES, NUM_EVALUATIONS, EPSILON, DELTA = 30, 30, 2.0, 1e-3
NAMES = {"alone": "alone", "private": "trusted", "noise-only": "noise-only"}


@dataclass(frozen=True)
class Setup:
    """A strategy, its task, and the numbers of honest sites that are compared."""

    name: str
    build: Callable[..., TuningStrategy]
    task: Task
    honest: tuple[int, ...]

    @property
    def experiment(self) -> TuningExperiment:
        """Return the experiment that the arms without secure sums are part of."""
        return TuningExperiment(
            name=self.name,
            description=self.name,
            task=self.task,
            num_agents=NUM_SITES,
            num_evaluations=NUM_EVALUATIONS,
            num_seeds=1,
            strategy=self.name,
            privacy=TuningPrivacy(delta=DELTA, epsilon=EPSILON),
        )


_SETUPS = (
    Setup("FedVote", FedVote, SyntheticTask(), (20, 29)),
    Setup("FedWarmStart", FedWarmStart, DigitsTask(), (6, 8)),
)
SETUPS = {setup.name: setup for setup in _SETUPS}


def play_secure(
    setup: Setup, seed: int, aggregation: SecureAggregation | None, **seeds: int
) -> tuple[list[float], float]:
    """Return the mean best value after each evaluation, and the noise over trusted.

    Parameters
    ----------
    setup : Setup
    seed : int
    aggregation : SecureAggregation, optional
        Without it the server is trusted.
    **seeds
        ``noise`` of a trusted server.
    """
    task, of_run = setup.task, RunSeeds.of_run(seed)
    strategy = setup.build(
        task.space,
        task.direction,
        NUM_SITES,
        epsilon=EPSILON,
        delta=DELTA,
        aggregation=aggregation,
        seeds=Seeds(of_run.study, of_run.features, **seeds),
    )
    slots = range(NUM_SITES)
    seen: list[list[float]] = [[] for _ in slots]
    # Made once, as a task's noise depends on how often a place was observed.
    objectives = [task.objective(slot, NUM_SITES, seed) for slot in slots]
    truths = [task.truth(slot, NUM_SITES, seed) for slot in slots]

    def make_objective(context: Context) -> Any:
        slot = int(context.node_config["partition-id"])

        def observe(trial: Any) -> float:
            value, truth = objectives[slot](trial.params), truths[slot]
            seen[slot].append(value if truth is None else truth(trial.params))
            return value

        return observe

    grid = InProcessGrid(tuning_app(make_objective), NUM_SITES)
    num_rounds = last_iteration(setup.experiment, strategy) + 1
    strategy.start(grid, num_rounds=num_rounds)
    facts = [row.facts for row in strategy.server.ledger]
    excess = [
        row["noise_std"][0] / row["noise_multiplier"] / row["sensitivity"]
        for row in facts
    ]
    values = [of_site[:NUM_EVALUATIONS] for of_site in seen]
    best = np.maximum.accumulate(values, axis=1)
    return best.mean(axis=0).tolist(), float(np.mean(excess))


def line_of(name: str, seed: int) -> dict[str, Any]:
    """Return the means of all arms on one seed."""
    logging.disable(logging.WARNING)
    began, setup = time.process_time(), SETUPS[name]
    experiment, arms, excess = setup.experiment, {}, {}
    for method, arm in NAMES.items():
        arms[arm] = float(run_one(experiment, method, seed).curve.mean())
    for honest in setup.honest:
        arm = f"secure, {honest}"
        curve, excess[arm] = play_secure(setup, seed, SecureAggregation(honest=honest))
        arms[arm] = float(np.mean(curve))
    seconds = round(time.process_time() - began, 1)
    about = {"task": name, "seed": seed, "seconds": seconds}
    return {**about, "noise": excess, "arms": arms}


def show(found: Sequence[dict[str, Any]]) -> None:
    """Print a row a strategy and arm."""
    print("| strategy | arm | noise | mean best value | over alone | over trusted |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in SETUPS:
        rows = [one for one in found if one["task"] == name]
        if len(rows) < 2:
            continue
        arms = rows[0]["arms"]
        for arm in arms:
            values = {a: np.array([r["arms"][a] for r in rows]) for a in arms}
            noise = [r["noise"].get(arm, 0.0 if arm == "alone" else 1.0) for r in rows]
            gains = [
                "" if arm == other else _signed(values[arm] - values[other])
                for other in ("alone", "trusted")
            ]
            cells = [f"{np.mean(noise):.3f}", f"{values[arm].mean():.4f}", *gains]
            print(f"| `{name}` | {arm} |", " | ".join(cells), "|")
        print(f"\n{name}: {len(rows)} seeds, {sum(r['seconds'] for r in rows):.0f} s\n")


def _signed(gains: Any) -> str:
    found = Estimate.of(gains)
    return f"{found.mean:+.4f} ± {found.standard_error:.4f}"


def main() -> None:
    """Play or show."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("what", choices=("play", "show"))
    parser.add_argument("rows", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    if asked.what == "play":
        add_missing(asked.rows, line_of, list(SETUPS), asked.seeds, asked.jobs)
    show(read_rows(asked.rows))


if __name__ == "__main__":
    # Workers import what they run by its name, which is not `__main__`.
    from benchmarks.secure_utility import main

    main()
