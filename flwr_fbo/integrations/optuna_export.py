"""Copy a client's journal into an Optuna storage, for its dashboard and its tools."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import make_url

from flwr_fbo._validation import require
from flwr_fbo.agents.durable.tuning_record import recorded_agent
from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.integrations.optuna_sampler import ITERATION, POINT
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.trial_table import Trial

_NUMBER = "flwr-fbo:number"  # in the journal


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
    ValueError
        If the storage is in memory, or is the journal.
    OSError
        If a new SQLite file cannot be made.
    """
    file = _file_of(Path(path), storage)
    with Journal(None, Path(path)) as journal:
        agent = recorded_agent(journal)
        trials = [trial for trial in journal.trials() if trial.state != "running"]
        name = f"{journal.identity['study_id']}-agent-{journal.identity['slot']}"
    if file is not None:  # made once the journal is known to be one
        with suppress(FileExistsError):  # only the owner may read it, as a journal
            os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        direction=agent.direction,
        load_if_exists=True,
    )
    # A `FederatedSampler` may have added trials of its own in between.
    old = study.get_trials(deepcopy=False)
    there = {trial.system_attrs.get(_NUMBER) for trial in old}
    new = [trial for trial in trials if trial.number not in there]
    study.add_trials([_frozen(trial, agent) for trial in new])
    return study


def _file_of(journal: Path, storage: str) -> Path | None:
    """Return the file that is the storage, if it is one and not the journal."""
    url = make_url(storage)
    if url.get_backend_name() != "sqlite":
        return None
    allowed = "a file, and not the journal itself"
    name = url.database
    ok = name not in (None, "", ":memory:")
    file = Path(str(name))
    require(ok and file.resolve() != journal.resolve(), "storage", storage, allowed)
    return file


def _frozen(trial: Trial, agent: Agent) -> FrozenTrial:
    complete = trial.state == "complete"
    frozen = optuna.create_trial(
        state=TrialState.COMPLETE if complete else TrialState.FAIL,
        value=trial.value if complete else None,
        params=trial.params,
        distributions=dict(agent.space.distributions),
        user_attrs={
            "iteration": trial.iteration,
            "interruptions": trial.interruptions,
        },
        system_attrs={
            POINT: trial.point.tolist(),
            ITERATION: trial.iteration,
            _NUMBER: trial.number,
        },
    )
    frozen.datetime_start = datetime.fromtimestamp(trial.started)
    frozen.datetime_complete = datetime.fromtimestamp(trial.finished)
    return frozen
