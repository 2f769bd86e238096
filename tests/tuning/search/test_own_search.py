"""The lean start: the centre first, then expected improvement."""

from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from flwr_fbo.tuning import FedVoteSettings, FedWarmStartSettings, SearchSpace
from flwr_fbo.tuning.search.own_search import LeanAgent
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

SPACE = SearchSpace(
    {
        "C": FloatDistribution(1e-3, 1e3, log=True),
        "kernel": CategoricalDistribution(["rbf", "linear", "poly"]),
    }
)


def agent(settings: Any = None, seed: int = 1) -> LeanAgent:
    """Return an agent of FedVote, unless other settings are given."""
    settings = FedVoteSettings() if settings is None else settings
    study = TuningStudy(SPACE, "maximize", settings, study_seed=1, feature_seed=2)
    made = create_agent(study, 0, seed)
    assert isinstance(made, LeanAgent)
    return made


@pytest.mark.parametrize("settings", [FedVoteSettings(), FedWarmStartSettings()])
def test_the_centre_comes_first_and_alone(settings: Any) -> None:
    first = agent(settings).ask(0)
    assert [SPACE.from_unit(x) for x in first] == [{"C": 1.0, "kernel": "linear"}]


def test_more_initial_points_are_uniform_and_differ_between_agents() -> None:
    one, other = (agent(FedVoteSettings(num_initial=5), seed).ask(0) for seed in (1, 2))
    np.testing.assert_array_equal(one[0], other[0])
    assert one.shape == other.shape == (5, 2)
    assert not np.any(np.isclose(one[1:, 0], other[1:, 0]))


def test_enqueued_settings_take_the_place_of_the_centre() -> None:
    known: list[dict[str, Any]] = [{"C": 250.0, "kernel": "poly"}]
    known.append({"C": 2.0, "kernel": "rbf"})
    for num in (1, 2):
        who = agent()
        who.enqueue(known[:num])
        assert [SPACE.from_unit(x) for x in who.ask(0)] == known[:num]
        assert who.num_first == num
    who = agent(FedVoteSettings(num_initial=2))
    who.enqueue(known[:1])
    assert len(who.ask(0)) == 2
    assert SPACE.from_unit(who.ask(0)[0]) == known[0]


def test_the_second_evaluation_is_by_improvement_and_fits_follow_each_value() -> None:
    who = agent()
    for iteration, value in enumerate((0.1, 0.4, 0.3)):
        (x,) = who.ask(iteration)
        who.tell(iteration, x, value)
    state = who.state_dict()
    assert state["num_fitted"] == 2  # of the third question, after two values
    assert state["log_hyperparameters"].shape == (SPACE.dim + 2,)
    # Far from the centre at first, as one value says nothing of any direction.
    assert np.abs(who.points[1] - who.points[0]).max() > 0.2


def test_after_failures_alone_places_are_drawn_at_random() -> None:
    who = agent()
    for iteration in range(3):
        (x,) = who.ask(iteration)
        who.tell(iteration, x, float("nan"))
    assert len(np.unique(who.points[:, 0])) == 3
    assert "log_hyperparameters" not in who.state_dict()


def test_a_lean_start_finds_more_than_random_points() -> None:
    """The mean best value over 20 evaluations, on a bowl off the centre."""
    target = SPACE.to_unit({"C": 30.0, "kernel": "rbf"})

    def mean_best(num_initial: int) -> float:
        means = []
        for seed in range(4):
            who = agent(FedVoteSettings(num_initial=num_initial), seed)
            for iteration in range(21 - num_initial):
                for x in who.ask(iteration):
                    who.tell(iteration, x, -float(np.sum((x - target) ** 2)))
            means.append(np.maximum.accumulate(who.values[:20]).mean())
        return float(np.mean(means))

    assert mean_best(1) > mean_best(10) + 0.01
