"""The environments of Fed-GO-UCB, and the two tables that they are made of."""

from typing import Any

import numpy as np
import pytest

from flwr_fbo.lab.datasets import magic
from flwr_fbo.lab.datasets.base import data_folder
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    ClusterBanditTask,
    FunctionBanditTask,
    NonlinearBandit,
    cosine,
    hartmann,
)


def _need(*parts: str) -> None:
    if not data_folder().joinpath(*parts).is_file():
        pytest.skip(f"{'/'.join(parts)} is not in the folder that FLWR_FBO_DATA names")


def test_hartmann_has_its_maximum_where_it_is_known_to_be() -> None:
    best = np.array([0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573])
    assert hartmann(best) == pytest.approx(3.32237, abs=1e-5)
    x = np.random.default_rng(0).uniform(size=(1000, 6))
    assert hartmann(x).shape == (1000,)
    assert (hartmann(x) < 3.32237).all()


def test_cosine_has_its_maximum_at_zero() -> None:
    assert cosine(np.zeros(8)) == pytest.approx(0.8)
    assert cosine(np.full(8, 0.4)) == pytest.approx(8 * (0.1 - 0.16))
    assert (cosine(np.random.default_rng(0).uniform(-1, 1, (1000, 8))) < 0.8).all()


@pytest.mark.parametrize(("function", "low"), [("hartmann", 0.0), ("cosine", -1.0)])
def test_candidates_are_those_of_the_run(function: Any, low: float) -> None:
    task = FunctionBanditTask(function=function, num_actions=200)
    bandit, again, other = (NonlinearBandit(task, seed) for seed in (0, 0, 1))
    assert bandit.actions.shape == (200, task.dimension)
    assert bandit.actions.min() == pytest.approx(low, abs=0.02)
    assert bandit.actions.max() == pytest.approx(1.0, abs=0.02)
    assert np.array_equal(bandit.actions, again.actions)
    assert not np.array_equal(bandit.actions, other.actions)


def test_luck_belongs_to_the_agent_and_its_trial() -> None:
    bandit = NonlinearBandit(FunctionBanditTask(noise_std=0.5), 0)
    luck = [
        bandit.reward(agent, t, 3) - bandit.means[3]
        for agent in range(20)
        for t in range(20)
    ]
    assert len(set(luck)) == 400
    assert np.std(luck) == pytest.approx(0.5, rel=0.1)
    assert bandit.reward(4, 5, 1) - bandit.means[1] == pytest.approx(luck[4 * 20 + 5])
    assert bandit.regret(int(bandit.means.argmax())) == 0
    assert min(bandit.regret(i) for i in range(50)) == 0


def test_without_noise_a_reward_is_its_mean() -> None:
    bandit = NonlinearBandit(FunctionBanditTask(noise_std=0), 0)
    assert bandit.reward(0, 0, 7) == bandit.means[7]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FunctionBanditTask(function="branin"), "function='branin'"),  # type: ignore[arg-type]
        (lambda: FunctionBanditTask(num_actions=1), "num_actions=1"),
        (lambda: FunctionBanditTask(noise_std=float("nan")), "noise_std=nan"),
        (lambda: ClusterBanditTask(table="iris"), "table='iris'"),  # type: ignore[arg-type]
        (lambda: ClusterBanditTask(table="shuttle"), "'abnormal' or 'normal'"),
    ],
)
def test_bad_tasks_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("task", "file", "share"),
    [
        (ClusterBanditTask(), "magic/magic04.data", 12_332 / 19_020),
        (
            ClusterBanditTask(table="shuttle", rewarded="abnormal"),
            "shuttle/shuttle.tst",
            1 - 45_586 / 58_000,
        ),
        (
            ClusterBanditTask(table="shuttle", rewarded="normal"),
            "shuttle/shuttle.tst",
            45_586 / 58_000,
        ),
    ],
)
def test_clusters_are_arms(task: ClusterBanditTask, file: str, share: float) -> None:
    _need(*file.split("/"))
    centroids, means = task.arms(0)
    assert centroids.shape == (20, task.dimension)
    assert ((means >= 0) & (means <= 1)).all()
    assert means.min() < share < means.max()
    assert np.isfinite(centroids).all()


def _means_by_nearest_centroid(seed: int, rewarded: Any) -> Any:
    """Return the share of rewarded rows that are nearest to each centroid."""
    X, y = magic.load()
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    centroids, _ = ClusterBanditTask(rewarded=rewarded).arms(seed)
    nearest = np.array([((centroids - x) ** 2).sum(axis=1).argmin() for x in X])
    hit = y if rewarded == "gamma" else 1 - y
    return np.array([hit[nearest == k].mean() for k in range(20)])


def test_a_partition_belongs_to_the_run() -> None:
    """Each seed has its own, and both readings of the rewards have the same."""
    _need("magic", "magic04.data")
    task, other = ClusterBanditTask(), ClusterBanditTask(rewarded="hadron")
    expected = _means_by_nearest_centroid(3, "gamma")
    np.testing.assert_allclose(task.arms(3)[1], expected, atol=5e-3)
    np.testing.assert_allclose(other.arms(3)[1], 1 - expected, atol=5e-3)
    assert np.array_equal(task.arms(3)[0], other.arms(3)[0])
    # One centroid of the other partition is far from all of this one.
    gaps = np.linalg.norm(task.arms(3)[0][:, None] - task.arms(4)[0], axis=-1)
    assert gaps.min(axis=1).max() > 0.1
    assert np.array_equal(task.arms(3)[0], ClusterBanditTask().arms(3)[0])
