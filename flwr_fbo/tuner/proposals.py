"""Which settings to try next, from what was released about those that were tried."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from flwr_fbo._arrays import FloatArray
from flwr_fbo._random import Purpose, generator
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.space.search_space import Params, SearchSpace, move_to_faces

# Settings that are looked at: anywhere, a share of them on faces of the cube, and near
# the best one so far.
_NUM_ANYWHERE, _NUM_NEAR, _NEAR = 2048, 512, 0.1
_ON_FACES, _EACH = 0.25, 0.4


@one_blas_thread
def propose(
    space: SearchSpace,
    settings: Sequence[Params],
    scores: Sequence[float],
    num: int,
    seed: int,
) -> list[Params]:
    """Return the next settings, by expected improvement on a Gaussian process.

    The process has a Matern kernel and noise, both by maximum likelihood. Each
    setting is chosen as if those before it had turned out as the mean says (*kriging
    believer*: Ginsbourger, Le Riche & Carraro, 2010).

    Parameters
    ----------
    space : SearchSpace
    settings : sequence of dict
        That were tried. Those outside the space say nothing.
    scores : sequence of float
        Larger is better; one that is not finite counts as the worst that is.
    num : int
        >= 1.
    seed : int
        Of the settings that are looked at.

    Returns
    -------
    list of dict
        None of them tried before, while the space has such.
    """
    rng = generator(seed, len(settings), Purpose.SEARCH)
    X, y = _known(space, settings, scores)
    anywhere = rng.random((_NUM_ANYWHERE, space.dim))
    move_to_faces(anywhere, _ON_FACES, _EACH, rng)
    found: list[FloatArray] = []
    if len(y) == 0 or np.ptp(y) == 0:
        found = list(_untried(space, anywhere, X)[:num])
    else:
        near = X[np.argmax(y)] + rng.normal(0, _NEAR, (_NUM_NEAR, space.dim))
        pool = np.concatenate([anywhere, np.clip(near, 0, 1)])
        found = most_promising(X, y, _untried(space, pool, X), num)
    repeated = list(space.snap_discrete(anywhere)[: num - len(found)])
    return [space.from_unit(space.snap(x)) for x in found + repeated]


def most_promising(
    X: FloatArray, y: FloatArray, pool: FloatArray, num: int
) -> list[FloatArray]:
    """Return points of a pool, one after the other: see `propose`.

    Parameters
    ----------
    X : ndarray of shape (n, D)
        That were tried, n >= 1.
    y : ndarray of shape (n,)
        Their scores, not all the same.
    pool : ndarray of shape (m, D)
    num : int
    """
    y = (y - y.mean()) / y.std()
    kernel = _fitted_kernel(X, y)
    found: list[FloatArray] = []
    while len(found) < num and len(pool) > 0:
        improvement, mean = _expected_improvement(kernel, X, y, pool)
        best = int(np.argmax(improvement))
        found.append(pool[best])
        X, y = np.vstack([X, pool[best]]), np.append(y, mean[best])
        pool = np.delete(pool, best, axis=0)
    return found


def _known(
    space: SearchSpace, settings: Sequence[Params], scores: Sequence[float]
) -> tuple[FloatArray, FloatArray]:
    """Return where settings are in the unit cube, and their scores."""
    finite = [score for score in scores if np.isfinite(score)]
    worst = min(finite, default=0.0)
    points, values = [], []
    for params, score in zip(settings, scores, strict=True):
        try:
            points.append(space.to_unit(params))
        except ValueError:  # the app's defaults may be outside the space
            continue
        values.append(score if np.isfinite(score) else worst)
    return np.reshape(points, (-1, space.dim)), np.array(values)


def _untried(space: SearchSpace, points: FloatArray, tried: FloatArray) -> FloatArray:
    """Return the settings that points stand for, once each, without those tried."""
    snapped = space.snap_discrete(points)
    all_points = np.concatenate([tried, snapped])
    _, first = np.unique(all_points.round(12), axis=0, return_index=True)
    return np.asarray(all_points[np.sort(first[first >= len(tried)])])


def _fitted_kernel(X: FloatArray, y: FloatArray) -> Any:
    """Return the kernel of a process fitted to scores of mean 0 and deviation 1."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(0.5, (0.1, 10.0), nu=2.5)
    kernel += WhiteKernel(0.1, (1e-4, 2.0))
    with warnings.catch_warnings():  # of a hyperparameter at its bound
        warnings.simplefilter("ignore")
        return GaussianProcessRegressor(kernel).fit(X, y).kernel_


def _expected_improvement(
    kernel: Any, X: FloatArray, y: FloatArray, pool: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the improvement on the best mean so far, and the mean, at each point."""
    from scipy.stats import norm
    from sklearn.gaussian_process import GaussianProcessRegressor

    process = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    mean, deviation = process.predict(pool, return_std=True)
    # Of the function, without the noise of a score.
    variance = np.maximum(deviation**2 - kernel.k2.noise_level, 1e-12)
    deviation = np.sqrt(variance)
    z = (mean - process.predict(X).max()) / deviation
    return deviation * (z * norm.cdf(z) + norm.pdf(z)), mean
