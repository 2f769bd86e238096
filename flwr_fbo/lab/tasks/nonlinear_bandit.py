"""Non-linear bandits that all agents share: the environments of Fed-GO-UCB.

*Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR 2024), section
6 and appendix E: two test functions over 50 candidates, and two tables of data by
clusters. In all of them a reward is maximised. So Hartmann's function has its sign
turned, and Cosine-8 has not; by appendix E both have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, choice, integer, number
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require

Function = Literal["hartmann", "cosine"]
Table = Literal["magic", "shuttle"]
Rewarded = Literal["gamma", "hadron", "abnormal", "normal"]

# The classes of each table: the loaders' responses are 1 for the first.
_CLASSES: dict[Table, tuple[Rewarded, Rewarded]] = {
    "magic": ("gamma", "hadron"),
    "shuttle": ("abnormal", "normal"),
}

# Hartmann's function of six variables (Hartmann, 1973; Dixon & Szego, 1978).
_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_A = np.array(
    [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ]
)
# The paper prints these without the factor, which puts all bumps far off the cube.
_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)
_COSINE_DIMENSION = 8


def hartmann(x: FloatArray) -> FloatArray:
    """Return sum_i alpha_i exp(-sum_j A_ij (x_j - P_ij)^2): its maximum is 3.32237.

    At points of shape (..., 6), in [0, 1]^6.
    """
    distances = (_A * (x[..., None, :] - _P) ** 2).sum(axis=-1)
    return np.asarray(np.exp(-distances) @ _ALPHA)


def cosine(x: FloatArray) -> FloatArray:
    """Return sum_j 0.1 cos(5 pi x_j) - x_j^2: its maximum is 0.1 D, at zero.

    At points of shape (..., D), in [-1, 1]^D.
    """
    return np.asarray((0.1 * np.cos(5 * np.pi * x) - x**2).sum(axis=-1))


@dataclass(frozen=True)
class NonlinearBanditTask(ABC):
    """Base class of these environments.

    Attributes
    ----------
    noise_std : float
        >= 0: of the Gaussian noise in a reward. Not given in the paper.
    """

    noise_std: float = field(default=0.01, metadata=number(0))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abstractmethod
    def dimension(self) -> int:
        """D."""

    @abstractmethod
    def arms(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the actions of a run, shape (K, D), and their mean rewards."""

    def check(self) -> None:  # noqa: B027 (a test function needs no data)
        """Raise `DataError` if data are missing or damaged."""


@dataclass(frozen=True)
class FunctionBanditTask(NonlinearBanditTask):
    """A test function over uniform candidates.

    They are those of all agents in all rounds (appendix E). Each run draws its own,
    which the paper does not say.

    Attributes
    ----------
    function : {"hartmann", "cosine"}
        Name of the function: of six variables in [0, 1], or of eight in [-1, 1].
    num_actions : int
        K >= 2.
    """

    function: Function = field(default="hartmann", metadata=choice(Function))
    num_actions: int = field(default=50, metadata=integer(2))
    name: Literal["function-bandit"] = "function-bandit"

    @property
    def dimension(self) -> int:
        """D."""
        return _A.shape[1] if self.function == "hartmann" else _COSINE_DIMENSION

    def arms(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the actions of a run, shape (K, D), and their mean rewards."""
        rng = generator(seed, Purpose.CONTEXTS)
        unit = rng.uniform(size=(self.num_actions, self.dimension))
        if self.function == "hartmann":
            return unit, hartmann(unit)
        x = 2 * unit - 1
        return x, cosine(x)


@dataclass(frozen=True)
class ClusterBanditTask(NonlinearBanditTask):
    """Clusters of a table's rows: an arm is a centroid, its reward the mean response.

    Rows are divided by their norms, then columns are standardised, and k-means makes
    the clusters: each run has its own partition, by its seed. The paper follows Filippi
    et al. (2010). It says neither how rows are scaled, nor how often it partitions, nor
    which class has response 1.

    Examples
    --------
    >>> from flwr_fbo.lab.tasks.nonlinear_bandit import ClusterBanditTask
    >>> ClusterBanditTask(table="shuttle", rewarded="normal").dimension
    9

    Attributes
    ----------
    table : {"magic", "shuttle"}
        Name of the table.
    rewarded : str
        Class of the rows with response 1; all others have 0. ``"gamma"`` or
        ``"hadron"`` in ``"magic"``; ``"normal"`` or ``"abnormal"`` in ``"shuttle"``.
    num_clusters : int
        K >= 2.
    """

    table: Table = field(default="magic", metadata=choice(Table))
    rewarded: Rewarded = "gamma"
    num_clusters: int = field(default=20, metadata=integer(2))
    name: Literal["cluster-bandit"] = "cluster-bandit"

    def __post_init__(self) -> None:
        super().__post_init__()
        classes = _CLASSES[self.table]
        expected = f"{classes[0]!r} or {classes[1]!r}"
        require(self.rewarded in classes, "rewarded", self.rewarded, expected)

    @property
    def dimension(self) -> int:
        """D."""
        return int(_loader(self.table).NUM_FEATURES)

    def arms(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the centroids, shape (K, D), and their mean rewards.

        Raises
        ------
        DataError
            If the data are missing or damaged.
        """
        centroids, means = _clusters(self.table, self.num_clusters, seed)
        first = self.rewarded == _CLASSES[self.table][0]
        return centroids, means if first else 1 - means

    def check(self) -> None:
        """Raise `DataError` if the table is missing or damaged."""
        _loader(self.table).load()


def _loader(table: Table) -> ModuleType:
    from flwr_fbo.lab.datasets import magic, shuttle

    return magic if table == "magic" else shuttle


@lru_cache
def _clusters(
    table: Table, num_clusters: int, seed: int
) -> tuple[FloatArray, FloatArray]:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    X, y = _loader(table).load()
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    with threadpool_limits(1):  # sums depend on how many there are
        kmeans = KMeans(num_clusters, n_init=4, random_state=seed).fit(X)
    members: Any = kmeans.labels_ == np.arange(num_clusters)[:, None]
    return kmeans.cluster_centers_, members @ y / members.sum(axis=1)


class NonlinearBandit:
    """The bandit of one run.

    The noise of a reward belongs to the agent and its trial: methods on the same seed
    have the same luck, whatever they play.

    Parameters
    ----------
    task : NonlinearBanditTask
        Task that the bandit is of.
    seed : int
        Seed of the run.

    Attributes
    ----------
    actions : ndarray of shape (K, D)
        Features of the K actions.
    means : ndarray of shape (K,)
        Their mean rewards.
    """

    def __init__(self, task: NonlinearBanditTask, seed: int) -> None:
        self.actions, self.means = task.arms(seed)
        self._noise_std = task.noise_std
        self._seed = seed

    def reward(self, agent: int, t: int, chosen: int) -> float:
        """Return what an agent is rewarded with in trial t >= 0 for an action."""
        noise = generator(self._seed, agent, t, Purpose.OBSERVATION).standard_normal()
        return float(self.means[chosen] + self._noise_std * noise)

    def regret(self, chosen: int) -> float:
        """Return how much lower an action's mean reward is than the best one's."""
        return float(self.means.max() - self.means[chosen])


class NonlinearBanditEnvironment:
    """The bandit of the agent of a slot, for `flwr_fbo.bandits.neural_bandit_app`."""

    def __init__(self, task: NonlinearBanditTask, seed: int, agent: int) -> None:
        self._bandit = NonlinearBandit(task, seed)
        self._agent = agent
        self._t = 0

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (K, D): the same in all."""
        self._t = t
        return self._bandit.actions

    def reward(self, x: FloatArray) -> float:
        """Return what action ``x`` gives in the trial whose contexts were last.

        Raises
        ------
        ValueError
            If it is none of them.
        """
        same = np.all(self._bandit.actions == x, axis=1)
        require(bool(same.any()), "x", x, "one of the actions")
        return self._bandit.reward(self._agent, self._t, int(same.argmax()))
