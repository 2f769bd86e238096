"""An Optuna study proposes the settings of trials, and shows what becomes of them."""

from pathlib import Path
from typing import Any

import optuna
import pytest
from flwr.app import Context
from flwr.serverapp import Grid
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from flwr_fbo import Halving, PrivateChoice
from flwr_fbo.journal.journal_file import JournalError
from tests.support.apps import (
    DyingGrid,
    Ended,
    in_process,
    main_of,
    message_app,
    recording,
    server_context,
    tuner,
)
from tests.support.emnist import needs_torch

SCHEDULE = Halving(6, (1, 3), parallel=2)


class NotingSampler(RandomSampler):
    """Notes how many scores it could learn from whenever it is asked."""

    def __init__(self) -> None:
        super().__init__(seed=0)
        self.known: list[list[float | None]] = []

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Any
    ) -> dict[str, Any]:
        """Note the scores of the trials that are complete."""
        done = study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        self.known.append([one.value for one in done])
        return super().sample_relative(study, trial, search_space)


def _study(sampler: BaseSampler | None = None, **options: Any) -> optuna.Study:
    return optuna.create_study(sampler=sampler, direction="minimize", **options)


def test_a_sampler_learns_from_the_first_rung_before_it_proposes_again() -> None:
    sampler = NotingSampler()
    enqueued = {"learning-rate": 0.5}
    study = _study(sampler)
    result = tuner(
        privacy=None, study=study, schedule=SCHEDULE, enqueue=[enqueued]
    ).start(main_of(), in_process(), server_context())
    assert len(result.settings) == 6
    assert result.settings[1]["learning-rate"] == 0.5
    # The defaults and the enqueued trial are not asked for; then two at a time.
    assert [len(known) for known in sampler.known] == [2, 2, 4, 4]
    first = list(result.rungs[0].scores)
    assert sampler.known[-1] == pytest.approx(first[:4])


def test_the_study_shows_trials_as_they_are_pruned_and_completed(
    tmp_path: Path,
) -> None:
    storage = f"sqlite:///{tmp_path / 'shown.db'}"
    study = _study(TPESampler(seed=0), storage=storage, study_name="shown")
    result = tuner(privacy=None, study=study, schedule=SCHEDULE).start(
        main_of(), in_process(), server_context()
    )
    shown = optuna.load_study(study_name="shown", storage=storage).trials
    assert [one.user_attrs["trial"] for one in shown] == list(range(6))
    assert [one.user_attrs["settings"] for one in shown] == list(result.settings)
    first, last = result.rungs
    for number, one in enumerate(shown):
        scores = {1: first.scores[number]}
        if number in last.trials:
            scores[3] = last.scores[last.trials.index(number)]
        is_last = number in last.trials
        assert one.state == (TrialState.COMPLETE if is_last else TrialState.PRUNED)
        assert one.intermediate_values == pytest.approx(scores)
    assert study.best_trial.user_attrs["trial"] == result.best_trial


@needs_torch  # as `GPSampler` does
@pytest.mark.gate
@pytest.mark.parametrize("score", ["clients", "server"])
def test_a_sampler_that_models_finds_better_settings_than_it_began_with(
    score: str,
) -> None:
    if score == "server":
        from tests.support.server_scores import by_distance, score_main

        main = score_main(by_distance)
    else:
        main = main_of()
    study = _study(GPSampler(seed=0, n_startup_trials=4))
    result = tuner(
        privacy=None, score=score, study=study, schedule=Halving(12, (2,), parallel=1)
    ).start(main, in_process(), server_context())
    scores = result.rungs[0].scores
    assert min(scores[6:]) < min(scores[:6])
    assert study.directions == [StudyDirection.MINIMIZE]


def test_a_tuner_that_was_ended_goes_on_with_the_settings_proposed(
    tmp_path: Path,
) -> None:
    storage = f"sqlite:///{tmp_path / 'shown.db'}"

    def started(grid: Any) -> Any:
        study = optuna.create_study(
            study_name="s",
            storage=storage,
            direction="minimize",
            sampler=RandomSampler(),
            load_if_exists=True,
        )
        return tuner(
            privacy=None, study=study, schedule=SCHEDULE, folder=tmp_path / "t"
        ).start(main_of(), grid, server_context())

    dying = DyingGrid(message_app(), 6, run_config=server_context().run_config)
    dying.dies_at = 5
    with pytest.raises(Ended):
        started(dying)
    shown = optuna.load_study(study_name="s", storage=storage).trials
    assert {one.state for one in shown} == {TrialState.FAIL}
    before = [one.user_attrs["settings"] for one in shown]
    result = started(recording())
    assert list(result.settings[: len(before)]) == before
    shown = optuna.load_study(study_name="s", storage=storage).trials
    assert len(shown) == len(before) + 6
    again = recording()
    assert started(again).settings == result.settings
    assert again.sends == []
    with pytest.raises(JournalError, match="study"):
        tuner(privacy=None, schedule=SCHEDULE, folder=tmp_path / "t").start(
            main_of(), recording(), server_context()
        )


def test_defaults_outside_of_the_space_are_a_trial_without_that_parameter() -> None:
    space = {
        "learning-rate": FloatDistribution(0.1, 0.9),
        "local-epochs": CategoricalDistribution((2, 4)),
    }
    study = _study(TPESampler(seed=0, multivariate=True))
    result = tuner(privacy=None, space=space, study=study, schedule=SCHEDULE).start(
        main_of(), in_process(), server_context()
    )
    assert study.trials[0].params == {}
    assert result.settings[0] == {"learning-rate": 0.001, "local-epochs": 1}
    assert all(0.1 <= one["learning-rate"] <= 0.9 for one in result.settings[1:])


def test_a_study_that_does_not_fit_is_refused() -> None:
    def start(**options: Any) -> None:
        tuner(**options).start(main_of(), grid, server_context())

    grid = recording()
    with pytest.raises(ValueError, match=r"^privacy=.*None with a study"):
        start(study=_study(), privacy=PrivateChoice(1.0, 1e-3))
    with pytest.raises(ValueError, match=r"^study\.directions=\['minimize'\]"):
        start(study=_study(), privacy=None, direction="maximize")
    with pytest.raises(ValueError, match=r"^study='TPE'"):
        start(study="TPE", privacy=None)
    study = _study()
    study.enqueue_trial({"learning-rate": 0.1})
    with pytest.raises(ValueError, match=r"^study='1 enqueued trials'.*enqueue"):
        start(study=study, privacy=None)
    assert grid.sends == []


def test_a_trial_that_fails_and_yet_goes_on_ends_as_failed() -> None:
    """Two go on to the last rung, and one trial alone has a score."""

    def main(grid: Grid, context: Context) -> None:
        if context.run_config["learning-rate"] != 0.5:
            raise ArithmeticError
        main_of()(grid, context)

    study = _study(RandomSampler(seed=0))
    options = {
        "study": study,
        "schedule": SCHEDULE,
        "enqueue": [{"learning-rate": 0.5}],
    }
    result = tuner(privacy=None, **options).start(main, in_process(), server_context())
    assert result.best_trial == 1
    states = [trial.state for trial in study.trials]
    assert states[1] == TrialState.COMPLETE
    assert set(states) - {states[1]} == {TrialState.FAIL}
