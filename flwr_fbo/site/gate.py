"""May this leave? One place that answers, for all that a server asks of a site.

A reply is one of three kinds, and `sent` makes each of them:

- *public*: a function of what the server has written, of files and of chance;
- *charged*: about the site's data, with the charge on disk before it leaves;
- *refused*: an error. Whether there is one depends on no data, unless a release is
  charged anyway (`Gate.of_data`); where it depends on what is left of the limits, it
  has one text, and few are given away (`Questions`).

What a reply can carry decides what is charged, and not what the request calls it:

======================  =========================  ===================  =============
Message                 What its reply can carry   Limits that bind it  Charge
======================  =========================  ===================  =============
any study, ``ENROL``    its slot, the number of a  all                  none
                        journal, and the mark of
                        its newest charge
tuning, ``ROUND``       a message                  privacy, sums        the release
tuning, ``ROUND``       the metric best-value      privacy, sums        `UNPROTECTED`
tuning, ``SUM``         a message in a sum         privacy, sums        the release
linear, ``ROUND``       its sums with noise        privacy, share       release 1
linear, ``SUM``         its new trials in a sum    privacy, sums,       release 1
                                                   share
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
any other, if the app   the app's own reply; at a  none                 none
has ``tuner_mod``       site with limits on
                        privacy or sums without
                        metrics
any, if the app calls   the app's own reply        privacy              its plan
``charge_training``
======================  =========================  ===================  =============

*Privacy* is the limits on epsilon, ``max_delta`` and ``max_releases``; *sums* is
``min_agents`` to ``min_noise_multiplier``; *share* is ``max_uniform_share``, which only
a bandit's decisions have. All releases of a bandit are one mechanism, and one charge.
The limits on sizes bind every message. What the app trained is not covered by a tuner's
guarantee: see `PrivateChoice`. Only the app can charge it, before it trains: a reply
does not show whether it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from flwr_fbo._common.errors import (
    AppFailedError,
    NodeConfigError,
    RefusedError,
    log_fault,
    refused,
)
from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import require_int
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import ONE_EXAMPLE_LESS, PrivacyUnit
from flwr_fbo.privacy.spending_ledger import (
    DEFAULT_DELTA,
    MARK,
    PLAN,
    SERVER,
    TOTALS,
    TRAINING,
    UNPROTECTED,
    Charge,
    Charged,
    Facts,
    Group,
    Promise,
    SpendingLedger,
    StudyKey,
    charge_facts,
    cover,
    study_of,
)
from flwr_fbo.secure import SumIdentity
from flwr_fbo.site.kept_ledger import KeptLedger
from flwr_fbo.site.limits import (
    ACCURACY_RANGE,
    Limits,
    limits_text,
    range_text,
    require_private,
)
from flwr_fbo.site.node_config_limits import site_limits
from flwr_fbo.site.proofs import (
    mark_of,
    read_receipts,
)
from flwr_fbo.site.questions import Questions, share_of
from flwr_fbo.site.receipts import CHARGES, HEAD, Mark, fresh_head
from flwr_fbo.site.recorded_agent import RecordedAgent, lacks_release
from flwr_fbo.site.size_limits import size_limits
from flwr_fbo.site.study_journals import note_charge
from flwr_fbo.site.sum_limits import check_secure, sum_limits
from flwr_fbo.study.codec import StudyMismatchError
from flwr_fbo.study.conditions import promised_guarantee, totals_text
from flwr_fbo.study.kinds import kind_named

if TYPE_CHECKING:
    from flwr_fbo.secure import BlockSums, SecureSums

_log = logging.getLogger("flwr.fbo")

ResultT = TypeVar("ResultT")

# Errors that follow from a message, from files and from what is installed, and not from
# a site's data: they may be told.
_OF_MESSAGES = (
    ImportError,
    JournalError,
    JournalHeldError,
    NodeConfigError,
    RefusedError,
    StudyMismatchError,
)
# What a server learns where something has failed that touches a site's data.
NO_ANSWER = "This site has no answer."
# Whether a site has made a reply that an app hands on.
_LET_GO: ContextVar[list[bool]] = ContextVar("replies that a site has let go")
_JOINED = "flwr-fbo-joined"
# Entries of a node config that no simulation makes.
_OF_AN_OPERATOR = ("agent-id", "fbo-folder")


def sent(message: Message, content: RecordDict | Error) -> Message:
    """Return a site's reply to a message.

    Whoever makes it has asked `Gate.let_go` before. No reply is made elsewhere: a test
    looks for it.
    """
    return Message(content, reply_to=message)


@contextmanager
def let_go_by_a_site() -> Iterator[list[bool]]:
    """Return a list that has an entry once `Gate` has let a reply go."""
    passed: list[bool] = []
    token = _LET_GO.set(passed)
    try:
        yield passed
    finally:
        _LET_GO.reset(token)


class Gate:
    """Limits and ledger of a site, while it answers one message.

    There is no ledger where nothing could come of it: without folder and limits.

    Parameters
    ----------
    context : flwr.app.Context
        Context of the message; its node config has the site's limits.
    folder : Path, optional
        Folder of the site's journals and ledger, unless the node config names one.
    own : Limits, optional
        Limits of whoever answers, besides those of the app and of the node config.

    Attributes
    ----------
    context : flwr.app.Context
        The context of the client.
    sizes : Limits
        Limits on the size of a message.
    """

    def __init__(
        self, context: Context, folder: Path | None = None, own: Limits | None = None
    ) -> None:
        self.context = context
        self._kept = KeptLedger(context, folder)
        self._own = own
        self._is_charged = False
        self._mark: Mark | None = None
        self.renew()

    def renew(self) -> None:
        """Read the limits again: an app's own are known once it has run."""
        self._all = site_limits(self.context, self._own)
        self._limits = [limits for limits in self._all if limits.bound_anything]
        self.sizes = size_limits(self._all)

    @property
    def is_bound(self) -> bool:
        """True if the site limits what anybody may learn of it.

        By limits, or by a roster: then its messages leave in sums only.
        """
        is_limited = any(
            limits.bound_anything or sum_limits(limits) for limits in self._all
        )
        return is_limited or SumIdentity.pins_roster(self.context.node_config)

    def of_data(self, work: Callable[[], ResultT]) -> ResultT | None:
        """Do a piece of work that touches the site's data.

        What fails in it may say something of the data. At a site that `is_bound` the
        server learns no more than that something has failed, and only where a release
        is charged anyway; elsewhere the reply is what it would be, as far as there is
        one. The site's log has the error.

        Raises
        ------
        AppFailedError
            In place of an error of the work, where the site has been charged.
        """
        try:
            return work()
        except _OF_MESSAGES:
            raise
        except Exception as error:
            if not self.is_bound:
                raise
            if self._is_charged:
                raise AppFailedError.told(NO_ANSWER) from error
            log_fault(error, "This site has no trial to add, and does not say so")
            return None

    def hear(
        self, texts: Sequence[object], slot: int, kind: str, study_id: str = ""
    ) -> None:
        """Take the receipts that came with a message; the ledger must have them.

        A site without a folder of its own forgets its ledger, and ignores them.

        Parameters
        ----------
        texts : sequence of object
            Signed receipts, as they were received.
        slot : int
            The site's; -1 where it has none.
        kind, study_id : str
            Kind and id of the study that they must be about; any study, without an id.

        Raises
        ------
        RefusedError
            If one is not signed, or is about another site or study.
        JournalError
            If one proves a charge that the ledger does not have.
        """
        if not texts or not self._kept.has_own_folder:
            return
        fits = {"study_kind": kind, **({"study_id": study_id} if study_id else {})}
        self._kept.receipts = read_receipts(texts, slot, fits)
        # The ledger is checked whenever it is opened. Not now, if the newest charge
        # that the folder has noted is the server's: what is charged opens it anyway.
        _, head = self._kept.note.newest or (0, 0)
        marks = [receipt.mark for receipt in self._kept.receipts]
        if not all(mark.head == head or not mark.charges for mark in marks):
            with self._kept.held():
                pass

    def mark(self, key: StudyKey) -> dict[str, int]:
        """Return what the server is told of the site's ledger, as metrics.

        The newest mark of a study; before its first charge a number that the folder
        gives to the study. Nothing without a folder of its own.
        """
        if not self._kept.has_own_folder:
            return {}
        mark = self._mark or Mark()
        head = mark.head if mark.charges else self.number(*key, self._kept.owner)
        return {CHARGES: mark.charges, HEAD: head}

    def number(self, *key: object) -> int:
        """Return a number that this folder always gives to something."""
        return self._kept.note.first_head(*key)

    def has_charged(self, key: StudyKey) -> bool:
        """Return whether a study has been charged, in a ledger in a file."""
        if not self._kept.has_file:
            return False
        with self._kept.held() as ledger:
            return bool(ledger.of_study(key, self._kept.owner))

    def check(
        self, promise: Promise, unprotected: str = "", uniform_share: float = 0.0
    ) -> None:
        """Raise `RefusedError` unless a study is one that the site wants.

        Parameters
        ----------
        promise : Promise
            Charges that the study announces.
        unprotected : str
            Name of what it asks for that no guarantee covers; empty without it.
        uniform_share : float
            Largest share of its decisions that have no regard to rewards.
        """
        for limits in self._all:
            limits.check_promise(promise, unprotected, uniform_share)

    def check_metric_range(self, values: tuple[float, float]) -> None:
        """Raise `RefusedError` unless one example's value has this range at the site.

        The noise is for one value in it: a server that names a narrower one has a
        ballot move further than noise hides. A site that neither limits nor counts
        anything would send it the exact scores, too.
        """
        if not self.is_bound and not self._kept.has_own_folder:
            return
        own = {limits.metric_range for limits in self._all} - {None}
        if (own or {ACCURACY_RANGE}) != {values}:
            known = " and ".join(range_text(each or ACCURACY_RANGE) for each in own)
            raise refused(
                f"the study's metric_range is {range_text(values)}, and that of this "
                f"site is {known or range_text(ACCURACY_RANGE)}: if the app clips each "
                "example's value to another one, set fbo-metric-range",
                public="the range of its metric: see fbo-metric-range",
            )

    def check_sums(
        self,
        sums: SecureSums | BlockSums | None,
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
        identity = SumIdentity.of(self.context.node_config)
        identity.check(sums, known_slot)
        # Noise for one example would be next to nothing for a whole message.
        is_of_example = getattr(getattr(sums, "settings", None), "distance", None)
        if is_of_example is not None and promise.unit.protects == "client":
            raise refused("its sums protect one example, and it promises a client")
        for limits in self._all:
            check_secure(limits, sums, promise)
        wants_sums = any(sum_limits(limits) for limits in self._all)
        if unprotected and (identity.roster is not None or wants_sums):
            raise refused(f"the study asks for {unprotected}, which no sum hides")
        return identity

    def check_no_sums(self, promise: Promise) -> None:
        """Raise `RefusedError` if a study that adds its own noise has none."""
        if any(sum_limits(limits) for limits in self._all):
            require_private(promise)

    def admit(self, key: StudyKey, promise: Promise, strategy: str) -> None:
        """Raise `RefusedError` if a study, as a whole, would exceed a limit.

        And JournalError if the site's journals prove that its ledger lacks releases.
        Otherwise the log of a SuperNode's app says once that the site takes part.
        """
        _require_unit(key, promise)
        self._warn_of_run()
        if self._limits:
            with self._kept.held() as ledger:
                self._mark = mark_of(ledger, key, self._kept.owner)
                book, refusal = self._asked_about(ledger, key, promise)
                if book is not None:
                    book.keep(ledger, self._kept.counted)
            if refusal is not None:  # once the question is on disk
                raise refusal
        else:  # without limits only an own folder's ledger is looked at
            self._kept.check_missing()
            if self._kept.has_own_folder and self._kept.has_file:
                with self._kept.held() as ledger:
                    self._mark = mark_of(ledger, key, self._kept.owner)
        self._say_joined(key, promise, strategy)

    def _warn_of_run(self) -> None:
        """Log that limits end with the run, where the site has no folder of its own."""
        if self._limits and not self._kept.has_own_folder:
            _log.warning(
                "This site's limits cover only this run, or its folder. Set fbo-folder "
                "in the node config to cover all studies."
            )

    def _asked_about(
        self, ledger: SpendingLedger, key: StudyKey, promise: Promise
    ) -> tuple[Questions | None, RefusedError | None]:
        """Return the book with this question, and why a study, as a whole, is refused.

        No book where it stays as it was. Else it must be kept before the server learns
        of the answer.
        """
        own = ledger.counted_of(key, self._kept.counted)
        charged, refusal = ledger.charged(self._kept.counted), None
        planned = _totals(charged, own, promise)
        try:
            for limits in self._limits:
                limits.check_spent(planned)
        except RefusedError as error:
            refusal = error
        if own:  # it has begun
            return None, refusal
        before = Questions.of(ledger, self._kept.counted)
        share, most = share_of(promise, self._limits), self.sizes.max_questions
        assert most is not None
        book, refusal = before.under(self._limits).ask(share, most, refusal)
        return (None if book == before else book), refusal

    def check_total(self, key: StudyKey, promise: Promise) -> None:
        """Raise the errors of `admit`; nothing is logged, and the study does not begin.

        Parameters
        ----------
        key : tuple of str
            The study's kind and id.
        promise : Promise
            Charges that the study announces.
        """
        every = self._facts()
        own = (facts for facts in every if study_of(facts) == key)
        planned = _totals(Charged(every), own, promise)
        for limits in self._limits:
            limits.check_spent(planned)

    def _facts(self, without: StudyKey | None = None) -> list[Facts]:
        """Return what studies have charged, but for one."""
        self._kept.check_missing()
        if not (self._kept.has_file or (self._limits and self._kept.folder is None)):
            return []
        with self._kept.held() as ledger:
            return ledger.facts(self._kept.counted, without)

    def _say_joined(self, key: StudyKey, promise: Promise, strategy: str) -> None:
        """Log the first message of a study, at a site that its operator configured."""
        study = {"study": f"{key[0]} {key[1]}"}
        records = self.context.state.config_records
        if _JOINED in records and dict(records[_JOINED]) == study:
            return
        if not any(name in self.context.node_config for name in _OF_AN_OPERATOR):
            return
        records[_JOINED] = ConfigRecord({**study})
        delta = promise.delta
        for limits in self._limits:
            delta = limits.max_delta if delta is None else delta
        delta = DEFAULT_DELTA if delta is None else delta
        before = self._facts(without=key)
        promised = "no epsilon: it is not private"
        if promise.private and promise.delta is not None:
            terms = promised_guarantee(key[0], promise)
            promise_spends = Spent((promise.charges,), total=promise.unit)
            promised = promise_spends.text(promise.delta, terms)
        _log.info(
            "joined study %s of strategy %s: promises %s, %s; spent before in %s: %s; "
            "limits: %s",
            key[1],
            strategy,
            counted(promise.num_releases, "release"),
            promised,
            counted(Charged(before).num_releases, "release"),
            totals_text(before, delta) if before else "nothing",
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
            Charges that the study announced.
        release : int
            Number of the release, from 1.
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
        _require_unit(key, promise)
        promised = promise.num_releases
        if self._limits and release > promised:
            raise refused(
                f"release {release} is asked for, and the study promises {promised}"
            )
        facts = charge_facts(
            key,
            release,
            promise.charge_of(release),
            self._kept.owner,
            promise.delta,
            promise.charges,
            fixed_rows=promise.fixed_rows,
            unit=promise.unit,
        )
        self._charge(key, release, facts, agent, promise)

    def charge_unprotected(
        self, key: StudyKey, agent: RecordedAgent | None = None
    ) -> None:
        """Charge what no noise covers: once a study, however often it is sent."""
        facts = charge_facts(key, UNPROTECTED, Charge(0.0), self._kept.owner)
        self._charge(key, UNPROTECTED, facts, agent)

    def charge_training(self, run: str, steps: Group, plan: Group) -> None:
        """Charge steps of DP-SGD before they are taken; on disk afterwards.

        They count in the last plan like this one, while it has as many steps left. A
        run without such a plan begins one, which counts whole at once. Once the run's
        own is used up, they are a plan of their own. Each call is a new charge.

        Parameters
        ----------
        run : str
            Name of the run, for whoever reads the ledger.
        steps : tuple of Charge
            What is about to be trained.
        plan : tuple of Charge
            All that the run plans; it covers the steps.

        Raises
        ------
        RefusedError
            If it would exceed a limit.
        JournalError
            If the ledger cannot be used, or lacks charges.
        """
        self.check(Promise(plan, private=True, unit=ONE_EXAMPLE_LESS))
        if self._kept.folder is None and not self._limits:
            return
        self._warn_of_run()
        owner, key, number = self._kept.owner, (TRAINING, run), 0
        with self._kept.held() as ledger:
            charged = ledger.charged(self._kept.counted)
            for begun, its_number in charged.plans(TRAINING, owner, plan)[-1:]:
                used = [
                    Charge(*facts["charge"])
                    for facts in ledger.of_study(begun, owner)
                    if facts[PLAN] == its_number
                ]
                if cover(plan, (*used, *steps)):
                    key, number = begun, its_number
                elif begun == key:  # a round is trained once more
                    plan = steps
            done = ledger.of_study(key, owner)
            number = number or 1 + max((facts[PLAN] for facts in done), default=0)
            first = 1 + max((facts["release"] for facts in done), default=0)
            charges = [
                charge_facts(
                    key,
                    release,
                    charge,
                    owner,
                    promised=plan,
                    unit=ONE_EXAMPLE_LESS,
                    plan=number,
                    is_more=release > first,
                )
                for release, charge in enumerate(steps, first)
            ]
            for facts in charges:
                charged.add(facts)
            # Not a question for the book: what fits is charged at once. A refusal says
            # that less is left than the plan costs. To find out how much, a server has
            # to offer smaller and smaller plans, and the first that fits spends it.
            for limits in self._limits:
                limits.check_spent(_totals(charged))
            for facts in charges:
                self._record(ledger, key, facts, None)

    def _charge(
        self,
        key: StudyKey,
        release: int,
        facts: dict[str, Any],
        agent: RecordedAgent | None,
        promise: Promise | None = None,
    ) -> None:
        if self._kept.folder is None and not self._limits:
            self._is_charged = True
            return
        owner, refusal = facts["owner"], None
        with self._kept.held() as ledger:
            self._mark = mark_of(ledger, key, owner)
            if any(row["release"] == release for row in ledger.of_study(key, owner)):
                if release != UNPROTECTED:
                    if agent is None:
                        raise refused(f"release {release} is asked for again")
                    if release not in agent.charged:
                        raise lacks_release(release)
                self._is_charged = True
                return
            has_begun = bool(ledger.counted_of(key, self._kept.counted))
            new = promise if self._limits and not has_begun else None
            book = None
            if new is not None:  # a server need not have asked for an enrolment
                book, refusal = self._asked_about(ledger, key, new)
            try:
                if refusal is None:
                    if self._limits:
                        charged = ledger.charged(self._kept.counted)
                        charged.add(facts)
                        for limits in self._limits:
                            limits.check_spent(_totals(charged))
                    self._record(ledger, key, facts, agent)
                    self._is_charged = True
                    if new is not None:  # a study that is charged is no open question
                        book = book or Questions.of(ledger, self._kept.counted)
                        book = book.settle(share_of(new, self._limits))
            finally:  # whatever the server learns: the question is on disk before
                if book is not None:
                    book.keep(ledger, self._kept.counted)
        if refusal is not None:
            raise refusal

    def _record(
        self,
        ledger: SpendingLedger,
        key: StudyKey,
        facts: Facts,
        agent: RecordedAgent | None,
    ) -> None:
        """Put a charge on disk: in the folder's note, a journal, and the ledger."""
        if self._kept.has_own_folder:
            number = mark_of(ledger, key, facts["owner"]).charges + 1
            self._mark = Mark(number, fresh_head())
            facts = {**facts, MARK: list(self._mark)}
            for receipt in self._kept.receipts:
                if receipt.study == key:
                    facts[SERVER] = receipt.server
            # First, so that journals are read if the process ends before the rest.
            self._kept.note.keep([len(ledger) + 1, self._mark.head])
        if agent is not None:
            facts = agent.note_charge(facts)
        elif self._kept.folder is not None:
            facts = note_charge(self._kept.folder, facts)
        ledger.add(facts)

    def is_on_record(self) -> None:
        """Note that what is asked for was charged when it was put on record."""
        self._is_charged = True

    def let_go(self, content: Any) -> None:
        """Raise RuntimeError if there is content about the site, and no charge.

        The last question before a reply leaves: whoever makes one cannot forget it.
        """
        if content and not self._is_charged:
            raise RuntimeError("A reply says something of this site, uncharged.")
        _LET_GO.get([]).append(True)


def _totals(
    charged: Charged,
    own: Iterable[Facts] = (),
    promise: Promise | None = None,
) -> dict[PrivacyUnit, Spent]:
    """Return what all charges cost each unit, with all that a study promises."""
    known = [*own]
    return {unit: Spent.with_study(unit, charged, known, promise) for unit in TOTALS}


def _require_unit(key: StudyKey, promise: Promise) -> None:
    """Raise `RefusedError` if a study says to protect what its kind does not.

    A server could have it charged where it costs less.
    """
    kind = kind_named(key[0])
    if kind is not None and promise.unit not in kind.units:
        protected = " or ".join(unit.words for unit in kind.units)
        raise refused(
            f"the study says its epsilon is {promise.unit.words}, and that of a "
            f"{key[0]} study is {protected}",
            public="the unit of its epsilon",
        )
