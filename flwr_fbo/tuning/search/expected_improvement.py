"""Expected improvement: how much better than the best a place is hoped to be.

The logarithm is what is maximised (Ament, Daulton, Eriksson, Balandat & Bakshy,
Unexpected improvements to expected improvement, 2023): improvement itself is zero, to
the last bit, over most of the space, and has no gradient there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo.models.failures import Trials
from flwr_fbo.models.matern_gp import MaternPosterior, fit
from flwr_fbo.models.quasi_newton import minimize_all
from flwr_fbo.space.search_space import SearchSpace

# Beyond, improvement is its limit, pdf(z) / z^2 or z, to seven digits or all. Single
# precision has fewer, and no larger exponentials.
_FAR, _FAR_IN_SINGLE, _LARGE = -1e4, -100.0, 10.0
_ROOT_HALF, _MILLS = math.sqrt(0.5), math.sqrt(math.pi / 2.0)
_LOG_ROOT = 0.5 * math.log(2.0 * math.pi)
# An ascent of logarithms, which vary by tens over the space, ends where a step changes
# them by less, relatively; the first step goes no farther than this, in lengthscales.
_TOLERANCE, _FIRST_STEP, _MAX_STEPS = 1e-3, 0.2, 50
# Candidates that single precision may have put on the wrong side of the last start.
_SPARE = 10
# Of the matrices of a block: more would not stay in the processor's cache.
_BLOCK_BYTES = 2_000_000


def log_unit_improvement(z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return log E max(0, z + e) for e ~ N(0, 1), and its derivative.

    Parameters
    ----------
    z : ndarray
        Numbers of less than 1e150 in size; of less than 1e15 in single precision.

    Returns
    -------
    tuple of two ndarrays
        Values and derivatives, of the shape and precision of ``z``.
    """
    # h(z) = pdf(z) + z cdf(z) = pdf(z) (1 + z ratio(z)), of Mills' ratio, and h' = cdf.
    farthest = _FAR if z.dtype == np.float64 else _FAR_IN_SINGLE
    inside = np.minimum(np.maximum(z, farthest), _LARGE)
    ratio = erfcx(inside * -_ROOT_HALF)
    ratio *= _MILLS
    share = inside * ratio
    share += 1.0
    value = np.log(share)
    value -= 0.5 * inside * inside + _LOG_ROOT
    slope = ratio / share
    if (inside != z).any():
        far, large = z < farthest, z > _LARGE
        value[far] = -0.5 * z[far] ** 2 - _LOG_ROOT - 2.0 * np.log(-z[far])
        slope[far] = -z[far]
        value[large], slope[large] = np.log(z[large]), 1.0 / z[large]
    return value, slope


def standardised(y: FloatArray) -> FloatArray:
    """Return values with mean 0 and deviation 1, or zeros where all are equal."""
    tiny = np.finfo(np.float64).tiny
    # Exactly zero, where they are equal; and no square that vanishes.
    y = y - y[0]
    y = y / max(float(np.abs(y).max()), tiny)
    return np.asarray((y - y.mean()) / max(float(y.std()), tiny))


@dataclass(frozen=True, eq=False)
class Search:
    """An agent that looks for its next point.

    Attributes
    ----------
    trials : Trials
        t >= 1, in any unit.
    logs : ndarray of shape (D + 2,), optional
        Hyperparameters of the last fit.
    is_due : bool
        Whether they are to be fitted again.
    space : SearchSpace
        Search space of the agent.
    rng : numpy.random.Generator
        Generator of the candidates.
    num_candidates, num_starts : int
        Uniform points, and how many of the best are refined; both >= 1.
    """

    trials: Trials
    logs: FloatArray | None
    is_due: bool
    space: SearchSpace
    rng: np.random.Generator
    num_candidates: int
    num_starts: int


# Where to evaluate next, shape (D,), and the hyperparameters behind it.
Found = tuple[FloatArray, FloatArray]


@one_blas_thread
def search_all(searches: Sequence[Search]) -> list[Found]:
    """Return what each agent finds; those with equally many trials are one block.

    An agent finds the same, to the last bit, whichever others are in the block.
    """
    blocks: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, search in enumerate(searches):
        blocks[(*search.trials.x.shape, search.num_starts)].append(i)
    found: dict[int, Found] = {}
    for (num, dim, _), members in blocks.items():
        size = max(1, _BLOCK_BYTES // (8 * (dim + 3) * num * num))
        for begin in range(0, len(members), size):
            part = members[begin : begin + size]
            block = [searches[i] for i in part]
            x = np.array([search.trials.x for search in block])
            y = np.array([standardised(search.trials.y) for search in block])
            none = np.full(dim + 2, np.nan)
            logs = np.array([none if s.logs is None else s.logs for s in block])
            due = np.array([search.is_due for search in block])
            if due.all():
                logs = fit(x, y, logs)
            elif due.any():
                logs[due] = fit(x[due], y[due], logs[due])
            points = suggest(MaternPosterior(x, y, logs), block)
            found |= zip(part, zip(points, logs, strict=True), strict=True)
    return [found[i] for i in range(len(searches))]


def suggest(model: MaternPosterior, searches: Sequence[Search]) -> FloatArray:
    """Return the places with the largest log expected improvement found, shape (B, D).

    Parameters
    ----------
    model : MaternPosterior
        Posterior of B agents.
    searches : sequence of Search
        One per agent, all with S starts; their hyperparameters are not looked at.
    """
    num_agents, num_starts = len(searches), searches[0].num_starts
    agents = np.repeat(np.arange(num_agents), num_starts)
    models: dict[int, MaternPosterior] = {}

    def negative(
        x: FloatArray, index: NDArray[np.intp]
    ) -> tuple[FloatArray, FloatArray]:
        if len(index) not in models:  # they only ever become fewer
            models[len(index)] = model.take(agents[index])
        value, gradient = _log_improvement(models[len(index)], x[:, None, :])
        return -value[:, 0], -gradient[:, 0]

    starts = _starts(model, searches)
    moves = np.array([search.space.continuous for search in searches])[agents]
    lower, upper = np.where(moves, 0.0, starts[0]), np.where(moves, 1.0, starts[0])
    steps = _FIRST_STEP * model.lengthscales[agents]
    ends, values = minimize_all(
        negative,
        starts,
        lower,
        upper,
        steps,
        tolerance=_TOLERANCE,
        max_steps=_MAX_STEPS,
    )
    best = first_best(-values.reshape(num_agents, num_starts))
    ends = ends.reshape(num_agents, num_starts, -1)
    return np.asarray(ends[np.arange(num_agents), best])


def _starts(
    model: MaternPosterior, searches: Sequence[Search]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the best of uniform candidates, agent by agent, for `minimize_all`.

    They are screened in single precision and ordered in double: single precision
    differs between processors in its last digits, which decide now and then.
    """
    screened = []
    for i, search in enumerate(searches):
        uniform = search.rng.random((search.num_candidates, search.space.dim))
        candidates = search.space.snap_discrete(uniform)
        mean, deviation = model.rough(candidates, i)
        mean -= model.best[i].astype(np.float32)
        score = log_unit_improvement(mean / deviation)[0] + np.log(deviation)
        if search.trials.fail_often:
            # The model learns slowly which of many axes it is that decides.
            score[search.trials.near_failures(candidates)] = -np.inf
        num = min(search.num_starts + _SPARE, len(score))
        screened.append(candidates[np.argpartition(score, -num)[-num:]])
    places = np.array(screened)
    values, gradients = _log_improvement(model, places)
    order = np.argsort(-values, axis=1, kind="stable")
    # Fewer candidates than starts: some start twice.
    best = np.take(order, range(searches[0].num_starts), axis=1, mode="wrap")
    rows = np.arange(len(searches))[:, None]
    dim = places.shape[2]
    starts = places[rows, best].reshape(-1, dim)
    return starts, -values[rows, best].ravel(), -gradients[rows, best].reshape(-1, dim)


def _log_improvement(
    model: MaternPosterior, x: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return log expected improvement at x of shape (B, k, D), and its gradient.

    Of shapes (B, k) and (B, k, D).
    """
    mean, deviation, by_mean, by_deviation = model.predict(x)
    z = (mean - model.best[:, None]) / deviation
    log_h, slope = log_unit_improvement(z)
    # Of log h(z) + log deviation.
    slope /= deviation
    by_mean *= slope[..., None]
    by_deviation *= (1.0 / deviation - slope * z)[..., None]
    log_h += np.log(deviation)
    return log_h, by_mean + by_deviation
