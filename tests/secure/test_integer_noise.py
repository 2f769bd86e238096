"""Noise shares: their law, the proof's bound, and sums modulo 2**b."""

import doctest
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2, chisquare, kstest, norm

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.gaussian import gaussian_delta, gaussian_mu
from flwr_fbo.privacy.noise import opendp_gaussian
from flwr_fbo.secure import integer_noise as module
from flwr_fbo.secure.integer_noise import IntegerNoise, log_ratio_bound

DEFAULTS: Mapping[str, Any] = {
    "num_sites": 30,
    "honest": 20,
    "length": 512,
    "max_norm": 1.0,
    "noise_multiplier": 1.0 / gaussian_mu(2.0, 1e-3),
}
SIGNIFICANCE = 1e-7
# Corners of what is allowed, as far as 56 bits hold the sum.
SETTINGS = [
    {},
    {"honest": 1},
    {"length": 1, "noise_multiplier": 1e-6, "max_norm": 1e-100},
    {"num_sites": 2**20, "honest": 2**20, "noise_multiplier": 0.03, "max_norm": 1e100},
    {"num_sites": 2**20, "honest": 1, "length": 2**20, "noise_multiplier": 1e6},
    {"num_sites": 1, "honest": 1, "length": 1, "noise_multiplier": 64 / 1024},
    # Between 2**23 and 2**24: the sign needs another byte.
    {"num_sites": 300, "honest": 200},
]


def integer_noise(**changes: Any) -> IntegerNoise:
    return IntegerNoise(**{**DEFAULTS, **changes})


# -- the law of what is released --------------------------------------------------


@cache
def released_noise(honest: int) -> FloatArray:
    """Return 5,000 numbers: sums of messages and shares, less the messages."""
    noise = integer_noise(length=500, honest=honest)
    rng = np.random.default_rng(0)
    rounds = []
    for _ in range(10):
        total = np.zeros(500, dtype=np.uint64)
        messages = np.zeros(500, dtype=np.int64)
        for _ in range(honest):
            encoded = noise.encode(rng.standard_normal(500))
            messages += encoded
            total += noise.wrapped(encoded + noise.draw_share())
        rounds.append(noise.decode(total) - messages / noise.scale)
    # In units of the planned deviation, a trusted server's.
    planned = noise.noise_multiplier * noise.max_norm
    return np.asarray(np.concatenate(rounds) / planned)


def variance_p_value(units: FloatArray) -> float:
    """Return the two-sided p-value of variance 1 for normal numbers of mean 0."""
    law = chi2(units.size)
    total = float(units @ units)
    return float(2 * min(law.cdf(total), law.sf(total)))


def histogram_p_value(units: FloatArray) -> float:
    """Return the p-value of 50 equally likely classes of a normal law."""
    classes = np.minimum((50 * norm.cdf(units)).astype(int), 49)
    return float(chisquare(np.bincount(classes, minlength=50)).pvalue)


@pytest.mark.parametrize("honest", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_the_sum_has_the_planned_gaussian_noise(honest: int) -> None:
    units = released_noise(honest)
    assert variance_p_value(units) > SIGNIFICANCE
    assert histogram_p_value(units) > SIGNIFICANCE
    assert kstest(units, "norm").pvalue > SIGNIFICANCE


@pytest.mark.parametrize("factor", [0.87, 1.15])
def test_a_deviation_that_is_wrong_by_15_percent_is_noticed(factor: float) -> None:
    """In all but 1e-12 of samples."""
    assert variance_p_value(factor * released_noise(3)) < SIGNIFICANCE


def test_another_law_of_the_same_variance_is_noticed() -> None:
    units = np.random.default_rng(0).laplace(scale=math.sqrt(0.5), size=10_000)
    assert histogram_p_value(units) < SIGNIFICANCE
    assert kstest(units, "norm").pvalue < SIGNIFICANCE


def mass_of_shares(std: float, num_shares: int, reach: int) -> FloatArray:
    """Return the exact masses of a sum of shares at -reach..reach."""
    grid = np.arange(-reach, reach + 1)
    share = np.exp(-(grid**2) / (2 * std**2))
    share /= share.sum()
    total = share
    for _ in range(num_shares - 1):
        total = np.convolve(total, share, mode="same")
    return total


def masses_p_value(drawn: NDArray[np.int64], std: float) -> float:
    """Return the chi-square p-value of one share's masses; rare ones are pooled."""
    expected = drawn.size * mass_of_shares(std, 1, 40)
    counts = np.bincount(drawn + 40, minlength=81)
    likely = expected > 10
    pooled = [np.append(x[likely], x[~likely].sum()) for x in (counts, expected)]
    return float(chisquare(*pooled).pvalue)


def test_a_share_has_the_masses_of_a_discrete_gaussian() -> None:
    drawn = np.array(opendp_gaussian(int, 5_000, 0.8)([0] * 5_000))
    assert masses_p_value(drawn, 0.8) > SIGNIFICANCE
    # A Gaussian that is rounded to integers has other masses.
    rounded = np.rint(np.random.default_rng(0).normal(0, 0.8, 5_000))
    assert masses_p_value(rounded.astype(np.int64), 0.8) < SIGNIFICANCE


def test_shares_are_fresh() -> None:
    noise = integer_noise()
    assert np.any(noise.draw_share() != noise.draw_share())


# -- the proof's bound, by brute force --------------------------------------------


def mass_of_rounded_gaussian(std: float, rounding_std: float, reach: int) -> FloatArray:
    """Return the masses at -reach..reach of N(0, std^2) after the random rounding."""
    # The trapezoidal rule is exact to the last digits for such functions.
    u = np.linspace(-reach - 8.0, reach + 8.0, 64 * (2 * reach + 16) + 1)
    integers = np.arange(math.floor(u[0]) - 20, math.ceil(u[-1]) + 21)
    kernel = np.exp(-((u - integers[:, None]) ** 2) / (2 * rounding_std**2))
    kernel /= kernel.sum(axis=0)
    density = np.exp(-(u**2) / (2 * std**2)) / (math.sqrt(2 * math.pi) * std)
    masses = kernel @ density / 64
    return masses[np.abs(integers) <= reach]


@pytest.mark.parametrize(
    ("share_std", "num_shares", "rounding_std", "least_part"),
    [
        # What adding a second share costs: the bound is nearly reached.
        (0.6, 2, 0.7, 0.95),
        (1.2, 2, 1.4, 0.95),
        # Further shares cost less than the first, the bound takes them as equal.
        (0.8, 5, 1.3, 0.02),
        # What rounding costs, of which the noise hides a part.
        (0.6, 1, 0.5, 0.15),
        (2.0, 1, 0.3, 0.05),
    ],
)
def test_the_ratio_of_the_laws_is_bounded(
    share_std: float, num_shares: int, rounding_std: float, least_part: float
) -> None:
    variance = num_shares * share_std**2
    reach = math.ceil(6 * math.sqrt(variance))
    shares = mass_of_shares(share_std, num_shares, 4 * reach)[3 * reach : -3 * reach]
    rest = math.sqrt(variance - rounding_std**2)
    ratio = np.log(shares / mass_of_rounded_gaussian(rest, rounding_std, reach))
    bound = log_ratio_bound(share_std, num_shares, 1, rounding_std)
    assert ratio.max() - ratio.min() <= bound * (1 + 1e-6) + 1e-12
    assert ratio.max() - ratio.min() >= least_part * bound
    assert ratio.min() <= 1e-12
    assert ratio.max() >= -1e-12
    assert log_ratio_bound(share_std, num_shares, 7, rounding_std) == 7 * bound


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("distance", [1, 4])
def test_shares_are_private_as_the_proof_says(epsilon: float, distance: int) -> None:
    """The exact delta of two neighbours one coordinate apart."""
    share_std, num_shares, rounding_std = 1.0, 3, 0.9
    masses = mass_of_shares(share_std, num_shares, 60)
    here, there = masses[distance:], masses[:-distance]
    bound = log_ratio_bound(share_std, num_shares, 1, rounding_std)
    delta = float(np.maximum(here - math.exp(epsilon + bound) * there, 0).sum())
    rest = math.sqrt(num_shares * share_std**2 - rounding_std**2)
    assert delta <= math.exp(bound) * gaussian_delta(epsilon, distance / rest)
    # Without the variance that pays for rounding, delta would be about that of S.
    plain = math.sqrt(num_shares) * share_std
    assert delta == pytest.approx(gaussian_delta(epsilon, distance / plain), rel=0.35)


@pytest.mark.parametrize("changes", SETTINGS)
def test_the_log_ratio_is_negligible(changes: dict[str, Any]) -> None:
    noise = integer_noise(**changes)
    assert 0 < noise.log_ratio <= 3e-28
    assert noise.share_std >= 64
    # What is left for the continuous noise has the planned multiplier, and more.
    variance = noise.honest * noise.share_std**2 - 2.0**2
    multiplier = math.sqrt(variance) / noise.largest_norm
    # Of a margin of 2**-30, rounding here takes less than a tenth.
    assert multiplier >= noise.noise_multiplier * (1 + 0.9 * 2.0**-30)


@pytest.mark.parametrize("mu", [1e-3, 0.7, 20.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-3, 0.5])
def test_a_margin_of_the_noise_pays_for_the_log_ratio(mu: float, delta: float) -> None:
    """Noise larger by e^kappa pays for xi <= kappa mu / 5 where delta <= 1/2."""
    epsilons = mu * (np.linspace(-1.0, 9.0, 2001) + mu / 2)
    kappa = 0.01
    xi = kappa * mu / 5
    smaller = mu * math.exp(-kappa)
    checked = 0
    for epsilon in epsilons[epsilons >= 0]:
        planned = gaussian_delta(epsilon, mu)
        if 0.8 * delta <= planned <= delta:
            checked += 1
            paid = math.exp(xi) * gaussian_delta(epsilon - xi, smaller)
            assert paid <= planned
            unpaid = math.exp(50 * xi) * gaussian_delta(epsilon - 50 * xi, smaller)
            assert unpaid > planned or delta < 0.1
    assert checked or gaussian_delta(0.0, mu) < 0.8 * delta


# -- messages, sums and bits ------------------------------------------------------


def exact_sum_of_squares(integers: NDArray[np.int64]) -> int:
    return sum(int(n) ** 2 for n in integers)


def adversarial_messages(noise: IntegerNoise) -> list[FloatArray]:
    """Return messages of full norm whose rounding to nearest would lengthen them."""
    m, norm_of_units = noise.length, noise.largest_norm
    halves = np.full(m, math.floor(norm_of_units / math.sqrt(m)) + 0.5)
    mixed = np.arange(m) % 7 + 0.5
    one = np.zeros(m)
    one[-1] = norm_of_units
    units = np.array([halves, mixed, one, -halves, 1e3 * mixed])
    return list(units / noise.scale)


@pytest.mark.parametrize("changes", [{}, {"length": 1}, {"length": 3, "max_norm": 0.3}])
def test_rounding_does_not_raise_the_sensitivity(changes: dict[str, Any]) -> None:
    noise = integer_noise(**changes)
    rng = np.random.default_rng(0)
    random = [rng.standard_normal(noise.length) * 10**k for k in (-5, 0, 5) * 20]
    for message in random + adversarial_messages(noise):
        squares = exact_sum_of_squares(noise.encode(message))
        assert squares <= noise.largest_norm**2
        # And so within 1e-3 of what was promised, in message units.
        assert math.sqrt(squares) / noise.scale <= noise.max_norm * (1 + 1e-3)


def test_a_clip_that_floats_round_up_is_repaired() -> None:
    """The norm of this message is 1 as a float, and more in truth."""
    noise = integer_noise(length=2, noise_multiplier=1e-6, num_sites=20)
    assert noise.largest_norm >= 2**28
    message = np.array([1.0, 2.0**-27])
    assert math.hypot(*message) == 1.0
    integers = noise.encode(message)
    assert exact_sum_of_squares(integers) <= noise.largest_norm**2
    np.testing.assert_allclose(integers / noise.scale, [1.0, 2.0**-27], atol=1e-8)


@pytest.mark.parametrize("changes", SETTINGS[:3])
def test_encoding_changes_a_message_by_a_thousandth(changes: dict[str, Any]) -> None:
    noise = integer_noise(**changes)
    rng = np.random.default_rng(0)
    direction = rng.standard_normal(noise.length)
    direction /= np.linalg.norm(direction)
    for size in (1e-3, 0.5, 1.0, 40.0):
        encoded = noise.encode(size * noise.max_norm * direction) / noise.scale
        clipped = min(size, 1.0) * noise.max_norm * direction
        assert np.linalg.norm(encoded - clipped) <= 1e-3 * noise.max_norm


@given(st.data())
def test_sums_are_exact_modulo_two_to_the_b(data: st.DataObject) -> None:
    noise = integer_noise(length=1)
    # As far as sums are counted not to wrap around.
    each = 2 ** (noise.num_bits - 1) // noise.num_sites - 1
    numbers = st.lists(st.integers(-each, each), min_size=1, max_size=noise.num_sites)
    terms = [np.array([n]) for n in data.draw(numbers)]
    total = sum((noise.wrapped(t) for t in terms), np.zeros(1, dtype=np.uint64))
    exact = sum(int(t[0]) for t in terms)
    assert noise.decode(total)[0] == exact / noise.scale
    # It makes no difference whether the sum is reduced.
    reduced = total % np.uint64(2**noise.num_bits)
    assert noise.decode(reduced)[0] == exact / noise.scale


@pytest.mark.parametrize("changes", SETTINGS)
def test_the_border_of_a_wrap_around(changes: dict[str, Any]) -> None:
    noise = integer_noise(**changes)
    half = 2 ** (noise.num_bits - 1)
    border = np.array([half - 1, half, -half, -half - 1])
    wrapped = noise.wrapped(border)
    assert wrapped.max() < 2**noise.num_bits
    expected = np.array([half - 1, -half, -half, half - 1]) / noise.scale
    np.testing.assert_array_equal(noise.decode(wrapped), expected)


@pytest.mark.parametrize("changes", SETTINGS)
def test_the_bits_are_enough_and_not_too_many(changes: dict[str, Any]) -> None:
    """By the exact normal quantile, which the sub-Gaussian bound exceeds a little."""
    noise = integer_noise(**changes)
    tail = norm.isf(2.0**-41 / noise.length) * noise.share_std
    largest = noise.num_sites * noise.largest_norm + math.sqrt(noise.num_sites) * tail
    assert largest < 2.0 ** (noise.num_bits - 1)
    assert 1.1 * largest > 2.0 ** (noise.num_bits - 9)
    assert noise.num_bits % 8 == 0


def test_the_bits_of_the_defaults() -> None:
    assert integer_noise().num_bits == 24
    assert integer_noise().largest_norm == 32768


@pytest.mark.parametrize("changes", SETTINGS)
def test_the_noise_is_hardly_larger_than_a_trusted_servers(
    changes: dict[str, Any],
) -> None:
    noise = integer_noise(**changes)
    for answered in (noise.honest, noise.num_sites):
        factor = math.sqrt(answered / noise.honest)
        planned = factor * noise.noise_multiplier * noise.max_norm
        assert planned <= noise.std(answered) <= 1.001 * planned


# -- what is refused --------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_sites": 2**20 + 1}, "num_sites=1048577 is not allowed: at most 1048576"),
        ({"num_sites": 3.0}, "num_sites=3.0"),
        ({"honest": 31}, "honest=31 is not allowed: at most 30"),
        ({"length": 2**20 + 1}, "length=1048577"),
        ({"max_norm": 0.0}, "max_norm=0.0"),
        ({"max_norm": "1"}, "max_norm='1'"),
        ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
        ({"noise_multiplier": True}, "noise_multiplier=True"),
        (
            {"num_sites": 2**20, "honest": 2**20, "noise_multiplier": 1e-6},
            "num_bits=64 is not allowed: at most 56; give fewer num_sites, a smaller "
            "length or a noise_multiplier nearer to 1",
        ),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        integer_noise(**changes)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (np.zeros(3), r"message.shape=\(3,\) is not allowed: \(2,\)"),
        (np.zeros((2, 1)), r"message.shape=\(2, 1\)"),
        (np.array([0.0, math.nan]), "message='...' is not allowed: finite"),
        (np.array([-math.inf, 0.0]), "finite numbers"),
        (np.array([0.0, 1e101]), "1e100 at most"),
    ],
)
def test_messages_that_are_refused(message: FloatArray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        integer_noise(length=2).encode(message)


@pytest.mark.parametrize("num_answered", [19, 31])
def test_answers_that_are_refused(num_answered: Any) -> None:
    with pytest.raises(ValueError, match="num_answered="):
        integer_noise().std(num_answered)


def test_the_example_runs_as_it_is_written() -> None:
    results = doctest.testmod(module)
    assert results.attempted > 5
    assert results.failed == 0


@pytest.mark.parametrize("distance", [0.01, 0.3, 2.0])
def test_neighbours_that_are_near_stay_so_as_integers(distance: float) -> None:
    """The noise is for their distance after rounding, and not for a whole message."""
    noise = IntegerNoise(5, 4, 16, 1.0, 2.0, distance=distance)
    whole, rng, farthest = (
        IntegerNoise(5, 4, 16, 1.0, 2.0),
        np.random.default_rng(0),
        0.0,
    )
    for _ in range(200):
        message, step = rng.normal(size=(2, 16))
        message *= rng.uniform(0.0, 1.0) / np.linalg.norm(message)
        other = message + step * distance / np.linalg.norm(step)
        other /= max(np.linalg.norm(other), 1.0)
        apart = noise.encode(message) - noise.encode(other)
        farthest = max(farthest, float(np.linalg.norm(apart)))
    assert 0.5 < farthest / noise.largest_distance <= 1.0
    # A thousandth more than the distance itself, whatever max_norm is.
    assert 1.0 < noise.largest_distance / (distance * noise.scale) <= 1.001 + 1e-9
    assert noise.planned_stds() == ((16, 2.0 * noise.largest_distance),)
    ratio = noise.std(4) / whole.std(4)
    assert ratio == pytest.approx(distance, rel=2e-3)
