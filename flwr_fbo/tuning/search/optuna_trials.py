"""An agent's trials as Optuna has them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import optuna
from optuna.trial import FrozenTrial, TrialState

from flwr_fbo.journal.tables import Trial
from flwr_fbo.tuning.search.agent import Agent

# In the system attributes of a trial: its number in the journal, its point in the unit
# cube, and its iteration.
NUMBER, POINT, ITERATION = (
    f"flwr-fbo:{name}" for name in ("number", "point", "iteration")
)


def study_in_memory(trials: Sequence[Trial], agent: Agent) -> optuna.Study:
    """Return an Optuna study of trials that have ended, kept nowhere."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # no word of a new study
    try:
        study = optuna.create_study(direction=agent.direction)
    finally:
        optuna.logging.set_verbosity(verbosity)
    study.add_trials([frozen_trial(trial, agent) for trial in trials])
    return study


def frozen_trial(trial: Trial, agent: Agent) -> FrozenTrial:
    """Return a trial that has ended as Optuna has it."""
    complete = trial.state == "complete"
    frozen = optuna.create_trial(
        state=TrialState.COMPLETE if complete else TrialState.FAIL,
        value=trial.value if complete else None,
        params=trial.params,
        distributions=dict(agent.space.distributions),
        user_attrs={
            "round": trial.iteration + 1,
            "interruptions": trial.interruptions,
            "source": trial.source,
        },
        system_attrs={
            POINT: trial.point.tolist(),
            ITERATION: trial.iteration,
            NUMBER: trial.number,
        },
    )
    set_times(frozen, trial.started, trial.finished)
    return frozen


def set_times(frozen: FrozenTrial, started: float, finished: float) -> None:
    """Set when a trial began and ended: from Unix times, in seconds.

    Optuna has local times without a zone. The end is counted from the start, so that a
    trial has its length although clocks go back at the end of summer time.
    """
    # A clock may have been set back in between.
    seconds = max(0.0, finished - started)
    frozen.datetime_start = datetime.fromtimestamp(started)
    frozen.datetime_complete = frozen.datetime_start + timedelta(seconds=seconds)
