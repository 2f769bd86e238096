"""Keys that have an effect only where others have certain values."""

import logging
from pathlib import Path
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
from optuna.samplers import RandomSampler, TPESampler

from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.tuner.candidates.candidates import Candidates
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuner.records.tuner_export import export_tuner
from flwr_fbo.tuning import SearchSpace
from tests.support.apps import in_process, main_of, server_context, tuner

SPACE: dict[str, BaseDistribution] = {
    "schedule": CategoricalDistribution(["constant", "step", "exponential"]),
    "decay": FloatDistribution(0.8, 0.99),
    "every": IntDistribution(1, 2),
    "shape": CategoricalDistribution(["soft", "hard"]),
    "edge": FloatDistribution(1.0, 2.0, step=0.5),
}
CONDITIONS: dict[str, Any] = {
    "decay": {"schedule": ["exponential"]},
    "every": {"schedule": ["step"]},
    "shape": {"schedule": ["step"]},
    "edge": {"shape": ["hard"]},  # which has a condition of its own
}
# Some are outside of the space.
DEFAULTS = {
    "schedule": "constant",
    "decay": 1.0,
    "every": 1,
    "shape": "soft",
    "edge": 0.0,
}
GRID = {key: one for key, one in SPACE.items() if key != "decay"}
GRID_CONDITIONS = {key: one for key, one in CONDITIONS.items() if key != "decay"}


def _conditional(space: Any, conditions: Any) -> dict[str, Any]:
    """Return the space with its conditions, as a user writes it."""
    return {**space, **{key: (space[key], one) for key, one in conditions.items()}}


def _space(space: Any = SPACE, conditions: Any = CONDITIONS) -> TrialSpace:
    return TrialSpace(SearchSpace(space), conditions)


def _filled(space: TrialSpace, num: int, seed: int = 0) -> list[dict[str, Any]]:
    defaults = {key: DEFAULTS[key] for key in space.space.distributions}
    found = Candidates(space, num, defaults, [], seed)
    found.fill()
    return found.settings


def test_a_key_is_in_force_where_all_that_it_needs_is() -> None:
    space = _space()
    assert space.in_force({**DEFAULTS, "shape": "hard"}) == ["schedule"]
    step = {**DEFAULTS, "schedule": "step"}
    assert space.in_force(step) == ["schedule", "every", "shape"]
    hard = {**step, "shape": "hard"}
    assert space.in_force(hard) == ["schedule", "every", "shape", "edge"]
    assert space.applied({**hard, "decay": 0.9}, DEFAULTS) == {**hard, "decay": 1.0}
    assert space.outside(hard) == ["edge"]
    assert space.outside(DEFAULTS) == []


@given(st.integers(2, 40), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_no_two_trials_are_alike_in_what_is_in_force(num: int, seed: int) -> None:
    space = _space()
    found = _filled(space, num, seed)
    assert len(found) == num
    assert len({str(one) for one in found}) == num
    for one in found:
        assert space.applied(one, DEFAULTS) == one
        assert one == DEFAULTS or space.outside(one) == []


def test_a_small_space_is_tried_whole() -> None:
    space = _space(GRID, GRID_CONDITIONS)
    # Constant, exponential, and step with 2 x (soft + 3 edges of hard).
    assert space.num_settings == 2 + 2 * (1 + 3)
    found = _filled(space, 40)
    assert len(found) == len({str(one) for one in found}) == 10
    defaults = {key: DEFAULTS[key] for key in GRID}
    everything = space.all_settings(defaults)
    assert sorted(map(str, everything)) == sorted(map(str, found))


def test_a_rare_key_is_drawn_until_there_are_enough() -> None:
    """Of one in 40 draws alone: the others are 39 settings."""
    names = [f"s{number}" for number in range(40)]
    space = {"schedule": CategoricalDistribution(names), "decay": SPACE["decay"]}
    found = Candidates(
        _space(space, {"decay": {"schedule": ["s7"]}}),
        60,
        {"schedule": "s0", "decay": 1.0},
        [],
        seed=0,
    )
    found.fill()
    assert len({str(one) for one in found.settings}) == 60
    assert sum(one["schedule"] == "s7" for one in found.settings) == 60 - 39


def test_without_conditions_nothing_is_different() -> None:
    plain = _space(SPACE, None)
    assert plain.in_force({}) == list(SPACE)
    assert plain.num_settings == SearchSpace(SPACE).num_settings
    grid = _space(GRID, {})
    assert grid.num_settings == SearchSpace(GRID).num_settings == 36
    assert grid.all_settings({}) == SearchSpace(GRID).all_settings()


@pytest.mark.parametrize(
    ("conditions", "error"),
    [
        ({"decay": "step"}, r"^space\['decay'\]\[1\]='step' .*\{'schedule': \["),
        ({"decay": {}}, r"^space\['decay'\]\[1\]=\{\}"),
        ({"decay": {"shedule": []}}, r"^space\['decay'\]\[1\].*mean 'schedule'"),
        ({"decay": {"every": [1]}}, r"^space\['decay'\]\[1\]='every'.*with choices"),
        ({"decay": {"schedule": "step"}}, r"\['schedule'\]='step' .*: a list of some"),
        ({"decay": {"schedule": []}}, r"\['schedule'\]=\[\] .*: a list of some"),
        ({"decay": {"schedule": ["cosine"]}}, r"='cosine' .* one of \['constant'"),
        ({"shape": {"shape": ["soft"]}}, r"'shape needs shape'"),
        (
            {"shape": {"schedule": ["step"]}, "schedule": {"shape": ["soft"]}},
            r"^space='schedule needs shape needs schedule'",
        ),
        (
            {
                "shape": {"schedule": ["step"]},
                "edge": {"shape": ["hard"], "schedule": ["constant"]},
            },
            r"^space\['edge'\]\[1\]=.* a condition that holds in some setting",
        ),
    ],
)
def test_bad_conditions_are_named(conditions: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        tuner(space=_conditional(SPACE, conditions))


def test_a_pair_needs_a_distribution_and_a_condition() -> None:
    pair = SPACE["decay"], {"schedule": ["step"]}
    for value in ((0.8, 0.99), (*pair, 3), list(pair), pair[::-1]):
        with pytest.raises(ValueError, match=r"^space\['decay'\]="):
            tuner(space={**SPACE, "decay": value})


def test_one_is_not_true() -> None:
    space = {"nesterov": CategoricalDistribution([True, False]), "m": SPACE["decay"]}
    with pytest.raises(ValueError, match=r"\['nesterov'\]=1 .* one of \[True, False\]"):
        _space(space, {"m": {"nesterov": [1]}})


# --------------------------------------------------------------------- in a tuner

APP_SPACE: dict[str, BaseDistribution] = {
    "schedule": CategoricalDistribution(["constant", "exponential"]),
    "decay": FloatDistribution(0.8, 0.99),
    "learning-rate": FloatDistribution(1e-3, 1.0, log=True),
}
APP_CONDITIONS = {"decay": {"schedule": ["exponential"]}}
APP_DEFAULTS = {"schedule": "constant", "decay": 1.0}


def _study(**options: Any) -> Any:
    return tuner(**{"space": _conditional(APP_SPACE, APP_CONDITIONS), **options})


def _start(**options: Any) -> Any:
    context = server_context(**APP_DEFAULTS)
    return _study(**options).start(main_of(), in_process(), context)


def test_trials_have_the_apps_default_where_a_key_is_not_in_force(
    caplog: pytest.LogCaptureFixture,
) -> None:
    enqueue = [
        {"learning-rate": 0.5, "decay": 0.9},
        {"learning-rate": 0.5},
        {"schedule": "exponential", "decay": 0.9},
    ]
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = _start(enqueue=enqueue)
    assert (
        "enqueue[0]['decay']=0.9 has no effect: 'decay' is in force only with "
        "{'schedule': ['exponential']}." in caplog.text
    )
    # The default is outside the space, and of no matter.
    assert "Outside of the space" not in caplog.text
    assert result.settings[1] == {**APP_DEFAULTS, "learning-rate": 0.5}
    assert result.settings[2]["decay"] == 0.9  # the second of them was there already
    assert len(result.settings) == len({str(one) for one in result.settings}) == 6
    assert {one["decay"] == 1.0 for one in result.settings} == {True, False}
    for one in result.settings:
        assert (one["decay"] == 1.0) is (one["schedule"] == "constant")


@pytest.mark.parametrize("sampler", [RandomSampler(seed=0), TPESampler(seed=0)])
def test_a_sampler_proposes_what_is_in_force(sampler: Any, tmp_path: Path) -> None:
    study = optuna.create_study(direction="minimize", sampler=sampler)
    result = _start(privacy=None, study=study, folder=tmp_path)
    assert len({str(one) for one in result.settings}) == 6
    exported = export_tuner(tmp_path, optuna.storages.InMemoryStorage())
    for trials in (study.trials, exported.trials):
        assert len(trials) == 6
        for one in trials:
            given = result.settings[one.user_attrs["trial"]]
            assert one.user_attrs["settings"] == given
            is_in_force = given["schedule"] == "exponential"
            assert ("decay" in one.params) is is_in_force
            assert one.params.items() <= given.items()


def test_conditions_are_part_of_the_record(tmp_path: Path) -> None:
    first = _start(folder=tmp_path)
    assert _start(folder=tmp_path) == first
    with pytest.raises(JournalError, match="conditions"):
        _start(folder=tmp_path, space=APP_SPACE)


def test_a_key_that_is_nowhere_in_force_is_not_called_unread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Constant(RandomSampler):
        def sample_independent(
            self, study: Any, trial: Any, name: str, distribution: Any
        ) -> Any:
            drawn = super().sample_independent(study, trial, name, distribution)
            return "constant" if name == "schedule" else drawn

    study = optuna.create_study(direction="minimize", sampler=Constant(seed=0))
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        _start(privacy=None, study=study)
    assert "Nothing has read ['schedule'] from" in caplog.text
