import logging
import math
from typing import Any, get_args

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr

from flwr_fbo.privacy.accounting import (
    Method,
    ReleaseAccountant,
    calibrate_noise_multiplier,
    smallest_noise_multiplier,
)
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import Release, ReleaseSettings
from flwr_fbo.privacy.sampling import Subsampling
from flwr_fbo.privacy.spending_ledger import Charge, composed_epsilon
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from tests.support.reference import reference

METHODS: tuple[Method, ...] = get_args(Method)
GRID = 1e-3  # of dp-accounting: its epsilon is within a thousandth of that on 1e-4

# Poisson-subsampled Gaussian, delta = 1/N^1.1: N, T, q, z, epsilon by pld and by rdp
# (dp-accounting 0.6.0), and by moments as it is published.
PUBLISHED = [
    (200, 40, 0.15, 1.0, 3.9636, 4.8778, 5.93),
    (200, 40, 0.25, 1.5, 3.5972, 4.2657, 5.22),
    (29, 60, 0.35, 1.0, 10.3834, 13.4953, 15.17),
    (29, 60, 0.35, 4.0, 1.1342, 1.4577, 2.16),
]


TERMS = Guarantee(CLIENT, "server")


def _epsilon(
    method: Method, q: float, delta: float, charges: list[float], count: int = 1
) -> float:
    accountant = ReleaseAccountant(q, delta, method)
    for noise_multiplier in charges:
        accountant.charge(noise_multiplier, count)
    return accountant.epsilon()


@pytest.mark.parametrize(("n", "rounds", "q", "z", "pld", "rdp", "moments"), PUBLISHED)
def test_published_epsilons(
    n: int, rounds: int, q: float, z: float, pld: float, rdp: float, moments: float
) -> None:
    delta = n**-1.1
    assert _epsilon("pld", q, delta, [z], rounds) == pytest.approx(pld, abs=1e-2)
    assert _epsilon("rdp", q, delta, [z], rounds) == pytest.approx(rdp, abs=1e-2)
    assert round(_epsilon("moments", q, delta, [z], rounds), 2) == moments


@pytest.mark.parametrize(
    "method", ["pld", "moments", pytest.param("rdp", marks=pytest.mark.slow)]
)
def test_the_whole_reference(method: Method) -> None:
    for row in reference("privacy_loss.json")["rows"]:
        charges, count = [float(row["z"])], row["T"]
        epsilon = _epsilon(method, row["q"], row["delta"], charges, count)
        if method == "moments":
            assert row["published"] in (None, round(epsilon, 2))
            assert epsilon == pytest.approx(row["moments_accountant"], abs=1e-3)
        else:
            assert epsilon == pytest.approx(row[method], abs=1e-2)


def test_published_noise_at_its_exact_sensitivity() -> None:
    """Landmine weights, 60 releases: the paper reports 15.17 for the same noise."""
    published = ReleaseSettings(
        29, 4, noise_multiplier=1.0, sampling_probability=0.35, calibration="published"
    )
    release = Release(published, SeededEntropy(0))
    charges = [release.effective_noise_multiplier(t) for t in range(60)]
    assert release.weights(10).max() == release.weights(0).max()
    assert release.weights(39).max() == pytest.approx(1 / 29)
    delta = 29**-1.1
    assert _epsilon("pld", 0.35, delta, charges) == pytest.approx(6.20, abs=0.02)
    assert _epsilon("moments", 0.35, delta, [1.0], 60) == pytest.approx(15.17, abs=5e-3)


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of the Gaussian mechanism, exactly (Balle & Wang, 2018)."""
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(np.exp(log_ndtr(a)) - np.exp(epsilon + log_ndtr(b)))


@pytest.mark.parametrize(("z", "releases"), [(0.01, 2), (1.0, 10), (50.0, 9)])
def test_without_sampling_pld_is_the_gaussian_mechanism(
    z: float, releases: int
) -> None:
    for delta in (1e-2, 1e-5, 1e-12):
        epsilon = _epsilon("pld", 1.0, delta, [z] * releases)
        exact = _gaussian_delta(math.sqrt(releases) / z, epsilon)
        assert exact <= delta
        assert exact == pytest.approx(delta, rel=1e-6)


def test_releases_to_all_and_to_a_sample_compose() -> None:
    """Also of different noise; against dp-accounting itself."""
    charges: list[Charge] = []
    composed, before = pld.identity(GRID), 0.0
    for z, q, count in ((2.0, 1.0, 2), (1.0, 0.35, 2), (0.7, 0.35, 1), (30.0, 0.35, 1)):
        charges.append(Charge(z, q, count))
        one = pld.from_gaussian_mechanism(
            z, sampling_prob=q, value_discretization_interval=GRID
        )
        composed = composed.compose(one.self_compose(count))
        epsilon = composed_epsilon(charges, 1e-4)
        assert epsilon > before
        before = epsilon
    expected = composed.get_epsilon_for_delta(1e-4)
    assert epsilon == pytest.approx(expected, abs=2e-3)


@settings(max_examples=5)
@given(
    st.floats(1e-3, 1.0),
    st.lists(st.floats(0.3, 30.0), min_size=1, max_size=4),
    st.integers(1, 30),
    st.floats(1e-8, 1e-2),
)
def test_each_accountant_is_tighter_than_the_next(
    q: float, charges: list[float], count: int, delta: float
) -> None:
    pld, rdp, moments = (_epsilon(m, q, delta, charges, count) for m in METHODS)
    assert pld <= rdp * (1 + 1e-3) + 2e-3
    # Renyi orders in between, and a tighter conversion.
    assert rdp <= moments * (1 + 1e-9)


@pytest.mark.parametrize(
    ("method", "same"), [("pld", True), ("pld", False), ("moments", False)]
)
def test_epsilon_does_not_depend_on_when_it_was_asked(
    method: Method, same: bool
) -> None:
    charges = [1.0] * 10 if same else [2.0, 2.0, 1.5, 1.2, *([1.0] * 6)]
    asked, silent = (ReleaseAccountant(0.35, 1e-3, method) for _ in range(2))
    for z in charges:
        asked.charge(z)
        asked.epsilon()
        silent.charge(z)
        again = ReleaseAccountant(0.35, 1e-3, method)
        for past in charges[: asked.spent(TERMS).num_releases]:
            again.charge(past)
        assert asked.spent(TERMS) == again.spent(TERMS)
    assert asked.spent(TERMS) == silent.spent(TERMS)
    assert asked.spent(TERMS).num_releases == len(charges)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("z", [9e-4, 5e-324])
def test_hardly_any_noise_is_no_privacy(method: Method, z: float) -> None:
    """dp-accounting overflows at such noise, and reports epsilon = 0."""
    assert _epsilon(method, 0.35, 1e-3, [1.0, z]) == math.inf


def test_much_noise_costs_little() -> None:
    for method in METHODS:
        assert _epsilon(method, 0.35, 1e-3, [1e6], 60) < 0.25
    assert _epsilon("pld", 0.35, 1e-3, [1e6], 60) == pytest.approx(0.0, abs=1e-4)
    assert _epsilon("pld", 1e-9, 1e-6, [1.0], 60) == pytest.approx(0.0, abs=1e-4)


def _fixed_size(**change: Any) -> ReleaseSettings:
    plain = {"num_agents": 20, "sampling_probability": 0.35, "sampling": "fixed-size"}
    return ReleaseSettings(**{**plain, **change})


def test_the_accountant_takes_the_sampler_from_the_release() -> None:
    assert _fixed_size().subsampling == Subsampling("fixed-size", 7, 20)
    assert ReleaseSettings(20).subsampling == Subsampling("poisson", 7, 20)
    accountant = ReleaseAccountant(_fixed_size().subsampling, 1e-3, "rdp")
    accountant.charge(2.0, 5)
    scheme = (NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)
    direct = RdpAccountant(PrivacyConfig(1e-3, 20, *scheme))
    direct.compose(GaussianPrivacyEvent(2.0, 7, 20), 5)
    assert accountant.epsilon() == direct.get_privacy_spent().epsilon
    poisson = ReleaseAccountant(ReleaseSettings(20).subsampling, 1e-3, "rdp")
    poisson.charge(2.0, 5)
    assert poisson.epsilon() < accountant.epsilon()
    for method in ("pld", "moments"):
        with pytest.raises(ValueError, match="'rdp', where the sample size is fixed"):
            ReleaseAccountant(_fixed_size().subsampling, 1e-3, method)


@pytest.mark.parametrize(
    ("method", "epsilon", "delta", "q", "releases"),
    [
        ("pld", 2.0, 1e-3, 0.35, 40),
        pytest.param("rdp", 2.0, 1e-3, 0.35, 40, marks=pytest.mark.slow),
        ("moments", 2.0, 1e-3, 0.35, 40),
        ("pld", 0.01, 1e-6, 0.1, 100),
        ("pld", 500.0, 1e-5, 1.0, 1),
    ],
)
def test_calibration_is_the_smallest_noise(
    method: Method, epsilon: float, delta: float, q: float, releases: int
) -> None:
    z = calibrate_noise_multiplier(epsilon, delta, q, releases, method)
    assert _epsilon(method, q, delta, [z], releases) <= epsilon
    assert _epsilon(method, q, delta, [z / 1.001], releases) > epsilon


@pytest.mark.slow
def test_calibration_with_a_fixed_sample_size() -> None:
    subsampling = _fixed_size().subsampling
    z = calibrate_noise_multiplier(2.0, 1e-3, subsampling, 10, "rdp")
    assert z > calibrate_noise_multiplier(2.0, 1e-3, 0.35, 10, "rdp")


def test_what_calibration_refuses_and_where_it_ends() -> None:
    for epsilon in (0.0, math.nan, 1e4, "2"):
        with pytest.raises(ValueError, match="epsilon="):
            calibrate_noise_multiplier(epsilon, 1e-3, 0.35, 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_releases=0"):
        calibrate_noise_multiplier(1.0, 1e-3, 0.35, 0)
    with pytest.raises(ValueError, match="method='tight'"):
        calibrate_noise_multiplier(1.0, 1e-3, 0.35, 1, "tight")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no z up to 1e6"):
        calibrate_noise_multiplier(1e-3, 1e-6, 0.35, 1, "moments")
    # A sample in which nobody is likely to be spends nothing, whatever the noise.
    assert calibrate_noise_multiplier(1.0, 1e-3, 1e-6, 1) == 0.01
    assert smallest_noise_multiplier(lambda z: 8 / z, 2.0) == pytest.approx(4, rel=1e-3)


def test_nothing_released_costs_nothing() -> None:
    assert ReleaseAccountant(0.35, 1e-3).epsilon() == 0.0


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan, "1e-3"])
def test_bad_delta_is_named(delta: Any) -> None:
    with pytest.raises(ValueError, match="delta="):
        ReleaseAccountant(0.35, delta)


def test_charges_need_noise() -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        ReleaseAccountant(0.35, 1e-3).charge(0.0)


def test_the_log_stays_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """dp-accounting warns of every Renyi order it leaves out, and sets up logging."""
    handlers = list(logging.root.handlers)
    accountant = ReleaseAccountant(0.35, 1e-3)
    accountant.charge(1.0)
    accountant.epsilon()
    assert logging.root.handlers == handlers
    assert not [r for r in caplog.records if r.name == "absl"]


def _server(**settings: Any) -> DPFTSDEServer:
    release = Release(ReleaseSettings(4, **settings), SeededEntropy(0))
    return DPFTSDEServer(release, 5, delta=1e-3, iterations=range(3))


@pytest.mark.parametrize(("q", "z"), [(1e-9, 1.0), (1.0, 1e6), (0.35, 1e-3)])
def test_what_the_settings_allow_can_be_charged(q: float, z: float) -> None:
    server = _server(sampling_probability=q, noise_multiplier=z)
    server.receive(server.step(0), {})
    assert server.privacy_spent.epsilon >= 0.0


def test_published_noise_is_charged_at_what_it_is() -> None:
    joint, published = (
        _server(num_sub_regions=2, calibration=c) for c in ("joint", "published")
    )
    for server in (joint, published):
        server.receive(server.step(0), {})
    assert published.privacy_spent.epsilon < joint.privacy_spent.epsilon


def test_epsilon_without_noise_is_infinite_and_of_the_control_zero() -> None:
    open_server = _server(noise_multiplier=0.0)
    open_server.receive(open_server.step(0), {})
    assert open_server.privacy_spent.epsilon == math.inf
    control = _server(noise_only=True)
    control.receive(control.step(0), {})
    assert control.privacy_spent.epsilon == 0.0
    assert "NOT PRIVATE" in " ".join(open_server.summary())
    assert "control" in " ".join(control.summary())
