"""What the choices in models/ and agents/ buy, as ratios measured in one run.

    python benchmarks/small_linear_algebra.py

Each row is the CPU time of the alternative over that of what the package does: above 1,
the package's way is the faster one.
"""

import time
from collections.abc import Callable

import numpy as np
from optuna.distributions import FloatDistribution
from rich.console import Console
from rich.table import Table
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

from flwr_fbo.agents.acquisition import maximize
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.gp import fit_hyperparameters
from flwr_fbo.models.linear import sample_weights
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.space import SearchSpace, SubRegions

M, D, T, AGENTS, REPEATS = 100, 2, 40, 200, 7


def cpu_seconds(function: Callable[[], object]) -> float:
    """Return the median CPU time of a call, all threads together."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return float(np.median(times))


def main() -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    x, y = rng.random((T, D)), rng.random(T)
    features = RandomFeatures.draw(rng, M, D, 0.2)
    phi = features(x)
    weights = rng.standard_normal((1, M))
    plane = SearchSpace({name: FloatDistribution(0.0, 1.0) for name in "xy"})
    whole = SubRegions.from_edges([np.array([0.0, 1.0])] * D)

    def small() -> None:
        for _ in range(AGENTS):
            sample_weights(phi, y, 1e-6, rng)

    def full() -> None:
        for _ in range(AGENTS):
            sigma = phi.T @ phi + 1e-6 * np.eye(M)
            factor, _ = cho_factor(sigma, lower=True)
            mean = cho_solve((factor, True), phi.T @ y)
            z = rng.standard_normal(M)
            mean + 1e-3 * solve_triangular(factor, z, lower=True, trans="T")

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
        maximize(features, weights, plane, whole, rng, 1000, 20)

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

    one = one_blas_thread
    rows = [
        ("weights, t = 40: M x M form / t x t form", one(full), one(small)),
        ("weights, 200 agents: batched / in a loop", one(batched), one(small)),
        (
            "1000 candidates: double precision / single",
            one(double_precision),
            one(single_precision),
        ),
        ("acquisition: 20 searches / one", one(separate_searches), one(joint_search)),
        ("GP fit: all BLAS threads / one thread", fit, one(fit)),
        ("weights: all BLAS threads / one thread", small, one(small)),
    ]
    table = Table("alternative / what the package does", "ms", "ms", "ratio")
    for name, alternative, ours in rows:
        ours(), alternative()
        theirs, mine = cpu_seconds(alternative), cpu_seconds(ours)
        table.add_row(
            name, f"{1e3 * theirs:.1f}", f"{1e3 * mine:.1f}", f"{theirs / mine:.1f}"
        )
    Console().print(table)


def _negative(
    features: RandomFeatures, weights: np.ndarray
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    def negative(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = features.function_and_gradient(point[None], weights)
        return -float(value[0]), -gradient[0]

    return negative


if __name__ == "__main__":
    main()
