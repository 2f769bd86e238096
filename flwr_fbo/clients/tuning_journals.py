"""The journals of a client's tuning studies: which is whose, and what is best in them.

A journal in a folder bears the names of its study and slot, so that a client which was
restarted finds its own.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context

from flwr_fbo.agents.durable.tuning_record import KIND, load_agent
from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.clients.site_journal import (
    configured_folder,
    configured_slot,
    record_name,
)
from flwr_fbo.journal.journal import Journal
from flwr_fbo.protocol.tuning_study import TuningStudy
from flwr_fbo.space.search_space import Params

_log = logging.getLogger("flwr.fbo")


def journal_path(folder: Path | None, study: TuningStudy, slot: int) -> Path | None:
    """Return the file of an agent's journal, if the client has a folder."""
    return folder and folder / f"study-{study.study_id}-agent-{slot}.sqlite"


def agent_id(context: Context, study: TuningStudy) -> int:
    """Return the slot this client knows it holds, or -1.

    That is ``agent-id`` of the node config, else ``partition-id``, else the slot that
    the server issued before in the same study.

    Raises
    ------
    ValueError
        If the node config's value is not an integer >= 0.
    """
    configured = configured_slot(context)
    return taken_slot(context, study) if configured < 0 else configured


def taken_slot(context: Context, study: TuningStudy) -> int:
    """Return the slot this client has played in ``study``, or -1.

    A client that was restarted finds it in its folder, if no other keeps a journal
    of the study there.
    """
    known = context.state.config_records.get(record_name(KIND))
    if known and known["study_id"] == study.study_id:
        return int(str(known["slot"]))
    folder = configured_folder(context)
    if folder is None:
        return -1
    prefix = f"study-{study.study_id}-agent-"
    slots = [p.stem.removeprefix(prefix) for p in folder.glob(f"{prefix}*.sqlite")]
    slots = [slot for slot in slots if slot.isdecimal()]  # not of a longer study_id
    return int(slots[0]) if len(slots) == 1 else -1


def kept_agent(context: Context, study: TuningStudy) -> Agent | None:
    """Return this client's agent of ``study`` as its journal has it, if there is one.

    Raises
    ------
    JournalError
        If the journal cannot be read.
    """
    slot = taken_slot(context, study)
    if slot < 0:
        return None
    path = journal_path(configured_folder(context), study, slot)
    content = None
    if path is None:
        content = context.state.config_records[record_name(KIND)]["journal"]
    assert content is None or isinstance(content, bytes)
    with Journal(None, path, content) as journal:
        return load_agent(journal, study, slot)


def best_params(context: Context, default: Params) -> Params:
    """Return this client's best setting of its last study.

    The study may be over, or another run's if the client's journals are in a folder.

    Parameters
    ----------
    context : flwr.app.Context
    default : dict
        What to return where no trial has succeeded.

    Raises
    ------
    JournalError
        If the journal cannot be read.
    """
    journal = _last_journal(context)
    if journal is None:
        return dict(default)
    with journal:
        trials = [t for t in journal.trials() if t.state == "complete"]
        sign = 1.0 if journal.identity["direction"] == "maximize" else -1.0
    if not trials:
        return dict(default)
    return max(trials, key=lambda trial: sign * trial.value).params


def _last_journal(context: Context) -> Journal | None:
    """Open the journal that this client wrote last, if there is one."""
    folder = configured_folder(context)
    known = context.state.config_records.get(record_name(KIND))
    if folder is None:
        content = known.get("journal") if known else None
        return Journal(None, content=content) if isinstance(content, bytes) else None
    slot = configured_slot(context)
    if slot < 0 and known:
        slot = int(str(known["slot"]))
    paths = list(folder.glob(f"study-*-agent-{'*' if slot < 0 else slot}.sqlite"))
    if len({path.stem.rpartition("-")[2] for path in paths}) > 1:
        _log.warning(
            "%s has journals of several agents, and this client does not know which "
            "it is: give its node config an agent-id.",
            folder,
        )
        return None
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if newest is None else Journal(None, newest)
