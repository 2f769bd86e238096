"""Noise shares of blocks: their sensitivity, law and bits, and sums modulo 2**b."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2, kstest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy import continual_settings
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.gaussian import gaussian_delta
from flwr_fbo.secure.block_noise import BlockNoise
from flwr_fbo.secure.integer_noise import log_ratio_bound
from tests.secure.test_integer_noise import SIGNIFICANCE, mass_of_shares

RELEASES = ContinualSettings(5, 3, 4.0, 1e-5, mechanism="blocks", reward_range=(0, 1))
# Corners of what is allowed, as far as 56 bits hold the sum.
CORNERS = [
    {},
    {"epsilon": 1e3, "delta": 0.999999, "num_sites": 2**20, "honest": 2**20},
    {"epsilon": 1e-3, "delta": 1e-15, "num_sites": 50, "honest": 1},
    {"dimension": 1000, "num_sites": 1000, "honest": 600, "most_trials": 10**6},
    {"max_action_norm": 1e6, "reward_range": (-1e6, 1e6), "most_trials": 10**7},
    {"max_action_norm": 1e-6, "reward_range": (0.0, 1e-6), "num_releases": None},
    {"max_action_norm": 1.3, "reward_range": (-1.3, 1.3), "sliding_window": 2},
]


def block_noise(**changes: Any) -> BlockNoise:
    about = {"num_sites": 30, "honest": 20, "most_trials": 500}
    about |= {name: changes.pop(name) for name in list(about) if name in changes}
    return BlockNoise(replace(RELEASES, **changes), **about)


def trials(releases: ContinualSettings, num_trials: int, seed: int = 0) -> Any:
    """Return trials at the bounds: the longest actions, and extreme rewards."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_trials, releases.dimension))
    x *= releases.max_action_norm / np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.choice(releases.reward_range, num_trials)


def mu_of(noise: BlockNoise, moved: NDArray[np.int64]) -> float:
    """Return the mu of the Gaussian mechanism behind the noise for a difference."""
    stds = np.concatenate(
        [
            np.full(count, math.sqrt(noise.honest * std**2 - 2.0**2))
            for count, std in noise.share_stds
        ]
    )
    return float(np.linalg.norm(moved / stds))


# --- Sensitivity, by definition


@pytest.mark.parametrize("changes", CORNERS)
def test_one_replaced_trial_costs_mu_at_most(changes: dict[str, Any]) -> None:
    """Of integers as they are sent, whatever other trials are in the block."""
    noise = block_noise(**changes)
    releases, size = noise.releases, noise.releases.dimension + 1
    others = releases.gram(*trials(releases, 20))
    pairs = releases.outer_products(*trials(releases, 40 if size < 100 else 4, seed=1))
    first = [noise.encode(others + product) for product in pairs[::2]]
    second = [noise.encode(others + product) for product in pairs[1::2]]
    found = [mu_of(noise, a - b) for a, b in zip(first, second, strict=True)]
    assert max(found) <= releases.mu
    # The worst pair is nearly reached where x'x = B^2 and y = -y'.
    bound, reward = releases.max_action_norm, releases.max_reward
    if reward <= bound:
        cosine = (reward / bound) ** 2
        x = np.zeros((2, releases.dimension))
        x[0, 0], x[1, 0] = bound, bound * cosine
        x[1, 1] = bound * math.sqrt(1 - cosine**2)
        one, other = releases.outer_products(x, releases.reward_range)
        moved = noise.encode(others + one) - noise.encode(others + other)
        assert 0.999 * releases.mu <= mu_of(noise, moved) <= releases.mu


def test_rounding_of_two_trials_is_in_the_sensitivity() -> None:
    """(d + 1) grid steps at most, at the longest vectors that are allowed."""
    for dimension in (1, 30, 1000):
        for longest in (1.0, math.sqrt(1.9), 1e-6, 1e6):
            releases = replace(RELEASES, dimension=dimension, max_action_norm=longest)
            size = longest**2 + releases.max_reward**2
            # Norms are checked to one part in 10^9.
            exact = math.sqrt(2) * size * (1 + 1e-9) ** 2
            assert releases.sensitivity >= exact + (dimension + 1) * releases.grid


def test_a_coarser_grid_would_not_be_protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above notices a rounding that the sensitivity does not cover."""
    monkeypatch.setattr(continual_settings, "_BLOCK_GRID_BITS", 22)
    with pytest.raises(AssertionError):
        test_rounding_of_two_trials_is_in_the_sensitivity()


# --- The law


def decoded_noise(honest: int) -> FloatArray:
    """Return the noise of sums over the honest sites alone, in planned deviations."""
    noise = block_noise(dimension=9, honest=honest)
    block = noise.releases.gram(*trials(noise.releases, 30))
    drawn = []
    for _ in range(60):
        total = np.zeros(noise.length, dtype=np.uint64)
        for _ in range(honest):
            total += noise.wrapped(noise.encode(block) + noise.draw_share())
        drawn.append(noise.decode(total) - honest * block)
    return np.asarray(drawn) / noise.releases.noise_std


def test_the_noise_of_the_honest_sites_is_the_planned_one() -> None:
    """Isotropic in the Frobenius norm: 1 on the diagonal, 1/2 off it."""
    matrices = decoded_noise(3)
    np.testing.assert_array_equal(matrices, np.swapaxes(matrices, 1, 2))
    rows, columns = np.triu_indices(10, 1)
    on = np.einsum("nii->ni", matrices).ravel()
    off = math.sqrt(2) * matrices[:, rows, columns].ravel()
    for units in (on, off):
        law, total = chi2(units.size), float(units @ units)
        assert 2 * min(law.cdf(total), law.sf(total)) > SIGNIFICANCE
        assert kstest(units, "norm").pvalue > SIGNIFICANCE
    # A deviation on the diagonal that is off it too would be noticed.
    wrong = math.sqrt(2) * off
    assert chi2(off.size).sf(float(wrong @ wrong)) < SIGNIFICANCE


def test_shares_are_fresh_and_each_number_has_one_of_its_own() -> None:
    noise = block_noise()
    first, second = noise.draw_share(), noise.draw_share()
    assert np.all(first != second)
    assert len(set(first.tolist())) == noise.length


def test_numbers_of_different_widths_are_private_as_the_proof_says() -> None:
    """Exact delta of neighbours that differ on the diagonal and off it, for H = 2."""
    honest, rounding, epsilon = 2, 0.9, 0.7
    widths = 1.5, 1.5 / math.sqrt(2)
    masses = [mass_of_shares(s, honest, 40) for s in widths]
    moved = 2, 1
    here = np.outer(masses[0][moved[0] :], masses[1][moved[1] :])
    there = np.outer(masses[0][: -moved[0]], masses[1][: -moved[1]])
    xi = sum(log_ratio_bound(s, honest, 1, rounding) for s in widths)
    delta = float(np.maximum(here - math.exp(epsilon + xi) * there, 0).sum())
    variances = [honest * s**2 - rounding**2 for s in widths]
    mu = math.sqrt(sum(m**2 / v for m, v in zip(moved, variances, strict=True)))
    assert delta <= math.exp(xi) * gaussian_delta(epsilon, mu)
    # As if the second number were as wide as the first: too little is promised.
    wide = math.sqrt(sum(m**2 / (honest * widths[0] ** 2) for m in moved))
    assert delta > math.exp(xi) * gaussian_delta(epsilon, wide)


@pytest.mark.parametrize("changes", CORNERS)
def test_the_log_ratio_is_negligible(changes: dict[str, Any]) -> None:
    noise = block_noise(**changes)
    assert 0 < noise.log_ratio <= 3e-28
    assert min(std for _, std in noise.share_stds) >= 64
    for (_, share), (_, planned) in zip(
        noise.share_stds, noise.planned_stds(), strict=True
    ):
        variance = noise.honest * share**2 - 2.0**2
        assert math.sqrt(variance) >= planned * (1 + 0.9 * 2.0**-30)


# --- Blocks, sums and bits


def test_blocks_are_exact_whatever_their_trials() -> None:
    noise = block_noise()
    blocks = [
        noise.releases.gram(*trials(noise.releases, n, seed=n)) for n in (0, 1, 7, 400)
    ]
    total = np.zeros(noise.length, dtype=np.uint64)
    for block in blocks:
        total += noise.wrapped(noise.encode(block))
    np.testing.assert_array_equal(noise.decode(total), sum(blocks))
    assert not noise.encode(blocks[0]).any()


@pytest.mark.parametrize("changes", CORNERS)
def test_the_longest_trials_of_all_sites_do_not_wrap_around(
    changes: dict[str, Any],
) -> None:
    noise = block_noise(**changes)
    releases = noise.releases
    x = np.zeros((1, releases.dimension))
    x[0, 0] = releases.max_action_norm
    ends = [releases.reward_range[1]]
    one = noise.encode(releases.gram(x, ends))
    largest = int(np.abs(one).max()) * noise.most_trials
    assert largest <= noise.largest_integer
    widest = max(std for _, std in noise.share_stds)
    together = noise.num_sites * largest + 7 * math.sqrt(noise.num_sites) * widest
    assert together < 2.0 ** (noise.num_bits - 1)
    assert noise.num_bits % 8 == 0
    assert noise.num_bits <= 56


def test_the_bits_of_usual_studies() -> None:
    assert block_noise(num_sites=50, honest=34, most_trials=250).num_bits == 40
    assert block_noise(num_sites=1000, honest=600, most_trials=10**5).num_bits == 56


def test_more_sites_and_trials_need_more_bits() -> None:
    short = block_noise(most_trials=1, num_sites=20)
    assert short.num_bits < block_noise(most_trials=10**4).num_bits
    assert short.length == 10


# --- What is refused


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mechanism": "toeplitz"}, "mechanism='toeplitz' is not allowed: 'blocks'"),
        ({"num_streams": 2}, "num_streams=2 is not allowed: 1"),
        ({"epsilon": math.inf}, "epsilon=inf is not allowed: finite"),
        ({"num_sites": 2**20 + 1}, "num_sites=1048577"),
        ({"honest": 31}, "honest=31 is not allowed: at most 30"),
        ({"honest": 0}, "honest=0"),
        ({"most_trials": 0}, "most_trials=0"),
        ({"most_trials": 2**30 + 1}, "most_trials=1073741825"),
        (
            {"most_trials": 2**30},
            "num_bits=64 is not allowed: at most 56; give fewer num_sites, fewer "
            "most_trials or a larger epsilon",
        ),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        block_noise(**changes)


@pytest.mark.parametrize(
    ("block", "match"),
    [
        (np.zeros((3, 3)), r"block.shape=\(3, 3\) is not allowed: \(4, 4\)"),
        (np.zeros(10), r"block.shape=\(10,\)"),
        (np.full((4, 4), math.nan), "block='...' is not allowed: a symmetric matrix"),
        (np.tri(4), "symmetric"),
        (np.full((4, 4), 1e-12), "block='...' is not allowed: a sum of what gram"),
        (np.full((4, 4), 1e12), "below"),
    ],
)
def test_blocks_that_are_refused(block: FloatArray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        block_noise().encode(block)


@pytest.mark.parametrize("num_answered", [19, 31])
def test_answers_that_are_refused(num_answered: int) -> None:
    with pytest.raises(ValueError, match="num_answered="):
        block_noise().std(num_answered)


def test_more_answers_than_are_counted_on_add_more_noise() -> None:
    noise = block_noise()
    for answered in (20, 30):
        planned = math.sqrt(answered / 20) * noise.releases.noise_std
        assert planned <= noise.std(answered) <= 1.001 * planned
