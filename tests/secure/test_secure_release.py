"""The mechanism whose noise the sites add, against the trusted server's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure.secure_release import SecureRelease, SecureTotal

N, P, M = 4, 2, 6
SETTINGS = ReleaseSettings(
    num_agents=N,
    num_sub_regions=P,
    clip_norm=2.0,
    noise_multiplier=1.5,
    sampling_probability=1.0,
    weights=WeightSchedule(),
)
RELEASE = SecureRelease(SETTINGS)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 0.0},
        {"sampling_probability": 0.5},
        {"calibration": "published"},
        {"noise_only": True},
    ],
)
def test_settings_that_sites_cannot_keep_are_refused(change: dict[str, Any]) -> None:
    [field] = change
    with pytest.raises(ValueError, match=f"^{field}="):
        SecureRelease(replace(SETTINGS, **change))


@pytest.mark.parametrize(
    ("size", "iteration"), [(0.0, 0), (1e-9, 7), (2.0, 0), (1e6, 0), (1e6, 7)]
)
def test_a_contribution_has_norm_1_at_most(size: float, iteration: int) -> None:
    """Whatever the message is, and also once it is rounded."""
    rng = np.random.default_rng(0)
    noise = RELEASE.noise(N, N, M)
    for slot in range(N):
        message = rng.standard_normal(M)
        message *= size / np.linalg.norm(message)
        given = RELEASE.contribution(iteration, slot, message)
        assert np.linalg.norm(given) <= 1 + 1e-12
        integers = [int(n) for n in noise.encode(given)]
        assert sum(n * n for n in integers) <= noise.largest_norm**2
        error = np.asarray(integers) / noise.scale - given
        assert np.linalg.norm(error) <= 1e-3


def test_contributions_add_up_to_the_weighted_messages() -> None:
    rng = np.random.default_rng(0)
    noise, messages = RELEASE.noise(N, N, M), rng.uniform(-0.5, 0.5, (N, M))
    total = np.zeros(P * M, dtype=np.uint64)
    for slot, message in enumerate(messages):
        total += noise.wrapped(noise.encode(RELEASE.contribution(0, slot, message)))
    decoded = RELEASE.decoded(0, noise, SecureTotal(tuple(range(N)), total))
    expected = RELEASE.weights(0).T @ messages
    step = 1e-3 * N * RELEASE.sensitivity(0)
    assert np.linalg.norm(decoded - expected) <= step
    assert np.linalg.norm(expected) > 100 * step


def test_facts_name_the_noise_of_those_who_answered() -> None:
    noise = RELEASE.noise(N, 2, M)
    stds = [
        RELEASE.facts_of_sum(0, noise, slots)["noise_std"][0]
        for slots in ([0, 1], [0, 1, 2, 3])
    ]
    planned = SETTINGS.noise_multiplier * RELEASE.sensitivity(0)
    assert planned <= stds[0] <= 1.001 * planned
    assert stds[1] == pytest.approx(np.sqrt(2) * stds[0])
    facts = RELEASE.facts_of_sum(0, noise, [0, 1, 3])
    assert (facts["aggregation"], facts["honest"]) == ("secure", 2)
    assert facts["summed"] == [0, 1, 3]


def test_excess_is_of_the_noise_and_is_not_counted() -> None:
    louder = SecureRelease(RELEASE.settings, 1.5)
    np.testing.assert_allclose(louder.noise_std(0), 1.5 * RELEASE.noise_std(0))
    counted = louder.effective_noise_multiplier(0)
    assert counted == RELEASE.effective_noise_multiplier(0)
    assert louder.with_noise_multiplier(3.0).excess == 1.5
