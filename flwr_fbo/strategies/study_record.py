"""The server's durable record of a study, in a folder of its own.

What is recorded before a broadcast is all that a new run needs to go on: the study with
its seeds, the ledger of its releases, who holds which slot, and how each round went.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.site.receipts import ReceiptBook
from flwr_fbo.study.callbacks import Round
from flwr_fbo.study.codec import Study
from flwr_fbo.study.kinds import SERVER_FILE

_log = logging.getLogger("flwr.fbo")

# Names under which the journal keeps `StudyProgress`; all others are those of the
# server half.
_PROGRESS = "progress"
_SLOTS, _JOURNALS = "progress-slots", "progress-journals"
_RECEIPTS = "progress-receipts"
_ROUND = "progress-round-"


@dataclass
class StudyProgress:
    """How far a study is.

    Attributes
    ----------
    study : Study
        The study's settings, with its seeds.
    ledger : sequence of LedgerRow
        What the server half has released.
    slots : dict of int to int
        Node id to slot.
    journals : dict of int to int
        Slot to the journal that its agent keeps, where that matters.
    rounds : list of Round
        How each round went.
    state : dict of str to ndarray
        What the server half needs besides its ledger.
    receipts : mapping
        What the sites' ledgers have of the study: see `ReceiptBook.to_json`.
    """

    study: Study
    ledger: Sequence[LedgerRow]
    slots: dict[int, int]
    journals: dict[int, int] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    receipts: Mapping[str, Any] = field(default_factory=dict)


class StudyRecord:
    """Keeps `StudyProgress` in a journal; without a folder, nowhere.

    Parameters
    ----------
    folder : Path or None
        Of this study alone.
    identity : mapping of str to JSON value
        The configuration, which may not change while a study goes on.
    patience : float
        Seconds to wait for another process to let go of it. A ServerApp whose SuperLink
        was killed holds it until it has noticed, half a minute after the next one.

    Raises
    ------
    JournalError
        If the folder cannot be used, or holds a study of another configuration; the
        message names the difference.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], patience: float = 0.0
    ) -> None:
        # What has already been written.
        self._num_releases = self._num_rounds = 0
        self._enrolled: tuple[dict[int, int], dict[int, int]] | None = None
        self._state: dict[str, NDArray[Any]] = {}
        self._journal: Journal | None = None
        if folder is None:
            return
        self._journal = open_patiently(identity, folder / SERVER_FILE, patience)

    def save(self, progress: StudyProgress) -> None:
        """Commit the progress; it is on disk when this returns."""
        if self._journal is None:
            return
        counts = {
            "study": progress.study.to_dict(),
            "num_releases": len(progress.ledger),
        }
        changed = {
            name: array
            for name, array in progress.state.items()
            if self._state.get(name) is not array
        }
        changed[_PROGRESS] = _text(counts)
        if not self.has(progress.slots, progress.journals):
            changed[_SLOTS] = _text(list(progress.slots.items()))
            changed[_JOURNALS] = _text(list(progress.journals.items()))
        changed[_RECEIPTS] = _text(progress.receipts)
        rounds = enumerate(progress.rounds[self._num_rounds :], self._num_rounds)
        changed |= {f"{_ROUND}{i:06}": _text(asdict(entry)) for i, entry in rounds}
        gone = self._state.keys() - progress.state.keys()
        new = progress.ledger[self._num_releases :]
        self._journal.change_state(changed, gone, new)
        self._remember(progress)

    def has(self, slots: Mapping[int, int], journals: Mapping[int, int]) -> bool:
        """Return whether these are the slots and journals that were saved last."""
        return self._journal is None or self._enrolled == (slots, journals)

    def _remember(self, progress: StudyProgress) -> None:
        """Take note of what the journal has."""
        self._num_releases = len(progress.ledger)
        self._num_rounds = len(progress.rounds)
        self._enrolled = dict(progress.slots), dict(progress.journals)
        self._state = dict(progress.state)

    def load(self, study: Study) -> StudyProgress | None:
        """Return what was saved last, or None; ``study`` is one of the same kind.

        Raises
        ------
        JournalError
            If the journal is damaged.
        """
        if self._journal is None:
            return None
        state = self._journal.load_state()
        if not state:
            return None
        stored, ledger = read_ledger(self._journal)
        state = {n: array for n, array in state.items() if not n.startswith(_PROGRESS)}
        try:
            progress = StudyProgress(
                study=type(study).from_dict(stored["study"]),
                ledger=ledger,
                slots={int(node): int(slot) for node, slot in stored["slots"]},
                journals={int(slot): int(name) for slot, name in stored["journals"]},
                rounds=[Round(**r) for r in stored["rounds"]],
                state=state,
                receipts=stored["receipts"],
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            path = self._journal.path
            raise JournalError(f"{path} is damaged: {error!r}.") from error
        self._remember(progress)
        return progress

    def __enter__(self) -> StudyRecord:
        return self

    def __exit__(self, *_: object) -> None:
        if self._journal is not None:
            self._journal.close()


def refuse_twin(folder: Path, identity: Mapping[str, Any]) -> None:
    """Raise ValueError if a new study may be an old one under a misspelled path.

    Parameters
    ----------
    folder : Path
        Folder that the study is started with.
    identity : mapping of str to JSON value
        Settings of the study.

    Raises
    ------
    ValueError
        If the folder has no record, and one in it, above it or beside it has a study
        of the same settings. Records that cannot be read are left out.
    """
    if has_journal(folder / SERVER_FILE):
        return
    settings = json.loads(json.dumps(dict(identity)))
    above = folder.parent
    paths = {above / SERVER_FILE, *above.glob(f"*/{SERVER_FILE}")}
    for path in sorted({*paths, *folder.glob(f"*/{SERVER_FILE}")}):
        try:
            with Journal.snapshot(path) as journal:
                if journal.identity != settings:
                    continue
                num_done = len(read_ledger(journal)[0]["rounds"])
        except JournalError:
            continue
        raise ValueError(
            f"folder={str(folder)!r} has no study, and {path.parent} has one with the "
            f"same settings, after round {num_done} of {identity['num_rounds']}. Name "
            "that folder to go on with it. Another study charges the sites again: if "
            "it is meant, give Host(new=True), or new=true in the run config of an app "
            "that passes it on."
        )


def tell_of_resuming(folder: Path | None, num_done: int, num_rounds: int) -> None:
    """Log that a study goes on, or is complete.

    Parameters
    ----------
    folder : Path or None
        Folder with its record.
    num_done : int
        Number of rounds that earlier runs have completed.
    num_rounds : int
        Number of rounds of the whole study.

    Raises
    ------
    ValueError
        If more rounds are completed than the study is to have.
    """
    enough = f"at least {num_done}, the rounds of the study in {folder}"
    require(num_rounds >= num_done, "num_rounds", num_rounds, enough)
    if num_done == num_rounds:
        _log.warning(
            "The study in %s is complete: its result is returned without any "
            "message. A new study needs another folder.",
            folder,
        )
        return
    _log.warning(
        "Resuming the study in %s after round %d of %d. Flower counts rounds from 1 "
        "again.",
        folder,
        num_done,
        num_rounds,
    )


def read_ledger(journal: Journal) -> tuple[dict[str, Any], list[LedgerRow]]:
    """Return what a server's journal says of its study, and all of its releases.

    Raises
    ------
    JournalError
        If a release is damaged or missing. This finds accidents: who can write the
        file can also write it anew.
    """
    ledger = journal.ledger()
    try:
        state = journal.load_state()
        stored: dict[str, Any] = json.loads(str(state[_PROGRESS]))
        stored["slots"] = json.loads(str(state[_SLOTS]))
        stored["journals"] = json.loads(str(state[_JOURNALS]))
        stored["receipts"] = json.loads(str(state[_RECEIPTS]))
        rounds = sorted(name for name in state if name.startswith(_ROUND))
        stored["rounds"] = [json.loads(str(state[name])) for name in rounds]
        complete = stored["num_releases"] == len(ledger)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{journal.path} is damaged: {error!r}.") from error
    if not complete:
        raise JournalError(f"{journal.path} is damaged: releases are missing.")
    return stored, ledger


def recorded_book(journal: Journal) -> ReceiptBook:
    """Return what a server's journal has of its sites' ledgers.

    Raises
    ------
    JournalError
        If it is damaged, or no server's.
    """
    return ReceiptBook.from_json(read_ledger(journal)[0]["receipts"])


def _text(value: Any) -> NDArray[Any]:
    return np.array(json.dumps(value))
