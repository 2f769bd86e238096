"""Bounds of the noise of an agent's sums: they hold, and are not loose."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from scipy.stats import chi, chi2, norm

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.noise_bounds import agent_bounds, paper_bounds, sum_bounds
from tests.support.continual import noise_of
from tests.support.small_release import SMALL

MECHANISMS = get_args(Mechanism)


WORST = ContinualSettings(num_releases=10**5, dimension=10, epsilon=1.0, delta=0.1)


def test_bounds_in_the_worst_case_of_the_paper() -> None:
    """Lambda = 41,680 an agent."""
    paper = replace(WORST, mechanism="tree", calibration="paper")
    published = paper_bounds(paper, 0.01, 100)
    assert published.rho_min == pytest.approx(41_680, abs=1)
    assert published.shift == 2 * published.rho_min
    assert published.rho_max == 3 * published.rho_min
    # Proposition 4: m = 18, L = 1, and 2 n M / alpha = 2e9.
    kappa = math.sqrt(18 * 2 * (math.sqrt(10) + 2 * math.log(2e9)) / math.sqrt(2))
    assert published.kappa == pytest.approx(kappa, rel=1e-12)
    assert kappa == pytest.approx(34.22, abs=0.01)
    assert published.cross_norm == pytest.approx(kappa * math.sqrt(published.rho_min))


@pytest.mark.slow
def test_our_bounds_in_the_worst_case_of_the_paper() -> None:
    """200 times less an agent, and 2,000 times on the server's sum."""
    assert agent_bounds(WORST, 0.01, 100).rho_min <= 41_680 / 200
    assert sum_bounds(WORST, 0.01, 100).rho_min <= 100 * 41_680 / 2000


@pytest.mark.parametrize(("d", "num_agents"), [(1, 1), (10, 1), (10, 50)])
def test_our_bounds_are_those_of_the_formulas(d: int, num_agents: int) -> None:
    """Each of the two fails with probability p: one end of the spectrum with p/2."""
    settings, alpha = replace(SMALL, dimension=d, num_releases=8), 0.05
    p = alpha / (2 * 8)
    std = math.sqrt(num_agents) * float(settings.release_std().max())
    bounds = sum_bounds(settings, alpha, num_agents)
    operator_norm = std * (math.sqrt(2) * chi.mean(d) + norm.isf(p / 2))
    cross_norm = std * math.sqrt(chi2.isf(p, d) / 2)
    assert bounds.rho_min == pytest.approx(operator_norm, rel=1e-9)
    assert bounds.shift == 2 * bounds.rho_min
    assert bounds.rho_max == 3 * bounds.rho_min
    assert bounds.cross_norm == pytest.approx(cross_norm, rel=1e-9)
    assert bounds.kappa == pytest.approx(cross_norm / math.sqrt(operator_norm))


def test_bounds_for_agents_are_a_union_over_them() -> None:
    assert agent_bounds(SMALL, 0.1, 10) == agent_bounds(SMALL, 0.01)
    assert sum_bounds(SMALL, 0.1, 1) == agent_bounds(SMALL, 0.1)


@pytest.mark.parametrize(
    ("mechanism", "d", "n", "tight"),
    [
        *((mechanism, 5, 8, 0.55) for mechanism in MECHANISMS),
        ("toeplitz", 80, 2, 0.85),  # the larger d, the less there is to the tail
    ],
)
def test_the_bounds_hold_and_are_not_loose(
    mechanism: Mechanism, d: int, n: int, tight: float
) -> None:
    """In 100 runs of three agents through the mechanism itself, at alpha = 0.2."""
    num_agents, num_runs, alpha = 3, 100, 0.2
    settings = replace(SMALL, mechanism=mechanism, dimension=d, num_releases=n)
    alone, summed = np.empty((num_runs, 2)), np.empty((num_runs, 2))
    for run in range(num_runs):
        agents = range(num_agents)
        noise = np.array([noise_of(settings, run, agent) for agent in agents])
        alone[run] = _largest(noise)
        summed[run] = _largest(noise.sum(axis=0))
    for norms, bounds in (
        (alone, agent_bounds(settings, alpha, num_agents)),
        (summed, sum_bounds(settings, alpha, num_agents)),
    ):
        cross_norm = bounds.kappa * math.sqrt(bounds.rho_min)
        failed = (norms[:, 0] > bounds.rho_min) | (norms[:, 1] > cross_norm)
        assert failed.mean() <= alpha
        block, cross = np.quantile(norms, 1 - alpha, axis=0)
        assert block >= tight * bounds.rho_min
        assert cross >= 0.7 * cross_norm


def _largest(noise: FloatArray) -> tuple[float, float]:
    """Return the largest norms of the d x d block and of the cross block."""
    block = np.linalg.norm(noise[..., :-1, :-1], ord=2, axis=(-2, -1))
    cross = np.linalg.norm(noise[..., :-1, -1], axis=-1)
    return float(block.max()), float(cross.max())


@pytest.mark.parametrize(
    ("change", "alpha", "num_agents", "words"),
    [
        ({}, 0.0, 1, "alpha=0.0"),
        ({}, 0.1, 0, "num_agents=0"),
        ({"epsilon": math.inf}, 0.1, 1, "epsilon=inf"),
        ({"calibration": "exact"}, 0.1, 1, "calibration='exact'"),
    ],
)
def test_bad_bounds_are_named(
    change: dict[str, Any], alpha: float, num_agents: int, words: str
) -> None:
    paper = replace(SMALL, mechanism="tree", calibration="paper")
    settings = replace(paper, **change)
    with pytest.raises(ValueError, match="is not allowed") as error:
        paper_bounds(settings, alpha, num_agents)
    assert words in str(error.value)
