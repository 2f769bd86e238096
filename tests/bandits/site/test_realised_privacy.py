"""The realised epsilon of a site's own stream: estimated well, and never sent."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ContinualSettings,
    InverseGapWeighting,
    LinearUCBSettings,
    Optimism,
    Prior,
)
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import Exploration, exploration_rng
from flwr_fbo.bandits.linear.settings import LocalData
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.realised_privacy import _Replay, _unknown, mu_of
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.gaussian import gaussian_epsilon, gaussian_mu
from tests.support import bandit_sites, peer_studies
from tests.support.policies import FILE_NAME, enrolled

T, TIMES, OTHERS = 90, [12, 30, 60, 90], 19
D = 8  # two arms, each with an intercept and three features
RELEASES = ContinualSettings(len(TIMES), D, 4.0, 1e-5, reward_range=(0.0, 1.0))
SETTINGS = LinearUCBSettings(RELEASES, local_data="own")
# How far the estimate may be from the truth; fixed before the first run.
FACTOR = 2.0


class Cases:
    """Patients for whom one of two arms is right: its reward is 1, the other's 0."""

    def __init__(self, number: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        z = np.c_[np.ones(number), rng.uniform(-1, 1, (number, 3))] / 2
        theta = np.random.default_rng(77).normal(size=(2, 4)) * 2
        right = (z @ theta.T + 0.8 * rng.gumbel(size=(number, 2))).argmax(axis=1)
        self.actions = np.zeros((number, 2, D))
        self.actions[:, 0, :4] = self.actions[:, 1, 4:] = z
        self.rewards = (right[:, None] == np.arange(2)).astype(float)


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases(T, 1)


@pytest.fixture(scope="module")
def others() -> list[FloatArray]:
    """Return what other sites sent by each synchronisation."""
    drawn, rng = Cases(T * OTHERS, 9), np.random.default_rng(5)
    arms = rng.integers(0, 2, len(drawn.rewards))
    rows = np.arange(len(arms))
    products = RELEASES.outer_products(
        drawn.actions[rows, arms], drawn.rewards[rows, arms]
    )
    noise = rng.normal(size=(len(TIMES), D + 1, D + 1)) * np.sqrt(OTHERS)
    noise *= RELEASES.release_std()[:, None, None]
    noise = (noise + np.swapaxes(noise, -1, -2)) / 2
    return [
        products[: time * OTHERS].sum(axis=0) + each
        for time, each in zip(TIMES, noise, strict=True)
    ]


def play(
    policy: LinearBanditPolicy,
    cases: Cases,
    others: list[FloatArray],
    delay: int = 0,
) -> None:
    """Have a site decide and synchronise; rewards come some decisions later."""
    waiting: list[tuple[int, float]] = []
    for t in range(T):
        choice = policy.choose(cases.actions[t])
        waiting.append((choice.ticket, float(cases.rewards[t, choice.index])))
        if len(waiting) > delay:
            policy.reward(*waiting.pop(0))
        if t + 1 in TIMES:
            k = TIMES.index(t + 1) + 1
            with policy._held() as bandit:
                message = bandit.release(k)
                bandit.receive(message + others[k - 1], k, OTHERS + 1, k)


@pytest.mark.parametrize("local_data", ["own", "raw"])
@pytest.mark.parametrize("exploration", [Optimism(), InverseGapWeighting()])
def test_a_replay_has_the_probabilities_of_the_site(
    tmp_path: Path,
    cases: Cases,
    others: list[FloatArray],
    local_data: LocalData,
    exploration: Exploration,
) -> None:
    settings = replace(SETTINGS, local_data=local_data, exploration=exploration)
    policy = enrolled(tmp_path / "site", settings, None)
    policy.set_prior(Prior.of_log(settings, cases.actions[:9, 0], cases.rewards[:9, 0]))
    policy.add_history(cases.actions[:30, 1], cases.rewards[:30, 1])
    play(policy, cases, others, delay=4)
    with policy._held() as bandit:
        stream = bandit.played()
    replay = _Replay(stream, np.zeros(T), _unknown)
    replay.play(None, [])
    again = [
        row[decision.chosen]
        for row, decision in zip(replay.probabilities, stream.decisions, strict=True)
    ]
    recorded = [decision.propensity for decision in stream.decisions]
    # With "raw" the bound on eigenvalues depends a little on when sums were read.
    np.testing.assert_allclose(again, recorded, rtol=2e-3)
    assert not replay.differences.any()


def true_sums(
    cases: Cases, others: list[FloatArray], messages: list[FloatArray], flipped: int
) -> FloatArray:
    """Return the clean sums of a site that plays with one outcome flipped."""
    confidence = Confidence.of(SETTINGS, 2)
    agent, total = LinearUCBAgent(confidence), np.zeros((D + 1, D + 1))
    sums: list[FloatArray] = []
    for t in range(T):
        # As the site draws: of two arms that are equally good at first.
        index, _ = agent.choose(cases.actions[t], exploration_rng(3, 0, t))
        reward = cases.rewards[t, index]
        reward = 1 - reward if t == flipped else reward
        agent.tell(cases.actions[t, index], reward)
        [product] = RELEASES.outer_products([cases.actions[t, index]], [reward])
        total = total + product
        if t + 1 in TIMES:
            k = len(sums)
            sums.append(total)
            part = OwnPart(messages[k], total, t + 1)
            agent.receive(messages[k] + others[k], k + 1, part, OTHERS)
    return np.array(sums)


def test_the_estimate_agrees_with_what_other_actions_would_truly_have_given(
    tmp_path: Path, cases: Cases, others: list[FloatArray]
) -> None:
    policy = enrolled(tmp_path / "site", SETTINGS, None)
    play(policy, cases, others)
    estimate = policy.realised_privacy(30, seed=2)
    assert estimate.num_kept == 0
    with policy._held() as bandit:
        messages = [row.vectors for row in bandit.journal.ledger()]
    base = true_sums(cases, others, messages, flipped=-1)
    differences = [
        true_sums(cases, others, messages, flipped) - base for flipped in range(0, T, 3)
    ]
    assert any(np.ptp(np.linalg.norm(d, axis=(1, 2))[1:]) > 2 for d in differences)
    true = [gaussian_epsilon(1e-5, mu_of(RELEASES, each)) for each in differences]
    for found, truth in (
        (estimate.median, np.median(true)),
        (estimate.high, np.quantile(true, 0.9)),
    ):
        assert truth / FACTOR <= found <= truth * FACTOR
    # More than the promise, for some: this is what it is for.
    assert max(estimate.epsilons) > RELEASES.epsilon


def test_an_outcome_that_nothing_follows_is_within_the_promise(
    tmp_path: Path, cases: Cases, others: list[FloatArray]
) -> None:
    policy = enrolled(tmp_path / "site", SETTINGS, None)
    play(policy, cases, others)
    with policy._held() as bandit:
        stream = bandit.played()
    found = replace(stream, decisions=stream.decisions, told=stream.told[-1:])
    [epsilon] = found.realised(1, 0).epsilons
    assert 0 < epsilon < RELEASES.epsilon


def test_one_trial_replaced_by_the_farthest_has_the_promised_mu() -> None:
    for mechanism in ("toeplitz", "tree"):
        releases = replace(RELEASES, mechanism=mechanism)
        matrix = np.zeros((D + 1, D + 1))
        matrix[0, 0] = releases.sensitivity
        found = mu_of(releases, np.array([matrix] * len(TIMES)))
        assert found == pytest.approx(gaussian_mu(4.0, 1e-5), rel=1e-6)


def test_the_promise_is_realised_where_sites_act_on_released_sums(
    tmp_path: Path, cases: Cases, others: list[FloatArray]
) -> None:
    settings = replace(SETTINGS, local_data="released")
    policy = enrolled(tmp_path / "site", settings, None)
    play(policy, cases, others)
    found = policy.realised_privacy(5)
    assert (found.median, found.high) == (4.0, 4.0)
    assert "Realised" not in str(policy.summary())


def test_a_summary_has_the_last_estimate(
    tmp_path: Path, cases: Cases, others: list[FloatArray]
) -> None:
    policy = enrolled(tmp_path / "site", SETTINGS, None)
    with pytest.raises(ValueError, match="num_releases=0 is not allowed"):
        policy.realised_privacy()
    assert "not estimated yet" in str(policy.summary())
    play(policy, cases, others)
    for bad in (0, 1001, 2.5):
        with pytest.raises(ValueError, match="num_patients="):
            policy.realised_privacy(bad)  # type: ignore[arg-type]
    found = policy.realised_privacy(6, seed=1)
    assert len(found.epsilons) == 6
    again = LinearBanditPolicy.open(tmp_path / "site").summary()
    assert again.realised == found
    assert f"Realised        {found}; after release 4" in str(again)


def test_nothing_that_is_sent_depends_on_the_estimate(tmp_path: Path) -> None:
    settings = bandit_sites.CASES["own"]
    sent = []
    for estimates in (False, True):
        sites = bandit_sites.Sites(tmp_path / str(estimates))

        def act(sites: Any = sites, estimates: bool = estimates) -> None:
            for slot in range(bandit_sites.M):
                policy = sites.policy(slot)
                for value in (0.5, 1.0):
                    choice = policy.choose(bandit_sites.ACTIONS)
                    policy.reward(choice.ticket, value)
                if estimates and policy.summary().num_releases:
                    assert policy.realised_privacy(3, seed=1).epsilons

        sites.before = dict.fromkeys(range(2, 8), act)
        seed = bandit_sites.NOISE_SEED
        bandit_sites.fed_ucb(settings, interval=0.0, noise_seed=seed).start(sites)
        replies = {}
        for number, reply in sites.replies:
            slot = sites.contexts[reply.metadata.src_node_id].node_config["agent-id"]
            records = reply.content.array_records
            numbers = [
                array.numpy().tolist()
                for record in records.values()
                for array in record.values()
            ]
            metrics = {
                name: value
                for record in reply.content.metric_records.values()
                for name, value in record.items()
                if name not in ("journal", "head")  # drawn for each journal
            }
            replies[number, slot] = numbers, metrics
        sent.append(replies)
    assert sent[0] == sent[1]
    assert sum(bool(numbers) for numbers, _ in sent[0].values()) == 3 * bandit_sites.M


def test_peers_are_refused(tmp_path: Path) -> None:
    ring = peer_studies.RING
    releases = replace(peer_studies.RELEASES, num_streams=ring.streams)
    settings = LinearUCBSettings(releases, local_data="own")
    study = LinearBanditStudy(settings, peer_studies.M, graph=ring)
    with Journal(RecordedBandit.identity_of(study), tmp_path / FILE_NAME) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
        with pytest.raises(ValueError, match="among peers"):
            bandit.played()
