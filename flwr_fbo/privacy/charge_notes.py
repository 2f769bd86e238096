"""What journals say that a site was charged for: a ledger that was lost is made of it.

Each journal of a site notes a charge before the ledger does. So the journals beside a
ledger prove what it must have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.journal.journal import open_patiently
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.privacy.spending import SpendingLedger, same_charge

# The array of a journal that has them, and the journals of a site's folder.
NOTES = "charged"
_FILES = (
    "study-*-agent-*.sqlite",
    "linear-bandit*.sqlite",
    "neural-bandit*.sqlite",
    "charges-*.sqlite",
)
# Seconds to wait for another process.
_PATIENCE = 30.0

Facts = dict[str, Any]


def notes_of(array: NDArray[Any] | None) -> list[Facts]:
    """Return the charges that a journal's array has, in order."""
    return [] if array is None else from_json_array(array)


def with_note(notes: list[Facts], facts: Facts) -> dict[str, NDArray[Any]]:
    """Return the array of a journal that has one more charge, if it is one more."""
    if any(same_charge(note, facts) for note in notes):
        return {}
    return {NOTES: to_json_array([*notes, facts])}


def note_charge(folder: Path, facts: Facts) -> None:
    """Note a charge of a study that keeps no journal of its own."""
    about = {name: facts[name] for name in ("study_kind", "study_id", "owner")}
    name = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    identity = {"kind": "charges", **about}
    with open_patiently(identity, folder / f"charges-{name}.sqlite", _PATIENCE) as kept:
        kept.put(with_note(notes_of(kept.load_array(NOTES)), facts))


def check_complete(folder: Path, ledger: SpendingLedger | None, owner: int) -> None:
    """Raise JournalError if journals prove charges that a ledger does not have.

    Parameters
    ----------
    folder : Path
    ledger : SpendingLedger or None
        Of the folder, if it has one.
    owner : int
        Whose journals are looked at, where agents share a folder; -1 for all. One that
        another process holds is left out: that process has looked itself.
    """
    for path in _journals(folder, owner):
        try:
            notes = _read(path, 0.0)
        except JournalHeldError:
            continue
        has = (lambda note: False) if ledger is None else ledger.has_charge
        lost = [note for note in notes if not has(note)]
        if not lost:
            continue
        if lost == notes[-1:] and ledger is not None:
            ledger.add(lost[0])  # a process ended between the note and the charge
        else:
            raise JournalError(
                f"{path} has {len(lost)} releases that the ledger beside it has not: "
                "that was deleted, or replaced by an older copy. Make it whole with "
                f"`flwr-fbo ledger rebuild {folder}`, which counts the journals.",
                public="This site's ledger lacks releases that its journals have: "
                "`flwr-fbo ledger rebuild` counts them.",
            )


def rebuild(folder: Path) -> tuple[int, SpendingLedger]:
    """Add to the ledger of a folder what its journals prove; return how many, and it.

    Nothing is taken out of it.

    Raises
    ------
    JournalError
        If a journal, or the ledger, cannot be read: then too little might be counted.
    """
    journals = _journals(folder, -1)
    proven = [note for path in journals for note in _read(path, _PATIENCE)]
    with SpendingLedger.held(folder) as ledger:
        before = len(ledger.rows)
        for note in proven:
            ledger.add(note)
        return len(ledger.rows) - before, ledger


def _journals(folder: Path, owner: int) -> Iterator[Path]:
    for pattern in _FILES:
        for path in sorted(folder.glob(pattern)):
            _, is_named, slot = path.stem.rpartition("-agent-")
            if owner == -1 or not is_named or slot == str(owner):
                yield path


def _read(path: Path, patience: float) -> list[Facts]:
    with open_patiently(None, path, patience) as journal:
        return notes_of(journal.load_array(NOTES))
