"""A policy's summary says what was learned, from whom, and at what price."""

import math
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import LocalData, Width
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.report.site_pages import policy_page
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from tests.support import bandit_sites, peer_studies
from tests.support.policies import FILE_NAME

RELEASES = ContinualSettings(num_releases=5, dimension=2, epsilon=math.inf, delta=0.1)
# What the policy is told by itself: nothing but its own raw trials.
ALONE = LinearUCBSettings(RELEASES, local_data="raw", ridge=2.0)
ACTIONS = np.array([[1.0, 0.0], [0.6, 0.8]])


def opened(folder: Path, settings: LinearUCBSettings) -> LinearBanditPolicy:
    study = LinearBanditStudy(settings, 3, study_id="summed")
    identity = RecordedBandit.identity_of(study)
    with Journal(identity, folder / FILE_NAME) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
    return LinearBanditPolicy.open(folder)


@pytest.mark.parametrize("width", ["observed", "paper"])
def test_estimate_and_widths_are_those_of_the_formula(
    tmp_path: Path, width: Width
) -> None:
    settings = replace(ALONE, width=width)
    policy = opened(tmp_path, settings)
    # The paper adds up what it regularises, over the three agents.
    V, u = (6.0 if width == "paper" else 2.0) * np.eye(2), np.zeros(2)
    for reward in (0.9, -0.2, 0.4):
        choice = policy.choose(ACTIONS)
        index, ticket = choice.index, choice.ticket
        policy.reward(ticket, reward)
        V += np.outer(ACTIONS[index], ACTIONS[index])
        u += reward * ACTIONS[index]
    policy.choose(ACTIONS)
    summary = policy.summary()
    confidence = Confidence.of(settings, 3)
    least = np.asarray(2.0)
    w = confidence.width_at(np.asarray(np.linalg.slogdet(V)[1]), least)
    inverse = np.linalg.inv(V)
    np.testing.assert_allclose(summary.estimate, inverse @ u)
    if width != "observed":  # else the least eigenvalue seen counts, too
        expected = w * np.sqrt(np.diag(inverse))
        np.testing.assert_allclose(summary.confidence_width, expected)
    else:
        assert np.all(summary.confidence_width <= w * np.sqrt(np.diag(inverse)) + 1e-12)
    assert (summary.num_trials, summary.num_awaited) == (4, 1)
    assert summary.settings.alpha == 0.01
    with pytest.raises(FrozenInstanceError):
        summary.num_trials = 5  # type: ignore[misc]


def test_a_summary_counts_releases_others_and_epsilon(tmp_path: Path) -> None:
    sites, before = bandit_sites.Sites(tmp_path), []

    def play() -> None:
        before.append(sites.policy(0).summary())
        for slot in range(bandit_sites.M):
            ticket = sites.policy(slot).choose(bandit_sites.ACTIONS).ticket
            sites.policy(slot).reward(ticket, 0.5)

    sites.after = {1: lambda: sites.silent.add(3)}
    sites.before = {2: play}
    bandit_sites.fed_ucb(interval=0.0).start(sites, num_rounds=3)
    assert (before[0].num_releases, before[0].num_included) == (0, 0)
    assert before[0].num_others == before[0].epsilon_spent == 0
    summary = sites.policy(0).summary()
    assert summary.num_releases == summary.num_included == 1
    assert (summary.num_others, summary.max_others) == (2, 3)
    promised = summary.settings.releases.epsilon
    assert promised == summary.epsilon_spent == 30.0
    assert (summary.num_trials, summary.num_awaited) == (1, 0)
    assert summary.warning == ""
    assert np.all(np.isfinite(summary.confidence_width))


def test_a_site_without_a_centre_counts_its_pool(tmp_path: Path) -> None:
    grid = peer_studies.sites(tmp_path)
    peer_studies.strategy_of(peer_studies.RING, interval=0.0).start(grid)
    slot = 2
    policy = LinearBanditPolicy.open(peer_studies.folders_of(tmp_path)[slot])
    summary = policy.summary()
    pool = peer_studies.RING.pools[slot]
    assert summary.num_others == summary.max_others == len(pool) - 1
    assert summary.max_others < peer_studies.M - 1
    assert summary.num_releases == summary.num_included == 3
    shape = (peer_studies.RING.streams, 3)
    assert summary.estimate.shape == summary.confidence_width.shape == shape
    assert "estimator 1, theta_2" in str(summary)
    # Only as many agents' noise is in its sums as are in its pool.
    with policy._held() as bandit:
        settings = bandit.study.settings
        own = peer_studies.RING.confidence_of(slot, settings)
        assert own != Confidence.of(settings, peer_studies.M)
        assert bandit.belief.confidence == own


@pytest.mark.parametrize("local_data", ["released", "raw"])
def test_the_text_and_the_page_say_what_the_numbers_are(
    tmp_path: Path, local_data: LocalData
) -> None:
    policy = opened(tmp_path, replace(ALONE, local_data=local_data))
    policy.choose(ACTIONS)
    summary = policy.summary()
    with Journal(None, tmp_path / FILE_NAME) as journal:
        page = policy_page(journal)
    lines = str(summary).splitlines()
    assert lines[0] == "Trials          1, 1 without a reward yet"
    assert lines[1] == "Own releases    0 of 5 made, 0 in the sum in use"
    assert lines[-1].startswith("NOT PRIVATE: epsilon is infinite")
    assert "if mean rewards are x'theta with ||theta|| <= 1." in lines[-2]
    assert len(lines) == 5 + 2 + 2
    assert max(map(len, lines[:-2])) <= 100
    for name, text in summary.facts:
        assert f'<th scope="row">{name}</th><td>{text}</td>' in page, name
    for name, estimate, width in summary.coordinates:
        assert f"{name:<15} {estimate:.4g} +- {width:.4g}" in lines
        assert (
            f"{name}</th><td>{estimate:.4g}</td><td>{width:.4g}</td>"
            in page.replace("<wbr>", "")
        )
    assert "NOT PRIVATE: epsilon is infinite" in page
