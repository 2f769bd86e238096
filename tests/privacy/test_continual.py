"""Continual release: the factorisations, their calibration, and their noise."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.factorisation import Mechanism
from flwr_fbo.privacy.noise import SeededEntropy
from tests.support.continual import _decoder, noise_of
from tests.support.small_release import SMALL, random_trials

MECHANISMS = get_args(Mechanism)


# --- Factorisations


# --- Calibration


# --- Bounds


# --- Releases


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_noise_the_sums_are_exact(mechanism: Mechanism) -> None:
    settings = replace(SMALL, mechanism=mechanism, epsilon=math.inf, dimension=4)
    mechanism_itself = ContinualRelease(settings, None)
    x, y = random_trials(600, 4)
    total, z = np.zeros((5, 5)), np.column_stack([x, y])
    for k in range(1, 7):
        window = slice(100 * (k - 1), 100 * k)
        total = total + settings.gram(x[window], y[window])
        exact = z[: 100 * k].T @ z[: 100 * k]
        released = mechanism_itself.release(k, total)
        np.testing.assert_allclose(released, exact, rtol=0, atol=1e-10)
    assert not mechanism_itself.private
    assert settings.mu == math.inf


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_noise_has_its_law(mechanism: Mechanism) -> None:
    """Between releases sigma^2 B B'; isotropic in the Frobenius norm within one."""
    settings = replace(SMALL, mechanism=mechanism, dimension=39)
    noise = np.array([noise_of(settings, run) for run in range(20)])
    np.testing.assert_array_equal(noise, np.swapaxes(noise, -1, -2))
    rows, columns = np.triu_indices(40, 1)
    off = noise[..., rows, columns] * math.sqrt(2)
    diagonal = np.einsum("rkii->rki", noise)
    decoder = settings.noise_std * _decoder(mechanism, settings.max_releases)
    expected = decoder @ decoder.T
    largest = expected.diagonal().max()
    for entries, atol in ((off, 0.03), (diagonal, 0.15)):
        samples = np.swapaxes(entries, 0, 1).reshape(settings.max_releases, -1)
        np.testing.assert_allclose(
            samples @ samples.T / samples.shape[1], expected, atol=atol * largest
        )
    np.testing.assert_allclose(
        settings.release_std() ** 2, expected.diagonal(), rtol=1e-9
    )


def test_noise_is_added_without_a_trace_of_the_sum() -> None:
    """Exact on a public grid: two sums with the same noise differ by their difference.

    In floating point without it, the low bits of the two would tell them apart.
    """
    one = SMALL.gram(*random_trials(50))
    other = SMALL.gram(*random_trials(50, seed=1))
    released = [
        ContinualRelease(SMALL, SeededEntropy(0)).release(1, s) for s in (one, other)
    ]
    np.testing.assert_array_equal(released[0] - released[1], one - other)
    steps = released[0] / SMALL.grid
    np.testing.assert_array_equal(steps, np.rint(steps))
    assert SMALL.noise_std > 1e6 * SMALL.grid


def test_sums_of_trials_do_not_depend_on_their_order() -> None:
    x, y = random_trials(3000)
    order = np.random.default_rng(2).permutation(3000)
    total = SMALL.gram(x, y)
    np.testing.assert_array_equal(SMALL.gram(x[order], y[order]), total)
    one_by_one = np.zeros((3, 3))
    for product in SMALL.outer_products(x, y):
        one_by_one += product
    np.testing.assert_array_equal(one_by_one, total)
    z = np.column_stack([x, y])
    np.testing.assert_allclose(total, z.T @ z, atol=3000 * SMALL.grid)


@pytest.mark.parametrize(
    ("running_sum", "words"),
    [
        (np.zeros((2, 2)), "shape (3, 3)"),
        (np.full((3, 3), math.inf), "finite"),
        (np.tri(3), "symmetric"),
        (np.full((3, 3), 1e-12), "gram"),
        (np.full((3, 3), 1e9), "2**53"),
    ],
)
def test_what_is_no_sum_of_trials_is_refused(
    running_sum: FloatArray, words: str
) -> None:
    mechanism = ContinualRelease(SMALL, SeededEntropy(0))
    with pytest.raises(ValueError, match="running_sum=") as error:
        mechanism.release(1, running_sum)
    assert words in str(error.value)
    assert mechanism.num_released == 0


def test_noise_without_entropy_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy"):
        ContinualRelease(SMALL, None)
