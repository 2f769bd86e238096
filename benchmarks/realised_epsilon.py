"""Realised epsilon of sites that act on their own trials, beside the promised one.

    OMP_NUM_THREADS=1 python -m benchmarks.realised_epsilon run ROWS.jsonl
    python -m benchmarks.realised_epsilon show ROWS.jsonl

With ``local_data="own"`` epsilon is for a finished table: for streams that differ in
one trial while all others are as they were. In a running site that trial steers later
ones. 50 sites play classification made into bandits (`benchmarks.classified_bandits`)
for 500 trials each, with the defaults, ten releases by `geometric_schedule` from trial
20 on, and delta 1e-5. Of each site an outcome is flipped, drawn among all that are in a
release, and the site plays on: the same cases, the same messages of the others, and the
true outcome of each action. ``true`` is the epsilon of the difference between its
released sums. ``estimated`` is what `LinearBanditPolicy.realised_privacy` says to some
of the sites, which do not know what another action would have given.

Rows are written as they come, and what a file has is not run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.classified_bandits import TABLES, Table
from benchmarks.rows import add_rows, read_rows, run_or_show
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings, Decision, LinearUCBSettings, Prior
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.own_data import OwnBelief
from flwr_fbo.bandits.linear.settings import geometric_schedule
from flwr_fbo.bandits.site.realised_privacy import (
    HeardTotal,
    PlayedStream,
    Told,
    mu_of,
)
from flwr_fbo.privacy.gaussian import gaussian_epsilon

NUM_SITES, NUM_TRIALS, NUM_RELEASES, FIRST, DELTA = 50, 500, 10, 20, 1e-5
NAMES = "magic-3", "landmine", "shuttle", "magic"
EPSILON, SEED = 4.0, 0
FLIPS = 2  # outcomes of each site
TELLERS, TOLD_OUTCOMES = 4, 15  # sites that estimate, and outcomes of each
Messages = list[FloatArray]


@dataclass(frozen=True, eq=False)
class Played:
    """A play of all sites.

    Attributes
    ----------
    sums : ndarray of shape (n, M, d + 1, d + 1)
        Clean sums of each release.
    others : list of n ndarray of shape (M, d + 1, d + 1)
        What each site received of the others.
    chosen : ndarray of int, shape (T, M)
        Chosen arms.
    """

    sums: FloatArray
    others: Messages
    chosen: NDArray[np.int64]


class Study:
    """One study of a table, which can be played again with flipped outcomes."""

    def __init__(self, table: Table, epsilon: float, seed: int) -> None:
        self.table, self.seed = table, seed
        self.releases = ContinualSettings(
            NUM_RELEASES, table.dimension, epsilon, DELTA, reward_range=(0.0, 1.0)
        )
        settings = LinearUCBSettings(self.releases, local_data="own")
        self.confidence = Confidence.of(settings, NUM_SITES)
        rng = np.random.default_rng([seed, 0])
        self.cases = rng.integers(len(table.label), size=(NUM_TRIALS, NUM_SITES))
        self.times = geometric_schedule(NUM_TRIALS, NUM_RELEASES, FIRST)
        self.noise = self._noise(np.random.default_rng([seed, 1]))

    def _noise(self, rng: np.random.Generator) -> FloatArray:
        """Return the noise of all releases, shape (n, M, d + 1, d + 1)."""
        size = self.releases.dimension + 1
        draws = rng.standard_normal((NUM_RELEASES, NUM_SITES, size, size))
        upper = np.triu(draws, 1) / np.sqrt(2)
        draws = upper + np.swapaxes(upper, -1, -2) + np.triu(np.tril(draws))
        weights = np.zeros((NUM_RELEASES, NUM_RELEASES))
        for k in range(NUM_RELEASES):
            weights[k, : k + 1] = self.releases.factorisation.row(k + 1)
        noise = np.einsum("kj,jmab->kmab", weights, draws)
        return np.asarray(self.releases.noise_std * noise)

    def play(
        self, flipped: NDArray[np.int64] | None = None, heard: Messages | None = None
    ) -> Played:
        """Play, with one outcome flipped at each site, or none."""
        size, rng = self.releases.dimension + 1, np.random.default_rng([self.seed, 2])
        sums = np.zeros((NUM_SITES, size, size))
        count = np.zeros(NUM_SITES, dtype=np.int64)
        belief = OwnBelief(self.confidence, None, 0, sums, count, 1)
        released: Messages = []
        others: Messages = []
        chosen = []
        for t in range(NUM_TRIALS):
            features = self.table.features(self.cases[t])
            bounds = belief.belief.upper_bounds(features)
            arms = (bounds + 1e-9 * rng.random(bounds.shape)).argmax(axis=1)
            rewards = (arms == self.table.label[self.cases[t]]).astype(float)
            if flipped is not None:
                rewards = np.where(flipped == t, 1 - rewards, rewards)
            actions = features[np.arange(NUM_SITES), arms]
            products = self.releases.outer_products(actions, rewards)
            sums, count = sums + products, count + 1
            belief.observe_sum(products, 1)
            chosen.append(arms)
            if t + 1 in self.times:
                k = len(released)
                released.append(sums)
                if heard is None:
                    messages = sums + self.noise[k]
                    others.append(messages.sum(axis=0) - messages)
                else:
                    others.append(heard[k])
                belief = OwnBelief(
                    self.confidence, others[k], NUM_SITES - 1, sums, count, k + 1
                )
        return Played(np.array(released), others, np.array(chosen))

    def stream(self, played: Played, site: int) -> PlayedStream:
        """Return what a site has of it."""
        decisions, told = [], []
        for t in range(NUM_TRIALS):
            [features] = self.table.features(self.cases[t, site : site + 1])
            arm, K = int(played.chosen[t, site]), self.table.num_arms
            reward = float(arm == self.table.label[self.cases[t, site]])
            names = tuple(map(str, range(K)))
            decisions.append(Decision(t, t, None, names, features, arm, 1.0, reward))
            window = sum(time <= t for time in self.times)
            [product] = self.releases.outer_products([features[arm]], [reward])
            told.append(Told(t + 0.5, window, product, 1, t))
        totals = []
        for k, time in enumerate(self.times):
            message = played.sums[k, site] + self.noise[k, site]
            total, number = message + played.others[k][site], k + 1
            heard = HeardTotal(time, total, message, number, NUM_SITES - 1, number)
            totals.append(heard)
        none = Prior.none(self.table.dimension)
        numbers = self.confidence, none, decisions, told, totals, NUM_RELEASES
        return PlayedStream(*numbers)


def play(table: Table, epsilon: float, seed: int) -> list[dict[str, Any]]:
    """Return a row of true epsilons, and one of estimated ones."""
    study = Study(table, epsilon, seed)
    base = study.play()
    rng, last = np.random.default_rng([seed, 3]), study.times[-1]
    true, changed = [], []
    for _ in range(FLIPS):
        flipped = rng.integers(last, size=NUM_SITES)
        other = study.play(flipped, base.others)
        differences = other.sums - base.sums
        changed += (other.chosen != base.chosen).sum(axis=0).tolist()
        for site in range(NUM_SITES):
            mu = mu_of(study.releases, differences[:, site])
            true.append(round(gaussian_epsilon(DELTA, mu), 3))
    estimated: list[float] = []
    for site in range(TELLERS):
        found = study.stream(base, site).realised(TOLD_OUTCOMES, seed)
        estimated += [round(each, 3) for each in found.epsilons]
    return [
        {"what": "true", "epsilons": true, "changed": changed},
        {"what": "estimated", "epsilons": estimated},
    ]


def run(path: Path) -> None:
    """Play what the file has not, and write each row as it comes."""
    done = {row["table"] for row in read_rows(path)}
    for name in NAMES:
        if name not in done:
            about = {"table": name, "promised": EPSILON, "seed": SEED}
            add_rows(path, [about | row for row in play(TABLES[name](), EPSILON, SEED)])
            print(name, flush=True)


def show(path: Path) -> None:
    """Print the table of the pages: medians, and what 90 % do not exceed."""
    found = {(row["table"], row["what"]): row for row in read_rows(path)}
    print(
        "| promised 4 | true: median | 90 % | above 4 | estimated: median | 90 % |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for name in NAMES:
        if (name, "true") in found:
            true = np.array(found[name, "true"]["epsilons"])
            told = np.array(found[name, "estimated"]["epsilons"])
            cells = [
                f"{np.median(true):.1f}",
                f"{np.quantile(true, 0.9):.1f}",
                f"{100 * np.mean(true > EPSILON):.0f} %",
                f"{np.median(told):.1f}",
                f"{np.quantile(told, 0.9):.1f}",
            ]
            print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Run or show."""
    run_or_show(__doc__, run, show)


if __name__ == "__main__":
    main()
