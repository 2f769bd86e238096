"""FedVote as a strategy: its budget, its agents, and a study through Flower."""

import json
import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo import DPFTSDE
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings
from flwr_fbo.tuning.fed_vote.agent import FedVoteAgent
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.search.study import TuningStudy, create_agent
from tests.support.federation import NUM_AGENTS, numpy_app, run
from tests.support.votes import CONTINUOUS, strategy


def test_it_is_the_default_and_keeps_to_its_budget() -> None:
    study = strategy()
    study.plan(40)
    assert study.server.iterations == (5, 9, 39)
    told = study.study.facts
    assert isinstance(told, VoteCount)
    z = study.server.release.settings.noise_multiplier
    assert told.num_agents == 30
    # A sensitivity of one vote, and all of them counted.
    assert told.noise_std == pytest.approx(z)
    assert z == pytest.approx(1.445 * math.sqrt(3), rel=0.01)  # three Gaussian releases
    for iteration in (0, 5, 9, 39):
        study.server.receive(
            study.server.step(iteration), {n: np.ones(512) for n in range(30)}
        )
    assert len(study.server.ledger) == 3
    assert 1.9 < study.privacy_spent.epsilon <= 2.0


def test_when_agents_vote() -> None:
    study = strategy()
    study.plan(2)
    assert study.server.iterations == (0, 1)  # see `test_vote_schedule.py`
    for num_rounds, after in ((8, (5,)), (60, (5, 9))):
        told = strategy(release_after=(6, 10))
        told.plan(num_rounds - 1)
        assert told.server.iterations == after


def test_a_study_without_a_release_says_so(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"release_after": ()}, {"release_after": (50,)}):
        caplog.clear()
        study = strategy(**options)
        study.plan(40 if options else 1)
        study.summary()
        assert "No release fits into these rounds" in caplog.text


def test_sampled_votes_are_counted_for_more_and_noisier() -> None:
    study = strategy(sampling_probability=0.5, noise_multiplier=3.0, epsilon=None)
    study.plan(40)
    told = study.study.facts
    assert isinstance(told, VoteCount)
    assert told.noise_std == pytest.approx(6.0)
    assert told.sampling_probability == 0.5


def test_the_study_travels_as_json() -> None:
    study = strategy()
    study.plan(40)
    again = TuningStudy.from_dict(json.loads(json.dumps(study.study.to_dict())))
    assert again == study.study
    assert isinstance(create_agent(again, 0, 1), FedVoteAgent)


def test_a_strategy_has_agents_of_its_kind() -> None:
    with pytest.raises(ValueError, match=r"agent=.*: a DPFTSDESettings"):
        DPFTSDE(CONTINUOUS, "maximize", 9, agent=FedVoteSettings())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"agent=.*: a FedVoteSettings"):
        strategy(agent=DPFTSDESettings())


def test_agents_that_agree_find_the_optimum_sooner() -> None:
    """One peak for all, beside a hill: a few see it, and the votes tell the others."""

    def peak(params: dict[str, Any]) -> float:
        hill = 0.6 * math.exp(-(((params["x"] - 0.2) / 0.3) ** 2))
        return hill + math.exp(-(((params["x"] - 0.83) / 0.04) ** 2))

    def best(num_agents: int, noise_multiplier: float, noise_only: bool) -> float:
        study = strategy(
            num_agents=num_agents,
            epsilon=None,
            noise_multiplier=noise_multiplier,
            noise_only=noise_only,
            study_seed=3,
            feature_seed=4,
        )
        study.plan(14)
        agents = [create_agent(study.study, n, 3) for n in range(num_agents)]
        run_loop(study.server, agents, [peak] * num_agents, 14)
        return float(np.mean([a.best_value for a in agents]))

    together = best(30, 1.0, noise_only=False)
    assert together > best(30, 1.0, noise_only=True) + 0.05
    assert together > 0.9


def test_it_runs_through_flower() -> None:
    study, agents = run(
        numpy_app(),
        agent=FedVoteSettings(num_initial=4),
        release_after=(2,),
    )
    assert len(study.server.ledger) == 1
    assert all(len(a.values) == 4 + 5 for a in agents)
    assert len(agents) == NUM_AGENTS
    assert study.recommendation.score > 0
