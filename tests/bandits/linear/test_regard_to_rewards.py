"""A study that a site takes for one with regard to rewards has it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flwr_fbo.bandits import (
    ContinualSettings,
    EllipsoidSampling,
    InverseGapWeighting,
    LinearUCBSettings,
    Optimism,
    PeerGraph,
    RewardTimeout,
)
from flwr_fbo.bandits.linear import blocks_belief, own_data
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.leaving_the_sums import summed_releases
from flwr_fbo.bandits.linear.regard_to_rewards import (
    FEW_TRIALS,
    LARGEST_RIDGE,
    SHARES,
    has_regard,
)
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.secure import SecureAggregation

K = 4
RELEASES = ContinualSettings(2, K, epsilon=1.0, delta=1e-5, reward_range=(0, 1))
OWN = LinearUCBSettings(RELEASES, local_data="own")
ALL_DRAWN = EllipsoidSampling(uniform_share=1e-12, radius=1.0)


def logs(low: float, high: float) -> st.SearchStrategy[float]:
    """Return numbers from low to high, evenly by their logarithm."""
    spread = st.floats(math.log10(low), math.log10(high))
    return spread.map(lambda e: min(max(10.0**e, low), high))


KINDS = st.one_of(
    st.just(Optimism()),
    st.builds(EllipsoidSampling, uniform_share=st.just(1e-12), radius=logs(1e-9, 1.0)),
)
DRAWN = st.builds(
    lambda exploration, size, length, **more: LinearUCBSettings(
        replace(RELEASES, max_action_norm=size, reward_range=(0.0, length)),
        local_data="own",
        exploration=exploration,
        **more,
    ),
    exploration=KINDS,
    size=logs(1e-3, 1e3),
    length=logs(1e-3, 1e3),
    ridge=logs(1e-15, 1e15),
    noise_scale=logs(1e-12, 1e12),
    width=st.one_of(st.none(), logs(1e-15, 1e6)),
)


def share_of_best(given: LinearUCBSettings, seed: int, num_trials: int) -> float:
    """Return in how many trials a lone site plays the arm that pays 90 %."""
    rng, releases = np.random.default_rng(seed), given.releases
    low, high = releases.reward_range
    agent = LinearUCBAgent(Confidence.of(given, 1))
    actions = releases.max_action_norm * np.eye(K)
    played = 0
    for _ in range(num_trials):
        chosen, _ = agent.choose(actions, rng)
        played += chosen == 0
        pays = rng.random() < (0.9 if chosen == 0 else 0.1)
        agent.tell(actions[chosen], high if pays else low)
    return played / num_trials


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(drawn=DRAWN, seed=st.integers(0, 1000))
def test_a_site_that_takes_part_plays_the_best_arm(
    drawn: LinearUCBSettings, seed: int
) -> None:
    assume(has_regard(drawn, 1))
    # What is narrower is greedy: one early reward may decide, which is not counted.
    radius = getattr(drawn.exploration, "radius", 1.0)
    assume(radius * (drawn.fixed_width or 0.0) >= drawn.releases.max_reward / 2)
    assert share_of_best(drawn, seed, FEW_TRIALS) > 0.5


def nearly_refused(**changes: Any) -> LinearUCBSettings:
    """Return settings at the largest width with regard to rewards."""
    low, high = 1e-3, 1e6
    for _ in range(40):
        middle = math.sqrt(low * high)
        ok = has_regard(replace(OWN, width=middle, **changes), 1)
        low, high = (middle, high) if ok else (low, middle)
    return replace(OWN, width=low, **changes)


@pytest.mark.parametrize("exploration", [Optimism(), ALL_DRAWN])
@pytest.mark.parametrize("ridge", [1e-15, 1.0, 40.0])
def test_the_best_arm_is_clearly_preferred_at_the_bound(
    exploration: Any, ridge: float
) -> None:
    """And still where the range is declared twice as long as rewards need."""
    bound = nearly_refused(exploration=exploration, ridge=ridge)
    assert bound.width is not None
    shares = [share_of_best(bound, seed, FEW_TRIALS) for seed in range(4)]
    assert min(shares) > 0.7


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 30.0},
        {"width": 100.0},
        {"width": 1e6},
        {"noise_scale": 1e12},
        {"width": 30.0, "exploration": ALL_DRAWN},
        {"releases": replace(RELEASES, reward_range=(0, 1e-3))},
    ],
)
def test_what_plays_by_chance_is_refused(changes: dict[str, Any]) -> None:
    by_chance = replace(OWN, **changes)
    assert share_of_best(by_chance, 0, FEW_TRIALS) < 0.5
    for local in ("own", "released", "raw"):
        assert not has_regard(replace(by_chance, local_data=local), 2)


def test_a_ridge_counts_only_where_it_is_in_choices() -> None:
    """Not where a site averages over ridges, or noise takes the ridge's place."""
    changes: dict[str, Any] = {"ridge": 1e6, "width": 1.0, "exploration": ALL_DRAWN}
    for local in ("own", "released", "raw"):
        settings = replace(OWN, local_data=local, **changes)
        assert has_regard(settings, 2)
    shares = [
        share_of_best(replace(OWN, **changes), seed, FEW_TRIALS) for seed in range(3)
    ]
    assert min(shares) > 0.7
    without_noise = replace(RELEASES, epsilon=math.inf)
    released = replace(OWN, local_data="released", releases=without_noise, **changes)
    assert not has_regard(released, 2)
    assert has_regard(replace(released, ridge=1.0), 2)


def test_the_largest_ridge_is_that_of_the_beliefs() -> None:
    of_own = own_data._RIDGES.max() / len(SHARES)
    assert max(of_own, blocks_belief._RIDGES.max()) <= LARGEST_RIDGE


def test_a_noise_scale_counts_whatever_a_site_acts_on() -> None:
    for local in ("own", "released", "raw"):
        assert not has_regard(replace(OWN, local_data=local, noise_scale=50.0), 2)


@pytest.mark.parametrize(("num_agents", "share"), [(20, 0), (4, 1)])
def test_summed_blocks_have_the_noise_of_one_release(
    num_agents: int, share: float
) -> None:
    """Where each site adds all of it, decisions of 20 sites have no regard."""
    blocks = replace(RELEASES, num_releases=9, epsilon=3e-3, mechanism="blocks")
    settings = LinearUCBSettings(blocks, local_data="released")
    local = LinearBanditStudy(settings, num_agents)
    collector = SecureAggregation().collector([range(num_agents)])
    sums = collector.block_sums(summed_releases(blocks), 1000)
    assert local.largest_uniform_share == 1
    assert replace(local, secure=sums).largest_uniform_share == share


@pytest.mark.parametrize("local", ["released", "raw"])
@pytest.mark.parametrize(
    "changes",
    [
        {"releases": replace(RELEASES, epsilon=0.001)},
        {"releases": replace(RELEASES, epsilon=0.01)},
        {"releases": replace(RELEASES, epsilon=0.01), "width": 0.3},
        {"releases": replace(RELEASES, reward_range=(0, 1e6))},
        {"parameter_norm": 1e3},
        {"parameter_norm": 1e15},
        {"noise_scale": 100.0, "width": "exact"},
        {"reward_timeout": RewardTimeout(1e-6)},
    ],
)
def test_sums_that_say_nothing_are_refused(changes: dict[str, Any], local: Any) -> None:
    """Nor is the ridge, which has no effect there, a reason."""
    drowned = replace(OWN, local_data=local, **changes)
    assert not has_regard(drowned, 2)
    assert has_regard(replace(OWN, local_data=local, ridge=1e15), 2)


def test_own_data_count_whatever_the_noise_is() -> None:
    assert has_regard(replace(OWN, releases=replace(RELEASES, epsilon=1e-3)), 2)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
@pytest.mark.parametrize("num_agents", [1, 20, 100])
@pytest.mark.parametrize("local", ["own", "released", "raw"])
@pytest.mark.parametrize("exploration", [Optimism(), EllipsoidSampling()])
def test_defaults_have_regard(
    local: Any, exploration: Any, num_agents: int, epsilon: float
) -> None:
    for dimension in (2, 8, 30):
        releases = ContinualSettings(30, dimension, epsilon, delta=1e-5)
        chosen = LinearUCBSettings(releases, local_data=local, exploration=exploration)
        study = LinearBanditStudy(chosen, num_agents)
        assert study.largest_uniform_share == exploration.largest_uniform_share


def test_the_share_of_a_study() -> None:
    assert LinearBanditStudy(OWN, 2).largest_uniform_share == 0
    drawn = replace(OWN, exploration=EllipsoidSampling(uniform_share=0.05))
    assert LinearBanditStudy(drawn, 2).largest_uniform_share == 0.05
    weighted = replace(OWN, exploration=InverseGapWeighting())
    assert LinearBanditStudy(weighted, 2).largest_uniform_share == 1
    wide = replace(OWN, width=100.0)
    assert LinearBanditStudy(wide, 2).largest_uniform_share == 1


def test_along_a_graph_those_count_whose_sums_are_added() -> None:
    line = PeerGraph.named("line", 50)
    assert min(map(len, line.pools)) == 2
    releases = replace(RELEASES, epsilon=0.03)
    noisy = replace(OWN, local_data="released", releases=releases)
    assert LinearBanditStudy(noisy, 50).largest_uniform_share == 0
    assert LinearBanditStudy(noisy, 50, graph=line).largest_uniform_share == 1


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.4, 1.0])
def test_released_sums_lead_to_the_best_arm(epsilon: float) -> None:
    """Of many trials most are of the best arm where a study is near the bound."""
    releases = replace(RELEASES, num_releases=10, epsilon=epsilon)
    given = LinearUCBSettings(releases, local_data="released", exploration=ALL_DRAWN)
    assert has_regard(given, 1)
    shares = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        agent = LinearUCBAgent(Confidence.of(given, 1))
        mechanism = ContinualRelease(releases, SeededEntropy(seed, 0))
        played, num_trials = 0, 10_000
        for t in range(num_trials):
            chosen, _ = agent.choose(np.eye(K), rng)
            played += chosen == 0
            pays = rng.random() < (0.9 if chosen == 0 else 0.1)
            agent.tell(np.eye(K)[chosen], float(pays))
            if t % 1000 == 900:
                agent.receive(mechanism.release(t // 1000 + 1, agent.running_sum))
        shares.append(played / num_trials)
    assert min(shares) > 0.5
