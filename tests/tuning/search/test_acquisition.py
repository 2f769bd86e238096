from typing import Any

import numpy as np
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.space.search_space import SearchSpace, SubRegions
from flwr_fbo.tuning.search.acquisition import maximize


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


PLANE = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in "xy"})


def _boxes(*splits: int) -> SubRegions:
    return SubRegions(tuple(np.linspace(0, 1, k + 1) for k in splits))


def test_acquisition_finds_what_a_fine_grid_finds(rng: np.random.Generator) -> None:
    features = RandomFeatures.draw(rng, 100, 2, lengthscale=0.15)
    weights = rng.standard_normal((1, 100))
    axis = np.linspace(0, 1, 201)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    best = features.function(grid, weights[0]).max()
    x = maximize(
        features, weights, PLANE, _boxes(1, 1), rng, num_candidates=1000, num_starts=20
    )
    assert features.function(x[None], weights[0])[0] >= best - 1e-4


def test_random_starts_are_other_points_than_the_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20 points besides the candidates, and the best of both, ascents included."""
    seen: list[FloatArray] = []

    def stay(slope: Any, starts: FloatArray, *bounds: FloatArray) -> FloatArray:
        seen.append(starts)
        return starts

    monkeypatch.setattr("flwr_fbo.tuning.search.acquisition.ascend", stay)
    for seed in range(5):
        features = RandomFeatures.draw(np.random.default_rng(seed), 50, 2, 0.1)
        weights = np.random.default_rng(seed).standard_normal((1, 50))
        about = features, weights, PLANE, _boxes(1, 1)
        x = maximize(
            *about,
            np.random.default_rng(seed),
            num_candidates=30,
            num_starts=20,
            random_starts=True,
        )
        again = np.random.default_rng(seed)
        candidates, starts = again.random((30, 2)), again.random((20, 2))
        np.testing.assert_array_equal(seen[-1], starts)
        points = np.vstack([starts, candidates])
        best = points[np.argmax(features.function(points, weights[0]))]
        np.testing.assert_array_equal(x, best)
        maximize(*about, np.random.default_rng(seed), num_candidates=30, num_starts=20)
        assert {tuple(x) for x in seen[-1]} <= {tuple(x) for x in candidates}


def test_acquisition_reaches_corners_and_borders_of_sub_regions(
    rng: np.random.Generator,
) -> None:
    """On a slope the optimum lies in the corner of the box, and stays in it."""
    features = RandomFeatures(
        np.array([[0.5, 0.5], [0.0, 0.0]]), np.array([-1.6, 0.0]), 1.0
    )
    rising, low = np.array([1.0, 0.0]), np.array([-9.0, -9.0])
    x = maximize(
        features,
        rising[None],
        PLANE,
        _boxes(1, 1),
        rng,
        num_candidates=200,
        num_starts=5,
    )
    np.testing.assert_array_equal(x, [1.0, 1.0])
    boxes = _boxes(2, 2)
    x = maximize(
        features,
        np.array([rising, low, low, low]),
        PLANE,
        boxes,
        rng,
        num_candidates=200,
        num_starts=5,
    )
    np.testing.assert_allclose(x, [0.5, 0.5])
    assert boxes.index(x[None])[0] == 0


def test_acquisition_finds_the_best_of_a_mixed_space(
    rng: np.random.Generator,
) -> None:
    """Discrete axes at their values, against all of them with a fine grid."""
    space = SearchSpace(
        {
            "n": IntDistribution(1, 4),
            "k": CategoricalDistribution(["a", "b", "c"]),
            "m": IntDistribution(1, 64, log=True),
            "x": FloatDistribution(0.0, 1.0),
        }
    )
    for _ in range(2):
        features = RandomFeatures.draw(rng, 60, 4, lengthscale=0.3)
        weights = rng.standard_normal((1, 60))
        x = maximize(
            features,
            weights,
            space,
            space.sub_regions(1),
            rng,
            num_candidates=1000,
            num_starts=20,
        )
        np.testing.assert_allclose(space.snap_discrete(x[None])[0], x, atol=1e-9)
        values = [
            space.to_unit({"n": n, "k": k, "m": m, "x": 0.0})
            for n in range(1, 5)
            for k in "abc"
            for m in range(1, 65)
        ]
        grid = np.repeat(np.array(values), 101, axis=0)
        grid[:, 3] = np.tile(np.linspace(0, 1, 101), len(values))
        best = np.quantile(features.function(grid, weights[0]), 0.999)
        assert features.function(x[None], weights[0])[0] >= best
