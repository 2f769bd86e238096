"""Copy a client's journal into an Optuna storage, for its dashboard and its tools."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from flwr_fbo.agents.base import Agent
from flwr_fbo.agents.record import recorded_agent
from flwr_fbo.agents.sampler import ITERATION, POINT
from flwr_fbo.journal import Journal, Trial


def export_journal(path: str | Path, storage: str) -> optuna.Study:
    """Add a journal's finished trials to an Optuna study; those there already stay.

    Parameters
    ----------
    path : str or Path
        A client's journal.
    storage : str
        An Optuna storage, such as ``"sqlite:///trials.db"``.

    Returns
    -------
    optuna.Study
        Named ``<study id>-agent-<slot>``; each trial has the user attributes
        ``iteration`` and ``interruptions``.

    Raises
    ------
    JournalError
        If the journal cannot be read, or a client is using it.
    """
    with Journal(None, Path(path)) as journal:
        agent = recorded_agent(journal)
        trials = [trial for trial in journal.trials() if trial.state != "running"]
        name = f"{journal.identity['study_id']}-agent-{journal.identity['slot']}"
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction=agent.direction,
        load_if_exists=True,
    )
    there = len(study.get_trials(deepcopy=False))
    study.add_trials([_frozen(trial, agent) for trial in trials[there:]])
    return study


def _frozen(trial: Trial, agent: Agent) -> FrozenTrial:
    complete = trial.state == "complete"
    frozen = optuna.create_trial(
        state=TrialState.COMPLETE if complete else TrialState.FAIL,
        value=trial.value if complete else None,
        params=trial.params,
        distributions=agent.space.distributions,
        user_attrs={
            "iteration": trial.iteration,
            "interruptions": trial.interruptions,
        },
        system_attrs={POINT: trial.point.tolist(), ITERATION: trial.iteration},
    )
    frozen.datetime_start = datetime.fromtimestamp(trial.started)
    frozen.datetime_complete = datetime.fromtimestamp(trial.finished)
    return frozen
