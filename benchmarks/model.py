"""What the choices in models/ and agents/ buy.

A is the alternative, B what the package does: above 1, the package's way is faster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from optuna.distributions import FloatDistribution
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from benchmarks.measure import Section, alternate, compare
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.thompson_gp import fit_hyperparameters, sample_weights
from flwr_fbo.space.search_space import SearchSpace, SubRegions
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.acquisition import maximize
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

M, D, T, AGENTS = 100, 2, 40, 200


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    repeats = 3 if quick else 11
    rng = np.random.default_rng(0)
    x, y = rng.random((T, D)), rng.random(T)
    features = RandomFeatures.draw(rng, M, D, 0.2)
    phi = features(x)
    weights = rng.standard_normal((1, M))
    plane = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in "xy"})
    agent = create_agent(
        TuningStudy(plane, "maximize", DPFTSDESettings(), study_seed=1, feature_seed=2),
        0,
        1,
    )
    for point, value in zip(x, y, strict=True):
        agent.tell(0, point, float(value))
    whole = SubRegions((np.array([0.0, 1.0]),) * D)

    def small() -> None:
        for _ in range(AGENTS):
            sample_weights(phi, y, 1e-6, rng)

    def full() -> None:
        for _ in range(AGENTS):
            posterior_form(phi, y, rng)

    def full_one() -> None:
        posterior_form(phi, y, rng)

    def batched() -> None:
        stack = np.broadcast_to(phi, (AGENTS, T, M))
        z = rng.standard_normal((AGENTS, M))
        gram = stack @ np.swapaxes(stack, 1, 2) + 1e-6 * np.eye(T)
        residual = y - np.einsum("atm,am->at", stack, z)
        z + np.einsum(
            "atm,at->am", stack, np.linalg.solve(gram, residual[..., None])[..., 0]
        )

    candidates, whole_index = rng.random((1000, D)), np.zeros(1000, dtype=np.intp)

    def single_precision() -> None:
        features.rough_values(candidates, weights, whole_index)

    def double_precision() -> None:
        features.function(candidates, weights[whole_index])

    def joint_search() -> None:
        maximize(
            features, weights, plane, whole, rng, num_candidates=1000, num_starts=20
        )

    def separate_searches() -> None:
        candidates = rng.random((1000, D))
        values = features.function(candidates, weights[0])
        for start in candidates[np.argsort(-values)[:20]]:
            minimize(
                _negative(features, weights[0]),
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=[(0.0, 1.0)] * D,
            )

    def fit() -> None:
        fit_hyperparameters(x, y, np.random.default_rng(0), 1e-5, 8)

    def message() -> None:
        agent.message(1)

    def scikit_fit() -> None:
        kernel = ConstantKernel() * RBF(0.3) + WhiteKernel(1e-3)
        seeded = {"n_restarts_optimizer": 7, "random_state": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            GaussianProcessRegressor(kernel, **seeded).fit(x, y)

    one = one_blas_thread
    pairs = [
        ("GP fit, 8 starts", "scikit-learn", scikit_fit, "flwr_fbo", fit),
        ("message", "M x M form, weights alone", full_one, "flwr_fbo", message),
        ("weights of 200 agents", "M x M form", full, "t x t form", small),
        ("weights of 200 agents", "batched", batched, "in a loop", small),
        ("1000 candidates", "double", double_precision, "single", single_precision),
        ("acquisition", "20 searches", separate_searches, "a joint one", joint_search),
    ]
    rows = []
    for what, slower, alternative, faster, ours in pairs:
        works = {slower: one(alternative), faster: one(ours)}
        rows.append(compare(what, alternate(works, repeats), slower, faster))
    for what, work in (("GP fit, 8 starts", fit), ("weights of 200 agents", small)):
        works = {"all BLAS threads": work, "one": one(work)}
        rows.append(compare(what, alternate(works, repeats), *works))
    text = f"CPU time of all threads; t = {T} observations, D = {D}, M = {M}."
    return [Section("What the choices in models/ and agents/ buy", text, rows)]


def posterior_form(phi: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> None:
    """Draw weights by the M x M form of the posterior."""
    sigma = phi.T @ phi + 1e-6 * np.eye(M)
    factor, _ = cho_factor(sigma, lower=True)
    mean = cho_solve((factor, True), phi.T @ y)
    z = rng.standard_normal(M)
    mean + 1e-3 * solve_triangular(factor, z, lower=True, trans="T")


def _negative(
    features: RandomFeatures, weights: np.ndarray
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = features.function_and_gradient(point[None], weights)
        return -float(value[0]), -gradient[0]

    return negative
