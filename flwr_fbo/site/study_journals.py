"""Journals in a site's folder: whose each is, and which study was the last.

One folder has the journals of all kinds, so that the ledger beside them is that of all
studies. Each kind says how its files are called: see `flwr_fbo.study.kinds`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from flwr_fbo._common.text import write_whole
from flwr_fbo.journal.journal import open_patiently
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.privacy.spending_ledger import NOTES, PATIENCE, Facts, notes_of, with_note
from flwr_fbo.study.kinds import JournalKind, journal_kind, journal_kinds

# Charges of studies that keep no journal of their own at a site.
_CHARGES = "charges-{}.sqlite"


def _of(kind: str) -> JournalKind:
    found = journal_kind(kind)
    if found is None:
        raise JournalError(
            f"No kind of study is called {kind!r} here: a package registers its kinds "
            "in the entry-point group flwr_fbo.kinds before the first run."
        )
    return found


def study_journal(folder: Path, kind: str, study_id: str, slot: int | str = "") -> Path:
    """Return the file of a study's journal."""
    return _of(kind).path_in(folder, study_id, slot)


def study_journals(
    folder: Path, kind: str, study_id: str = "*", slot: int | str = "*"
) -> list[Path]:
    """Return the files of journals, of all studies and slots unless given."""
    return _of(kind).files_in(folder, study_id, slot)


def note_last_study(
    folder: Path, kind: str, study_id: str, slot: int | str = ""
) -> None:
    """Note in the folder that this is the last study of a kind.

    The time of a journal does not tell: clocks are changed, and files restored.
    """
    if last_study(folder, kind, slot) != study_id:
        write_whole(_of(kind).note_in(folder, slot), study_id)


def last_study(folder: Path, kind: str, slot: int | str = "") -> str:
    """Return the last study of a kind, if that is noted."""
    note = _of(kind).note_in(folder, slot)
    return note.read_text() if note.is_file() else ""


def has_begun(folder: Path, kind: str, study_id: str) -> bool:
    """Return whether a study's journal was begun, if it is the last of its kind."""
    return last_study(folder, kind) == study_id


def last_journal(folder: Path, kind: str) -> Path:
    """Return the file of the last study's journal, which may not be there.

    Without a note it is the only one of its kind in the folder.
    """
    last = last_study(folder, kind)
    if last:
        return study_journal(folder, kind, last)
    found = study_journals(folder, kind)
    return found[0] if len(found) == 1 else folder / f"{kind}.sqlite"


def journals_with_charges(folder: Path) -> Iterator[Path]:
    """Yield the files that a site may have noted charges in, of all kinds."""
    for one in journal_kinds():
        if one.at_site:
            yield from one.files_in(folder)
    yield from sorted(filter(has_journal, folder.glob(_CHARGES.format("*"))))


def note_charge(folder: Path, facts: Facts) -> Facts:
    """Note a charge of a study that keeps no journal of its own; return the note."""
    about = {name: facts[name] for name in ("study_kind", "study_id", "owner")}
    name = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    identity, path = {"kind": "charges", **about}, folder / _CHARGES.format(name)
    with open_patiently(identity, path, PATIENCE) as kept:
        note, arrays = with_note(notes_of(kept.load_array(NOTES)), facts)
        kept.put(arrays)
        return note
