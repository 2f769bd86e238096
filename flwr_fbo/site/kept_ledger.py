"""Where a site's ledger of charges is kept: in a folder of its own, or with the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from flwr.app import ConfigRecord, Context

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.privacy.spending_ledger import FILE_NAME, KIND, SpendingLedger
from flwr_fbo.site.proofs import FolderNote, check_receipts, require_complete
from flwr_fbo.site.receipts import SignedReceipt
from flwr_fbo.site.site_journal import configured_slot

# Record of ``context.state`` that has the ledger of a site without a folder.
SPENDING = "flwr-fbo-spending"


class KeptLedger:
    """The `SpendingLedger` of a site, held only while it is read or written.

    It is ``spending.sqlite`` in the site's folder; without a folder, bytes in
    ``context.state``, which live as long as the run.

    Parameters
    ----------
    context : flwr.app.Context
        Context of a message.
    folder : Path, optional
        Folder of the site's journals and ledger.

    Attributes
    ----------
    folder : Path or None
        The folder.
    receipts : sequence of SignedReceipt
        Receipts that came with the message: the ledger must have their charges.
    """

    def __init__(self, context: Context, folder: Path | None) -> None:
        self.folder = folder
        self.receipts: Sequence[SignedReceipt] = ()
        self._context = context

    @property
    def has_own_folder(self) -> bool:
        """True if the site has a folder that the server did not choose."""
        of_run = self._context.run_config.get("fbo-folder")
        is_own = "fbo-folder" in self._context.node_config or not of_run
        return self.folder is not None and (is_own or str(self.folder) != str(of_run))

    @property
    def has_file(self) -> bool:
        """True if there is a ledger in a file."""
        return self.folder is not None and has_journal(self.folder / FILE_NAME)

    @property
    def owner(self) -> int:
        """Owner that is charged: the configured slot."""
        return configured_slot(self._context)

    @property
    def counted(self) -> int:
        """Owner whose charges count; all count in a folder of its own, on its data."""
        return -1 if self.has_own_folder else self.owner

    @cached_property
    def note(self) -> FolderNote:
        """The folder's note of its newest charge."""
        assert self.folder is not None
        return FolderNote(self.folder)

    @contextmanager
    def held(self) -> Iterator[SpendingLedger]:
        """Hold the ledger, if nothing proves that it lacks a charge.

        Raises
        ------
        JournalError
            If journals or receipts prove charges that it does not have.
        """
        if self.folder is not None:
            self.check_missing()
            with SpendingLedger.held(self.folder) as ledger:
                # Not of a folder that the run config names: the server may name an
                # empty one, and thousands of simulated sites may share it.
                if self.has_own_folder:
                    require_complete(self.folder, ledger, self.note)
                    check_receipts(self.folder, ledger, self.receipts)
                yield ledger
            return
        records = self._context.state.config_records
        known = records.get(SPENDING)
        content = None if known is None else known["ledger"]
        assert content is None or isinstance(content, bytes)
        with Journal({"kind": KIND}, content=content) as journal:
            yield SpendingLedger(journal)
            records[SPENDING] = ConfigRecord({"ledger": journal.to_bytes()})

    def check_missing(self) -> None:
        """Raise JournalError if journals prove that a missing ledger was there."""
        if self.folder is not None and self.has_own_folder and not self.has_file:
            require_complete(self.folder, None, self.note)
