"""What the registry says of each algorithm, and what a study holds of it."""

import json
from typing import Any

import pytest
from optuna.distributions import FloatDistribution

from flwr_fbo.strategies.presets import private_strategies
from flwr_fbo.study.kinds import load
from flwr_fbo.tuning import (
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
    SearchSpace,
)
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts, WarmStartFacts
from flwr_fbo.tuning.registry import ALGORITHMS, Algorithm
from flwr_fbo.tuning.search.study import TuningStudy

SPACE = SearchSpace({"x": FloatDistribution(0, 1)})


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_what_it_names_is_there(algorithm: Algorithm) -> None:
    agent = load(algorithm.agent)
    assert isinstance(agent, type)
    if algorithm.released:
        assert callable(load(algorithm.released))
    if algorithm.strategy:
        strategy = load(algorithm.strategy)
        assert f"{strategy.__name__}Settings" == algorithm.settings.__name__


def test_strategies_with_presets_are_known_by_name() -> None:
    assert {"DPFTSDE", "FedVote", "FedWarmStart"} <= private_strategies().keys()
    assert "FTS" not in private_strategies()


@pytest.mark.parametrize(
    ("agent", "facts", "words"),
    [
        (FedWarmStartSettings(), VoteCount(3), "a WarmStartFacts, or None"),
        (FedVoteSettings(), WarmStartFacts(), "a VoteCount, or None"),
        (FTSSettings(), VoteCount(3), "None"),
    ],
)
def test_a_study_has_the_facts_of_its_algorithm_alone(
    agent: Any, facts: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=rf"^facts=.* is not allowed: {words}\.$"):
        TuningStudy(SPACE, "maximize", agent, facts=facts)


def test_facts_of_another_algorithm_in_json_are_refused() -> None:
    voting = TuningStudy(SPACE, "maximize", FedVoteSettings(), facts=VoteCount(3))
    warm = TuningStudy(
        SPACE, "maximize", FedWarmStartSettings(), facts=WarmStartFacts(Cohorts(3))
    )
    for study, other in ((voting, warm), (warm, voting)):
        values = json.loads(study.text)
        assert TuningStudy.from_dict(values) == study
        values["facts"] = json.loads(other.text)["facts"]
        with pytest.raises(ValueError, match=r"^facts="):
            TuningStudy.from_dict(values)
