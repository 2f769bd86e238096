"""The policy by which a site plays its bandit, whatever the kind of that is."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import mapping, mappings, plain
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.bandits.site.deciding_agent import DecidingAgent
from flwr_fbo.bandits.site.decision import (
    Choice,
    Decision,
    Request,
    decisions_frame,
)
from flwr_fbo.bandits.site.decisions import READ_AT_ONCE, Decisions
from flwr_fbo.bandits.site.policy_summary import PolicySummary
from flwr_fbo.journal.journal import Journal, open_patiently, patiently
from flwr_fbo.journal.journal_file import JournalError, NoJournalError
from flwr_fbo.site.recorded_agent import NO_SLOT
from flwr_fbo.site.study_journals import last_journal
from flwr_fbo.study.kinds import JournalKind

AgentT = TypeVar("AgentT", bound=DecidingAgent)
PolicyT = TypeVar("PolicyT", bound="BanditPolicy[Any]")
Eligible = Collection[str] | None

_PAUSE = 0.1


class BanditPolicy(ABC, Generic[AgentT]):
    """Base of the policies: chooses actions at one site, and learns from their rewards.

    A site opens the policy, chooses, and returns each reward when it is known,
    independently of Flower. Every call is on disk when it returns. Several processes
    may open the policy: each holds the journal during a call, and sees all changes.

    Parameters
    ----------
    path : Path
        Path of the journal: `open` finds it.
    patience : float
        Seconds, >= 0, to wait while another process has the journal.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        # What the last call ended with; none during a call, as threads may call too.
        self._kept: list[AgentT] = []

    @abstractmethod
    def _recorded(self, journal: Journal) -> AgentT:
        """Return the agent of a journal."""

    def choose(
        self,
        context: ArrayLike | Mapping[str, Any],
        eligible: Eligible = None,
        *,
        key: str | None = None,
        forbid: Collection[str] = (),
        floors: Mapping[str, float] | None = None,
        explore: bool = True,
    ) -> Choice:
        """Choose an action, as the study's `Exploration` says, and record the decision.

        Parameters
        ----------
        context : mapping of str to value, or array of shape (K, d)
            Where the study has a `FeatureEncoder`: the value of each of its fields, in
            a mapping or a row of a data frame. Else K >= 1 actions, each of norm at
            most L. One that exceeds it by rounding, as in single precision, is scaled
            down to L.
        eligible : collection or array of str, optional
            Names of the arms that are possible now. All of the site's by default; only
            with an encoder.
        key : str, optional
            Key of the request, such as the number of a visit, of 200 characters at
            most. Who asks again with the same key gets the same choice, in any process
            and after a crash; nothing is recorded then. Keys are kept in the journal.
        forbid : collection of str
            Names of arms that must not be chosen: as if they were not eligible.
        floors : mapping of str to float, optional
            Least probability of an arm, such as ``{"standard care": 0.5}``: with
            floors c_a an arm's probability is c_a + (1 - sum of c) p_a, where p_a is
            the one without them. Without an encoder, names are "0", "1", ...
        explore : bool
            False chooses the highest expected reward, with propensity 1 (less, with
            floors). Such a decision says nothing about what other arms would give.

        Returns
        -------
        Choice
            Index and name of the action, its propensity, its expected reward, why it
            was chosen, and the ticket for its reward.

        Raises
        ------
        ValueError
            If there are no actions, one is longer, a context or arm is not one that the
            encoder takes, or the key is that of a request for anything else.
        JournalError
            If the choice could not be recorded.
        """
        [choice] = self.choose_many(
            [context],
            [eligible],
            keys=[key],
            forbid=forbid,
            floors=floors,
            explore=explore,
        )
        return choice

    def choose_many(
        self,
        contexts: Sequence[ArrayLike | Mapping[str, Any]],
        eligible: Sequence[Eligible] | None = None,
        *,
        keys: Sequence[str | None] | None = None,
        forbid: Collection[str] = (),
        floors: Mapping[str, float] | None = None,
        explore: bool = True,
    ) -> list[Choice]:
        """Choose once for each context, and record all decisions at once.

        Much faster than `choose` for each: the disk is waited for once. After an error
        none is recorded. Parameters and errors are those of `choose`: contexts,
        ``eligible`` and ``keys`` one a decision, the others for all. The contexts may
        be a data frame with a row for each.
        """
        rule = _rule(forbid, floors, explore)
        requests = _requests(contexts, eligible, keys, rule)
        with self._held() as bandit:
            return bandit.answer(requests)

    def choose_slate(
        self,
        context: ArrayLike | Mapping[str, Any],
        num_slots: int,
        eligible: Eligible = None,
        *,
        key: str | None = None,
        forbid: Collection[str] = (),
        explore: bool = True,
    ) -> list[Choice]:
        """Choose several actions of one context, none twice, and record each.

        Slot by slot, out of the actions that are left: so is each propensity.

        Parameters
        ----------
        context, eligible, key, forbid, explore
            As in `choose`; the key is that of the whole slate.
        num_slots : int
            From 1 to the number of actions.

        Returns
        -------
        list of ``num_slots`` Choice
            Each has a ticket for a reward of its own.

        Raises
        ------
        ValueError, JournalError
            As in `choose`.

        Notes
        -----
        *Formal guarantees.* Each slot is a trial of its own, and the study's epsilon is
        that of one trial. Whoever contributes m slots is protected as by noise of an
        m-th of the standard deviation: at m times `ContinualSettings.mu`, where epsilon
        is more than m times as large.
        """
        request = Request(
            context, eligible, forbid, explore=explore, key=key, num_slots=num_slots
        )
        with self._held() as bandit:
            return bandit.answer_slate(request)

    def probabilities(
        self,
        context: ArrayLike | Mapping[str, Any],
        eligible: Eligible = None,
        *,
        forbid: Collection[str] = (),
        floors: Mapping[str, float] | None = None,
        explore: bool = True,
    ) -> dict[str, float]:
        """Return the propensity of each action, by name; nothing is recorded.

        That of a forbidden arm is 0. Parameters and errors are those of `choose`.
        `EllipsoidSampling` draws anew, so that propensities vary a little from call to
        call.
        """
        [found] = self.probabilities_many(
            [context], [eligible], forbid=forbid, floors=floors, explore=explore
        )
        return found

    def probabilities_many(
        self,
        contexts: Sequence[ArrayLike | Mapping[str, Any]],
        eligible: Sequence[Eligible] | None = None,
        *,
        forbid: Collection[str] = (),
        floors: Mapping[str, float] | None = None,
        explore: bool = True,
    ) -> list[dict[str, float]]:
        """Return what `probabilities` does, for each context: the journal is read once.

        Parameters and errors are those of `choose_many`.
        """
        rule = _rule(forbid, floors, explore)
        requests = _requests(contexts, eligible, None, rule)
        with self._held() as bandit:
            offers = [bandit.decisions.offer(request) for request in requests]
            return bandit.belief.probabilities(offers, bandit.num_trials)

    def decisions(self, settled: bool = False) -> Decisions:
        """Return all decisions so far, in order, with the rewards that have come.

        For `evaluate_policy`, and for the site alone: they are raw data. A sequence
        that is read piece by piece: see `Decisions`.

        Parameters
        ----------
        settled : bool
            Leave out decisions that are younger than the study's `RewardTimeout`. Of
            these the rewards that come soon are known, and the default is not: where
            the two differ, an evaluation would be biased.
        """
        with self._held() as bandit:
            bandit.decisions.expire()
            clock, end = bandit.decisions.clock, bandit.num_trials
        numbers: Sequence[int] = range(end)
        if settled and clock.timeout is not None:
            numbers = clock.settled(self._starts(end))
        return Decisions(self._read, numbers)

    def _read(self, first: int, end: int) -> list[Decision]:
        with self._held() as bandit:
            return bandit.decisions.decisions(first, end)

    def _starts(self, end: int) -> Iterator[tuple[int, float]]:
        # Piece by piece: a journal remembers what it has read until it is let go.
        for first in range(0, end, READ_AT_ONCE):
            with self._held() as bandit:
                starts = bandit.decisions.starts(first, min(end, first + READ_AT_ONCE))
            yield from starts

    def to_dataframe(self) -> Any:
        """Return `decisions` as a ``pandas.DataFrame``: see `decisions_frame`.

        Raises
        ------
        ImportError
            If pandas is not installed; the message names the extra.
        """
        return decisions_frame(self.decisions())

    def reward(self, ticket: int, value: float) -> None:
        """Record what an action was rewarded with, once that is known.

        The next release includes it. An action without a reward is in no release,
        unless the study has a `RewardTimeout`.

        Parameters
        ----------
        ticket : int
            Ticket that `choose` returned.
        value : float or bool
            The reward, in [-B, B]; True is 1. To give the same one again, as after a
            crash, changes nothing.

        Raises
        ------
        LateRewardError
            If the study's `RewardTimeout` is over. It is a ValueError.
        ValueError
            If the ticket is unknown or has another reward, or the value is outside of
            bounds that the guarantee needs. Nothing is recorded then. Clip the value
            before, if you want to.
        JournalError
            If the reward could not be recorded.
        """
        with self._held() as bandit:
            bandit.reward({plain(ticket): value})

    def reward_many(self, values: Mapping[int, float]) -> None:
        """Record many rewards, by ticket: all at once, or none after an error.

        Parameters and errors are those of `reward`.
        """
        with self._held() as bandit:
            bandit.reward({plain(t): v for t, v in mapping("values", values).items()})

    def correct(self, ticket: int, value: float) -> None:
        """Replace a reward that was recorded, as long as no release has it.

        Parameters
        ----------
        ticket : int
            Ticket that `choose` returned, whose reward has been given.
        value : float or bool
            The right reward, as in `reward`.

        Raises
        ------
        LateRewardError
            If the study's `RewardTimeout` ended before the reward came.
        ValueError
            If there is no such reward, or a release has it: what has left a site cannot
            be taken back. Or if the value is outside the bounds. Nothing is recorded
            then.
        JournalError
            If it could not be recorded.

        Notes
        -----
        *Formal guarantees.* The trial is in the sums once, with the new reward, so that
        the guarantee is that of the trial as it was corrected.
        """
        with self._held() as bandit:
            bandit.decisions.correct(plain(ticket), plain(value))

    def cancel(self, ticket: int) -> None:
        """Withdraw a decision that was not carried out: it never gets a reward.

        It is in no release, and `evaluate_policy` leaves it out. If somebody took
        another arm, choose again, with that one as the only eligible arm.

        Raises
        ------
        ValueError
            If the ticket is unknown or already used; `LateRewardError` if its time is
            over.
        JournalError
            If it could not be recorded.
        """
        with self._held() as bandit:
            bandit.decisions.cancel(ticket)

    @property
    def awaited(self) -> dict[int, FloatArray]:
        """The actions whose rewards have not come, each of shape (d,), by ticket."""
        with self._held() as bandit:
            return bandit.decisions.awaited

    @property
    def num_trials(self) -> int:
        """Actions chosen so far."""
        with self._held() as bandit:
            return bandit.num_trials

    @property
    def settings(self) -> Any:
        """Settings of the study."""
        with self._held() as bandit:
            return bandit.study.settings

    @property
    def reward_range(self) -> tuple[float, float]:
        """Smallest and largest reward of the study; infinite without any."""
        with self._held() as bandit:
            return bandit.reward_range

    def summary(self) -> PolicySummary:
        """Return what the site has learned, and what it has spent; see `PolicySummary`.

        ``print(policy.summary())`` shows it as a text.
        """
        with self._held() as bandit:
            return bandit.summary()

    def _is_enrolled(self) -> bool:
        try:
            with open_patiently(None, self._path, self._patience) as journal:
                return self._recorded(journal).slot != NO_SLOT
        except NoJournalError:
            return False

    @contextmanager
    def _held(self) -> Iterator[AgentT]:
        not_enrolled = JournalError(
            f"{self._path}: this site has no place in a study. It enrols in "
            "the first round; a journal that was lost must be given back."
        )
        kept = self._taken()
        try:
            if kept is None:
                journal = open_patiently(None, self._path, self._patience)
                bandit = None
            else:
                journal = kept.journal
                has_changed = patiently(journal.reopen, self._path, self._patience)
                bandit = None if has_changed else kept
        except NoJournalError as error:
            raise not_enrolled from error
        with journal:
            bandit = bandit or self._as_it_is(journal, kept)
            if bandit.slot == NO_SLOT:
                raise not_enrolled
            yield bandit
        # Not after an exception: then the next call reads what is on disk.
        self._kept = [bandit]

    def _taken(self) -> AgentT | None:
        """Take what the last call ended with, so that nobody else does."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def _as_it_is(self, journal: Journal, before: AgentT | None) -> AgentT:
        """Return the agent of a journal that others may have changed."""
        if before is None or before.identity != journal.identity:
            return self._recorded(journal)
        return before.renewed(journal)


def opened(
    make: Callable[[Path, float], PolicyT],
    folder: str | Path,
    kind: JournalKind,
    patience: float,
) -> PolicyT:
    """Return the policy of the last study of a kind, once the site has enrolled.

    Parameters
    ----------
    make : callable
        Returns the policy of a journal, with a patience.
    folder, patience
        See `LinearBanditPolicy.open`.
    kind : JournalKind
        Kind of the journal.

    Raises
    ------
    ValueError
        If the patience is not allowed.
    JournalError
        If there is no journal when the patience is over, or the site has no place in
        the study.
    """
    patience = plain(patience)
    ok = is_number(patience) and patience >= 0
    require(ok, "patience", patience, "a number of seconds >= 0")
    deadline = time.monotonic() + patience
    while True:
        policy = make(last_journal(Path(folder), kind.name), patience)
        if policy._is_enrolled() or time.monotonic() >= deadline:
            with policy._held():
                return policy
        time.sleep(_PAUSE)


Rule = dict[str, Any]


def _rule(
    forbid: Collection[str], floors: Mapping[str, float] | None, explore: bool
) -> Rule:
    """Return what holds for all requests of a call."""
    return {
        "forbid": forbid,
        "floors": {} if floors is None else floors,
        "explore": explore,
    }


def _requests(
    contexts: Sequence[ArrayLike | Mapping[str, Any]],
    eligible: Sequence[Eligible] | None,
    keys: Sequence[str | None] | None,
    rule: Rule,
) -> list[Request]:
    """Return what each context's decision is asked."""
    contexts = mappings("contexts", contexts)
    n = len(contexts)
    some = [None] * n if eligible is None else list(eligible)
    named = [None] * n if keys is None else list(keys)
    for field, values in (("eligible", some), ("keys", named)):
        allowed = f"{n}, one a context"
        require(len(values) == n, f"len({field})", len(values), allowed)
    rows = zip(contexts, some, named, strict=True)
    return [Request(c, names, key=key, **rule) for c, names, key in rows]
