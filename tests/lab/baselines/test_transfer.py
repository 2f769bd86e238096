"""RGPE and TAF against their formulas, written out, on small cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from scipy.stats import norm

from flwr_fbo import Host
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.baselines.transfer import (
    Posterior,
    RGPEAgent,
    RGPESettings,
    Surrogates,
    TAFAgent,
    TAFSettings,
    TransferAgent,
    discordant_share,
    ensemble_improvement,
    ensemble_weights,
    epanechnikov,
    left_out_misranked,
    maximize_function,
    misranked_pairs,
    transfer_improvement,
)
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.models.features import RandomFeatures
from flwr_fbo.models.thompson_gp import Hyperparameters, posterior_weights
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning import SearchSpace
from flwr_fbo.tuning.fts.server import FTSServer
from flwr_fbo.tuning.search.study import TuningStudy, create_agent
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    CountingGrid,
    assert_same,
    numpy_app,
    objective_of,
)

H = Hyperparameters(variance=1.3, lengthscale=0.4, noise=0.05)
LAMBDA = 0.01
M = 12


def _data(num: int, seed: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    x = rng.random((num, 2))
    return x, np.sin(3 * x[:, 0]) + x[:, 1] + 0.1 * rng.standard_normal(num)


FEATURES = RandomFeatures.draw(np.random.default_rng(0), M, 2, 0.5)
OWN = Posterior(*_data(6, 1), H)
SOURCES = [_data(9, 2), _data(4, 3), _data(20, 4)]


def _message(x: FloatArray, y: FloatArray) -> FloatArray:
    nu, inverse = posterior_weights(FEATURES(x), y, LAMBDA)
    return np.concatenate([nu, inverse.ravel()])


OTHERS = Surrogates(FEATURES, np.array([_message(*s) for s in SOURCES]), LAMBDA)
NEW = np.random.default_rng(9).random((7, 2))


def _kernel(a: FloatArray, b: FloatArray) -> float:
    return H.variance * math.exp(-0.5 * float(np.sum((a - b) ** 2)) / H.lengthscale**2)


def _exact(
    x: FloatArray, y: FloatArray, new: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return a GP's mean and variance, by the inverse."""
    K = np.array([[_kernel(a, b) for b in x] for a in x]) + H.noise * np.eye(len(x))
    inverse = np.linalg.inv(K)
    k = np.array([[_kernel(a, b) for b in x] for a in new])
    return k @ inverse @ y, H.variance - np.sum(k @ inverse * k, axis=1)


def test_the_targets_model_is_the_exact_posterior() -> None:
    mean, variance = OWN.predict(NEW)
    expected = _exact(OWN.x, OWN.y, NEW)
    np.testing.assert_allclose(mean, expected[0], atol=1e-10)
    np.testing.assert_allclose(variance, expected[1], atol=1e-10)


def test_leave_one_out_leaves_one_out() -> None:
    samples = OWN.leave_one_out(40_000, np.random.default_rng(8))
    assert samples.shape == (6, 40_000, 6)
    for j in range(len(OWN.y)):
        rest = np.arange(len(OWN.y)) != j
        mean, variance = _exact(OWN.x[rest], OWN.y[rest], OWN.x)
        np.testing.assert_allclose(samples[j].mean(axis=0), mean, atol=0.03)
        np.testing.assert_allclose(samples[j].var(axis=0), variance, atol=0.03)
    # Jointly, not point by point.
    one = Posterior(OWN.x[1:], OWN.y[1:], H)
    close = np.vstack([NEW[:1], NEW[:1] + 1e-6])
    pair = one.samples(close, 100, np.random.default_rng(0))
    np.testing.assert_allclose(pair[:, 0], pair[:, 1], atol=1e-3)


def test_messages_are_posteriors_of_the_weights() -> None:
    """And predict as linear regression in its other form, by the covariance."""
    for row, (x, y) in enumerate(SOURCES):
        phi, new = FEATURES(x), FEATURES(NEW)
        gram = np.linalg.inv(phi @ phi.T + LAMBDA * np.eye(len(y)))
        mean = new @ phi.T @ gram @ y
        variance = np.sum(new**2, axis=1) - np.sum(
            new @ phi.T @ gram * (new @ phi.T), 1
        )
        np.testing.assert_allclose(OTHERS.means(NEW)[row], mean, atol=1e-9)
        np.testing.assert_allclose(OTHERS.variances(NEW)[row], variance, atol=1e-9)


def test_samples_have_the_posteriors_moments() -> None:
    samples = OTHERS.samples(NEW, 40_000, np.random.default_rng(5))
    assert samples.shape == (3, 40_000, 7)
    np.testing.assert_allclose(samples.mean(axis=1), OTHERS.means(NEW), atol=0.03)
    for row, (x, y) in enumerate(SOURCES):
        _, inverse = posterior_weights(FEATURES(x), y, LAMBDA)
        expected = LAMBDA * FEATURES(NEW) @ inverse @ FEATURES(NEW).T
        np.testing.assert_allclose(np.cov(samples[row].T), expected, atol=0.03)


def _misranked(f: FloatArray, y: FloatArray) -> int:
    pairs = itertools.product(range(len(y)), repeat=2)
    return sum((f[j] < f[k]) != (y[j] < y[k]) for j, k in pairs)


def _weights(own: FloatArray, theirs: FloatArray, y: FloatArray) -> list[float]:
    """RGPE's weights, sample by sample; own[j] is of the model without j."""
    pairs = list(itertools.product(range(len(y)), repeat=2))
    target = [
        sum((own[j, s, j] < own[j, s, k]) != (y[j] < y[k]) for j, k in pairs)
        for s in range(own.shape[1])
    ]
    losses = [target, *([_misranked(f, y) for f in model] for model in theirs)]
    limit = np.percentile(losses[0], 95)
    kept = [i for i, row in enumerate(losses) if i == 0 or np.median(row) <= limit]
    weights = [0.0] * len(losses)
    for s in range(len(losses[0])):
        least = min(losses[i][s] for i in kept)
        best = [i for i in kept if losses[i][s] == least]
        for i in best:
            weights[i] += 1 / len(best) / len(losses[0])
    return weights


def test_rgpe_is_its_formulas() -> None:
    rng = np.random.default_rng(6)
    own, theirs = OWN.leave_one_out(50, rng), OTHERS.samples(OWN.x, 50, rng)
    losses = np.vstack([left_out_misranked(own, OWN.y), misranked_pairs(theirs, OWN.y)])
    weights = ensemble_weights(losses)
    np.testing.assert_allclose(weights, _weights(own, theirs, OWN.y), atol=1e-12)
    assert weights.sum() == pytest.approx(1.0)
    assert np.count_nonzero(weights) > 1
    values = ensemble_improvement(OWN, OTHERS, weights, NEW)
    own_mean, own_variance = OWN.predict(NEW)
    for k in range(len(NEW)):
        mu = weights[0] * own_mean[k]
        total = weights[0] ** 2 * own_variance[k]
        for i in range(3):
            mu += weights[i + 1] * OTHERS.means(NEW)[i, k]
            total += weights[i + 1] ** 2 * OTHERS.variances(NEW)[i, k]
        gain = mu - OWN.y.max()
        z = gain / math.sqrt(total)
        improvement = gain * norm.cdf(z) + math.sqrt(total) * norm.pdf(z)
        assert values[k] == pytest.approx(improvement, abs=1e-9)


def test_a_model_that_only_dilutes_is_dropped() -> None:
    losses = np.array([[4, 6, 8, 10], [3, 9, 5, 11], [12, 0, 12, 12]])
    # The last one's median is beyond the 95th percentile of the first, 9.7, so that
    # its best sample counts for nothing.
    np.testing.assert_allclose(ensemble_weights(losses), [0.5, 0.5, 0.0])
    ties = np.array([[4, 6], [4, 7]])
    np.testing.assert_allclose(ensemble_weights(ties), [0.75, 0.25])


def test_taf_is_its_formulas() -> None:
    means = OTHERS.means(OWN.x)
    discordant = discordant_share(means, OWN.y)
    weights = epanechnikov(discordant / 0.5)
    values = transfer_improvement(OWN, OTHERS, weights, NEW)
    mu, variance = OWN.predict(NEW)
    for i in range(3):
        pairs = list(itertools.permutations(range(6), 2))
        wrong = sum(
            (means[i][j] < means[i][k]) != (OWN.y[j] < OWN.y[k]) for j, k in pairs
        )
        t = wrong / len(pairs) / 0.5
        expected = 0.75 * (1 - t * t) if t <= 1 else 0.0
        assert weights[i] == pytest.approx(expected, abs=1e-12)
    for k in range(len(NEW)):
        deviation = math.sqrt(variance[k])
        z = (mu[k] - OWN.y.max()) / deviation
        total = 0.75 * deviation * (z * norm.cdf(z) + norm.pdf(z))
        for i in range(3):
            gain = OTHERS.means(NEW)[i, k] - max(means[i])
            total += weights[i] * max(0.0, gain)
        expected = total / (0.75 + sum(weights))
        assert values[k] == pytest.approx(expected, abs=1e-9)


def test_any_function_is_maximised() -> None:
    def bump(x: FloatArray) -> FloatArray:
        return np.asarray(-((x[:, 0] - 0.37) ** 2) - (x[:, 1] - 2.0) ** 2)

    space = SearchSpace({"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)})
    x = maximize_function(bump, space, np.random.default_rng(0), 50, 3)
    np.testing.assert_allclose(x, [0.37, 1.0], atol=1e-5)
    mixed = SearchSpace({"a": IntDistribution(1, 3), "b": FloatDistribution(0, 1)})
    x = maximize_function(bump, mixed, np.random.default_rng(0), 50, 3)
    assert mixed.from_unit(x) == {"a": 2, "b": 1.0}


SMALL: dict[str, Any] = {"num_initial": 4, "num_features": 15, "num_candidates": 60}
BOTH: tuple[tuple[RGPESettings | TAFSettings, int], ...] = (
    (RGPESettings(**SMALL), 15 + 15**2),
    (TAFSettings(**SMALL), 15 + 15**2 + 1),
)


@pytest.mark.parametrize(("settings", "length"), BOTH)
def test_through_flower_and_without(
    settings: RGPESettings | TAFSettings, length: int
) -> None:
    """The same queries; a message is M + M^2 numbers, and one more for TAF."""

    def strategy() -> TuningStrategy:
        study = TuningStudy(
            SearchSpace(SPACE), "maximize", settings, study_seed=11, feature_seed=12
        )
        server = FTSServer(NUM_AGENTS, settings.message_length, settings.share_after)
        return TuningStrategy(server, study)

    with_flower, without = strategy(), strategy()
    grid = CountingGrid(numpy_app(), NUM_AGENTS)
    with_flower.start(grid, num_rounds=3, host=Host(patience=0.0))
    agents = [create_agent(without.study, n, 11) for n in range(NUM_AGENTS)]
    objectives = [objective_of(n) for n in range(NUM_AGENTS)]
    run_loop(without.server, agents, objectives, 2)
    assert_same(grid.agents(with_flower.study), agents)
    assert [s for s in grid.sizes if s] == [[length]] * NUM_AGENTS


@pytest.mark.parametrize("kind", [RGPEAgent, TAFAgent])
def test_who_knows_the_function_leads_there(kind: Callable[..., TransferAgent]) -> None:
    """A target with three observations finds what another agent has found."""
    make = RGPESettings if kind is RGPEAgent else TAFSettings
    settings = make(lengthscale=0.3, num_features=40, num_candidates=400)
    space = SearchSpace({"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)})

    def told(slot: int, num: int) -> TransferAgent:
        agent = kind(space, "maximize", settings, slot, 3, 4)
        for x in np.random.default_rng(slot).random((num, 2)):
            agent.tell(0, x, float(np.exp(-8 * np.sum((x - [0.8, 0.3]) ** 2))))
        return agent

    source, target = told(1, 60), told(0, 5)
    target.receive(
        np.array([np.full(settings.message_length, np.nan), source.message(0)])
    )
    x = target.suggest(1)
    assert np.linalg.norm(x - [0.8, 0.3]) < 0.15


def test_a_lying_message_stops_nobody() -> None:
    """One whose Sigma^-1 is no inverse of anything."""
    agent = RGPEAgent(SearchSpace(SPACE), "maximize", RGPESettings(**SMALL), 0, 1, 2)
    for x in np.random.default_rng(0).random((5, 3)):
        agent.tell(0, x, float(x.sum()))
    vectors = 1e3 * np.random.default_rng(1).standard_normal((3, 240))
    vectors[0] = np.nan
    agent.receive(vectors)
    assert np.all((agent.suggest(1) >= 0) & (agent.suggest(1) <= 1))


def test_strange_messages_are_refused() -> None:
    agent = RGPEAgent(SearchSpace(SPACE), "maximize", RGPESettings(**SMALL), 0, 1, 2)
    for wrong in (np.zeros((0, 240)), np.array([[np.nan] + [0.0] * 239])):
        with pytest.raises(ValueError, match="expected one of length 240"):
            agent.receive(wrong)
    with pytest.raises(
        ValueError, match=r"shape \(4, 15\); expected one of length 240"
    ):
        agent.receive(np.zeros((4, 15)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RGPESettings(num_samples=0), "num_samples=0 is not allowed"),
        (lambda: TAFSettings(bandwidth=0.0), r"bandwidth=0\.0 is not allowed"),
    ],
)
def test_settings_are_checked(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
