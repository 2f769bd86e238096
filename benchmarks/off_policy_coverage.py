"""How often the 95 % intervals of off-policy evaluation cover the truth.

    OMP_NUM_THREADS=1 python -m benchmarks.off_policy_coverage run|show ROWS.jsonl

Sites play the ten problems of `benchmarks.interval_coverage` alone, with
``local_data="own"`` and `EllipsoidSampling(radius=1.0)`: with a uniform share of .01,
as by default, and of .1, as the page on evaluation recommends. 20 logs of 2,000
decisions a problem are valued after 200, 400 and 2,000 of them, for four policies:
uniform, the first arm, the best arm by the true means, and the arm with the largest
product with a random vector. Contexts are drawn from 100 of a problem's, so that the
truth is known exactly. Rewards have the problem's mean and are 0 or 1, or, in every
second problem, of a beta distribution. The known range is 0 to 1.

Written down before the run, with seeds that no choice was made on: for each share,
number of decisions, policy and estimator the intervals that are given, over the
problems together, cover the truth in 92 to 98 %; more is *conservative*. Where fewer
than a third of the 200 logs have one, it is *too little*; and these few intervals
together cover in 92 % or more. The method, its limit on the width (.8 of the range),
and the share of .1 were chosen on seeds 0 to 29; these begin at 1,000. After the run
"opposite" and "half as much" were played again, with the parameter of their second
site: at the first site they are the problem "ball".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.interval_coverage import PROBLEMS
from benchmarks.rows import add_rows, read_rows, run_or_show
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ContinualSettings,
    Decision,
    EllipsoidSampling,
    LinearUCBSettings,
)
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.off_policy.estimators import all_estimates

SHARES = (0.01, 0.1)
LENGTHS = (200, 400, 2000)
NUM_LOGS, NUM_CONTEXTS, FIRST_SEED = 20, 100, 1000
ESTIMATORS = ("ips", "snips", "doubly_robust")
LEAST, MOST, ENOUGH = 0.92, 0.98, 67
# Of the beta distributions: the larger, the less rewards vary about their mean.
CONCENTRATION = 4.0


@dataclass(frozen=True, eq=False)
class World:
    """A problem with a finite number of contexts.

    Attributes
    ----------
    features : ndarray of shape (contexts, K, d)
    means : ndarray of shape (contexts, K)
        Mean rewards, from 0 to 1.
    reward_range : (float, float)
        Range that the study declares.
    is_binary : bool
        Whether rewards are 0 or 1.
    policies : dict
        Probabilities of each target policy, shape (contexts, K).
    """

    features: FloatArray
    means: FloatArray
    reward_range: tuple[float, float]
    is_binary: bool
    policies: dict[str, FloatArray]

    @classmethod
    def of(cls, name: str) -> World:
        """Return that of a problem."""
        problem = PROBLEMS[name]
        # Where sites differ, that of the second: the first has the problem "ball".
        site = int(problem.only_own)
        offers = [problem.offer(0, site, t) for t in range(NUM_CONTEXTS)]
        features = np.array([actions for actions, _ in offers])
        middle = sum(problem.reward_range) / 2
        means = np.clip(features @ offers[0][1] + middle, 0, 1)
        direction = np.random.default_rng(5).normal(size=features.shape[2])
        sure = np.eye(features.shape[1])
        policies = {
            "uniform": np.full_like(means, 1 / len(sure)),
            "first": sure[np.zeros(NUM_CONTEXTS, dtype=int)],
            "best": sure[means.argmax(axis=1)],
            "rule": sure[(features @ direction).argmax(axis=1)],
        }
        is_binary = [*PROBLEMS].index(name) % 2 == 0
        return cls(features, means, problem.reward_range, is_binary, policies)

    def truth(self, policy: str) -> float:
        """Return the value of a target policy."""
        return float(np.mean(np.sum(self.policies[policy] * self.means, axis=1)))

    def log(
        self, share: float, num: int, seed: int
    ) -> tuple[list[Decision], list[int]]:
        """Return a log of a site that plays alone, and each decision's context."""
        rng = np.random.default_rng(seed)
        d = self.features.shape[2]
        releases = ContinualSettings(
            1, d, epsilon=4.0, delta=1e-5, reward_range=self.reward_range
        )
        sampling = EllipsoidSampling(radius=1.0, uniform_share=share)
        settings = LinearUCBSettings(releases, "own", exploration=sampling)
        agent = LinearUCBAgent(Confidence.of(settings, 1))
        arms = tuple(map(str, range(self.features.shape[1])))
        contexts = rng.integers(NUM_CONTEXTS, size=num).tolist()
        decisions = []
        for t, context in enumerate(contexts):
            actions = self.features[context]
            chosen, propensity = agent.choose(actions, rng)
            reward = self._reward(self.means[context, chosen], rng)
            agent.tell(actions[chosen], reward)
            decisions.append(
                Decision(t, t, None, arms, actions, chosen, propensity, reward)
            )
        return decisions, contexts

    def _reward(self, mean: float, rng: np.random.Generator) -> float:
        if self.is_binary:
            return float(rng.random() < mean)
        shapes = np.maximum([mean, 1 - mean], 1e-6) * CONCENTRATION
        return float(rng.beta(*shapes))


def rows_of(name: str, share: float, num_logs: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of decisions, over the logs of a problem.

    Its cells are, by policy and estimator: how many logs have an interval, how many of
    these cover the truth, and their median width. Beside them are the mean reward of
    the logs, and the share with a warning of the mean weight.
    """
    world = World.of(name)
    cells: dict[tuple[int, str], list[float]] = defaultdict(list)
    covered: dict[tuple[int, str], int] = defaultdict(int)
    warned: dict[int, int] = defaultdict(int)
    rewards: dict[int, list[float]] = defaultdict(list)
    for seed in range(FIRST_SEED, FIRST_SEED + num_logs):
        log, contexts = world.log(share, LENGTHS[-1], seed)
        for num in LENGTHS:
            rewards[num].append(float(np.mean([one.reward for one in log[:num]])))
            for policy, table in world.policies.items():
                try:
                    found = all_estimates(
                        log[:num], table[contexts[:num]], 0.95, (0, 1)
                    )
                except ValueError:  # the policy takes none of the logged actions
                    continue
                for estimator, value in found.items():
                    if np.isnan(value.low):
                        continue
                    cell = num, f"{policy} {estimator}"
                    cells[cell].append(value.high - value.low)
                    covered[cell] += value.low <= world.truth(policy) <= value.high
                warned[num] += "mean weight" in found["ips"].warning
    for num in LENGTHS:
        names = [f"{p} {e}" for p in world.policies for e in ESTIMATORS]
        yield {
            "share": share,
            "problem": name,
            "decisions": num,
            "reward": round(float(np.mean(rewards[num])), 4),
            "warned": warned[num] / (num_logs * len(world.policies)),
            "cells": {
                name: [
                    len(cells[num, name]),
                    covered[num, name],
                    round(float(np.median(cells[num, name] or [1.0])), 4),
                ]
                for name in names
            },
        }


def run(path: Path) -> None:
    """Add the rows that are missing."""
    done = {(row["share"], row["problem"]) for row in read_rows(path)}
    for name in PROBLEMS:
        for share in SHARES:
            if (share, name) not in done:
                add_rows(path, rows_of(name, share, NUM_LOGS))
                print(share, name, flush=True)


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield share, decisions, policy, estimator, given, covered, width and verdict."""
    for share in SHARES:
        for num in LENGTHS:
            some = [r for r in rows if (r["share"], r["decisions"]) == (share, num)]
            for name in some[0]["cells"] if some else ():
                of_problems = [row["cells"][name] for row in some]
                given, covered = (sum(cell[i] for cell in of_problems) for i in (0, 1))
                width = float(np.median([cell[2] for cell in of_problems]))
                part = covered / given if given else float("nan")
                verdict = (
                    "too little"
                    if given < ENOUGH
                    else "missed"
                    if part < LEAST
                    else "conservative"
                    if part > MOST
                    else "met"
                )
                yield (share, num, *name.split(), given, covered, width, verdict)


def show(path: Path) -> None:
    """Print the coverage, and what the larger share costs in reward."""
    rows = read_rows(path)
    few = [0, 0]
    print("share  decisions  policy   estimator      given  covered  width")
    for share, num, policy, estimator, given, covered, width, verdict in summary(rows):
        part = f"{100 * covered / given:.1f} %" if given else "-"
        print(
            f"{share:5g}  {num:9d}  {policy:<7}  {estimator:<13}  {given:5d}  "
            f"{part:>7}  {width:5.3f}  {verdict}"
        )
        if verdict == "too little":
            few[0], few[1] = few[0] + covered, few[1] + given
    print(f"intervals of 'too little': {few[0]} of {few[1]} cover")
    for num in LENGTHS:
        by: dict[float, dict[str, dict[str, Any]]] = {
            share: {
                row["problem"]: row
                for row in rows
                if (row["share"], row["decisions"]) == (share, num)
            }
            for share in SHARES
        }
        small, large = (by[share] for share in SHARES)
        costs = [small[p]["reward"] - large[p]["reward"] for p in small if p in large]
        warned = [np.mean([r["warned"] for r in by[s].values()]) for s in SHARES]
        if costs:
            print(
                f"{num} decisions: a share of {SHARES[1]:g} costs "
                f"{np.mean(costs):.4f} of the range (problems: {min(costs):.4f} to "
                f"{max(costs):.4f}); warned {100 * warned[0]:.1f} and "
                f"{100 * warned[1]:.1f} %"
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, or show the rows."""
    run_or_show(__doc__, run, show, arguments)


if __name__ == "__main__":
    main()
