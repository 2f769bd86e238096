"""The release: its noise, its sensitivity, and what broken messages do to it."""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any, get_args

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import Calibration, Release, ReleaseSettings
from flwr_fbo.privacy.sampling import Sampling

M = 6


def landmine(calibration: Calibration) -> Release:
    released = ReleaseSettings(
        num_agents=29,
        num_sub_regions=4,
        clip_norm=22.0,
        noise_multiplier=1.0,
        sampling_probability=0.35,
        calibration=calibration,
    )
    return Release(released, SeededEntropy(0))


@pytest.mark.parametrize(
    ("calibration", "expected"),
    [
        ("published", [8.98] * 4),
        ("joint", [4.49] * 4),
    ],
)
def test_noise_of_the_landmine_weights(
    calibration: Calibration, expected: list[float]
) -> None:
    release = landmine(calibration)
    for iteration in (0, 9, 10):
        np.testing.assert_allclose(release.noise_std(iteration), expected, atol=0.005)
    for iteration in (39, 60):
        np.testing.assert_allclose(release.noise_std(iteration), 2.17, atol=0.005)


def test_published_noise_is_worth_a_larger_multiplier() -> None:
    """In the early rounds sqrt(P) = 2 times the noise that z = 1 needs."""
    assert landmine("joint").effective_noise_multiplier(0) == 1.0
    published = landmine("published")
    assert published.effective_noise_multiplier(0) == pytest.approx(2.0, abs=1e-3)
    assert published.effective_noise_multiplier(50) == pytest.approx(1.0)


@st.composite
def releases(
    draw: st.DrawFn, calibrations: tuple[Calibration, ...] = get_args(Calibration)
) -> Release:
    num_agents = draw(st.integers(1, 12))
    sampling: Sampling = draw(st.sampled_from(get_args(Sampling)))
    if sampling == "poisson":
        q = draw(st.floats(0.05, 1))
    else:
        q = draw(st.integers(1, num_agents)) / num_agents
    released = ReleaseSettings(
        num_agents=num_agents,
        num_sub_regions=draw(st.integers(1, 6)),
        clip_norm=draw(st.floats(0.01, 100)),
        noise_multiplier=draw(st.floats(0.1, 5)),
        sampling_probability=q,
        sampling=sampling,
        calibration=draw(st.sampled_from(calibrations)),
    )
    return Release(released, SeededEntropy(draw(st.integers(0, 99))))


numbers = st.floats(-1e100, 1e100)
vectors = st.lists(numbers, min_size=M, max_size=M).map(np.array)


@hypothesis.settings(max_examples=40)
@given(releases(), st.integers(0, 50), st.data())
def test_one_agent_moves_the_release_by_at_most_its_sensitivity(
    release: Release, iteration: int, data: st.DataObject
) -> None:
    """The adjacency itself: same noise, same sample, one agent's message zeroed.

    Or, where the sample size is fixed, replaced by any other.
    """
    num_agents = release.settings.num_agents
    messages = {n: data.draw(vectors) for n in range(num_agents)}
    agent = data.draw(st.integers(0, num_agents - 1))
    fixed_size = release.settings.sampling == "fixed-size"
    instead = data.draw(vectors) if fixed_size else np.zeros(M)
    one = release.release(iteration, messages, M)
    other = release.release(iteration, {**messages, agent: instead}, M)
    q, std = release.settings.sampling_probability, release.noise_std(iteration)
    rounding = 1e-9 * max(1.0, float(np.abs(one).max()))
    shift = np.linalg.norm(one - other)
    assert shift <= release.sensitivity(iteration) / q * (1 + 1e-9) + rounding
    # In units of the noise, region by region: at most 1 / effective multiplier.
    in_noise = np.linalg.norm((one - other) / std[:, None])
    charged = release.effective_noise_multiplier(iteration)
    assert in_noise <= 1 / charged * (1 + 1e-6) + rounding / std.min()
    # The published noise of a sample of a fixed size is not doubled.
    not_doubled = fixed_size and release.settings.calibration != "joint"
    least = release.settings.noise_multiplier / (2 if not_doubled else 1)
    assert charged >= least * (1 - 1e-12)


class Chosen(SeededEntropy):
    """Samples that the test chooses, and no noise."""

    def __init__(self, sampled: Collection[int]) -> None:
        super().__init__(0)
        self._sampled = sampled

    def mask(self, iteration: int, num_agents: int, q: float) -> Any:
        return np.isin(np.arange(num_agents), list(self._sampled))

    def subset(self, iteration: int, num_agents: int, sample_size: int) -> Any:
        assert len(self._sampled) == sample_size
        return self.mask(iteration, num_agents, 0.0)

    def add_noise(self, iteration: int, rows: Any, std: Any) -> Any:
        return rows


@pytest.mark.parametrize(
    ("num_sub_regions", "iteration"), [(1, 0), (3, 0), (3, 25), (3, 60)]
)
def test_the_sensitivities_are_those_of_the_worst_case(
    num_sub_regions: int, iteration: int
) -> None:
    """By trying every sample and every agent at its loudest: bounds, and reached."""
    num_agents, sample_size, loud = 5, 2, 1e100 * np.ones(M)
    plain = ReleaseSettings(num_agents, num_sub_regions, sampling_probability=0.4)
    zeroed, replaced, swapped = [0.0], [0.0], [0.0]
    for sampled in combinations(range(num_agents), sample_size):
        poisson = Release(plain, Chosen(sampled))
        fixed = Release(replace(plain, sampling="fixed-size"), Chosen(sampled))
        for n in range(num_agents):
            there = poisson.release(iteration, {n: loud}, M)
            opposite = fixed.release(iteration, {n: -loud}, M)
            zeroed.append(0.4 * float(np.linalg.norm(there)))
            replaced.append(0.4 * float(np.linalg.norm(there - opposite)))
        # Another agent in the sample in place of one, all of them loud.
        for out, enters in product(sampled, set(range(num_agents)) - set(sampled)):
            other = Release(plain, Chosen({*sampled, enters} - {out}))
            for sign in (1.0, -1.0):
                messages = dict.fromkeys(range(num_agents), loud)
                messages[enters] = sign * loud
                difference = poisson.release(iteration, messages, M) - other.release(
                    iteration, messages, M
                )
                swapped.append(0.4 * float(np.linalg.norm(difference)))
    delta = poisson.sensitivity(iteration)
    assert max(zeroed) == pytest.approx(delta, rel=1e-9)
    assert fixed.sensitivity(iteration) == 2 * delta
    assert max(replaced) == pytest.approx(2 * delta, rel=1e-9)
    assert max(swapped) <= 2 * delta * (1 + 1e-9)
    noise = 2 * plain.noise_multiplier * delta * num_agents / sample_size
    np.testing.assert_allclose(fixed.noise_std(iteration), noise)


@pytest.mark.parametrize("iteration", [0, 60])
def test_published_noise_of_a_fixed_sample_is_not_doubled(iteration: int) -> None:
    """z phi_max S / q, for B = int(q N) agents, as the authors draw it.

    So it is worth less than z: by hand, the loudest agent turned into its opposite.
    """
    q = int(29 * 0.35) / 29
    settings = ReleaseSettings(
        29, 4, 22.0, 1.6, q, sampling="fixed-size", calibration="published"
    )
    assert settings.subsampling.sample_size == 10
    release = Release(settings, SeededEntropy(0))
    phi = settings.weights.weights(iteration, 29, 4)
    std = 1.6 * phi.max() * 22.0 / q
    np.testing.assert_allclose(release.noise_std(iteration), std)
    turned = [
        np.linalg.norm([2 * 22.0 / math.sqrt(4) * weight / q for weight in row])
        for row in phi
    ]
    charged = release.effective_noise_multiplier(iteration)
    assert charged == pytest.approx(std / max(turned))
    assert charged == pytest.approx(1.6 if iteration == 0 else 0.8, abs=1e-3)
    joint = Release(replace(settings, calibration="joint"), SeededEntropy(0))
    assert joint.effective_noise_multiplier(iteration) == 1.6


BROKEN = [
    None,
    "a string",
    [1.0] * M,
    np.ones(M - 1),
    np.ones((1, M)),
    np.float64(1.0),
    np.full(M, np.nan),
    np.array([1.0] * (M - 1) + [np.inf]),
    np.full(M, 1.1e100),
    np.full(M, 1.7e308),
    np.ones(M, dtype=np.longdouble),
    np.ones(M, dtype=complex),
    np.ones(M, dtype=bool),
    np.array(["x"] * M),
    np.array([None] * M, dtype=object),
]


def test_a_broken_message_counts_as_zero() -> None:
    release = landmine("joint")
    others = {n: np.full(M, float(n)) for n in range(1, 29)}
    expected = release.release(0, others, M)
    for broken in BROKEN:
        released = release.release(0, {0: broken, **others}, M)
        np.testing.assert_array_equal(released, expected, repr(broken))


def test_broken_messages_of_every_kind_count_as_zero_together() -> None:
    release = landmine("joint")
    kinds: list[type[Any]] = [np.float16, np.float32, np.int8, np.uint64]
    others = {20 + n: np.full(M, n, dtype=kind) for n, kind in enumerate(kinds)}
    expected = release.release(0, others, M)
    np.testing.assert_array_equal(
        release.release(0, {**dict(enumerate(BROKEN)), **others}, M), expected
    )


def test_slots_outside_the_study_do_not_count() -> None:
    release = landmine("joint")
    stranger: Mapping[int, Any] = {29: np.ones(M), -1: np.ones(M)}
    np.testing.assert_array_equal(
        release.release(0, stranger, M), release.release(0, {}, M)
    )


def test_the_order_of_messages_does_not_matter() -> None:
    release = landmine("joint")
    rng = np.random.default_rng(3)
    messages = {n: rng.standard_normal(M) for n in range(29)}
    backwards = dict(reversed(messages.items()))
    np.testing.assert_array_equal(
        release.release(2, messages, M), release.release(2, backwards, M)
    )


def test_an_empty_round_still_gets_its_noise() -> None:
    release = landmine("joint")
    draws = np.array([release.release(t, {}, 100) for t in range(10)])
    assert draws.std() == pytest.approx(release.noise_std(0)[0], rel=0.05)


def test_noise_only_ignores_what_arrives() -> None:
    silent = ReleaseSettings(29, 4, noise_only=True)
    release = Release(silent, SeededEntropy(0))
    loud = {n: np.full(M, 9.0) for n in range(29)}
    np.testing.assert_array_equal(
        release.release(0, loud, M), landmine("joint").release(0, {}, M)
    )


def test_without_noise_and_sampling_it_is_the_weighted_mean() -> None:
    plain = ReleaseSettings(
        num_agents=3, clip_norm=math.inf, noise_multiplier=0.0, sampling_probability=1.0
    )
    release = Release(plain, None)
    messages = {n: np.full(M, float(n)) for n in range(3)}
    np.testing.assert_allclose(release.release(0, messages, M), np.ones((1, M)))
    assert not release.private
    assert release.effective_noise_multiplier(0) == 0.0


def test_integer_messages_are_numbers_too() -> None:
    plain = ReleaseSettings(2, 1, math.inf, 0.0, 1.0)
    released = Release(plain, None).release(0, {0: np.ones(M, dtype=np.int32)}, M)
    np.testing.assert_allclose(released, 0.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_agents": 2.5}, "num_agents=2.5"),
        ({"num_sub_regions": 0}, "num_sub_regions=0"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"clip_norm": math.inf}, "clip_norm=inf"),
        ({"noise_multiplier": -0.1}, "noise_multiplier=-0.1"),
        ({"noise_multiplier": 1.1e6}, "noise_multiplier=1100000.0"),
        ({"noise_multiplier": "1"}, "noise_multiplier='1'"),
        ({"sampling_probability": 1e-10}, "sampling_probability=1e-10"),
        ({"sampling_probability": 1.01}, "sampling_probability=1.01"),
        ({"sampling_probability": math.nan}, "sampling_probability=nan"),
        ({"calibration": "less"}, "calibration='less'"),
        ({"sampling": "some"}, "sampling='some'"),
        ({"sampling": "fixed-size"}, "sampling_probability=0.35"),
    ],
)
def test_bad_settings_are_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        ReleaseSettings(**{"num_agents": 5, **change})
    assert words in str(error.value)


def test_a_release_without_entropy_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy"):
        Release(ReleaseSettings(5), None)


def test_a_fixed_sample_size_is_what_is_drawn() -> None:
    """Without noise, every release of equal messages is the same multiple of them."""
    plain = ReleaseSettings(5, 1, math.inf, 0.0, 0.4, sampling="fixed-size")
    release = Release(plain, OsEntropy())
    uniform = release.weights(60)[0, 0]
    for _ in range(20):
        released = release.release(60, {n: np.ones(M) for n in range(5)}, M)
        np.testing.assert_allclose(released, 2 * uniform / 0.4)
