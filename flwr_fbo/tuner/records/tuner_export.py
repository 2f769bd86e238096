"""Copy the trials of a `FederationTuner` to an Optuna storage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import optuna
from optuna.trial import TrialState

from flwr_fbo.integrations.optuna_export import Storage, add_trials, storage_of
from flwr_fbo.journal.journal import Journal
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuner.kind import RECORD
from flwr_fbo.tuner.records.trials_record import (
    FILE_NAME,
    not_private_because,
    plan_of,
    recorded_settings,
    rung_of,
)
from flwr_fbo.tuning.search.optuna_trials import NUMBER, set_times


def export_tuner(folder: str | Path, storage: Storage) -> optuna.Study:
    """Add a tuner's trials that have ended to an Optuna study; those there stay.

    Parameters
    ----------
    folder : str or Path
        Folder of a `FederationTuner`; or the file of its record.
    storage : str, Path or optuna.storages.BaseStorage
        An Optuna storage, such as ``"sqlite:///trials.db"``; or the path of an SQLite
        file.

    Returns
    -------
    optuna.Study
        A trial's value is the released score of its last rung; its intermediate values
        are those of all rungs, by round. With privacy these are ranks, and the study is
        maximised; exact scores have the tuner's direction. The trials of the last rung
        are complete, others are pruned. Each has the user attributes
        ``trial`` and ``settings``, and no parameter where the app's default is outside
        the space, or a key is not in force. The user attribute ``private`` of the study
        says whether the choices are; with privacy, scores of several rungs cannot be
        compared.

    Raises
    ------
    JournalError
        If the folder holds no tuner.
    ValueError
        If the storage is a URL of a database in memory, no URL, or the tuner's file.
    OSError
        If a new SQLite file cannot be made.
    """
    path = Path(folder)
    path = path if path.name == FILE_NAME else path / FILE_NAME
    target = storage_of(path, storage)
    with Journal.snapshot(path) as journal:
        journal.require_kind(RECORD.name)
        identity = journal.identity
        settings = recorded_settings(journal)
        ledger, plan = journal.ledger(), plan_of(journal)
    most = len(identity["sizes"] if plan is None else plan.rungs)
    space = TrialSpace(SearchSpace.from_json(identity["space"]), identity["conditions"])
    direction = identity["direction"]
    rungs = [rung_of(row, direction) for row in ledger]
    ended = sorted(
        (trial, num)
        for num, rung in enumerate(rungs, 1)
        for trial in rung.trials
        if num == most or trial not in rung.survivors
    )
    # A tuner has no name of its own; its settings are those of no other.
    whole = json.dumps([identity, settings], sort_keys=True).encode()
    name = f"federation-tuner-{hashlib.sha256(whole).hexdigest()[:12]}"
    exported = []
    for trial, num in ended:
        inside = space.inside(settings[trial])
        scores = {r.rounds: r.scores[r.trials.index(trial)] for r in rungs[:num]}
        frozen = optuna.create_trial(
            state=TrialState.COMPLETE if num == most else TrialState.PRUNED,
            value=scores[max(scores)],
            params={key: settings[trial][key] for key in inside},
            distributions=inside,
            user_attrs={"trial": trial, "settings": settings[trial]},
            system_attrs={NUMBER: trial},
            intermediate_values=scores,
        )
        # When it began is not on record.
        set_times(frozen, ledger[0].committed, ledger[num - 1].committed)
        exported.append(frozen)
    # Released ranks are larger for better trials, whatever the metric's direction.
    is_exact = any(row.facts["mechanism"] != "gaussian" for row in ledger)
    study = add_trials(target, name, direction if is_exact else "maximize", exported)
    study.set_user_attr("private", not_private_because(identity) == "")
    return study
