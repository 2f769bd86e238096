"""No setting is tried twice."""

import logging
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import Halving, OneTraining
from flwr_fbo.tuner.candidates.candidates import Candidates
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuning import SearchSpace
from tests.support.apps import in_process, main_of, server_context, tuner
from tests.support.races import RaceGrid, race, race_context

GRID: dict[str, BaseDistribution] = {
    "a": IntDistribution(1, 4),
    "b": CategoricalDistribution([16, 32, 64, 128]),
}
DEFAULTS = {"a": 1, "b": 32}


def _filled(
    space: Any, num: int, defaults: Any, enqueue: Any = (), seed: int = 0
) -> Any:
    found = Candidates(TrialSpace(SearchSpace(space)), num, defaults, enqueue, seed)
    found.fill()
    return found


def _distinct(found: list[dict[str, Any]]) -> int:
    return len({tuple(sorted(one.items())) for one in found})


axes = st.one_of(
    st.builds(IntDistribution, st.integers(-3, 0), st.integers(1, 5)),
    st.builds(
        lambda n: CategoricalDistribution(list("abcdefg"[:n])), st.integers(2, 7)
    ),
    st.just(FloatDistribution(0.0, 1.0, step=0.25)),
    st.just(IntDistribution(1, 9, log=True)),
    st.just(FloatDistribution(1e-3, 1.0, log=True)),
)


@given(
    st.dictionaries(st.sampled_from("wxyz"), axes, min_size=1, max_size=3),
    st.integers(2, 40),
    st.integers(0, 99),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_all_are_distinct_and_as_many_as_there_can_be(
    space: dict[str, BaseDistribution], num: int, seed: int, is_outside: bool
) -> None:
    known = SearchSpace(space)
    defaults = known.from_unit(known.center)
    if is_outside:
        first = next(iter(space))
        defaults[first] = 1000 if not isinstance(defaults[first], str) else "other"
    found = _filled(space, num, defaults, seed=seed)
    most = min(num, known.num_settings + is_outside)
    assert len(found.settings) == _distinct(found.settings) == found.num_trials == most
    assert found.settings[0] == defaults
    assert all(TrialSpace(known).outside(one) == [] for one in found.settings[1:])


def test_a_grid_is_covered() -> None:
    found = _filled(GRID, 16, DEFAULTS)
    assert len(found.settings) == _distinct(found.settings) == 16
    assert len(SearchSpace(GRID).all_settings()) == SearchSpace(GRID).num_settings == 16


def test_what_is_enqueued_twice_or_is_the_defaults_is_one_trial() -> None:
    space = {"rate": FloatDistribution(0.1, 1.0, step=0.1)}
    enqueue = [{"rate": 1}, {"rate": 0.1 * 3}, {"rate": 0.3}, {"rate": 0.2}, {}]
    found = _filled(space, 8, {"rate": 0.2}, enqueue)
    assert [one["rate"] for one in found.settings[:3]] == [0.2, 1.0, 0.1 * 3]
    assert len({round(one["rate"], 6) for one in found.settings}) == 8


@pytest.mark.parametrize("schedule", [Halving(16, (1, 3, 9)), OneTraining(16)])
def test_a_small_space_has_fewer_trials_and_that_is_said(
    schedule: Any, caplog: pytest.LogCaptureFixture
) -> None:
    space = {"local-epochs": IntDistribution(1, 3)}
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = race(space=space, schedule=schedule).start(
            main_of(), RaceGrid(run_config={"num-server-rounds": 9}), race_context()
        )
    assert "3 distinct settings are all that there are" in caplog.text
    assert sorted(one["local-epochs"] for one in result.settings) == [1, 2, 3]
    assert len(result.rungs[0].trials) == 3
    assert len(result.rungs[-1].survivors) == 1


def test_defaults_outside_the_space_are_told(caplog: pytest.LogCaptureFixture) -> None:
    space = {"local-epochs": IntDistribution(2, 3)}
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = tuner(space=space).start(main_of(), in_process(), server_context())
    assert "Outside of the space that is searched: the app's own local-epochs=1." in (
        caplog.text
    )
    assert [one["local-epochs"] for one in result.settings[:1]] == [1]
    assert len(result.settings) == 3


def test_a_sampler_that_repeats_itself_is_not_followed() -> None:
    class Stubborn(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return {}

        def sample_relative(self, study: Any, trial: Any, space: Any) -> Any:
            return {}

        def sample_independent(
            self, study: Any, trial: Any, name: str, distribution: Any
        ) -> Any:
            return 2

    study = optuna.create_study(direction="minimize", sampler=Stubborn())
    result = tuner(
        space={"local-epochs": IntDistribution(1, 5)}, privacy=None, study=study
    ).start(main_of(), in_process(), server_context())
    epochs = [one["local-epochs"] for one in result.settings]
    assert epochs[:2] == [1, 2]
    assert sorted(epochs) == [1, 2, 3, 4, 5]
    assert len(study.trials) == 5
