"""Export: copy the trials of a client's journal to an Optuna storage.

How one trial becomes Optuna's, with its values, times and source, is `frozen_trial` in
`flwr_fbo.tuning.search.optuna_trials`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from flwr_fbo._common.validation import require
from flwr_fbo.journal.journal import Journal
from flwr_fbo.tuning.search.agent_journal import recorded_agent
from flwr_fbo.tuning.search.optuna_trials import NUMBER, frozen_trial
from flwr_fbo.tuning.search.settings import Direction

Storage = str | Path | BaseStorage


def export_journal(path: str | Path, storage: Storage) -> optuna.Study:
    """Add a journal's finished trials to an Optuna study; those there already stay.

    Parameters
    ----------
    path : str or Path
        A client's journal.
    storage : str, Path or optuna.storages.BaseStorage
        An Optuna storage, such as ``"sqlite:///trials.db"``; or the path of an SQLite
        file.

    Returns
    -------
    optuna.Study
        Named ``<study id>-agent-<slot>``; each trial has the user attributes
        ``round``, ``interruptions`` and ``source``: "enqueued", "start" (a first
        point), "own search" or "federation".

    Raises
    ------
    JournalError
        If the journal cannot be read.
    ValueError
        If the storage is a URL of a database in memory, no URL, the journal, or a
        database that Optuna cannot use.
    OSError
        If a new SQLite file cannot be made.
    """
    target = storage_of(Path(path), storage)
    with Journal.snapshot(Path(path)) as journal:
        agent = recorded_agent(journal)
        trials = [trial for trial in journal.trials() if trial.state != "running"]
        name = f"{journal.identity['study_id']}-agent-{journal.identity['slot']}"
    frozen = [frozen_trial(trial, agent) for trial in trials]
    return add_trials(target, name, agent.direction, frozen)


def storage_of(source: Path, storage: Storage) -> tuple[str | BaseStorage, Path | None]:
    """Return a storage as Optuna takes it, and its file if it is one of SQLite."""
    if isinstance(storage, os.PathLike):
        # Characters such as ? and % mean something in a URL.
        storage = f"sqlite:///{quote(str(Path(storage)))}"
    kind = type(storage).__name__
    expected = f"a URL, a Path or an Optuna storage, and it is a {kind}"
    require(isinstance(storage, str | BaseStorage), "storage", storage, expected)
    text = getattr(storage, "url", storage)  # of one of Optuna's databases
    if not isinstance(text, str):
        return storage, None
    try:
        url = make_url(text)
    except ArgumentError as error:
        expected = "a URL such as 'sqlite:///trials.db', or a Path"
        raise ValueError(f"storage={text!r} is not allowed: {expected}.") from error
    if url.get_backend_name() != "sqlite":
        return storage, None
    file = Path(str(url.database))
    is_file = url.database not in (None, "", ":memory:")
    other = is_file and file.resolve() != source.resolve()
    require(other, "storage", text, "a file, and not the journal itself")
    return storage, file


def add_trials(
    target: tuple[str | BaseStorage, Path | None],
    name: str,
    direction: Direction,
    trials: Sequence[FrozenTrial],
) -> optuna.Study:
    """Add those trials to a study, new or old, that are not there."""
    storage, file = target
    if file is not None:
        with suppress(FileExistsError):  # only the owner may read it, as a journal
            os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
    try:
        study = optuna.create_study(
            storage=storage, study_name=name, direction=direction, load_if_exists=True
        )
    except (RuntimeError, SQLAlchemyError) as error:
        # Of another version of Optuna, of another program, or not to be reached.
        text = str(error).partition("\n")[0]
        raise ValueError(f"storage={storage!r} cannot be used: {text}") from error
    # There may be others, of a sampler.
    old = study.get_trials(deepcopy=False)
    there = {trial.system_attrs.get(NUMBER) for trial in old}
    study.add_trials([t for t in trials if t.system_attrs[NUMBER] not in there])
    return study
