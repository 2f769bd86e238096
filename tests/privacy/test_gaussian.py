"""What Gaussian noise is worth: the largest mu of a budget."""

import math

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from flwr_fbo.privacy.gaussian import gaussian_delta, gaussian_mu


@hypothesis.settings(max_examples=15)
@given(st.floats(0.05, 20.0), st.floats(1e-8, 0.5))
def test_mu_is_the_largest_for_a_budget(epsilon: float, delta: float) -> None:
    """Delta by its definition, the integral of max(0, p - e^epsilon q)."""
    mu = gaussian_mu(epsilon, delta)

    def excess(x: float) -> float:
        return float(norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x))

    start = epsilon / mu + mu / 2  # where p / q = e^epsilon
    integral = quad(excess, start, start + 12, epsabs=0, epsrel=1e-10)[0]
    assert gaussian_delta(epsilon, mu) <= delta
    assert integral == pytest.approx(delta, rel=1e-5)


def test_mu_where_numbers_nearly_cancel() -> None:
    """Balle & Wang's sigma at (1, 1e-5), and both ends of the range."""
    assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(3.730632, abs=1e-6)
    for epsilon, delta in [(1e-3, 1e-15), (1e-3, 0.9), (1e3, 1e-15), (1e3, 0.9)]:
        mu = gaussian_mu(epsilon, delta)
        assert gaussian_delta(epsilon, mu) <= delta
        assert gaussian_delta(epsilon, mu * (1 + 1e-5)) > delta
