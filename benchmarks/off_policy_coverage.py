"""How often the 95 % intervals of off-policy evaluation cover the truth.

    python -m benchmarks.off_policy_coverage [--logs 1000] [--seed 0]

Simulated logs of 1,000 decisions with 5 arms in 5 dimensions. A decision's features are
one of 40 matrices, so that the truth is known exactly. The reward is linear in them,
with Gaussian noise. The log's policy is greedy with a uniform share of 0.1. Its
estimate is a wrong one throughout ("fixed"), or is learned anew from all rewards every
50 decisions ("learns"). A row for each log, target policy and estimator.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.off_policy.estimators import (
    PolicyValue,
    doubly_robust,
    ips,
    snips,
)
from flwr_fbo.bandits.site.decision import Decision

NUM_DECISIONS, NUM_ARMS, DIMENSION, NUM_CONTEXTS = 1000, 5, 5, 40
UNIFORM_SHARE, NOISE, INTERCEPT, INTERVAL = 0.1, 0.3, 0.5, 50
LOGS, POLICIES = ("fixed", "learns"), ("uniform", "greedy")
ESTIMATORS: tuple[Callable[..., PolicyValue], ...] = (ips, snips, doubly_robust)
ARMS = tuple(map(str, range(NUM_ARMS)))


@dataclass(frozen=True, eq=False)
class World:
    """What logs are simulated in.

    Attributes
    ----------
    features : ndarray of shape (contexts, K, d)
    theta : ndarray of shape (d,)
        The reward's parameter.
    logged_theta : ndarray of shape (d,)
        What the log's policy believes, until it learns.
    policies : dict
        Probabilities of each target policy, shape (contexts, K).
    """

    features: FloatArray
    theta: FloatArray
    logged_theta: FloatArray
    policies: dict[str, FloatArray]

    @classmethod
    def of(cls, seed: int) -> World:
        """Draw a world."""
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(NUM_CONTEXTS, NUM_ARMS, DIMENSION))
        features /= np.linalg.norm(features, axis=2, keepdims=True)
        theta, logged_theta, target = rng.normal(size=(3, DIMENSION))
        greedy = np.eye(NUM_ARMS)[np.argmax(features @ target, axis=1)]
        uniform = np.full_like(greedy, 1 / NUM_ARMS)
        policies = {"uniform": uniform, "greedy": greedy}
        return cls(features, theta / np.linalg.norm(theta), logged_theta, policies)

    def truth(self, policy: str) -> float:
        """Return the value of a target policy."""
        means = INTERCEPT + self.features @ self.theta
        return float(np.mean(np.sum(self.policies[policy] * means, axis=1)))

    def logs(
        self, learns: bool, num_logs: int, rng: np.random.Generator
    ) -> Iterator[tuple[list[Decision], list[int]]]:
        """Yield logs, each with the number of each decision's context."""
        shape = (num_logs, NUM_DECISIONS)
        contexts = rng.integers(NUM_CONTEXTS, size=shape)
        explores = rng.random(shape) < UNIFORM_SHARE
        arms = rng.integers(NUM_ARMS, size=shape)
        chosen_features = np.empty((*shape, DIMENSION))
        propensities, rewards = np.empty(shape), rng.normal(INTERCEPT, NOISE, shape)
        theta = np.broadcast_to(self.logged_theta, (num_logs, DIMENSION))
        for t in range(NUM_DECISIONS):
            features = self.features[contexts[:, t]]
            best = np.argmax(np.einsum("lkd,ld->lk", features, theta), axis=1)
            arms[:, t] = np.where(explores[:, t], arms[:, t], best)
            share = UNIFORM_SHARE / NUM_ARMS
            propensities[:, t] = share + (1 - UNIFORM_SHARE) * (arms[:, t] == best)
            chosen_features[:, t] = features[np.arange(num_logs), arms[:, t]]
            rewards[:, t] += chosen_features[:, t] @ self.theta
            if learns and (t + 1) % INTERVAL == 0:
                seen = chosen_features[:, : t + 1]
                gram = np.einsum("ltd,lte->lde", seen, seen) + np.eye(DIMENSION)
                total = np.einsum("ltd,lt->ld", seen, rewards[:, : t + 1] - INTERCEPT)
                theta = np.linalg.solve(gram, total[:, :, None])[:, :, 0]
        columns = contexts, arms, propensities, rewards
        for rows in zip(*(column.tolist() for column in columns), strict=True):
            log = [
                Decision(t, t, None, ARMS, self.features[context], arm, p, reward)
                for t, (context, arm, p, reward) in enumerate(zip(*rows, strict=True))
            ]
            yield log, rows[0]


@dataclass(frozen=True)
class Coverage:
    """What the intervals of one estimator did over many logs.

    Attributes
    ----------
    covered : float
        Share of the intervals that cover the truth.
    widths : tuple of float
        Width of each log's interval.
    errors : tuple of float
        Estimate less truth, of each log.
    effective_sample_size : float
        Median over logs.
    """

    covered: float
    widths: tuple[float, ...]
    errors: tuple[float, ...]
    effective_sample_size: float


def coverage(learns: bool, num_logs: int, seed: int) -> dict[tuple[str, str], Coverage]:
    """Return the coverage by target policy and estimator, all on the same logs."""
    world, rng = World.of(0), np.random.default_rng([seed, learns])
    tables = {policy: list(rows) for policy, rows in world.policies.items()}
    pairs = [(policy, e.__name__) for policy in POLICIES for e in ESTIMATORS]
    found: dict[tuple[str, str], list[PolicyValue]] = {pair: [] for pair in pairs}
    for log, contexts in world.logs(learns, num_logs, rng):
        for policy, table in tables.items():
            probabilities = [table[context] for context in contexts]
            for e in ESTIMATORS:
                found[policy, e.__name__].append(e(log, probabilities))
    return {
        (policy, name): _summary(values, world.truth(policy))
        for (policy, name), values in found.items()
    }


def _summary(values: list[PolicyValue], truth: float) -> Coverage:
    sizes = [value.effective_sample_size for value in values]
    return Coverage(
        covered=sum(v.low <= truth <= v.high for v in values) / len(values),
        widths=tuple(v.high - v.low for v in values),
        errors=tuple(v.value - truth for v in values),
        effective_sample_size=float(np.median(sizes)),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.process_time()
    print("| log | policy | estimator | covered | bias | width | eff. sample |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for log in LOGS:
        found = coverage(log == "learns", options.logs, options.seed)
        for (policy, name), one in found.items():
            error = np.std(one.errors) / np.sqrt(options.logs)
            cells = (
                log,
                policy,
                name,
                f"{100 * one.covered:.1f} %",
                f"{np.mean(one.errors):+.4f} ± {error:.4f}",
                f"{np.mean(one.widths):.3f}",
                f"{one.effective_sample_size:.0f}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"{options.logs} logs each; {time.process_time() - start:.0f} CPU seconds")


if __name__ == "__main__":
    main()
