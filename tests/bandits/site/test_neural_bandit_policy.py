"""A site of Fed-GO-UCB that decides at its own pace, as a linear one does."""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import FedGOUCB, InProcessGrid, Limits, LinearBanditPolicy
from flwr_fbo.bandits import (
    FedGOUCBSettings,
    LateRewardError,
    NeuralBanditPolicy,
    RewardTimeout,
    neural_bandit_app,
)
from flwr_fbo.bandits.fed_go_ucb.settings import NeuralPrivacy
from flwr_fbo.bandits.site.bandit_policy import BanditPolicy
from flwr_fbo.bandits.site.site_policies import open_policy
from flwr_fbo.lab.simulation.neural_bandits import LinearModel
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.study.codec import StudyMismatchError
from tests.support.policies import (
    MAKE_POLICY,
    NETWORK,
    NEURAL_SETTINGS,
    VECTORS,
    enrolled,
    neural_enrolled,
)

BOTH = pytest.mark.parametrize("bandit", MAKE_POLICY)
POINTS = np.random.default_rng(0).uniform(size=(6, 3))


def play(policy: BanditPolicy[Any], number: int, best: int = 4) -> list[int]:
    """Play with one best action; return what was played."""
    played = []
    for _ in range(number):
        choice = policy.choose(POINTS)
        policy.reward(choice.ticket, float(choice.arm == str(best)))
        played.append(int(choice.arm))
    return played


# What holds for whatever a site believes


@BOTH
def test_the_rules_of_a_request_hold(tmp_path: Path, bandit: str) -> None:
    policy = MAKE_POLICY[bandit](tmp_path)
    for _ in range(5):
        choice = policy.choose(VECTORS, forbid=["1"])
        assert choice.arm in ("0", "2")
        policy.reward(choice.ticket, 0.5)
    found = policy.probabilities(VECTORS, forbid=["1"], floors={"0": 0.4})
    assert found["1"] == 0.0
    assert found["0"] >= 0.4
    assert sum(found.values()) == pytest.approx(1)
    greedy = policy.choose(VECTORS, explore=False)
    assert greedy.propensity == 1.0
    assert greedy.why in ("best expected", "tie")
    assert math.isfinite(greedy.expected)
    only = policy.choose(VECTORS, eligible=["2"])
    assert (only.arm, only.index, only.why) == ("2", 0, "only arm")
    slate = policy.choose_slate(VECTORS, 3, key="slate")
    assert sorted(one.arm for one in slate) == ["0", "1", "2"]
    again = open_policy(tmp_path).choose_slate(VECTORS, 3, key="slate")
    assert list(map(vars, again)) == list(map(vars, slate))
    policy.cancel(only.ticket)
    assert policy.num_trials == len(policy.decisions()) == 10
    assert len(policy.awaited) == 4


@BOTH
def test_a_floor_has_its_share_and_an_honest_propensity(
    tmp_path: Path, bandit: str
) -> None:
    policy = MAKE_POLICY[bandit](tmp_path)
    choices = policy.choose_many([VECTORS] * 400, floors={"2": 0.5, "1": 0.3})
    shares = Counter(choice.arm for choice in choices)
    # Binomial numbers about 200 and 120 or more: below with p < 2e-8 each.
    assert shares["2"] > 144
    assert shares["1"] > 70
    for choice in choices:
        assert choice.propensity >= {"2": 0.5, "1": 0.3}.get(choice.arm, 0.0) - 1e-9


@BOTH
def test_a_reward_may_come_later_at_another_process(
    tmp_path: Path, bandit: str
) -> None:
    policy = MAKE_POLICY[bandit](tmp_path)
    first, second = policy.choose_many([VECTORS] * 2)
    open_policy(tmp_path).reward_many({second.ticket: 1.0, first.ticket: 0.0})
    policy.reward(first.ticket, 0.0)  # a retry
    with pytest.raises(ValueError, match="ticket="):
        policy.reward(first.ticket, 0.5)
    policy.correct(first.ticket, 0.5)
    assert [d.reward for d in policy.decisions()] == [0.5, 1.0]
    other = MAKE_POLICY[bandit](tmp_path / "other")
    for choice, value in zip(other.choose_many([VECTORS] * 2), (0.5, 1.0), strict=True):
        assert choice.arm == (first, second)[choice.ticket].arm
        other.reward(choice.ticket, value)
    np.testing.assert_allclose(sums_of(policy), sums_of(other), atol=1e-12)


def sums_of(policy: BanditPolicy[Any]) -> np.ndarray:
    with policy._held() as agent:
        is_linear = isinstance(policy, LinearBanditPolicy)
        return np.array(agent.sums.running_sum(1) if is_linear else agent.belief.own)


WRONG: list[Any] = [
    VECTORS[:0],
    VECTORS[:, :2],
    VECTORS * np.nan,
    {"age": 1},
    3.0,
]


@BOTH
def test_what_is_wrong_is_refused_and_not_recorded(tmp_path: Path, bandit: str) -> None:
    policy = MAKE_POLICY[bandit](tmp_path)
    for context in WRONG:
        for call in (policy.choose, policy.probabilities):
            with pytest.raises(ValueError, match=r"actions|context"):
                call(context)
    with pytest.raises(ValueError, match="forbid='7'"):
        policy.choose(VECTORS, forbid=["7"])
    with pytest.raises(ValueError, match="floors"):
        policy.choose(VECTORS, floors={"7": 0.1})
    choice = policy.choose(VECTORS)
    for value in (math.nan, math.inf, "much"):
        with pytest.raises(ValueError, match=r"value|rewards"):
            policy.reward(choice.ticket, value)  # type: ignore[arg-type]
    assert policy.num_trials == 1
    assert math.isnan(policy.decisions()[0].reward)


# A network


def test_it_learns_and_another_process_believes_the_same(tmp_path: Path) -> None:
    policy = neural_enrolled(tmp_path)
    assert play(policy, 40)[-10:].count(4) >= 8
    fresh = NeuralBanditPolicy.open(tmp_path)
    assert fresh.probabilities(POINTS) == policy.probabilities(POINTS)
    copy = shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    states = []
    for each in (policy, NeuralBanditPolicy.open(copy)):
        with each._held() as agent:
            states.append(agent.belief.agent.state_dict())
    for name in ("inputs", "outputs", "num_seen", "num_included"):
        np.testing.assert_allclose(states[0][name], states[1][name], err_msg=name)
    assert states[0]["num_seen"] == 40


def test_propensities_are_those_of_what_is_played(tmp_path: Path) -> None:
    """Inverse propensities sum to 1 on average, for each action that is possible."""
    policy = neural_enrolled(tmp_path)
    play(policy, 6)
    choices = policy.choose_many([POINTS] * 600)
    shares = np.bincount([int(c.arm) for c in choices], minlength=6) / 600
    means = np.zeros(6)
    for choice in choices:
        means[int(choice.arm)] += 1 / choice.propensity / 600
    often = shares > 0.1
    assert often.sum() >= 2
    np.testing.assert_allclose(means[often], 1.0, atol=0.35)
    for choice in choices:
        assert choice.propensity >= 1 / 64


def test_a_late_reward_counts_as_the_study_says(tmp_path: Path) -> None:
    settings = replace(NEURAL_SETTINGS, reward_timeout=RewardTimeout(0.05, 0.0))
    policy = neural_enrolled(tmp_path, settings)
    choice = policy.choose(POINTS)
    time.sleep(0.1)
    with pytest.raises(LateRewardError):
        policy.reward(choice.ticket, 1.0)
    summary = policy.summary()
    assert (summary.num_timed_out, summary.num_rewarded) == (1, 1)
    privacy = NeuralPrivacy(8.0, 1e-3, 2, 4, reward_range=(0, 1))
    with pytest.raises(ValueError, match=r"reward_timeout.reward=2"):
        replace(settings, privacy=privacy, reward_timeout=RewardTimeout(1.0, 2.0))


def test_a_model_of_the_site(tmp_path: Path) -> None:
    model = LinearModel(3)
    app = neural_bandit_app(
        make_model=lambda context: model,
        limits=Limits(max_epsilon_per_example=math.inf),
    )
    sites = [tmp_path / f"site-{i}" for i in range(2)]
    configs: list[Any] = [
        {"agent-id": i, "fbo-folder": str(site)} for i, site in enumerate(sites)
    ]
    grid = InProcessGrid(app, 2, node_configs=configs)
    settings = FedGOUCBSettings(num_exploration=0)
    FedGOUCB(settings, model, 2, num_evaluations=1, interval=0).start(grid)
    policy = NeuralBanditPolicy.open(sites[0], model=model)
    policy.choose(POINTS)
    with pytest.raises(StudyMismatchError, match="every client has to bring"):
        open_policy(sites[0], patience=0)


# With a server


class LiveSites(InProcessGrid):
    """Sites that decide before each round."""

    def __init__(self, tmp_path: Path, per_round: Callable[[int], int]) -> None:
        self.folders = [tmp_path / f"site-{i}" for i in range(3)]
        configs: list[Any] = [
            {"agent-id": i, "fbo-folder": str(folder)}
            for i, folder in enumerate(self.folders)
        ]
        app = neural_bandit_app(limits=Limits(max_epsilon_per_example=math.inf))
        super().__init__(app, 3, node_configs=configs)
        self.per_round, self.played = per_round, [list[int]() for _ in range(3)]
        self.phases: list[int] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        asked = list(messages)
        number = int(asked[0].metadata.group_id or 0) if asked else 0
        if number > 1:
            for folder, played in zip(self.folders, self.played, strict=True):
                policy = NeuralBanditPolicy.open(folder)
                played += play(policy, self.per_round(number))
                self.phases.append(policy.summary().phase)
        return list(super().send_and_receive(asked, timeout=timeout))


def test_sites_explore_fit_and_play_at_their_own_pace(tmp_path: Path) -> None:
    grid = LiveSites(tmp_path, lambda number: 0 if number == 2 else 4)
    settings = FedGOUCBSettings(
        num_exploration=2, regression=LangevinSettings(num_iterations=3), threshold=0.1
    )
    strategy = FedGOUCB(settings, NETWORK, 3, num_evaluations=12, interval=0, seed=1)
    result = strategy.start(grid)
    assert len(result.rounds) == 1 + 3 + 10
    # Round 1 enrols, round 2 finds no reward; rounds 3 to 5 are the regression's.
    assert grid.phases[: 4 * 3] == [1] * 12
    assert set(grid.phases[5 * 3 :]) == {2}
    assert result.num_synchronisations >= 1
    summary = NeuralBanditPolicy.open(grid.folders[0]).summary()
    assert (summary.phase, summary.has_total) == (2, True)
    assert 0 < (summary.num_included or 0) < summary.num_rewarded == 12 * 4
    first = NeuralBanditPolicy.open(grid.folders[0]).decisions()[0]
    assert (first.propensity, first.why) == (1 / 6, "explored")
    assert math.isnan(first.expected)
    last = [action for played in grid.played for action in played[-8:]]
    assert last.count(4) > 0.7 * len(last)


def test_a_private_study_releases_by_its_schedule(tmp_path: Path) -> None:
    """How many rewards a site has is not sent: silent sites look like busy ones."""
    privacy = NeuralPrivacy(50.0, 1e-3, 2, 4, reward_range=(0, 1))
    grid = LiveSites(tmp_path, lambda number: 3)
    silent, grid.folders, grid.played = grid.folders[1], grid.folders[:1], [[]]
    strategy = FedGOUCB(
        FedGOUCBSettings(privacy=privacy), NETWORK, 3, num_evaluations=9, interval=0
    )
    result = strategy.start(grid)
    assert result.num_synchronisations == 2
    assert len({strategy.server.num_included(slot) for slot in range(3)}) == 1
    busy, quiet = (NeuralBanditPolicy.open(f) for f in (grid.folders[0], silent))
    assert busy.summary().num_rewarded == 27
    for policy in (busy, quiet):
        summary = policy.summary()
        assert (summary.num_releases, summary.epsilon_spent) == (2, 50.0)
        assert "Spent           epsilon 50" in str(summary)
    assert quiet.num_trials == 0
    choice = quiet.choose(POINTS)  # by the total of the busy one
    assert abs(choice.expected) < 10


def test_a_site_without_limits_takes_part_in_private_studies_only(
    tmp_path: Path,
) -> None:
    configs: list[Any] = [
        {"agent-id": i, "fbo-folder": str(tmp_path / f"{i}")} for i in range(2)
    ]
    grid = InProcessGrid(neural_bandit_app(), 2, node_configs=configs)
    strategy = FedGOUCB(
        NEURAL_SETTINGS, NETWORK, 2, num_evaluations=1, interval=0, seed=1
    )
    with pytest.raises(Exception, match="not private"):
        strategy.start(grid)
    app = neural_bandit_app(limits=Limits(max_epsilon_per_example=math.inf))
    strategy = FedGOUCB(NEURAL_SETTINGS, NETWORK, 2, num_evaluations=1, interval=0)
    with pytest.raises(Exception, match="no folder for its policy"):
        strategy.start(InProcessGrid(app, num_nodes=2))


@pytest.mark.parametrize("interval", [-1, math.nan, "soon", 1e10])
def test_an_interval_is_a_number_of_seconds(interval: Any) -> None:
    with pytest.raises(ValueError, match="interval="):
        FedGOUCB(NEURAL_SETTINGS, NETWORK, 2, interval=interval)


def test_a_folder_with_both_bandits_is_ambiguous(tmp_path: Path) -> None:
    enrolled(tmp_path)
    assert isinstance(open_policy(tmp_path), LinearBanditPolicy)
    neural_enrolled(tmp_path)
    with pytest.raises(ValueError, match="folder="):
        open_policy(tmp_path)
