"""The policy by which a site plays its linear bandit."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import mapping, mappings, plain
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.site.decision import (
    Choice,
    Decision,
    Request,
    decisions_frame,
)
from flwr_fbo.bandits.site.decisions import READ_AT_ONCE, Decisions
from flwr_fbo.bandits.site.policy_summary import PolicySummary
from flwr_fbo.bandits.site.realised_privacy import RealisedPrivacy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal, open_patiently, patiently
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.site.recorded_agent import NO_SLOT
from flwr_fbo.site.study_journals import last_journal

Eligible = Collection[str] | None

_PAUSE = 0.1


class LinearBanditPolicy:
    """Chooses actions at one site, and learns from their rewards.

    A site opens the policy, chooses, and returns each reward when it is known,
    independently of Flower. Every call is on disk when it returns. Several processes
    may open the policy: each holds the journal during a call, and sees all changes.

    Examples
    --------
    >>> import tempfile
    >>> from flwr_fbo import (
    ...     FedUCB,
    ...     InProcessGrid,
    ...     LinearBanditPolicy,
    ...     linear_bandit_app,
    ... )
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
    >>> folder = tempfile.mkdtemp()  # the site's own folder
    >>> grid = InProcessGrid(linear_bandit_app(folder=folder), num_nodes=1)
    >>> releases = ContinualSettings(
    ...     num_releases=2, dimension=2, epsilon=4.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, local_data="own")
    >>> strategy = FedUCB(settings, num_agents=1, interval=0)
    >>> result = strategy.start(grid, num_rounds=3)
    >>> policy = LinearBanditPolicy.open(folder)
    >>> choice = policy.choose([[1.0, 0.0], [0.0, 1.0]])
    >>> policy.reward(choice.ticket, 0.7)  # when it is known, from any process
    >>> policy.num_trials
    1
    >>> policy.summary().estimate.shape
    (2,)

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
        self._kept: list[RecordedBandit] = []

    @classmethod
    def open(cls, folder: str | Path, patience: float = 30.0) -> LinearBanditPolicy:
        """Open the policy of the study that this site has enrolled in last.

        Parameters
        ----------
        folder : str or Path
            The folder of the site's ``linear_bandit_app``.
        patience : float
            Seconds, >= 0, to wait for the journal: until the site has enrolled, and
            later in each call, while another process has it.

        Raises
        ------
        ValueError
            If an argument is not allowed.
        JournalError
            If there is no journal, or the server did not enrol the site. The server
            sends the study's settings in the first round of `FedUCB`.
        """
        patience = plain(patience)
        ok = is_number(patience) and patience >= 0
        require(ok, "patience", patience, "a number of seconds >= 0")
        deadline = time.monotonic() + patience
        while True:
            policy = cls(last_journal(Path(folder), LINEAR_SITE.name), patience)
            if policy._is_enrolled() or time.monotonic() >= deadline:
                with policy._held():
                    return policy
            time.sleep(_PAUSE)

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

    @property
    def arms(self) -> ArmTable:
        """The arms that this site offers now.

        Raises
        ------
        ValueError
            If the study has no encoder; or if no arms were set, unless its encoder has
            blocks and no fields of arms: then these are the arms.
        """
        with self._held() as bandit:
            return bandit.arms.current

    def set_arms(self, arms: ArmTable) -> None:
        """Offer these arms from now on, as another version of the table.

        ``policy.set_arms(policy.arms.remove("ward"))`` takes one away. Earlier
        decisions keep the version that they were made with.

        Raises
        ------
        ValueError
            If the study has no encoder, or it does not take an arm.
        JournalError
            If the arms could not be recorded.
        """
        with self._held() as bandit:
            bandit.arms.offer(arms)

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

    def set_prior(self, prior: Prior) -> None:
        """Start from what is known already; replaces the prior that was set before.

        It is kept in the site's journal, acts on choices from now on, and is added to
        what the site believes only: it is in no release.

        Parameters
        ----------
        prior : Prior
            A public log, coefficients, or another study's release; for example
            ``Prior.of_log(policy.settings, actions, rewards)``.

        Raises
        ------
        ValueError
            If it is of another dimension.
        JournalError
            If it could not be recorded.
        """
        require(isinstance(prior, Prior), "prior", prior, "a Prior")
        with self._held() as bandit:
            bandit.put(bandit.belief.set_prior(prior))

    @property
    def settings(self) -> LinearUCBSettings:
        """Settings of the study."""
        with self._held() as bandit:
            return bandit.study.settings

    def add_history(
        self,
        actions: Any,
        rewards: Any,
        contexts: Any = None,
        *,
        arms: ArmTable | None = None,
        name: str = "history",
    ) -> int:
        """Add trials that were logged before the study; the next release includes them.

        Sums are kept, not trials: a million rows take seconds. `decisions`, and so
        `evaluate_policy`, do not have them. To add the same log again changes nothing,
        so that a script that was killed may be run again.

        Parameters
        ----------
        actions : array of shape (T, d), or sequence of T str
            The action that each trial took: a vector of norm at most L or, where the
            study has an encoder, the name of an arm.
        rewards : array of shape (T,)
            What each was rewarded with, in [-B, B].
        contexts : sequence of T mappings or data frame, optional
            The contexts, where the study has an encoder: as in `choose`.
        arms : ArmTable, optional
            The arms at that time, for a study with an encoder. By default those that
            the site offers now. Add trials of other tables as logs of their own.
        name : str
            The log's name. Logs of different names must not share a trial.

        Returns
        -------
        int
            T, or 0 if the log was there already.

        Raises
        ------
        ValueError
            If a trial is not within the bounds, nothing is recorded; the message names
            it. If another log has the name, or the log another name. If all releases
            are made, or the sums would have more trials than they can hold exactly.
        JournalError
            If the log could not be recorded.

        Notes
        -----
        *Formal guarantees.* A logged trial is one more trial of the site's stream, and
        in the sums from one release on, as one that was played: `ContinualRelease`'s
        guarantee is for it too, at the same noise and epsilon. How many trials there
        are does not matter to it. Neighbouring logs differ in one trial, replaced by
        another, and what other rows tell of it is not covered: also where they were
        chosen by what it gave. A person with m trials, in logs or played, has m times
        `ContinualSettings.mu`. The guarantee needs each trial once: not in two logs,
        nor chosen by this policy. What other studies have released of a log adds to
        this study's epsilon; a site's `Limits` count all studies in its folder.

        *Confidence.* The intervals hold with a log if each of its actions was chosen
        without knowledge of its own reward or later ones, by whatever policy; if trials
        are in it whatever their rewards; and if rewards depended on action and context
        by the same theta, with nothing left out that influenced both the choice and the
        reward. *Proof.* Put the log before the trials that are played: each action then
        depends on what was before, which is all that Abbasi-Yadkori et al. (2011,
        theorem 1) need. A log that is added after the site's first release, or with
        ``local_data="raw"`` after its first trial, begins another such sequence. With
        M agents it adds alpha / (2 M) to the probability that an interval ever fails,
        unless the study has a sliding window or no known number of releases, where each
        synchronisation has its own share of alpha.
        """
        with self._held() as bandit:
            return bandit.add_history(actions, rewards, contexts, arms, name)

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

    def summary(self) -> PolicySummary:
        """Return what the site has learned, and what it has spent; see `PolicySummary`.

        ``print(policy.summary())`` shows it as a text.
        """
        with self._held() as bandit:
            return bandit.summary()

    def realised_privacy(
        self, num_patients: int = 20, seed: int | None = None
    ) -> RealisedPrivacy:
        """Estimate what the site's releases tell about one outcome, as play goes on.

        With ``local_data="own"`` the study's epsilon is for a finished table. Here one
        outcome after another is replaced, and the decisions since are played again; see
        `flwr_fbo.bandits.site.realised_privacy` for what is assumed. The figure is for
        the site alone: it is never sent. `summary` shows the last one.

        Each outcome costs about the time of all choices since: 20 of them in 500 trials
        of dimension 20 take some ten seconds. Others may choose meanwhile.

        Parameters
        ----------
        num_patients : int
            Outcomes to replace, from 1 to 1000: drawn among all that are in a release.
        seed : int, optional
            Seed of the draw, for a figure that can be had again.

        Returns
        -------
        RealisedPrivacy
            With the epsilon of each outcome, the median, and that of 90 %. That of the
            study where sites act on released sums only, as it covers what follows.

        Raises
        ------
        ValueError
            If there is no release yet, or no reward in one; or among peers.
        JournalError
            If it could not be recorded.
        """
        with self._held() as bandit:
            stream = bandit.played()
        found = stream.realised(num_patients, seed)
        with self._held() as bandit:
            bandit.keep_realised(found)
        return found

    @property
    def _has_journal(self) -> bool:
        # An empty one is being written by the client.
        return self._path.is_file() and self._path.stat().st_size > 0

    def _is_enrolled(self) -> bool:
        if not self._has_journal:
            return False
        with open_patiently(None, self._path, self._patience) as journal:
            return RecordedBandit(journal).slot != NO_SLOT

    @contextmanager
    def _held(self) -> Iterator[RecordedBandit]:
        not_enrolled = JournalError(
            f"{self._path}: this site has no place in a study of FedUCB. It enrols in "
            "the first round; a journal that was lost must be given back."
        )
        if not self._has_journal:
            raise not_enrolled
        kept = self._taken()
        if kept is None:
            journal = open_patiently(None, self._path, self._patience)
            bandit = None
        else:
            journal = kept.journal
            has_changed = patiently(journal.reopen, self._path, self._patience)
            bandit = None if has_changed else kept
        with journal:
            bandit = bandit or _as_it_is(journal, kept)
            if bandit.slot == NO_SLOT:
                raise not_enrolled
            yield bandit
        # Not after an exception: then the next call reads what is on disk.
        self._kept = [bandit]

    def _taken(self) -> RecordedBandit | None:
        """Take what the last call ended with, so that nobody else does."""
        try:
            return self._kept.pop()
        except IndexError:
            return None


def _as_it_is(journal: Journal, before: RecordedBandit | None) -> RecordedBandit:
    """Return the bandit of a journal that others may have changed.

    What took long to make is taken from how it was ``before``.
    """
    if before is None or before.identity != journal.identity:
        return RecordedBandit(journal)
    bandit = RecordedBandit(journal, before.study)
    bandit.belief.take_agents(before.belief)
    bandit.decisions.take_sets(before.decisions)
    return bandit


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
