"""What a site has spent in all studies on its data, against its limits."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flwr.app import ConfigRecord, Context

from flwr_fbo.agents.durable.recorded_agent import RecordedAgent, lacks_release
from flwr_fbo.clients.limits import Limits, refused
from flwr_fbo.clients.site_journal import configured_slot
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.spending import (
    FILE_NAME,
    KIND,
    Promise,
    SpendingLedger,
    StudyKey,
)

_log = logging.getLogger("flwr.fbo")

_RECORD = "flwr-fbo-spending"


class SiteBudget:
    """The limits of a site, and its `SpendingLedger`.

    The ledger is ``spending.sqlite`` in the site's folder, held only while it is read
    or written; without a folder, bytes in ``context.state``, which live as long as the
    run. There is none where nothing could come of it: without folder and limits.

    Parameters
    ----------
    context : flwr.app.Context
    folder : Path, optional
    limits : sequence of Limits
        All must hold.
    """

    def __init__(
        self, context: Context, folder: Path | None, limits: Sequence[Limits]
    ) -> None:
        self._state = context.state.config_records
        self._folder = folder
        self._context = context
        self.limits = [one for one in limits if one.bound_anything]

    @property
    def _owner(self) -> int:
        """Whose data this is, where agents share a folder: its configured slot."""
        return configured_slot(self._context)

    def check(self, promise: Promise, unprotected: str = "") -> None:
        """Raise `StudyRefusedError` unless a study is private enough."""
        for limits in self.limits:
            limits.check_promise(promise, unprotected)

    def admit(self, key: StudyKey, promise: Promise) -> None:
        """Raise `StudyRefusedError` if a study, as a whole, would exceed a limit."""
        if not self.limits:
            return
        of_run = self._context.run_config.get("fbo-folder")
        is_own = "fbo-folder" in self._context.node_config
        if self._folder is None or not (is_own or str(self._folder) != str(of_run)):
            _log.warning(
                "This site's limits cover only this run, or its folder. Set fbo-folder "
                "in the node config to cover all studies."
            )
        others = []
        if self._folder is None or (self._folder / FILE_NAME).is_file():
            with self._ledger() as ledger:
                others = ledger.charges(self._owner, without=key)
        for limits in self.limits:
            limits.check_sum([*others, *promise.charges])

    def charge(
        self,
        key: StudyKey,
        promise: Promise,
        release: int,
        agent: RecordedAgent | None = None,
    ) -> None:
        """Charge a release, from 1, before it is made; once, on disk afterwards.

        Parameters
        ----------
        key : tuple of str
            The study's kind and id.
        promise : Promise
        release : int
            0 if none is wanted.
        agent : RecordedAgent, optional
            Its journal knows of the charge before the ledger does. So a journal that
            does not is not the one with the agent's release. None where nobody keeps
            what was sent: then nothing is sent twice.

        Raises
        ------
        StudyRefusedError
            If it is not promised, would exceed a limit, or cannot be sent again.
        JournalError
            If the agent's journal is an older copy, or another one.
        """
        if not release or (self._folder is None and not self.limits):
            return
        for limits in self.limits:
            limits.check_release(promise, release)
        charge, owner = promise.charge_of(release), self._owner
        with self._ledger() as ledger:
            if ledger.has(key, release, owner):
                if agent is None:
                    raise refused(f"release {release} is asked for again")
                if release not in agent.charged:
                    raise lacks_release(release)
                return
            for limits in self.limits:
                limits.check_sum([*ledger.charges(owner), charge])
            if agent is not None:
                agent.note_charge(release)
            ledger.record(key, release, charge, owner)

    @contextmanager
    def _ledger(self) -> Iterator[SpendingLedger]:
        if self._folder is not None:
            with SpendingLedger.held(self._folder) as ledger:
                yield ledger
            return
        known = self._state.get(_RECORD)
        content = None if known is None else known["ledger"]
        assert content is None or isinstance(content, bytes)
        with Journal({"kind": KIND}, content=content) as journal:
            yield SpendingLedger(journal)
            self._state[_RECORD] = ConfigRecord({"ledger": journal.to_bytes()})
