"""Proofs of a site's charges besides its ledger, so that none is forgotten.

Journals in the site's folder note each charge before the ledger has it. Servers sign
receipts of the releases that they have got. A note in the folder has the newest charge:
the journals, one per study, are read only if ledger and note differ.

A site that has a folder of its own answers nothing while a proof is not in its ledger.
`recover` adds what is proven, and takes nothing out.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flwr_fbo._common.errors import RefusedError
from flwr_fbo._common.files import OPEN_TO_OTHERS, make_folder, why_untrusted
from flwr_fbo._common.text import write_whole
from flwr_fbo.journal.journal import open_patiently
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError, has_journal
from flwr_fbo.privacy.guarantee import PrivacyUnit
from flwr_fbo.privacy.spending_ledger import (
    DEFAULT_DELTA,
    MARK,
    NOTES,
    PATIENCE,
    SERVER,
    Charge,
    Facts,
    Promise,
    SpendingLedger,
    StudyKey,
    charge_facts,
    least_epsilon,
    notes_of,
)
from flwr_fbo.site.receipts import (
    Mark,
    Receipt,
    SignedReceipt,
    as_head,
)
from flwr_fbo.site.study_journals import journals_with_charges
from flwr_fbo.study.codec import LONGEST_RECEIPT
from flwr_fbo.study.kinds import kind_named

# In a site's folder: receipts that prove charges which its ledger lacks.
_RECEIPTS = "receipt-*.json"
# A server could send one for each of endless studies: more are not kept.
_MOST_RECEIPTS = 100
_NOTE = "spending.note"
# In the facts of a charge that a receipt proved: how many charges that receipt has.
_RECOVERED = "recovered"


class FolderNote:
    """Note that a site's folder keeps beside its ledger, in a file of its own.

    Parameters
    ----------
    folder : Path
        Folder of the site's ledger.

    Attributes
    ----------
    newest : list of int or None
        See `newest_of`; None before the first charge was looked for.
    is_kept : bool
        Whether there is a file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NOTE
        self._secret = secrets.token_bytes(32)
        self.newest: list[int] | None = None
        self.is_kept = False
        self.load()

    def load(self) -> None:
        """Take what the file has now: another process may have changed it."""
        try:
            known = json.loads(self._path.read_text())
            self._secret = bytes.fromhex(known["secret"])
            self.newest, self.is_kept = known["newest"], True
        except (OSError, ValueError, KeyError, TypeError):  # of a crash, or none yet
            self.newest, self.is_kept = None, False

    def first_head(self, *key: object) -> int:
        """Return a number that this folder always gives to a study, and no other."""
        if not self.is_kept:
            self._write()
        return as_head(hashlib.sha256(self._secret + repr(key).encode()).digest())

    def keep(self, newest: list[int]) -> None:
        """Note the newest charge: how many there are then, and its head."""
        if newest != self.newest:
            self.newest = newest
            self._write()

    def _write(self) -> None:
        values = {"secret": self._secret.hex(), "newest": self.newest}
        try:
            make_folder(self._path.parent)
            write_whole(self._path, json.dumps(values))
        except OSError as error:
            text = f"{self._path} cannot be written: {error.strerror}."
            raise JournalError(text) from error
        self.is_kept = True


def newest_of(ledger: SpendingLedger) -> list[int]:
    """Return what a `FolderNote` has of a ledger: how many charges, the last's head."""
    return [len(ledger), ledger.head]


def mark_of(ledger: SpendingLedger, study: StudyKey, owner: int) -> Mark:
    """Return the newest mark of a site in a study."""
    marks = (facts.get(MARK) for facts in ledger.of_study(study, owner))
    return max((Mark(*mark) for mark in marks if mark), default=Mark())


# Journals


def require_complete(
    folder: Path, ledger: SpendingLedger | None, note: FolderNote
) -> None:
    """Raise JournalError if the folder proves charges that its ledger does not have.

    Or if others can change the folder: they could have taken both away. All journals
    are read where the ledger is not as the folder has noted it: a process has ended
    between the two, or the ledger was replaced.

    Parameters
    ----------
    folder : Path
        Folder of the site's journals and ledger.
    ledger : SpendingLedger or None
        Ledger of the folder, if it has one.
    note : FolderNote
        Note of the folder.
    """
    # Whoever opens a ledger looks at the way to it; here there is none.
    fault = why_untrusted(folder) if ledger is None else ""
    if fault:
        raise JournalError(fault, public=OPEN_TO_OTHERS)
    newest = [0, 0] if ledger is None else newest_of(ledger)
    if note.newest == newest:
        return
    note.load()
    if note.newest == newest:
        return
    check_journals(folder, ledger)
    if ledger is not None:
        note.keep(newest_of(ledger))
    elif note.is_kept:
        note.keep(newest)


def check_journals(folder: Path, ledger: SpendingLedger | None) -> bool:
    """Raise JournalError if journals prove charges that a ledger does not have.

    Return whether all were read. One that is held is left out: mostly it is that of the
    agent that answers, and whoever else holds it has looked itself.
    """
    is_complete = True
    for path in journals_with_charges(folder):
        try:
            notes = _notes_in(path, 0.0)
        except JournalHeldError:
            is_complete = False
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
                f"`flwr-fbo ledger recover {folder}`, which counts the journals.",
                public="This site's ledger lacks releases that its journals have: "
                "`flwr-fbo ledger recover` counts them.",
            )
    return is_complete


def _notes_in(path: Path, patience: float) -> list[Facts]:
    with open_patiently(None, path, patience) as journal:
        return notes_of(journal.load_array(NOTES))


# Receipts


def read_receipts(
    texts: Sequence[object], slot: int, fits: Mapping[str, str]
) -> list[SignedReceipt]:
    """Return the receipts that came with a message.

    Parameters
    ----------
    texts : sequence of object
        Receipts as the server sent them.
    slot : int
        The site's; -1 where it has none.
    fits : mapping of str to str
        Values that ``study_kind``, and perhaps ``study_id``, must have.

    Raises
    ------
    RefusedError
        If one is not signed, or is about another site or study.
    """
    receipts = []
    for text in texts:
        try:
            receipt = SignedReceipt.read(text)
        except ValueError as error:
            raise _invalid(error) from None
        if any(getattr(receipt, name) != value for name, value in fits.items()):
            raise RefusedError.told("This server's receipt is about another study.")
        if slot >= 0 and receipt.slot not in (slot, -1):
            raise RefusedError.told("This server's receipt is about another site.")
        receipts.append(receipt)
    return receipts


def _invalid(error: ValueError) -> RefusedError:
    public = "This server's receipt is not valid."
    return RefusedError(f"{public} {error}", public=public)


def check_receipts(
    folder: Path, ledger: SpendingLedger, receipts: Iterable[SignedReceipt]
) -> None:
    """Raise an error if receipts prove charges that the ledger does not have.

    Raises
    ------
    RefusedError
        If another server has signed the receipts of a study before.
    JournalError
        If a charge is missing. The receipt is then in the folder, for `recover`.
    """
    for signed in receipts:
        if not _is_proven(ledger, signed):
            try:
                receipt = signed.receipt
            except ValueError as error:
                raise _invalid(error) from None
            _keep(folder, signed)
            raise _lacks(folder, receipt)


def check_kept(folder: Path, ledger: SpendingLedger | None) -> None:
    """Raise JournalError if receipts in a folder prove what its ledger lacks."""
    for path in sorted(folder.glob(_RECEIPTS)):
        for one in _receipts_in(path):
            if ledger is None or not _is_proven(ledger, one):
                raise _lacks(folder, one.receipt)


def _is_proven(ledger: SpendingLedger, signed: SignedReceipt) -> bool:
    """Return whether a ledger has what a receipt proves."""
    rows, charges = _rows_of(ledger, signed), signed.mark.charges
    marks = [Mark(*facts[MARK]) for facts in rows if MARK in facts]
    is_known = not charges or signed.mark in marks
    return is_known or any(facts.get(_RECOVERED, 0) >= charges for facts in rows)


def _rows_of(ledger: SpendingLedger, signed: SignedReceipt) -> list[Facts]:
    """Return what a ledger has of the receipt's study, if it is of the same server."""
    rows = ledger.all_of(signed.study)
    servers = {facts[SERVER] for facts in rows if facts.get(SERVER)}
    if servers - {signed.server}:
        raise RefusedError.told(
            "This receipt is signed by another server than the study's others."
        )
    return rows


def _keep(folder: Path, signed: SignedReceipt) -> None:
    """Write a receipt into the folder, in place of an older one."""
    key = signed.study, signed.slot, signed.server
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    path = folder / f"receipt-{name}.json"
    if path.is_file() and path.read_text() == signed.text:
        return
    if path.is_file() or len(list(folder.glob(_RECEIPTS))) < _MOST_RECEIPTS:
        write_whole(path, signed.text)


def _lacks(folder: Path, receipt: Receipt) -> JournalError:
    return JournalError(
        f"The ledger in {folder} lacks charge {receipt.charges} of study "
        f"{receipt.study_id}, which its server has a receipt of: the folder was lost, "
        "is an older copy, a clone that was left behind, or another site's. Nothing is "
        "answered. If another folder is the right one, name that as fbo-folder. Else "
        f"`flwr-fbo ledger recover {folder}` counts what the receipt proves; then the "
        "site goes on.",
        public="This site's ledger lacks releases that the server has receipts of. The "
        "site's log says what to do.",
    )


# Recovery


@dataclass(frozen=True)
class Recovered:
    """Result of `recover`.

    Attributes
    ----------
    of_journals, of_receipts : int
        Charges that were added.
    total : int
        Charges in the ledger now.
    cannot_go_on : tuple of str
        Ids of studies whose journal, with the noise of their releases, is gone.
    servers : dict of str to str
        By id of the study, the key of the server whose receipts added charges.
    """

    of_journals: int
    of_receipts: int
    total: int
    cannot_go_on: tuple[str, ...] = ()
    servers: Mapping[str, str] = field(default_factory=dict)


def recover(folder: Path, files: Iterable[Path] = ()) -> Recovered:
    """Add to the ledger of a folder what journals and receipts prove.

    Nothing is taken out of it; there is a new one if it was lost.

    Parameters
    ----------
    folder : Path
        The site's; receipts that it was sent are in it.
    files : iterable of Path
        With more receipts, one a line.

    Raises
    ------
    JournalError
        If a journal, a file or the ledger cannot be read: then too little might be
        counted.
    """
    journals = journals_with_charges(folder)
    proven = [note for path in journals for note in _notes_in(path, PATIENCE)]
    paths = [*sorted(folder.glob(_RECEIPTS)), *files]
    receipts = [signed for path in paths for signed in _receipts_in(path)]
    receipts.sort(key=lambda signed: signed.mark.charges)
    with SpendingLedger.held(folder) as ledger:
        before = len(ledger)
        for note in proven:
            ledger.add(note)
        of_journals = len(ledger) - before
        servers: dict[str, str] = {}
        for receipt in receipts:
            known = len(ledger)
            try:
                _add(ledger, receipt)
            except RefusedError as error:
                raise JournalError(f"Study {receipt.study_id}: {error}") from None
            if len(ledger) > known:
                servers[receipt.study_id] = receipt.server
        # Once more: a process may have noted a charge before the ledger was held.
        if check_journals(folder, ledger):
            FolderNote(folder).keep(newest_of(ledger))
        total = len(ledger)
    for path in folder.glob(_RECEIPTS):  # they are counted
        path.unlink()
    lost = dict.fromkeys(
        signed.study_id for signed in receipts if _has_lost_noise(folder, *signed.study)
    )
    added = total - before - of_journals
    return Recovered(of_journals, added, total, tuple(lost), servers)


def _has_lost_noise(folder: Path, kind: str, study_id: str) -> bool:
    """Return whether a study's journal is gone, with the noise of its releases."""
    known = kind_named(kind)
    return known is not None and any(
        one.is_irreplaceable and not has_journal(one.path_in(folder, study_id))
        for one in known.journals
    )


def _receipts_in(path: Path) -> list[SignedReceipt]:
    try:
        with path.open(encoding="utf-8") as file:
            lines = [line.strip() for line in iter(lambda: file.readline(_LINE), "")]
        receipts = [SignedReceipt.read(line) for line in lines if line]
        for signed in receipts:
            _ = signed.receipt  # all of it, before anything is added
        return receipts
    except (OSError, ValueError) as error:
        raise JournalError(f"{path} cannot be read as receipts: {error}") from None


_LINE = LONGEST_RECEIPT + 2


def _add(ledger: SpendingLedger, signed: SignedReceipt) -> None:
    """Add to a ledger what a receipt proves and it does not have."""
    if _is_proven(ledger, signed):
        return
    receipt, rows = signed.receipt, _rows_of(ledger, signed)
    known = {facts["release"] for facts in rows}
    lacking = [release for release in receipt.releases if release not in known]
    facts = [_facts(signed, release, receipt.charge_of(release)) for release in lacking]
    # Replies that the server has not got, or a copy that went on by itself: which
    # releases they were is not known, so they count as the dearest.
    unknown = max(receipt.charges - len(rows) - len(facts), 0 if facts else 1)
    numbers = (place - receipt.charges for place in range(unknown))
    # What is not known of a charge counts as the dearest release of the promise.
    promise, dearest = receipt.promise, Charge(0.0)
    if promise.charges and promise.private:
        delta = DEFAULT_DELTA if promise.delta is None else promise.delta
        charges = [replace(charge, num_releases=1) for charge in promise.charges]
        dearest = max(charges, key=lambda charge: least_epsilon([charge], delta))
    facts += [_facts(signed, number, dearest) for number in numbers]
    facts[-1][MARK] = list(receipt.mark)
    for each in facts:
        ledger.add(each)


def _facts(signed: SignedReceipt, release: int, charge: Charge) -> Facts:
    receipt = signed.receipt
    promise = receipt.promise
    facts = charge_facts(
        receipt.study,
        release,
        charge,
        delta=promise.delta,
        promised=promise.charges,
        fixed_rows=promise.fixed_rows,
        unit=_unit(receipt.study_kind, promise),
    )
    return {**facts, SERVER: signed.server, _RECOVERED: receipt.charges}


def _unit(name: str, promise: Promise) -> PrivacyUnit:
    """Return whom a charge protects: what its kind allows, whatever a server wrote."""
    kind = kind_named(name)
    if kind is None or promise.unit in kind.units:
        return promise.unit
    return kind.units[0]
