"""Widths of confidence, exact and observed, against formulas with explicit inverses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.noise_bounds import agent_bounds, paper_bounds, sum_bounds
from tests.support.confidence import PRIVATE, D, confidence, total_of, width_of

PUBLISHED = replace(PRIVATE, mechanism="tree", calibration="paper")


def looking(exact: Confidence) -> Confidence:
    return replace(exact, settings=replace(exact.settings, width="observed"))


def test_exact_width() -> None:
    s = confidence(
        PRIVATE, num_agents=7, noise_scale=0.3, parameter_norm=2.0, alpha=0.1
    )
    bounds = sum_bounds(PRIVATE, 0.05, 7)
    assert s.bounds == bounds
    V = np.diag([1e3, 2e3, 3e3, 4e3])
    log_ratio = math.log(np.linalg.det(V)) - 4 * math.log(bounds.rho_min)
    expected = 0.3 * math.sqrt(2 * math.log(2 * 7 / 0.1) + log_ratio)
    expected += 2.0 * math.sqrt(bounds.rho_max) + bounds.kappa
    assert width_of(s, V) == pytest.approx(expected)


@pytest.mark.parametrize("width", ["paper", "authors", "exact"])
def test_the_published_threshold_and_bounds_on_synchronisations(width: Any) -> None:
    """Theorem 1's D and n and Proposition 1, as they are printed."""
    releases = replace(PUBLISHED, max_action_norm=2.0)
    made = confidence(releases, num_agents=7, alpha=0.1)
    s = replace(made, settings=replace(made.settings, width=width))
    T, L, low, high = 5000, 2.0, s.bounds.rho_min, s.bounds.rho_max
    growth = math.log(high / low + T * L**2 / (D * low))
    trigger = s.published_trigger(T)
    assert trigger.threshold == pytest.approx(2 * T * D / (growth + 1))
    most = s.most_synchronisations(trigger, T)
    expected = 2 * math.sqrt(D * T / trigger.threshold * growth) + 4
    assert most == pytest.approx(expected)
    # With this D the bound is that of O(log T) rounds.
    assert most == pytest.approx(math.sqrt(2 * growth * (growth + 1)) + 4)
    assert s.least_synchronisations(T) == pytest.approx(D * growth)


def test_observed_width() -> None:
    values: dict[str, Any] = {"parameter_norm": 2.0, "alpha": 0.1}
    exact = confidence(PRIVATE, num_agents=7, **values)
    observed = looking(exact)
    bounds = observed.bounds
    assert bounds == exact.bounds == sum_bounds(PRIVATE, 0.05, 7)
    assert bounds.kappa == pytest.approx(bounds.cross_norm / math.sqrt(bounds.rho_min))
    most = 2.0 * bounds.rho_max + bounds.cross_norm
    prior = 2.0 * math.sqrt(bounds.rho_max) + bounds.kappa
    for least in (1.0, 0.99 * (most / prior) ** 2):  # nothing is gained yet
        V = np.diag([least, 1e9, 1e9, 1e9])
        assert width_of(observed, V) == width_of(exact, V)
    V = np.diag([1e6, 1e9, 1e9, 1e9])
    expected = width_of(exact, V) - prior + most / 1e3
    assert width_of(observed, V) == pytest.approx(expected)


def test_observed_width_is_never_above_the_exact_one() -> None:
    rng = np.random.default_rng(12)
    exact = confidence(PRIVATE)
    observed = looking(exact)
    for scale in np.geomspace(1e-3, 1e6, 50):
        x = scale * rng.standard_normal((6, D))
        model = exact.ellipsoid(total_of(x, rng.uniform(-1, 1, 6)))
        widths = [
            float(s.width_at(model.log_det, model.least_eigenvalue))
            for s in (observed, exact)
        ]
        assert widths[0] <= widths[1]
    assert widths[0] < 0.9 * widths[1]


def test_noise_and_shift_do_to_theta_what_the_observed_width_allows() -> None:
    """Where it is nearly an equality: least data in the direction of theta."""
    releases = replace(PRIVATE, dimension=2)
    s = confidence(releases, num_agents=3, alpha=0.2, width="observed")
    bounds, theta = s.bounds, np.array([1.0, 0.0])
    allowed = bounds.rho_max + bounds.cross_norm
    shares = []
    for seed in range(100):
        mechanisms = [
            ContinualRelease(releases, SeededEntropy(seed, i)) for i in range(3)
        ]
        for k in range(1, 6):
            noise = np.sum([m.release(k, np.zeros((3, 3))) for m in mechanisms], axis=0)
            R, h = noise[:2, :2] + bounds.shift * np.eye(2), noise[:2, 2]
            V = np.diag([40.0, 1e6]) * bounds.rho_max + R
            error = h - R @ theta
            length = math.sqrt(error @ np.linalg.inv(V) @ error)
            shares.append(length * math.sqrt(np.linalg.eigvalsh(V)[0]) / allowed)
    runs = np.array(shares).reshape(100, 5).max(axis=1)
    assert np.mean(runs > 1) <= 0.1  # half of alpha
    assert runs.max() > 0.75


@pytest.mark.parametrize("releases", [PRIVATE, PUBLISHED], ids=["exact", "paper"])
def test_paper_width(releases: ContinualSettings) -> None:
    s = confidence(releases, num_agents=7, width="paper", alpha=0.1)
    of_agent = paper_bounds if releases is PUBLISHED else agent_bounds
    bounds = of_agent(releases, 0.1, 7)
    assert s.bounds == bounds
    V = 7 * bounds.rho_max * np.diag([1.0, 2.0, 3.0, 4.0])
    log_ratio = math.log(np.linalg.det(V)) - 4 * math.log(7 * bounds.rho_min)
    expected = 0.5 * math.sqrt(2 * math.log(2 / 0.1) + log_ratio)
    expected += 7 * math.sqrt(bounds.rho_max) + 7 * bounds.kappa
    assert width_of(s, V) == pytest.approx(expected)
    # Algorithm 1 begins with M rho_min I (line 1); each release brings its own shift.
    for total, least in (
        (np.zeros((D + 1, D + 1)), 7 * bounds.rho_min),
        (np.eye(D + 1), 1 + 7 * bounds.shift),
    ):
        factor = s.ellipsoid(total).factor
        np.testing.assert_allclose(factor @ factor.T, least * np.eye(D))


def test_the_authors_width_is_a_hundredth_of_the_papers() -> None:
    V = 1e6 * np.diag([1.0, 2.0, 3.0, 4.0])
    paper, authors = (confidence(PUBLISHED, width=w) for w in ("paper", "authors"))
    assert width_of(authors, V) == pytest.approx(0.01 * width_of(paper, V))
    assert authors.bounds == paper.bounds
    shifted, also = (s.ellipsoid(np.zeros((D + 1, D + 1))) for s in (paper, authors))
    assert np.array_equal(shifted.factor, also.factor)


def test_without_noise_the_ridge_takes_its_place() -> None:
    s = confidence(ridge=0.25)
    V = np.diag([1.0, 2.0, 3.0, 4.0])
    volume = math.log(np.linalg.det(V) / 0.25**D)
    expected = 0.5 * math.sqrt(2 * math.log(2 * 3 / 0.01) + volume) + math.sqrt(0.25)
    assert width_of(s, V) == pytest.approx(expected)
