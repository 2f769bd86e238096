"""Random Fourier features: their inner products, and their gradients."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from flwr_fbo.models.features import RandomFeatures


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_features_have_the_kernels_variance_and_inner_products(
    rng: np.random.Generator,
) -> None:
    features = RandomFeatures.draw(rng, 4000, 2, lengthscale=0.3, variance=2.5)
    x = rng.random((20, 2))
    phi = features(x)
    np.testing.assert_allclose(np.sum(phi * phi, axis=1), 2.5)
    distances = np.sum((x[:, None] - x[None]) ** 2, axis=-1)
    kernel = 2.5 * np.exp(-distances / (2 * 0.3**2))
    np.testing.assert_allclose(phi @ phi.T, kernel, atol=0.2)


@pytest.mark.parametrize("per_point", [False, True])
def test_feature_gradient_is_exact(rng: np.random.Generator, per_point: bool) -> None:
    features = RandomFeatures.draw(rng, 40, 3, lengthscale=0.4, variance=1.7)
    x = rng.random((5, 3))
    weights = rng.standard_normal((5, 40) if per_point else 40)
    values, gradient = features.function_and_gradient(x, weights)
    np.testing.assert_allclose(values, features.function(x, weights))
    for i in range(5):
        w = weights[i] if per_point else weights

        def value(point: np.ndarray, w: np.ndarray = w) -> float:
            return float(features.function(point[None], w)[0])

        numeric = approx_fprime(x[i], value, 1e-7)
        np.testing.assert_allclose(gradient[i], numeric, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lengthscale", "variance"), [(1.0, 2.0), (0.01, 1e-20), (1e-6, 1e120)]
)
def test_rough_values_are_near_the_function(
    rng: np.random.Generator, lengthscale: float, variance: float
) -> None:
    features = RandomFeatures.draw(rng, 100, 2, lengthscale, variance)
    x = rng.random((1003, 2))
    weights, index = rng.uniform(-1.0, 1.0, (4, 100)), rng.integers(0, 4, 1003)
    rough = features.rough_values(x, weights, index)
    largest = np.sqrt(variance) * np.max(np.linalg.norm(weights, axis=1))
    np.testing.assert_allclose(
        rough, features.function(x, weights[index]), rtol=0, atol=2e-6 * largest
    )
