"""What a site believes of its own parameter: formulas, and sets that must hold it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from flwr_fbo import ContinualSettings, FeatureEncoder, LinearUCBSettings, Number
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.algorithms.linear_bandit import site_belief
from flwr_fbo.algorithms.linear_bandit.confidence import Belief, Confidence
from flwr_fbo.algorithms.linear_bandit.settings import LocalData, SiteDeviation
from flwr_fbo.algorithms.linear_bandit.site_belief import SiteBelief, own_confidence
from flwr_fbo.models.ellipsoid import Ellipsoid

D, M = 4, 5
EXACT = ContinualSettings(3, D, epsilon=math.inf, delta=1e-5, reward_range=(-3.0, 3.0))
NOISY = replace(EXACT, epsilon=50.0)
SETTINGS = LinearUCBSettings(EXACT, local_data="released", noise_scale=0.1)
PARTS = [("theta_1", "theta_3"), ()]


def trials(theta: FloatArray, n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return actions of norm 1, of the same law at all sites, and rewards."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, x @ theta + rng.uniform(-0.1, 0.1, n)


def site_thetas(deviation: SiteDeviation, seed: int) -> FloatArray:
    """Return parameters of M sites that are as far from their mean as is allowed."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=D)
    theta *= 0.5 / np.linalg.norm(theta)
    z = deviation.coordinates(SETTINGS.feature_names)
    delta = np.zeros((M, D))
    delta[:, z] = rng.normal(size=(M, len(z)))
    delta -= delta.mean(axis=0)
    delta *= deviation.bound / np.linalg.norm(delta, axis=1).max()
    return np.asarray(theta + delta)


def beliefs(
    settings: LinearUCBSettings, n: int = 60, seed: int = 0
) -> tuple[list[SiteBelief], Ellipsoid, FloatArray, FloatArray]:
    """Return what M sites believe, the shared ellipsoid, their sums and thetas."""
    assert settings.site_deviation is not None
    thetas = site_thetas(settings.site_deviation, seed)
    releases = settings.releases
    sums = np.array(
        [
            releases.gram(*trials(theta, n, 100 * seed + i))
            for i, theta in enumerate(thetas)
        ]
    )
    confidence = Confidence.of(settings, M)
    shared = confidence.ellipsoid(sums.sum(axis=0))
    found = [SiteBelief(confidence, shared, own) for own in sums]
    return found, shared, sums, thetas


def squared(t: FloatArray, belief: Belief) -> float:
    """Return (||t - estimate||_V / w)^2."""
    factor = belief.ellipsoid.factor / belief.width
    return float(np.sum((factor.T @ (t - belief.ellipsoid.estimate)) ** 2))


@pytest.mark.parametrize("features", PARTS)
@pytest.mark.parametrize("bound", [0.01, 1.0])
@pytest.mark.parametrize("local_data", ["raw", "released"])
def test_belief_is_that_of_the_formulas(
    features: tuple[str, ...], bound: float, local_data: LocalData
) -> None:
    """With explicit inverses, every q and every a."""
    deviation = SiteDeviation(bound, features)
    settings = replace(SETTINGS, site_deviation=deviation, local_data=local_data)
    sites, shared, sums, _ = beliefs(settings)
    confidence = Confidence.of(settings, M)
    w = float(confidence.width_at(shared.log_det, shared.least_eigenvalue))
    V = shared.factor @ shared.factor.T
    variance = np.linalg.inv(V) * w**2
    allowed = np.zeros((D, D))
    for i in deviation.coordinates(SETTINGS.feature_names):
        allowed[i, i] = bound**2
    P = max(
        (
            np.linalg.inv((1 + 1 / q) * variance + (1 + q) * allowed)
            for q in site_belief._FACTORS
        ),
        key=np.linalg.det,
    )
    own = own_confidence(confidence)
    for site, part in zip(sites, sums, strict=True):
        alone = part[:D, :D] + settings.ridge * np.eye(D)
        log_det, least = np.linalg.slogdet(alone)[1], np.linalg.eigvalsh(alone)[0]
        W = alone / float(own.width_at(np.asarray(log_det), np.asarray(least))) ** 2
        centres = shared.estimate, np.linalg.inv(alone) @ part[:D, D]
        found = []
        for a in (0, 0.25, 0.5, 0.75, 1):
            parts = a * P, (1 - a) * W
            whole = parts[0] + parts[1]
            pairs = list(zip(parts, centres, strict=True))
            middle = np.linalg.inv(whole) @ sum(one @ t for one, t in pairs)
            left = 1 - sum((t - middle) @ one @ (t - middle) for one, t in pairs)
            if left > 1e-9:
                volume = left**D / np.linalg.det(whole)
                found.append((volume, whole, middle, math.sqrt(left)))
        _, best, middle, width = min(found, key=lambda row: row[0])
        ellipsoid = site.belief.ellipsoid
        np.testing.assert_allclose(ellipsoid.factor @ ellipsoid.factor.T, best)
        np.testing.assert_allclose(ellipsoid.estimate, middle)
        np.testing.assert_allclose(site.belief.width, width)


def test_a_site_that_is_farther_than_allowed_is_alone() -> None:
    settings = replace(SETTINGS, site_deviation=SiteDeviation(1e-3))
    confidence, x = Confidence.of(settings, M), np.eye(D)
    far = 1000 * EXACT.gram(x, x @ np.full(D, 0.5))
    own = 1000 * EXACT.gram(x, x @ np.full(D, -0.5))
    shared = confidence.ellipsoid(far + own)
    site = SiteBelief(confidence, shared, own)
    alone = own_confidence(confidence).ellipsoid(own)
    np.testing.assert_allclose(site.belief.ellipsoid.estimate, alone.estimate)
    assert site.belief.width == 1


@pytest.mark.parametrize("features", PARTS)
def test_all_that_both_allow_is_within(features: tuple[str, ...]) -> None:
    """Of points at the edge of what the proof allows, by rejection."""
    settings = replace(SETTINGS, site_deviation=SiteDeviation(0.1, features))
    sites, shared, sums, _ = beliefs(settings, n=20)
    confidence = Confidence.of(settings, M)
    whole, rng, checked = confidence.belief(shared), np.random.default_rng(1), 0
    own = own_confidence(confidence)
    alone = [own.belief(own.ellipsoid(part)) for part in sums]
    z = SiteDeviation(0.1, features).coordinates(SETTINGS.feature_names)
    for _ in range(1000):
        unit = rng.normal(size=D)
        unit *= whole.width / np.linalg.norm(unit)
        step = rng.normal(size=len(z))
        t = shared.estimate + shared.unwhitened(unit[:, None])[:, 0]
        t[z] += 0.1 * step / np.linalg.norm(step)
        for site, of_data in zip(sites, alone, strict=True):
            if squared(t, of_data) <= 1:
                checked += 1
                assert squared(t, site.belief) <= 1 + 1e-9
    assert checked > 100


@pytest.mark.parametrize("features", PARTS)
@pytest.mark.parametrize("local_data", ["raw", "released"])
def test_a_sites_own_parameter_is_within(
    features: tuple[str, ...], local_data: LocalData
) -> None:
    deviation = SiteDeviation(0.2, features)
    settings = replace(SETTINGS, site_deviation=deviation, local_data=local_data)
    for seed in range(8):
        sites, *_, thetas = beliefs(settings, seed=seed)
        z = deviation.coordinates(SETTINGS.feature_names)
        for site, theta in zip(sites, thetas, strict=True):
            assert squared(theta, site.belief) <= 1
            error = site.belief.ellipsoid.estimate - theta
            assert np.all(np.abs(error) <= site.belief.coordinate_widths)
            estimate, width = site.deviation
            delta = (theta - thetas.mean(axis=0))[z]
            assert np.all(np.abs(estimate - delta) <= width)


def test_deviation_is_found_with_data() -> None:
    settings = replace(SETTINGS, site_deviation=SiteDeviation(0.2, ["theta_2"]))
    sites, *_, thetas = beliefs(settings, n=20_000)
    for site, theta in zip(sites, thetas, strict=True):
        estimate, width = site.deviation
        delta = theta - thetas.mean(axis=0)
        assert abs(estimate[0] - delta[2]) < 0.01
        assert width[0] < 0.2
        np.testing.assert_allclose(site.belief.ellipsoid.estimate, theta, atol=0.02)


def test_far_sites_are_alone_and_near_ones_share() -> None:
    near = beliefs(replace(SETTINGS, site_deviation=SiteDeviation(1e-6)), n=200)
    settings = replace(SETTINGS, site_deviation=SiteDeviation(100.0))
    for part in near[2]:
        far = SiteBelief(Confidence.of(settings, M), near[1], part)
        alone = far._confidence.ellipsoid(part)
        np.testing.assert_allclose(far.belief.ellipsoid.estimate, alone.estimate)
    for site in near[0]:
        np.testing.assert_allclose(
            site.belief.ellipsoid.estimate, near[1].estimate, atol=1e-4
        )


def test_own_release_has_the_bounds_of_one_agents_noise() -> None:
    settings = replace(
        SETTINGS, releases=NOISY, site_deviation=SiteDeviation(0.1), alpha=0.04
    )
    confidence = Confidence.of(settings, M)
    own = own_confidence(confidence)
    assert own.alpha == pytest.approx(0.04 / 2 / M)
    plain = replace(settings, site_deviation=None)
    assert own.bounds == Confidence(plain, 1, 0.04 / 2 / M).bounds
    assert confidence.bounds == Confidence(plain, M, 0.02).bounds
    raw = own_confidence(Confidence.of(replace(settings, local_data="raw"), M))
    assert raw.bounds.rho_max == settings.ridge


ENCODER = FeatureEncoder({"age": Number(0, 110)}, blocks=("ward", "home"))


@pytest.mark.parametrize(
    ("bound", "features", "message"),
    [
        (0.0, (), "bound=0.0 is not allowed"),
        (math.nan, (), "bound=nan"),
        ("0.1", (), "bound='0.1'"),
        (0.1, "intercept", "features='intercept'.*a list of names"),
        (0.1, [3], "features=3"),
        (0.1, ["a", "a"], "each name once"),
    ],
)
def test_bad_deviations(bound: float, features: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SiteDeviation(bound, features)


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"site_deviation\.features='theta_9'"):
        replace(SETTINGS, site_deviation=SiteDeviation(0.1, ["theta_9"]))
    releases = replace(EXACT, dimension=ENCODER.dimension)
    settings = LinearUCBSettings(releases, local_data="released", encoder=ENCODER)
    with pytest.raises(ValueError, match=r"'ward: intercep'.*'ward: intercept'"):
        replace(settings, site_deviation=SiteDeviation(0.1, ["ward: intercep"]))
    with pytest.raises(ValueError, match="where sites differ"):
        replace(SETTINGS, site_deviation=SiteDeviation(0.1), width="paper")
    with pytest.raises(ValueError, match="site_deviation="):
        replace(SETTINGS, site_deviation=0.1)  # type: ignore[arg-type]


def test_settings_travel() -> None:
    releases = replace(EXACT, dimension=ENCODER.dimension)
    names = ["home: intercept", "ward: intercept"]
    settings = LinearUCBSettings(
        releases,
        local_data="released",
        encoder=ENCODER,
        site_deviation=SiteDeviation(0.1, names),
    )
    assert settings.deviating_features == ("ward: intercept", "home: intercept")
    assert from_json(LinearUCBSettings, to_json(settings)) == settings
