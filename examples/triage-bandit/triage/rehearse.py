"""The study in one process, without waiting, to see what its settings teach sites."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer
from flwr.app import UserConfig

from flwr_fbo import FedUCB, InProcessGrid, Limits, linear_bandit_app
from flwr_fbo.bandits import Decision, LinearUCBSettings
from triage.report import outcomes, report
from triage.site import Clinic, load_patients
from triage.study import ALONE, SILENCE, WEEK, settings

Sites = dict[int, str]


def rehearse(
    folders: Sites,
    seed: int,
    common: LinearUCBSettings,
    noise_only: bool = False,
    per_week: int = 20,
    num_sites: int | None = None,
) -> list[Sequence[Decision]]:
    """Play for 110 weeks; return the sites' decisions.

    There are as many synchronisations as ``common`` says, ten weeks apart. Everything
    is seeded, so that all repeats and nothing is private.

    Parameters
    ----------
    folders : mapping of int to str
        Folders of the sites that are in the study, by their numbers.
    seed : int
        Seed of noise, and of the order of patients.
    common : LinearUCBSettings
        Settings of the study.
    noise_only : bool
        Return no reward, so that no decision is in a release.
    per_week : int
        Patients of a site.
    num_sites : int, optional
        Number of sites that the patients are shared among; those in the study, unless
        given.
    """
    clock, clinics, waiting = [0.0], list[Clinic](), list(folders.items())
    shards = num_sites or len(folders)
    if noise_only:
        common = replace(common, reward_timeout=None)

    def play(seconds: float, decides: bool = True) -> None:
        while waiting:
            i, folder = waiting.pop(0)
            patients = load_patients(i, shards)
            clinics.append(Clinic(folder, patients, np.random.default_rng([seed, i])))
        for _ in range(round(seconds / WEEK * per_week)):
            clock[0] += WEEK / per_week
            for clinic in clinics:
                if not noise_only:
                    clinic.return_rewards()
                if decides:
                    clinic.decide()

    app = linear_bandit_app(
        limits=Limits(max_epsilon_per_example=inf)
    )  # seeded noise, too
    nodes: list[UserConfig] = [
        {"agent-id": i, "fbo-folder": name} for i, name in enumerate(folders.values())
    ]
    num_releases = common.releases.num_releases or 0
    grid = InProcessGrid(app, len(nodes), node_configs=nodes)
    strategy = FedUCB(common, len(nodes), interval=10 * WEEK, noise_seed=seed)
    # Sites play while the server sleeps.
    with patch("time.time", lambda: clock[0]), patch("time.sleep", play):
        strategy.start(grid)
        play((11 - num_releases) * 10 * WEEK)
        play(SILENCE.seconds + WEEK, decides=False)
        return [clinic.policy.decisions() for clinic in clinics]


def rehearse_alone(
    folders: Sites, seed: int, per_week: int = 20
) -> list[Sequence[Decision]]:
    """Play the same patients at the same sites, each by itself: no federation."""
    n = len(folders)
    return [
        rehearse({i: folder}, seed, ALONE, per_week=per_week, num_sites=n)[0]
        for i, folder in folders.items()
    ]


def earned(logs: list[Sequence[Decision]]) -> tuple[float, float]:
    """Return the mean reward of all sites, and of their last quarters."""
    own = np.mean([outcomes(log)[1] for log in logs], axis=0)
    return float(own.mean()), float(own[-len(own) // 4 :].mean())


def main(
    seeds: Annotated[int, typer.Option(min=2)] = 3,  # errors are over seeds
    sites: Annotated[int, typer.Option(min=1)] = 4,
    epsilon: float = 4.0,
    noise_only: bool = False,
    per_week: Annotated[int, typer.Option(min=1)] = 20,  # patients of a site
) -> None:
    """Print what all sites earned on average, and the report of one of them."""
    rows = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as root:
            common = settings(epsilon, num_releases=10)
            logs = rehearse(_folders(root, sites), seed, common, noise_only, per_week)
            alone = rehearse_alone(_folders(f"{root}/alone", sites), seed, per_week)
            of_arms = np.mean([outcomes(log)[0] for log in logs], axis=(0, 1))
            rows.append([*earned(logs), *earned(alone), of_arms.mean(), of_arms.max()])
            if seed == 0 and not noise_only:
                print(report(f"{root}/site-0"))
    means, errors = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / seeds**0.5
    together = "noise-only" if noise_only else f"together, epsilon {epsilon:g}"
    names = (
        f"{together}: all decisions",
        f"{together}: last quarter",
        "alone: all decisions",
        "alone: last quarter",
        "uniform",
        "best fixed arm",
    )
    for name, mean, error in zip(names, means, errors, strict=True):
        print(f"{name:<35} {mean:.3f} ± {error:.3f}")


def _folders(root: str, sites: int) -> Sites:
    return {i: f"{root}/site-{i}" for i in range(sites)}


if __name__ == "__main__":
    typer.run(main)
