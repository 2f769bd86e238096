"""The study in one process, without waiting, to see what its settings teach sites."""

import tempfile
from dataclasses import replace
from math import inf
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer
from flwr.app import UserConfig

from flwr_fbo import FedUCB, InProcessGrid, Limits, linear_bandit_app
from flwr_fbo.bandits import Decision
from triage.report import outcomes, report
from triage.site import Clinic, load_patients
from triage.study import SILENCE, WEEK, settings


def rehearse(
    folders: list[str], seed: int, epsilon: float, noise_only: bool, per_week: int = 20
) -> list[list[Decision]]:
    """Play for 110 weeks, with ten synchronisations; return the sites' decisions.

    Everything is seeded, so that all repeats and nothing is private.
    """
    clock, clinics, common = [0.0], list[Clinic](), settings(epsilon, num_releases=10)
    if noise_only:  # no reward ever comes, so that no decision is in a release
        common = replace(common, reward_timeout=None)

    def play(seconds: float, decides: bool = True) -> None:
        for i, folder in enumerate(folders[len(clinics) :]):
            patients = load_patients(i, len(folders))
            clinics.append(Clinic(folder, patients, np.random.default_rng([seed, i])))
        for _ in range(round(seconds / WEEK * per_week)):
            clock[0] += WEEK / per_week
            for clinic in clinics:
                if not noise_only:
                    clinic.return_rewards()
                if decides:
                    clinic.decide()

    app = linear_bandit_app(limits=Limits(max_epsilon=inf))  # seeded noise, too
    nodes: list[UserConfig] = [
        {"agent-id": i, "fbo-folder": name} for i, name in enumerate(folders)
    ]
    grid = InProcessGrid(app, len(nodes), node_configs=nodes)
    strategy = FedUCB(common, len(nodes), interval=10 * WEEK, noise_seed=seed)
    # Sites play while the server sleeps.
    with patch("time.time", lambda: clock[0]), patch("time.sleep", play):
        strategy.start(grid)
        play(10 * WEEK)
        play(SILENCE.seconds + WEEK, decides=False)
        return [clinic.policy.decisions() for clinic in clinics]


def main(
    seeds: Annotated[int, typer.Option(min=2)] = 3,  # errors are over seeds
    sites: Annotated[int, typer.Option(min=1)] = 4,
    epsilon: float = 4.0,
    noise_only: bool = False,
) -> None:
    """Print what all sites earned on average, and the report of one of them."""
    rows = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as root:
            folders = [f"{root}/site-{i}" for i in range(sites)]
            logs = rehearse(folders, seed, epsilon, noise_only)
            pairs = [outcomes(log) for log in logs]
            of_arms = np.mean([arms for arms, _ in pairs], axis=(0, 1))
            own = np.mean([rewards for _, rewards in pairs], axis=0)
            last = own[-len(own) // 4 :].mean()
            rows.append([own.mean(), last, of_arms.mean(), of_arms.max()])
            if seed == 0 and not noise_only:
                print(report(folders[0]))
    means, errors = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / seeds**0.5
    names = ("all decisions", "last quarter", "uniform", "best fixed arm")
    for name, mean, error in zip(names, means, errors, strict=True):
        print(f"{name:<15} {mean:.3f} ± {error:.3f}")


if __name__ == "__main__":
    typer.run(main)
