"""The agents of FTS: who follows whom, and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo.journal.journal import Journal
from flwr_fbo.tuning import DPFTSDESettings, FTSSettings, SearchSpace
from flwr_fbo.tuning.dp_fts_de.settings import Follow
from flwr_fbo.tuning.fts.agent import FTSAgent
from flwr_fbo.tuning.search.agent import play_round
from flwr_fbo.tuning.search.agent_journal import load_agent
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.federation import SPACE, objective_of

SETTINGS = FTSSettings(
    num_initial=4, num_features=30, num_candidates=100, follow="inverse-sqrt"
)


ONCE = replace(SETTINGS, share_after=2)


def _agent(settings: FTSSettings = SETTINGS, num_told: int = 6) -> FTSAgent:
    agent = FTSAgent(SearchSpace(SPACE), "maximize", settings, 1, 5, 12)
    rng = np.random.default_rng(0)
    for x in rng.random((num_told, 3)):
        agent.tell(0, x, float(-np.sum((x - 0.4) ** 2)))
    return agent


def _vectors(num: int = 4) -> NDArray[np.float64]:
    return np.random.default_rng(3).standard_normal((num, 30))


def test_one_minus_p() -> None:
    at_two_of: dict[Follow, float] = {"inverse-sqrt": 0.5**0.5, "inverse-square": 0.25}
    for follow, at_two in at_two_of.items():
        settings = replace(SETTINGS, follow=follow)
        assert settings.follow_probability(1) == settings.follow_probability(2)
        assert settings.follow_probability(2) == pytest.approx(at_two)
    assert SETTINGS.follow_probability(9) == pytest.approx(1 / 3)
    later = replace(SETTINGS, share_after=5)
    assert later.follow_probability(13) == pytest.approx(1 / 3)
    assert later.follow_probability(5) == later.follow_probability(6)
    # DP-FTS-DE always follows first.
    assert DPFTSDESettings(follow="inverse-square").follow_probability(1) == 1
    assert DPFTSDESettings(follow="inverse-square").follow_probability(3) == 1 / 9


def test_it_follows_one_other_agent() -> None:
    """To the maximum of what that one sent: each as likely as any other."""
    agent, vectors = _agent(), _vectors()
    vectors[3] = np.nan  # a straggler
    chosen = []
    for iteration in range(1, 200):
        x = agent._follow(vectors, iteration)
        if x is None:
            continue
        for n in (0, 2):
            function = vectors[[n]]
            best = agent._maximize(
                agent._shared, function, agent.space.sub_regions(1), iteration
            )
            if np.array_equal(best, x):
                chosen.append(n)
    expected = sum(SETTINGS.follow_probability(t) for t in range(1, 200))
    assert len(chosen) == pytest.approx(expected, abs=3 * expected**0.5)
    assert chosen.count(0) == pytest.approx(len(chosen) / 2, abs=1.5 * expected**0.5)


def test_with_nobody_to_follow_it_is_thompson_sampling() -> None:
    agent, alone = _agent(), _agent()
    agent.receive(np.full((4, 30), np.nan))
    for iteration in range(1, 6):
        np.testing.assert_array_equal(
            agent.suggest(iteration), alone.suggest(iteration)
        )


def test_messages_that_come_once_are_followed_once() -> None:
    agent = _agent(replace(ONCE, share_after=1))
    agent.receive(_vectors())
    followed = []
    for iteration in range(1, 60):
        weights = agent._weights(_vectors(), iteration)
        agent.suggest(iteration)
        left = agent._weights(_vectors(), iteration + 1)
        followed += list(np.flatnonzero(weights > left))
    assert sorted(followed) == [0, 2, 3]
    assert not agent._weights(_vectors(), 60).any()


def test_asked_again_it_gives_the_same_query() -> None:
    """Though it has noted whom it followed: as after a crash."""
    agent = _agent(replace(ONCE, share_after=1))
    agent.receive(_vectors())
    for iteration in range(1, 10):
        query = agent.suggest(iteration)
        again = _agent(agent.settings, num_told=0)
        again.load_state_dict(agent.state_dict())
        np.testing.assert_array_equal(again.suggest(iteration), query)
        assert again._followed == agent._followed


def test_killed_in_an_evaluation_it_evaluates_the_same(tmp_path: Path) -> None:
    """With its journal: what it noted before the evaluation is all that is left."""
    settings = replace(ONCE, share_after=1)
    study = TuningStudy(SearchSpace(SPACE), "maximize", settings, 5, 12, study_id="a")
    asked: list[Any] = []

    def play(iteration: int, dies: bool, vectors: Any = None) -> None:
        def objective(params: Any) -> float:
            asked.append(dict(params))
            if dies:
                raise KeyboardInterrupt
            return objective_of(1)(params)

        with Journal({"kind": "agent"}, tmp_path / "journal.sqlite") as journal:
            agent = load_agent(journal, study, 1)
            play_round(agent, objective, iteration, vectors, False, journal=journal)

    play(0, dies=False)
    for iteration in range(1, 5):
        vectors = _vectors() if iteration == 1 else None
        with pytest.raises(KeyboardInterrupt):
            play(iteration, dies=True, vectors=vectors)
        play(iteration, dies=False, vectors=vectors)
        assert asked[-2] == asked[-1]


def test_similar_agents_are_preferred() -> None:
    agent = _agent(replace(SETTINGS, weighting="similarity"), num_told=20)
    x, y = agent._observations(0)
    like, *_ = np.linalg.lstsq(agent._shared(x), y, rcond=None)
    vectors = np.stack([like, like, -like, np.full(30, np.nan)])
    weights = agent._weights(vectors, 1)
    assert weights[0] == pytest.approx(1.0)
    np.testing.assert_array_equal(weights[1:], 0.0)  # itself, its opposite, a straggler
    few = _agent(agent.settings, num_told=1)  # which cannot tell
    np.testing.assert_array_equal(few._weights(vectors, 1), [1, 0, 1, 0])


@pytest.mark.parametrize(
    "vectors",
    [
        np.zeros((4, 29)),
        np.zeros((1, 30)),
        np.where(np.eye(4, 30) > 0, np.nan, 0.0),
        np.full((4, 30), np.inf),
    ],
)
def test_strange_vectors_are_refused(vectors: NDArray[np.float64]) -> None:
    with pytest.raises(ValueError, match="The server sent vectors of shape"):
        _agent().receive(vectors)
