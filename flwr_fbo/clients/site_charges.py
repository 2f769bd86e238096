"""May this leave? One place that answers, for all that a server asks of a site.

What a reply can carry decides what is charged, and not what the request calls it:

======================  =========================  ===================  =============
Message                 What its reply can carry   Limits that bind it  Charge
======================  =========================  ===================  =============
any study, ``ENROL``    its slot, and the number   all                  none
                        of a journal
tuning, ``ROUND``       a message                  privacy, sums        the release
tuning, ``ROUND``       the metric best-value      privacy, sums        `UNPROTECTED`
tuning, ``SUM``         a message in a sum         privacy, sums        the release
linear, ``ROUND``       its sums with noise        privacy, share       release 1
linear with a trigger   when it wants to           privacy, share       release 1
                        synchronise
neural, ``ROUND``       its sums with noise        privacy, share       release 1
neural, no privacy      gradients, sums, and when  privacy, share       release 1
                        it wants to synchronise
tuner, trials           what the app trained, and  privacy, sums        none
                        ``num-examples``
tuner, trials           exact metrics              privacy, sums        `UNPROTECTED`
tuner, ballot           a ballot, or exact scores  privacy, sums        the release
tuner, sum              a ballot in a sum          privacy, sums        the release
tuner, settings         the app's own reply        none                 none
======================  =========================  ===================  =============

*Privacy* is ``max_epsilon``, ``max_delta`` and ``max_releases``; *sums* is
``min_agents`` to ``min_noise_multiplier``; *share* is ``max_uniform_share``, which only
a bandit's decisions have. All releases of a bandit are one mechanism, and one charge.
The limits on sizes bind every message. What the app trained is not covered by a tuner's
guarantee: see `PrivateChoice`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context

from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import require_int
from flwr_fbo.clients.node_limits import site_limits
from flwr_fbo.clients.recorded_agent import RecordedAgent, lacks_release
from flwr_fbo.clients.site_journal import configured_slot
from flwr_fbo.clients.site_proofs import (
    FolderNote,
    check_receipts,
    mark_of,
    next_mark,
    read_receipts,
    require_complete,
)
from flwr_fbo.clients.sum_identity import SumIdentity, sum_identity
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.spending import (
    DEFAULT_DELTA,
    FILE_NAME,
    KIND,
    MARK,
    SERVER,
    UNPROTECTED,
    Charge,
    Promise,
    SpendingLedger,
    StudyKey,
    charge_facts,
    epsilon_text,
    note_charge,
)
from flwr_fbo.study.limits import (
    Limits,
    limits_text,
    refused,
    require_private,
    size_limits,
)
from flwr_fbo.study.receipts import CHARGES, HEAD, Mark, SignedReceipt

if TYPE_CHECKING:
    from flwr_fbo.study.secure_sums import SecureSums

_log = logging.getLogger("flwr.fbo")

_RECORD, _JOINED = "flwr-fbo-spending", "flwr-fbo-joined"
# Entries of a node config that no simulation makes.
_OF_AN_OPERATOR = ("agent-id", "fbo-folder")


class SiteCharges:
    """What a site allows, and its `SpendingLedger`, while it answers one message.

    The ledger is ``spending.sqlite`` in the site's folder, held only while it is read
    or written; without a folder, bytes in ``context.state``, which live as long as the
    run. There is none where nothing could come of it: without folder and limits.

    Parameters
    ----------
    context : flwr.app.Context
    folder : Path, optional
    own : Limits, optional
        Of whoever answers, besides those of the app and of the node config.

    Attributes
    ----------
    sizes : Limits
        How large a message may be.
    """

    def __init__(
        self, context: Context, folder: Path | None = None, own: Limits | None = None
    ) -> None:
        self._state = context.state.config_records
        self._folder = folder
        self._context = context
        self._all = site_limits(context, own)
        self._limits = [one for one in self._all if one.bound_anything]
        self.sizes = size_limits(self._all)
        self._is_charged = False
        self._receipts: list[SignedReceipt] = []
        self._mark: Mark | None = None

    @property
    def _owner(self) -> int:
        """Who is charged: the configured slot."""
        return configured_slot(self._context)

    @property
    def _counted(self) -> int:
        """Whose charges count: all of a folder of its own, as they are on its data."""
        return -1 if self._has_own_folder else self._owner

    def hear(
        self, texts: Sequence[object], slot: int, kind: str, study_id: str = ""
    ) -> None:
        """Take the receipts that came with a message; the ledger must have them.

        A site without a folder of its own forgets its ledger, and ignores them.

        Parameters
        ----------
        texts : sequence of object
        slot : int
            The site's; -1 where it has none.
        kind, study_id : str
            Of the study that they must be about; of any, without an id.

        Raises
        ------
        RefusedError
            If one is not signed, or is about another site or study.
        JournalError
            If one proves a charge that the ledger does not have.
        """
        if not texts or not self._has_own_folder:
            return
        fits = {"study_kind": kind, **({"study_id": study_id} if study_id else {})}
        self._receipts = read_receipts(texts, slot, fits)
        # The ledger is checked whenever it is opened. Not now, if the newest charge
        # that the folder has noted is the server's: what is charged opens it anyway.
        _, head = self._note.newest or (0, 0)
        marks = [one.mark for one in self._receipts]
        if not all(mark.head == head or not mark.charges for mark in marks):
            with self._ledger():
                pass

    def mark(self, key: StudyKey) -> dict[str, int]:
        """Return what the server is told of the site's ledger, as metrics.

        The newest mark of a study; before its first charge a number that the folder
        gives to the study. Nothing without a folder of its own.
        """
        if not self._has_own_folder:
            return {}
        mark = self._mark or Mark()
        head = mark.head if mark.charges else self.number(*key, self._owner)
        return {CHARGES: mark.charges, HEAD: head}

    def number(self, *about: object) -> int:
        """Return a number that this folder always gives to something."""
        return self._note.first_head(*about)

    @cached_property
    def _note(self) -> FolderNote:
        assert self._folder is not None
        return FolderNote(self._folder)

    def has_charged(self, key: StudyKey) -> bool:
        """Return whether a study has been charged, in a ledger in a file."""
        if not self._has_file:
            return False
        with self._ledger() as ledger:
            return bool(ledger.of_study(key, self._owner))

    def check(
        self, promise: Promise, unprotected: str = "", uniform_share: float = 0.0
    ) -> None:
        """Raise `RefusedError` unless a study is one that the site wants.

        Parameters
        ----------
        promise : Promise
        unprotected : str
            What it asks for that no guarantee covers.
        uniform_share : float
            Largest share of its decisions that are made at random.
        """
        for limits in self._all:
            limits.check_promise(promise, unprotected)
            limits.check_uniform_share(uniform_share)

    def check_sums(
        self,
        sums: SecureSums | None,
        promise: Promise,
        known_slot: int = -1,
        unprotected: str = "",
    ) -> SumIdentity:
        """Return who the site is in secure sums.

        Raises
        ------
        RefusedError
            If messages are not summed as the site wants, or something is asked for
            besides that no sum hides.
        NodeConfigError
            If the site's roster or key cannot be used.
        """
        identity = sum_identity(self._context)
        identity.check(sums, known_slot)
        for limits in self._all:
            limits.check_secure(sums, promise)
        if unprotected and (identity.roster is not None or self._wants_sums):
            raise refused(f"the study asks for {unprotected}, which no sum hides")
        return identity

    def check_no_sums(self, promise: Promise) -> None:
        """Raise `RefusedError` if a study that adds its own noise has none."""
        if self._wants_sums:
            require_private(promise)

    @property
    def _wants_sums(self) -> bool:
        return any(limits.of_sums for limits in self._all)

    def admit(self, key: StudyKey, promise: Promise, strategy: str) -> None:
        """Raise `RefusedError` if a study, as a whole, would exceed a limit.

        And JournalError if the site's journals prove that its ledger lacks releases.
        Otherwise the log of a SuperNode's app says once that the site takes part.
        """
        if self._limits and not self._has_own_folder:
            _log.warning(
                "This site's limits cover only this run, or its folder. Set fbo-folder "
                "in the node config to cover all studies."
            )
        self.check_total(key, promise)
        self._say_joined(key, promise, strategy)

    def check_total(self, key: StudyKey, promise: Promise) -> None:
        """Raise the errors of `admit`; nothing is logged, and the study does not begin.

        Parameters
        ----------
        key : tuple of str
            The study's kind and id.
        promise : Promise
        """
        others = self._others(key)
        for limits in self._limits:
            limits.check_sum([*others, *promise.charges])

    def _others(self, key: StudyKey) -> list[Charge]:
        """Return what studies besides one have charged."""
        if self._has_own_folder and not self._has_file:
            assert self._folder is not None
            require_complete(self._folder, None, self._note)
        if not (self._has_file or (self._limits and self._folder is None)):
            return []
        with self._ledger() as ledger:
            self._mark = mark_of(ledger, key, self._owner)
            return ledger.charges(self._counted, without=key)

    def _say_joined(self, key: StudyKey, promise: Promise, strategy: str) -> None:
        """Log the first message of a study, at a site that its operator configured."""
        about = {"study": f"{key[0]} {key[1]}"}
        if _JOINED in self._state and dict(self._state[_JOINED]) == about:
            return
        if not any(name in self._context.node_config for name in _OF_AN_OPERATOR):
            return
        self._state[_JOINED] = ConfigRecord({**about})
        delta = promise.delta
        for limits in self._limits:
            delta = limits.max_delta if delta is None else delta
        promised, spent = "no epsilon: it is not private", self._others(key)
        if promise.private and promise.delta is not None:
            epsilon = epsilon_text(promise.charges, promise.delta)
            promised = f"epsilon {epsilon} at delta {promise.delta:g}"
        _log.info(
            "joined study %s of strategy %s: promises %s, %s; spent before: epsilon "
            "%s%s; limits: %s",
            key[1],
            strategy,
            counted(promise.num_releases, "release"),
            promised,
            epsilon_text(spent, DEFAULT_DELTA if delta is None else delta),
            f" in {counted(len(spent), 'release')}" if spent else "",
            limits_text(self._all) or "none",
        )

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
        agent : RecordedAgent, optional
            Its journal knows of the charge before the ledger does. So a journal that
            does not is not the one with the agent's release. None where nobody keeps
            what was sent: then nothing is sent twice.

        Raises
        ------
        RefusedError
            If it is not promised, would exceed a limit, or cannot be sent again.
        JournalError
            If the agent's journal is an older copy, or another one.
        """
        require_int("release", release, 1)
        for limits in self._limits:
            limits.check_release(promise, release)
        about = promise.charge_of(release), self._owner, promise.delta
        self._charge(key, release, charge_facts(key, release, *about), agent)

    def charge_unprotected(
        self, key: StudyKey, agent: RecordedAgent | None = None
    ) -> None:
        """Charge what no noise covers: once a study, however often it is sent."""
        facts = charge_facts(key, UNPROTECTED, Charge(0.0), self._owner)
        self._charge(key, UNPROTECTED, facts, agent)

    def _charge(
        self,
        key: StudyKey,
        release: int,
        facts: dict[str, Any],
        agent: RecordedAgent | None,
    ) -> None:
        self._is_charged = True
        if self._folder is None and not self._limits:
            return
        owner, charge = facts["owner"], Charge(*facts["charge"])
        with self._ledger() as ledger:
            self._mark = mark_of(ledger, key, owner)
            known = ledger.of_study(key, owner)
            if any(one["release"] == release for one in known):
                if release == UNPROTECTED:
                    return
                if agent is None:
                    raise refused(f"release {release} is asked for again")
                if release not in agent.charged:
                    raise lacks_release(release)
                return
            for limits in self._limits:
                limits.check_sum([*ledger.charges(self._counted), charge])
            if self._has_own_folder:
                self._mark = next_mark(ledger, key, owner)
                facts = {**facts, MARK: list(self._mark)}
                for one in self._receipts:
                    if one.study == key:
                        facts[SERVER] = one.server
                # First, so that journals are read if the process ends before the rest.
                newest = [len(ledger.rows) + 1, self._mark.head]
                self._note.keep(newest)
            if agent is not None:
                facts = agent.note_charge(facts)
            elif self._folder is not None:
                facts = note_charge(self._folder, facts)
            ledger.add(facts)

    def let_go(self, content: Any) -> None:
        """Raise RuntimeError if there is content about the site, and no charge.

        The last question before a reply leaves: whoever makes one cannot forget it.
        """
        if content and not self._is_charged:
            raise RuntimeError("A reply says something of this site, uncharged.")

    @property
    def _has_own_folder(self) -> bool:
        """Whether the site has a folder that the server did not choose."""
        of_run = self._context.run_config.get("fbo-folder")
        is_own = "fbo-folder" in self._context.node_config or not of_run
        return self._folder is not None and (is_own or str(self._folder) != str(of_run))

    @property
    def _has_file(self) -> bool:
        return self._folder is not None and (self._folder / FILE_NAME).is_file()

    @contextmanager
    def _ledger(self) -> Iterator[SpendingLedger]:
        if self._folder is not None:
            if self._has_own_folder and not self._has_file:
                require_complete(self._folder, None, self._note)
            with SpendingLedger.held(self._folder) as ledger:
                self._check(ledger)
                yield ledger
            return
        known = self._state.get(_RECORD)
        content = None if known is None else known["ledger"]
        assert content is None or isinstance(content, bytes)
        with Journal({"kind": KIND}, content=content) as journal:
            yield SpendingLedger(journal)
            self._state[_RECORD] = ConfigRecord({"ledger": journal.to_bytes()})

    def _check(self, ledger: SpendingLedger) -> None:
        """Raise JournalError if the ledger lacks what journals or receipts prove.

        Not of a folder that the run config names: the server may name an empty one, and
        thousands of simulated sites may share it.
        """
        if self._folder is not None and self._has_own_folder:
            require_complete(self._folder, ledger, self._note)
            check_receipts(self._folder, ledger, self._receipts)
