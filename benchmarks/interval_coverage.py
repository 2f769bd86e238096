"""How often the intervals of a bandit's summary hold, in ten problems.

    OMP_NUM_THREADS=1 python -m benchmarks.interval_coverage run|show ROWS.jsonl

Three sites play 60 trials each of a problem of the docs or the tests, with four
releases at epsilon 4. After every tenth trial, and so before and after each release,
each site's interval of each coordinate is compared with its theta. A run is covered if
all of these hold. Promised is that with a probability of 0.99 (``alpha``); the bar is
.98 of runs, over the problems together, for each ``local_data``. Settings have their
defaults, so that the bound on ||theta|| is the encoder's, or 1. Rewards are 0 or 1,
with the mean of the problem.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.rows import add_rows, read_rows, run_or_show
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    Category,
    ContinualSettings,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
)
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LocalData
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import SeededEntropy

NUM_SITES, NUM_TRIALS, NUM_RELEASES, EVERY = 3, 60, 4, 10
NUM_SEEDS, LEAST = 12, 0.98
Mean = Callable[[str, Mapping[str, Any]], float]


@dataclass(frozen=True)
class Problem:
    """Named arms, or vectors, and what they pay on average.

    Attributes
    ----------
    source : str
        Where it is from.
    encoder : FeatureEncoder or None
    arms : mapping of str to features
        Of an encoder.
    mean : callable
        Mean reward of an arm's name and all fields: linear in the features.
    vectors : callable, optional
        Without an encoder: actions of shape (K, d) and theta, of a seed, site and
        trial; mean rewards are x'theta above the middle of their range.
    dimension : int
        Without an encoder.
    reward_range : (float, float)
    only_own : bool
        Whether sites differ: then only ``local_data="own"`` promises intervals.
    """

    source: str
    encoder: FeatureEncoder | None = None
    arms: Mapping[str, Mapping[str, float]] | None = None
    mean: Mean | None = None
    vectors: Callable[[int, int, int], tuple[FloatArray, FloatArray]] | None = None
    dimension: int = 0
    reward_range: tuple[float, float] = (0, 1)
    only_own: bool = False

    def offer(self, seed: int, site: int, t: int) -> tuple[FloatArray, FloatArray]:
        """Return actions, shape (K, d), and theta.

        Their products are the mean rewards, less the middle of the range. Of an
        encoder, theta has the least norm of all with these means.
        """
        if self.vectors is not None:
            return self.vectors(seed, site, t)
        assert self.encoder is not None
        assert self.arms is not None
        rng = np.random.default_rng([seed, site, t])
        context = {
            name: _drawn(one, rng) for name, one in dict(self.encoder.context).items()
        }
        arms = [*self.arms.items()]
        return self.encoder.encode(context, arms)[0], self.theta

    @cached_property
    def theta(self) -> FloatArray:
        """The parameter of least norm, of an encoder."""
        assert self.encoder is not None
        assert self.arms is not None
        assert self.mean is not None
        rng = np.random.default_rng(0)
        fields, rows, means = dict(self.encoder.context), [], []
        for _ in range(40 * self.encoder.dimension):
            context = {name: _drawn(one, rng) for name, one in fields.items()}
            for name, own in self.arms.items():
                varied = {
                    f: _drawn(one, rng) for f, one in dict(self.encoder.arm).items()
                }
                arm = varied if varied else own
                rows.append(self.encoder.encode(context, [(name, arm)])[0][0])
                means.append(self.mean(name, {**context, **arm}))
        middle = sum(self.reward_range) / 2
        X, y = np.array(rows), np.array(means) - middle
        theta = np.linalg.lstsq(X, y, rcond=1e-9)[0]
        assert np.allclose(X @ theta, y, atol=1e-9), "the mean is not linear"
        return np.asarray(theta)


def _drawn(one: Number | Category, rng: np.random.Generator) -> Any:
    if isinstance(one, Category):
        return str(rng.choice(list(one.values)))
    return float(rng.uniform(one.low, one.high))


def _wards(seed: int, site: int, t: int) -> tuple[FloatArray, FloatArray]:
    return np.eye(3), np.array([0.2, 0.3, 0.8]) - 0.5


def _published(seed: int, site: int, t: int) -> tuple[FloatArray, FloatArray]:
    """Return the environment of the paper: means are x'theta, without a middle."""
    bandits = _BANDITS.setdefault(seed, LinearBandits(TASK, seed, range(NUM_SITES)))
    return bandits.peek(t)[site], bandits.theta


def _normal(scale: float, differ: float = 0.0) -> Any:
    """Return random actions in the ball, theta of a norm, and other ones at sites."""

    def vectors(seed: int, site: int, t: int) -> tuple[FloatArray, FloatArray]:
        # Not of `seed` alone: that is the stream of [seed, 0, 0], a site's actions.
        shared = np.random.default_rng([77, seed]).normal(size=4)
        theta = scale * shared / np.linalg.norm(shared)
        if differ and site % 2:
            theta = -theta * differ
        x = np.random.default_rng([seed, site, t]).normal(size=(5, 4))
        return x / np.linalg.norm(x, axis=1, keepdims=True), theta

    return vectors


TASK = LinearBanditTask(dimension=10, num_actions=30)
_BANDITS: dict[int, LinearBandits] = {}
PLACES = {"ward": {"hours": 48.0}, "clinic": {"hours": 8.0}, "home": {"hours": 0.0}}
SHARED = FeatureEncoder(
    {"age": Number(0, 110), "severity": Number(0, 10)}, {"hours": Number(0, 48)}
)
WAYS = FeatureEncoder(
    {"age": Number(0, 100), "way": Category(["walk-in", "ambulance"])},
    {"price": Number(0, 10)},
)
PRICES = {"ward": {"price": 9.0}, "clinic": {"price": 5.0}, "home": {"price": 1.0}}
SEVERITY = FeatureEncoder({"severity": Number(0, 10)}, blocks=("ward", "home"))
TUMOURS = FeatureEncoder(
    {"worst radius": Number(5, 30), "worst concave points": Number(0, 0.3)},
    blocks=("biopsy now", "imaging", "routine follow-up"),
)
AGES = FeatureEncoder({"age": Number(0, 100)}, blocks=("ward", "home", "away"))
NOTHING: dict[str, float] = {}


def _in_logs(arm: str, values: Mapping[str, Any]) -> float:
    return 0.6 if arm == "ward" else 1 - float(values["severity"]) / 10


def _in_triage(arm: str, values: Mapping[str, Any]) -> float:
    radius = (values["worst radius"] - 5) / 25
    malignant = 0.6 * radius + 0.4 * values["worst concave points"] / 0.3
    costs = {
        "biopsy now": (0.0, 0.7),
        "imaging": (0.4, 0.25),
        "routine follow-up": (1.0, 0.0),
    }[arm]
    return float(1 - malignant * costs[0] - (1 - malignant) * costs[1])


def _in_practice(arm: str, values: Mapping[str, Any]) -> float:
    care, hours = values["severity"] / 10, values["hours"] / 48
    return float(0.1 + 0.8 * (care * hours + (1 - care) * (1 - hours)))


def _by_way(arm: str, values: Mapping[str, Any]) -> float:
    price = values["price"] / 5 - 1
    return float(0.5 + 0.45 * price * (1 if values["way"] == "ambulance" else -1))


def _by_age(arm: str, values: Mapping[str, Any]) -> float:
    z = values["age"] / 50 - 1
    return float(0.5 + 0.48 * {"ward": z, "home": -z, "away": 0.2}[arm])


PROBLEMS = {
    "wards": Problem("docs/app/linear-bandits", vectors=_wards, dimension=3),
    "logs": Problem(
        "docs/app/bandits-in-practice",
        SEVERITY,
        dict.fromkeys(SEVERITY.blocks, NOTHING),
        _in_logs,
        reward_range=(-1, 1),
    ),
    "practice": Problem("docs/app/bandits-in-practice", SHARED, PLACES, _in_practice),
    "triage": Problem(
        "examples/triage-bandit",
        TUMOURS,
        dict.fromkeys(TUMOURS.blocks, NOTHING),
        _in_triage,
        reward_range=(-1, 1),
    ),
    "published": Problem(
        "LinearBanditTask",
        vectors=_published,
        dimension=10,
        reward_range=(-1, 1),
    ),
    "ways": Problem("tests of policies", WAYS, PRICES, _by_way),
    "ages": Problem(
        "tests of policies", AGES, dict.fromkeys(AGES.blocks, NOTHING), _by_age
    ),
    "ball": Problem("tests of own data", vectors=_normal(0.45), dimension=4),
    "opposite": Problem(
        "tests of own data",
        vectors=_normal(0.45, differ=1.0),
        dimension=4,
        only_own=True,
    ),
    "half as much": Problem(
        "tests of own data",
        vectors=_normal(0.45, differ=0.5),
        dimension=4,
        only_own=True,
    ),
}


def covered(problem: Problem, local_data: LocalData, seed: int) -> bool:
    """Play a run; return whether all intervals held in it."""
    encoder = problem.encoder
    d = problem.dimension if encoder is None else encoder.dimension
    releases = ContinualSettings(
        NUM_RELEASES, d, epsilon=4.0, delta=1e-5, reward_range=problem.reward_range
    )
    settings = LinearUCBSettings(releases, local_data=local_data, encoder=encoder)
    confidence = Confidence.of(settings, NUM_SITES)
    agents = [LinearUCBAgent(confidence) for _ in range(NUM_SITES)]
    mechanisms = [
        ContinualRelease(releases, SeededEntropy(seed, i)) for i in range(NUM_SITES)
    ]
    sums = [np.zeros((d + 1, d + 1)) for _ in agents]
    holds = True
    rng = np.random.default_rng([seed, 99])
    for t in range(NUM_TRIALS):
        for site, agent in enumerate(agents):
            actions, theta = problem.offer(seed, site, t)
            x = actions[agent.choose(actions, rng)[0]]
            reward = float(rng.random() < x @ theta + releases.reward_middle)
            agent.tell(x, reward)
            [product] = releases.outer_products([x], [reward])
            sums[site] += product
            if (t + 1) % EVERY == 0:
                holds &= _holds(agent, theta)
        if (t + 1) % (NUM_TRIALS // NUM_RELEASES) == 0:
            k = (t + 1) // (NUM_TRIALS // NUM_RELEASES)
            messages = [m.release(k, s) for m, s in zip(mechanisms, sums, strict=True)]
            total = np.sum(messages, axis=0)
            for site, agent in enumerate(agents):
                part = OwnPart(messages[site], sums[site].copy(), t + 1)
                agent.receive(total, k, part, NUM_SITES - 1)
                holds &= _holds(agent, problem.offer(seed, site, t)[1])
    return holds


def _holds(agent: LinearUCBAgent, theta: FloatArray) -> bool:
    apart = np.abs(agent.estimate - theta)
    return bool(np.all(apart <= agent.confidence_width))


def run(path: Path) -> None:
    """Play what the file has not, and write each row as it comes."""
    done = {(r["problem"], r["local_data"]) for r in read_rows(path)}
    for name, problem in PROBLEMS.items():
        _, theta = problem.offer(0, 0, 0)
        for local_data in get_args(LocalData):
            if (name, local_data) in done or (problem.only_own and local_data != "own"):
                continue
            held = [covered(problem, local_data, seed) for seed in range(NUM_SEEDS)]
            row = {
                "problem": name,
                "local_data": local_data,
                "norm": round(float(np.linalg.norm(theta)), 3),
                "runs": len(held),
                "covered": sum(held),
            }
            add_rows(path, [row])
            print(row, flush=True)


def show(path: Path) -> None:
    """Print the share of runs that are covered, by problem and together."""
    rows = read_rows(path)
    by: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        print(
            f"{row['problem']:<14} ||theta|| {row['norm']:5.2f}  "
            f"{row['local_data']:<9} {row['covered']:3d} of {row['runs']}"
        )
        by[row["local_data"]].update(runs=row["runs"], covered=row["covered"])
    for local_data, counts in by.items():
        share = counts["covered"] / counts["runs"]
        verdict = "met" if share >= LEAST else "missed"
        print(f"{local_data:<9} {share:.3f} of {counts['runs']} runs: {verdict}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, or show the rows."""
    run_or_show(__doc__, run, show, arguments)


if __name__ == "__main__":
    main()
