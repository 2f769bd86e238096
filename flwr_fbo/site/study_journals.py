"""Journals of a site's bandits: one file per study, all in one folder.

So the ledger beside them is that of all studies, and a note says which was the last.
"""

from __future__ import annotations

from pathlib import Path

from flwr_fbo._common.text import write_whole

# The kinds of bandits, which the names of their journals begin with.
LINEAR_KIND, NEURAL_KIND = "linear-bandit", "neural-bandit"


def bandit_journal(folder: Path, kind: str, study_id: str) -> Path:
    """Return the file of a study's journal."""
    return folder / f"{kind}-{study_id}.sqlite"


def note_last_study(folder: Path, kind: str, study_id: str) -> None:
    """Note in the folder that this is the last study of a kind."""
    if not has_begun(folder, kind, study_id):
        write_whole(_note(folder, kind), study_id)


def has_begun(folder: Path, kind: str, study_id: str) -> bool:
    """Return whether a study's journal was begun, if it is the last of its kind."""
    note = _note(folder, kind)
    return note.is_file() and note.read_text() == study_id


def last_journal(folder: Path, kind: str) -> Path:
    """Return the file of the last study's journal, which may not be there.

    Without a note it is the only one of its kind in the folder.
    """
    note = _note(folder, kind)
    if note.is_file():
        return bandit_journal(folder, kind, note.read_text())
    found = bandit_journals(folder, kind)
    return found[0] if len(found) == 1 else folder / f"{kind}.sqlite"


def bandit_journals(folder: Path, kind: str) -> list[Path]:
    """Return the files of all studies' journals."""
    return sorted(folder.glob(f"{kind}*.sqlite"))


def _note(folder: Path, kind: str) -> Path:
    return folder / f"last-{kind}"
