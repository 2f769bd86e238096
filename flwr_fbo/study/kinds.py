"""The kinds of studies: what each is called, what it keeps, and where its code is.

A wing declares its `Kind` in a small module. Whatever serves all kinds asks here, and
names none: commands, a site's folder and its proofs, the server's record. A kind of
another package registers by an entry point::

    [project.entry-points."flwr_fbo.kinds"]
    my-kind = "my_package.kind:KIND"

The parts of a kind are named as ``module:name`` and imported where they are needed,
because a client process needs no report, and a report needs no client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.privacy.guarantee import PrivacyUnit

GROUP = "flwr_fbo.kinds"
# The record of a study's server, of whatever kind.
SERVER_FILE = "server.sqlite"

# The declarations of this package. They are no entry points, so that a process that
# asks for one of these does not read the metadata of all installed packages.
_OURS = {
    "tuning": "flwr_fbo.tuning.kind:TUNING",
    "linear-bandit": "flwr_fbo.bandits.kind:LINEAR",
    "neural-bandit": "flwr_fbo.bandits.kind:NEURAL",
    "federation-tuner": "flwr_fbo.tuner.kind:TUNER",
}


@dataclass(frozen=True)
class JournalKind:
    """One sort of journal that a kind of study keeps, at a site or at a server.

    Attributes
    ----------
    name : str
        The ``kind`` in the identity of such a journal.
    files : str
        Name of its file in a folder; ``{study_id}`` and ``{slot}`` stand for those of
        the journal.
    at_site : bool
        Whether a site keeps it. Then it may note charges, and proves them.
    note : str
        Name of the file beside it that says which study was the last; ``{slot}``
        stands for that of the journal.
    is_irreplaceable : bool
        Whether a study cannot go on at a site that has lost it: the noise of the
        site's releases was in it.
    ledger : str
        `LedgerView` of its releases; empty if it has none.
    page : str
        Function of an open journal that returns the HTML page of ``flwr-fbo report``.
        A study's server has the page of all servers unless given.
    findings : str
        Function of a server's study as JSON values, its releases and its state that
        returns the first sections of its page.
    listing : str
        Function of an open journal that returns the `Listing` of ``flwr-fbo show``.
    export : str
        Function of a journal's path and an Optuna storage that copies the trials, and
        returns the Optuna study.
    receipts : str
        Function of an open journal and a slot, or None for all, that returns the
        receipts of its sites. A study's server has those of all servers unless given.
    has_ended : str
        Function of a journal's path that returns whether nothing will be added.
    """

    name: str
    files: str
    at_site: bool = False
    note: str = ""
    is_irreplaceable: bool = False
    ledger: str = ""
    page: str = ""
    findings: str = ""
    listing: str = ""
    export: str = ""
    receipts: str = ""
    has_ended: str = ""

    @property
    def is_of_one_study(self) -> bool:
        """Whether a folder has one such journal at most."""
        return "{" not in self.files

    def path_in(self, folder: Path, study_id: str, slot: int | str = "") -> Path:
        """Return the file of a study's journal, which may not be there."""
        return folder / self.files.format(study_id=study_id, slot=slot)

    def files_in(
        self, folder: Path, study_id: str = "*", slot: int | str = "*"
    ) -> list[Path]:
        """Return its files in a folder, of all studies and slots unless given."""
        named = folder.glob(self.files.format(study_id=study_id, slot=slot))
        return sorted(path for path in named if has_journal(path))

    def note_in(self, folder: Path, slot: int | str = "") -> Path:
        """Return the file of the note which study was the last."""
        return folder / self.note.format(slot=slot)


@dataclass(frozen=True)
class Kind:
    """One kind of study.

    Attributes
    ----------
    name : str
        Its name in messages, and in the ledgers of sites.
    journals : tuple of JournalKind
        What its sites and servers keep.
    units : tuple of PrivacyUnit
        Units that such a study can protect; the first is that of charges which do not
        say it, as those of earlier versions. A site believes no server that names
        another: its charges would count where they cost less.
    condition : str
        What an epsilon of such a study does not cover, in the words that follow it.
    plans : mapping of str to str
        What ``flwr-fbo privacy`` says of strategies, by their names: functions of the
        name, the number of agents and the options of the command, that return a
        `StudyPlan`.
    statement : str
        What ``flwr-fbo statement`` says of a study: function of the identity of one of
        its journals, empty where a site has none, of the releases in it, and of what a
        site's ledger has of the study, `InLedger`, that returns `StudyFacts`.
    """

    name: str
    journals: tuple[JournalKind, ...]
    units: tuple[PrivacyUnit, ...]
    condition: str = ""
    plans: Mapping[str, str] = field(default_factory=dict)
    statement: str = ""


def load(reference: str | type) -> Any:
    """Return what ``module:name`` names, or a class as it is."""
    if not isinstance(reference, str):
        return reference
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def kinds() -> tuple[Kind, ...]:
    """Return all kinds: those of this package, and those of other packages."""
    return (*map(_ours, _OURS), *_others())


def kind_named(name: str) -> Kind | None:
    """Return the kind of this name; None where it is unknown."""
    if name in _OURS:
        return _ours(name)
    return next((kind for kind in _others() if kind.name == name), None)


def journal_kinds() -> Iterator[JournalKind]:
    """Yield the sorts of journals of all kinds, those of this package first."""
    for name in _OURS:  # without the metadata, if one of these is looked for
        yield from _ours(name).journals
    for kind in _others():
        yield from kind.journals


def journal_kind(name: object) -> JournalKind | None:
    """Return the sort of journal with this ``kind``; None where it is unknown."""
    return next((one for one in journal_kinds() if one.name == name), None)


def require_registered(kind: JournalKind) -> None:
    """Raise `JournalError` unless journals of a kind would be found as such."""
    if journal_kind(kind.name) != kind:
        raise JournalError(
            f"No kind of study has this journal called {kind.name!r} here: a package "
            f"registers its kinds in the entry-point group {GROUP} before the first "
            "run with a folder."
        )


def _ours(name: str) -> Kind:
    kind: Kind = load(_OURS[name])
    return kind


@cache
def _others() -> tuple[Kind, ...]:
    """Return the kinds of other packages, each name once.

    Raises
    ------
    JournalError
        If an entry point cannot be imported, is not a `Kind` of that name, or takes a
        name or the file of another kind. It is not left out: a site would overlook the
        charges in its journals.
    """
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    taken = [journal for name in _OURS for journal in _ours(name).journals]
    found: list[Kind] = []
    for name in sorted(entries):
        kind = _theirs(entries[name])
        for journal in kind.journals:
            if clash := _clash(journal, taken):
                raise JournalError(f"{_about(entries[name])}: {clash}.")
            taken.append(journal)
        found.append(kind)
    return tuple(found)


def _theirs(entry: EntryPoint) -> Kind:
    """Return the kind of an entry point."""
    about = _about(entry)
    if entry.name in _OURS:
        raise JournalError(f"{about}: flwr_fbo has a kind of that name.")
    try:
        kind = entry.load()
    except Exception as error:  # of code that is not ours
        raise JournalError(f"{about}: {error!r}.") from error
    if not isinstance(kind, Kind) or kind.name != entry.name:
        raise JournalError(f"{about}: it is not a Kind of that name.")
    return kind


def _about(entry: EntryPoint) -> str:
    return f"The entry point {entry.name!r} of {GROUP}, {entry.value}, cannot be used"


def _clash(journal: JournalKind, taken: list[JournalKind]) -> str:
    """Return what another sort of journal has too; empty if nothing."""
    for other in taken:
        if journal.name == other.name:
            return f"another journal is called {journal.name!r}, too"
        # All servers keep one file: only one study is in such a folder.
        if journal.files == other.files != SERVER_FILE:
            return f"files of {other.name!r} are called {journal.files!r}, too"
        if journal.note and journal.note == other.note:
            return f"the note of {other.name!r} is called {journal.note!r}, too"
    return ""
