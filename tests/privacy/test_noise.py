"""Noise and its entropy: its scale, its law, and that it never repeats."""

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from tests.support.small_release import SMALL


def test_os_entropy_has_the_right_scale_and_never_repeats() -> None:
    entropy = OsEntropy()
    assert entropy.private
    std = np.array([0.5, 4.0])
    first = entropy.add_noise(0, np.full((2, 4000), 10.0), std)
    np.testing.assert_allclose(first.std(axis=1), std, rtol=0.1)
    np.testing.assert_allclose(first.mean(axis=1), 10.0, atol=0.4)  # 6 deviations
    assert not np.any(entropy.add_noise(0, np.full((2, 4000), 10.0), std) == first)
    masks = np.array([entropy.mask(0, 1000, 0.35) for _ in range(20)])
    assert masks.mean() == pytest.approx(0.35, abs=0.02)
    assert len({m.tobytes() for m in masks}) == 20
    assert entropy.mask(0, 50, 1.0).all()


def test_secure_noise_is_normal_and_each_number_gets_its_own() -> None:
    std = np.array([1.0, 3.0, 1.0])
    places = np.arange(6000.0).reshape(3, 2000)
    units = (OsEntropy().add_noise(0, 1e3 * places, std) - 1e3 * places) / std[:, None]
    assert np.abs(units).max() < 10
    assert kstest(units.ravel(), "norm").pvalue > 1e-9
    assert abs(np.corrcoef(units)[np.triu_indices(3, 1)]).max() < 0.2


@pytest.mark.parametrize("z", [1e-3, 1e6])
@pytest.mark.parametrize("length", [1, 1_000_000])
@pytest.mark.parametrize("std", [1e-300, 1.0, np.nextafter(2.0, 0), 1e9])
def test_rounding_to_the_grid_costs_no_privacy(
    z: float, length: int, std: float
) -> None:
    """By OpenDP's own account, which adds what rounding adds to the sensitivity."""
    rho = OsEntropy().mechanism(std, length).map(std / z)
    assert 0.999 / (2 * z**2) < rho <= 1 / (2 * z**2)


@pytest.mark.parametrize("entropy", [OsEntropy(), SeededEntropy(0)])
def test_a_subset_has_its_size_and_is_uniform(entropy: Entropy) -> None:
    drawn = [entropy.subset(t, 5, 2) for t in range(1000)]
    assert {int(mask.sum()) for mask in drawn} == {2}
    counts = Counter(tuple(np.flatnonzero(mask)) for mask in drawn)
    assert len(counts) == 10
    # Each of the ten with probability 0.1: 100 draws, deviation 9.5.
    assert max(abs(count - 100) for count in counts.values()) < 62
    assert entropy.subset(0, 5, 5).all()


def test_real_noise_without_opendp_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opendp.measurements", None)
    with pytest.raises(ImportError, match=r"flwr-fbo\[secure\]"):
        OsEntropy()


def test_real_noise_is_never_the_same_and_seeded_noise_is_its_owners() -> None:
    zero = np.zeros((3, 3))

    def first(entropy: Any) -> FloatArray:
        mechanism = ContinualRelease(SMALL, entropy)
        assert mechanism.private == entropy.private
        return mechanism.release(1, zero)

    assert not np.any(first(OsEntropy()) == first(OsEntropy()))
    assert not np.any(first(SeededEntropy(0, 1)) == first(SeededEntropy(0, 2)))
    np.testing.assert_array_equal(
        first(SeededEntropy(0, 1)), first(SeededEntropy(0, 1))
    )
