"""A site's own clean data and the others' sums: by formulas, and what it must do."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ContinualSettings,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
)
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.own_data import _mixture, evidence_of_others, weighed
from flwr_fbo.models.noisy_sums import Evidence

D = 4
RELEASES = ContinualSettings(
    5, D, epsilon=math.inf, delta=1e-5, reward_range=(-0.5, 0.5)
)
SETTINGS = LinearUCBSettings(RELEASES, local_data="own", ridge=1.5)
THETA = np.array([0.4, -0.2, 0.1, 0.3])
CAPS = (0.0, 1.0, 4.0, 16.0, 64.0, 256.0, 1e6)
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
TRIALS, LEAST = 5, 0.02


def clean_sum(theta: FloatArray, number: int, seed: int) -> FloatArray:
    """Return the sum of trials whose rewards are 1/2 or -1/2."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, D))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (rng.random(number) < 0.5 + x @ theta) - 0.5
    z = np.column_stack([x, y])
    return np.asarray(z.T @ z)


def noise(std: float, seed: int) -> FloatArray:
    normal = np.random.default_rng(seed).normal(size=(D + 1, D + 1))
    return np.asarray(std * (normal + normal.T) / 2)


def by_inverses(
    own: FloatArray, num_own: int, others: FloatArray, std: float
) -> tuple[FloatArray, FloatArray]:
    """Return covariance and mean of the mixture, of one site and model at a time."""
    alone = mixed(own, num_own, [(0.0, 1.0)], np.eye(D), np.zeros(D), np.zeros(D))
    *_, v, ridge = alone
    V, c = own[:D, :D], own[:D, D]
    eye = np.eye(D)
    G, u = others[:D, :D], others[:D, D]
    basis = np.column_stack([V.ravel(), eye.ravel()])
    c1, c2 = nnls(basis, G.ravel())[0]
    prior = c1 * V + c2 * eye
    weight = 1 - std**2 * (D + 1) / (2 * D) / np.mean((G - prior) ** 2)
    weight = max(weight, 0.0)
    g, U = np.linalg.eigh(prior + weight * (G - prior))
    g = np.maximum(g, 0)
    h = t = np.zeros(D)
    for _ in range(4):
        inverse = np.linalg.inv(V + ridge + U @ np.diag(h) @ U.T)
        theta = inverse @ (c + U @ t)
        length = theta @ theta + v * np.trace(inverse)
        k = std**2 / 2 * (1 + weight * length) / v
        h, t = g**2 / (g + k), g / (g + k) * (U.T @ u)

    caps = [(q, 0.98 if q == 0 else 0.02 / 6) for q in CAPS]
    return mixed(own, num_own, caps, U, h, t)[:2]


def mixed(
    own: FloatArray,
    num_own: int,
    caps: list[tuple[float, float]],
    U: FloatArray,
    h: FloatArray,
    t: FloatArray,
) -> tuple[FloatArray, FloatArray, float, FloatArray]:
    """Return covariance, mean, reward variance and ridge of the mixture."""
    V, c, most = own[:D, :D], own[:D, D], SETTINGS.noise_scale**2
    scale = np.trace(V) / D / num_own * np.eye(D)
    least = np.linalg.inv(V + RIDGES[0] * scale)
    v = (own[D, D] - c @ least @ c + TRIALS * most) / (num_own + TRIALS)
    v = min(max(v, LEAST * most), most)
    found, weights, ridges = [], [], []
    for ridge, (q, prior_of_cap) in product(RIDGES, caps):
        share = q / (h + q) if q else 0 * h
        H, mean = U @ np.diag(share * h) @ U.T, U @ (share * t)
        P, A = H + ridge * scale, V + H + ridge * scale
        fit = (c + mean) @ np.linalg.inv(A) @ (c + mean)
        fit -= mean @ np.linalg.inv(P) @ mean
        ratio = np.linalg.det(P) / np.linalg.det(A)
        weights.append(
            prior_of_cap / ridge * math.exp(fit / (2 * v)) * math.sqrt(ratio)
        )
        found.append((np.linalg.inv(A), np.linalg.solve(A, c + mean)))
        ridges.append(ridge)
    weights = [w / sum(weights) for w in weights]
    pairs = list(zip(weights, found, strict=True))
    theta = np.sum([w * m for w, (_, m) in pairs], axis=0)
    spread = [w * np.outer(m - theta, m - theta) for w, (_, m) in pairs]
    inverse = np.sum([w * C for w, (C, _) in pairs], axis=0)
    ridge = math.exp(np.dot(weights, np.log(ridges))) * scale
    # For sigma^2, as is the model's matrix.
    covariance = (inverse + np.sum(spread, axis=0) / v) * v / most
    return covariance, theta, v, ridge


@pytest.mark.parametrize("num_own", [3, 30, 300])
@pytest.mark.parametrize("std", [0.0, 3.0, 30.0])
def test_models_are_those_of_the_formulas(num_own: int, std: float) -> None:
    own = clean_sum(THETA, num_own, 1)
    others = clean_sum(THETA, 2000, 2) + noise(std, 3)
    found = evidence_of_others(SETTINGS, others, std, own, num_own)
    model = weighed(SETTINGS, own, num_own, found)
    covariance, mean = by_inverses(own, num_own, others, std)
    precision = np.linalg.inv(covariance)
    matrix = model.factor @ model.factor.T
    np.testing.assert_allclose(matrix, precision, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model.estimate, mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("num_own", [1, 40, 5000])
def test_own_data_can_be_solved_whatever_rounding_has_done(num_own: int) -> None:
    """All trials along one line, rounded to the grid, and next to no ridge."""
    releases = replace(RELEASES, epsilon=1.0)
    settings = replace(SETTINGS, releases=releases, ridge=1e-15)
    rng = np.random.default_rng(num_own)
    x = rng.uniform(0.0, 1.0, (num_own, 1)) * np.full(D, D**-0.5)
    own = releases.gram(x, rng.choice([-0.5, 0.5], num_own))
    model = weighed(settings, own, num_own, None)
    matrix = model.factor @ model.factor.T
    assert np.isfinite(model.estimate).all()
    values = np.linalg.eigvalsh(matrix)
    assert values[0] > 0
    assert values[-1] / values[0] < 1.01 * 2**30


def test_a_batch_is_its_sites_one_by_one() -> None:
    own = np.stack([clean_sum(THETA, n, n) for n in (5, 50, 500)])
    others = np.stack([clean_sum(THETA, 900, 7) + noise(2.0, s) for s in range(3)])
    counts = np.array([5, 50, 500])
    found = evidence_of_others(SETTINGS, others, 2.0, own, counts)
    together = weighed(SETTINGS, own, counts, found)
    for i, n in enumerate(counts):
        one = evidence_of_others(SETTINGS, others[i], 2.0, own[i], int(n))
        alone = weighed(SETTINGS, own[i], int(n), one)
        np.testing.assert_allclose(together.estimate[i], alone.estimate)


def error(own: FloatArray, num_own: int, others: Evidence | None) -> float:
    model = weighed(SETTINGS, own, num_own, others)
    return float(np.linalg.norm(model.estimate - THETA))


@pytest.mark.parametrize("seed", range(4))
def test_others_that_are_alike_count_and_opposite_ones_do_not(seed: int) -> None:
    own = clean_sum(THETA, 200, seed)
    alike = evidence_of_others(SETTINGS, clean_sum(THETA, 20_000, 90), 1.0, own, 200)
    opposite = evidence_of_others(
        SETTINGS, clean_sum(-THETA, 20_000, 91), 1.0, own, 200
    )
    alone = error(own, 200, None)
    assert error(own, 200, alike) < 0.2
    assert error(own, 200, alike) < alone
    assert error(own, 200, opposite) == pytest.approx(alone, rel=0.03)


def test_noise_alone_is_worth_nothing() -> None:
    """On average over its draws."""
    worth = []
    for seed in range(50):
        agent = agent_with(noise(40.0, seed), 40.0, clean_sum(THETA, 100, seed))
        worth.append(agent.worth_of_others)
    assert np.mean([w or 0.0 for w in worth]) < 5


def agent_with(
    others: FloatArray, std: float, own: FloatArray, num_own: int = 100
) -> LinearUCBAgent:
    """Return an agent of two that has received a total."""
    releases = RELEASES
    if std:
        unit = replace(RELEASES, epsilon=1.0, num_releases=1).noise_std
        # Noise is as good as inversely proportional to a small epsilon.
        releases = replace(RELEASES, epsilon=max(unit / std, 1e-3), num_releases=1)
    settings = replace(SETTINGS, releases=releases)
    agent = LinearUCBAgent(Confidence.of(settings, 2))
    message = noise(1.0, 5)
    agent.receive(others + message, 1, OwnPart(message, own, num_own), 1)
    return agent


def test_what_others_are_worth_is_counted_in_own_trials() -> None:
    own = clean_sum(THETA, 100, 1)
    for others in (0 * own, 3 * own, 300 * own):
        agent = agent_with(others, 0.0, own)
        worth = agent.worth_of_others
        assert worth is not None
        alone = _mixture(SETTINGS, own, 100, None)
        scaled, least = own[:D, :D] * (1 + worth / 100), alone.ridge * np.eye(D)
        more = np.linalg.slogdet(scaled + least)[1]
        more -= np.linalg.slogdet(own[:D, :D] + least)[1]
        gained = agent._belief.ellipsoid.log_det
        gained -= weighed(SETTINGS, own, 100, None).log_det
        assert gained == pytest.approx(more, abs=1e-6)
        assert (worth > 1) == bool(others.any())


def test_a_new_trial_counts_at_once_and_a_total_forgets_none() -> None:
    agent = LinearUCBAgent(Confidence.of(SETTINGS, 2))
    sums = np.zeros((D + 1, D + 1))
    for i in range(D):
        x = np.eye(D)[i]
        agent.tell(x, 0.5)
        sums += SETTINGS.releases.outer_products([x], [0.5])[0]
    expected = _mixture(SETTINGS, sums, D, None).estimate
    assert (np.abs(expected - 0.5) < 0.15).all()
    np.testing.assert_allclose(agent.estimate, expected)
    agent.receive(sums, 1, OwnPart(sums, sums, D), 0)
    np.testing.assert_allclose(agent.estimate, expected)


@pytest.mark.parametrize("size", [1e3, 1e30, 1e100, 1e160, 1e300])
def test_a_total_of_a_liar_leaves_a_site_with_its_own_data(size: float) -> None:
    own = clean_sum(THETA, 100, 1)
    rng = np.random.default_rng(3)
    lie = rng.normal(size=(D + 1, D + 1)) * size
    try:
        agent = agent_with(lie + lie.T, 0.0, own)
    except np.linalg.LinAlgError:
        return  # left aside, as the policy does
    agent.choose(np.eye(D))
    assert np.linalg.norm(agent.estimate - THETA) < 1


@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0])
def test_intervals_hold_whatever_the_others_are(distance: float) -> None:
    """Missed in any of its coordinates by less than alpha = .1 of the sites."""
    settings = replace(SETTINGS, alpha=0.1)
    rng, missed, runs = np.random.default_rng(0), 0, 200
    for seed in range(runs):
        direction = rng.normal(size=D)
        others = THETA + distance * direction / np.linalg.norm(direction)
        agent = LinearUCBAgent(Confidence.of(settings, 1))
        own = clean_sum(THETA, 60, 1000 + seed)
        total = 20 * clean_sum(others / max(1, 2 * np.linalg.norm(others)), 60, seed)
        agent.receive(own + total, 1, OwnPart(own, own, 60), 1)
        agent.tell_sum(clean_sum(THETA, 60, 2000 + seed), 60)
        apart = np.abs(agent.estimate - THETA)
        missed += bool(np.any(apart > agent.confidence_width))
    assert missed <= 0.1 * runs


def test_rewards_of_another_scale_change_nothing() -> None:
    own, others = clean_sum(THETA, 80, 1), clean_sum(THETA, 800, 2)
    scale = np.r_[np.ones(D), 100.0]
    larger = replace(SETTINGS, noise_scale=50.0, parameter_norm=100.0, width=None)
    models = []
    for settings, by in ((SETTINGS, np.ones(D + 1)), (larger, scale)):
        told, rest = own * np.outer(by, by), others * np.outer(by, by)
        found = evidence_of_others(settings, rest, 0.0, told, 80)
        models.append(weighed(settings, told, 80, found))
    np.testing.assert_allclose(models[1].estimate, 100 * models[0].estimate)
    assert larger.fixed_width == pytest.approx(100 * (SETTINGS.fixed_width or 0))


@pytest.mark.parametrize("by", [1 / 15, 1 / 3])
def test_bounds_that_are_too_wide_change_no_choice(by: float) -> None:
    fields = {f"x{i}": Number(-1, 1) for i in range(D - 2)}
    encoder = FeatureEncoder(fields, {"hours": Number(0, 9)}, interactions=[])
    settings = replace(SETTINGS, encoder=encoder)
    own = clean_sum(THETA, 60, 1)
    scale = np.array([1.0, by, by, by, 1.0])
    actions = np.random.default_rng(2).normal(size=(7, D)) / 4
    one = weighed(settings, own, 60, None).upper_bounds(actions, 0.3)
    narrow = own * np.outer(scale, scale)
    other = weighed(settings, narrow, 60, None).upper_bounds(actions * scale[:-1], 0.3)
    np.testing.assert_allclose(other, one, rtol=1e-6)


def test_rare_arms_do_not_look_small() -> None:
    """All blocks tell the scale of a number; vectors have the mean scale."""
    encoder = FeatureEncoder({"age": Number(0, 9)}, blocks=["drug", "rest"])
    settings = replace(SETTINGS, encoder=encoder)
    own = np.zeros((D + 1, D + 1))
    own[:D, :D] = 20 * np.diag([0.5, 0.01, 0.05, 0.001])
    own[D, D] = 20 * 0.25
    share = _mixture(settings, own, 20, None).ridge
    np.testing.assert_allclose(share / share[0], [1, 0.02, 1, 0.02])
    of_vectors = _mixture(SETTINGS, own, 20, None).ridge
    np.testing.assert_allclose(of_vectors, of_vectors[0])


def test_nothing_is_told_of_scales_before_the_first_trial() -> None:
    found = _mixture(SETTINGS, np.zeros((D + 1, D + 1)), 0, None)
    np.testing.assert_allclose(found.ridge, found.ridge[0])
    assert 0.1 / D <= found.ridge[0] <= 30 / D


def test_the_reward_variance_is_learned() -> None:
    own = clean_sum(THETA, 1000, 1)
    variance = _mixture(SETTINGS, own, 1000, None).variance
    assert variance == pytest.approx(0.25 - THETA @ THETA / D, abs=0.01)
    sure = own.copy()
    sure[D, D] = own[:D, D] @ np.linalg.solve(own[:D, :D], own[:D, D])
    variance = _mixture(SETTINGS, sure, 1000, None).variance
    assert variance == pytest.approx(LEAST * 0.25)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"local_data": None}, "local_data=None is not allowed"),
        ({"local_data": "mine"}, "local_data='mine'"),
        ({"width": "observed"}, "width='observed' .* a number, with local_data='own'"),
        ({"width": 0.0}, "width=0.0"),
        ({"width": True}, "width=True"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(SETTINGS, **changes)


def test_the_error_names_what_there_is_to_choose() -> None:
    with pytest.raises(ValueError, match="local_data=None") as error:
        LinearUCBSettings(RELEASES)
    lines = str(error.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "'own'",
        "'released'",
        "'raw'",
    ]
    assert all("Protected: " in line and "Costs " in line for line in lines[1:])


def test_after_a_drift_a_site_falls_back_to_its_own_data() -> None:
    """Others' last sum is from before; its worth is the monitor that tells."""
    before, after = THETA, -THETA
    own = clean_sum(before, 100, 4)
    shared = clean_sum(before, 20_000, 5)
    agent = LinearUCBAgent(Confidence.of(SETTINGS, 20))
    agent.receive(shared + own, 1, OwnPart(own, own, 100), 19)
    worth = agent.worth_of_others
    assert worth is not None
    assert worth > 100
    later = clean_sum(after, 150, 6)
    agent.tell_sum(later, 150)
    fallen = agent.worth_of_others
    assert fallen is not None
    assert fallen < 5
    alone = weighed(SETTINGS, own + later, 250, None).estimate
    np.testing.assert_allclose(agent.estimate, alone, atol=0.02)
    # Released sums have no such way back: with raw trials they still say what was.
    raw = LinearUCBAgent(Confidence.of(replace(SETTINGS, local_data="raw"), 20))
    raw.receive(shared + own, 1)
    raw.tell_sum(later, 150)
    assert float(raw.estimate @ before) > 0 > float(agent.estimate @ before)


def test_the_bound_on_theta_is_the_encoders_unless_given() -> None:
    encoder = FeatureEncoder({"age": Number(0, 9)}, blocks=("ward", "home"))
    settings = replace(SETTINGS, encoder=encoder)
    assert settings.norm_bound == encoder.parameter_norm(0.5) == pytest.approx(1.0)
    assert replace(settings, parameter_norm=3.0).norm_bound == 3.0
    assert SETTINGS.norm_bound == 1.0
