"""The decisions of one site's bandit and their rewards, in its journal.

trial       one row a decision; its number is the ticket, and it has

            params  {"chosen": index, "propensity": p, "expected", "width", "why"}; of
                    named arms also "context", and "arms", the version of their table;
                    and "eligible", the names, where they are not all (vectors are
                    called "0", "1", ...); of a request with a key also "key", the
                    "request"'s digest, and "slots", how many decisions it has, this
                    one and the next ones
                    of vectors that are those of an earlier trial, "actions", its number
            point   the chosen action, shape (d,), where the others follow from the
                    context or an earlier trial; else all actions, shape (K, d)

outside     how many values were outside of their bounds, by field
timed-out   how many rewards did not come in time
corrected   how many rewards were corrected before their release
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import mapping, names, number, plain, whole_number
from flwr_fbo._common.validation import refuse, require, require_known
from flwr_fbo.bandits.linear.settings import RewardTimeout
from flwr_fbo.bandits.site.arm_versions import ArmVersions
from flwr_fbo.bandits.site.baseline import Baseline
from flwr_fbo.bandits.site.decision import (
    Choice,
    Chosen,
    Decision,
    Offer,
    Request,
    action_of,
)
from flwr_fbo.bandits.site.late_rewards import LateRewardError, RewardClock
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial

# How many different sets of vectors a process looks for among earlier ones.
_SETS_KEPT = 16
# What the first decision of a request with a key has on record of it.
_OF_REQUEST = ("key", "request", "slots")
# What a decision has on record of its reason.
_EXPLANATION = ("expected", "width", "why")


class Sums(Protocol):
    """What the rewards of a site add up to, and which trials may be in it."""

    def checked_actions(self, actions: FloatArray) -> FloatArray:
        """Return actions, shape (K, d), within the study's bounds.

        Raises
        ------
        ValueError
            If one is not allowed, unless that is found where it is chosen.
        """

    def checked_rewards(self, rewards: FloatArray) -> FloatArray:
        """Return rewards, shape (n,), within the study's bounds; likewise."""

    def with_rewards(
        self, trials: Sequence[Trial], values: Sequence[float]
    ) -> dict[str, NDArray[Any]]:
        """Return what is to be recorded with rewards that have just come.

        Raises
        ------
        ValueError
            If one is not allowed.
        """

    def with_other_reward(self, trial: Trial, value: float) -> dict[str, NDArray[Any]]:
        """Return what is to be recorded with another reward of a trial."""

    def recorded(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take note that what these methods have returned is on disk."""


class DecisionLog:
    """Decisions and rewards of one site, each on disk when a call returns.

    Parameters
    ----------
    journal : Journal
        Journal of the site's bandit.
    timeout : RewardTimeout, optional
        That of the study.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`; what is recorded here is added.
    sums : Sums
        Sums that rewards are added to, in the transaction that records them.
    arms : ArmVersions, optional
        Arms that decisions are among; where a study has no encoder, these are among
        vectors.
    """

    def __init__(
        self,
        journal: Journal,
        timeout: RewardTimeout | None,
        state: dict[str, NDArray[Any]],
        sums: Sums,
        arms: ArmVersions | None = None,
    ) -> None:
        self._journal, self._timeout, self._state = journal, timeout, state
        self._arms, self._sums = arms, sums
        self.clock = RewardClock(timeout)
        # The trials that have the last different sets of vectors, by their bytes.
        self._sets: dict[bytes, int] = {}

    def take_sets(self, other: DecisionLog) -> None:
        """Take the sets of vectors that a log of the same journal knew earlier."""
        # Fewer trials: the file was exchanged for an older one.
        if max(other._sets.values(), default=-1) < self._journal.num_trials:
            self._sets = other._sets

    # Choosing

    def offer(self, request: Request) -> Offer:
        """Return what a decision is among; see `BanditPolicy.choose`."""
        record: dict[str, Any] = {}
        if request.key is not None:
            slots = request.num_slots or 1
            record = {"key": request.key, "request": request.digest, "slots": slots}
        if self._arms is None:
            offer = self._unnamed_offer(request, record)
        else:
            offer = self._named_offer(self._arms, request, record)
        rule = Baseline.of(self._state)
        if rule is not None:
            # Either would be played although the rule forbids it.
            others = {*request.floors} - {rule.arm}
            allowed = f"only for the baseline arm {rule.arm!r}"
            require(not others, "floors", dict(request.floors), allowed)
            is_single = request.num_slots is None
            allowed = "not given, with a baseline arm"
            require(is_single, "num_slots", request.num_slots, allowed)
        if not request.floors:
            return replace(offer, explore=request.explore)
        for name in request.floors:
            require_known("floors", name, offer.arms)
        floors = np.array([request.floors.get(name, 0.0) for name in offer.arms])
        return replace(offer, explore=request.explore, floors=floors)

    def _unnamed_offer(self, request: Request, record: dict[str, Any]) -> Offer:
        """Return that of vectors, whose names are their places: "0", "1", ..."""
        offer = Offer.of_vectors(request.context)
        features, arms = self._sums.checked_actions(offer.features), offer.arms
        left, forbidden = _allowed(request, arms)
        if left != arms:
            features = features[[int(name) for name in left]]
            record = {**record, "eligible": list(left)}
        return Offer(features, left, record, forbidden=forbidden)

    def _named_offer(
        self, versions: ArmVersions, request: Request, record: dict[str, Any]
    ) -> Offer:
        given, newest = mapping("context", request.context), versions.newest
        left, forbidden = _allowed(request, versions.table(newest).names)
        is_some = request.eligible is not None or bool(forbidden)
        offer = self._named(newest, given, left if is_some else None)
        values = {name: plain(value) for name, value in given.items()}
        record = {"context": values, "arms": newest, **record}
        if is_some:
            record["eligible"] = list(offer.arms)
        return replace(offer, record=record, forbidden=forbidden)

    def _named(
        self, version: int, context: Any, eligible: Collection[str] | None
    ) -> Offer:
        """Return the eligible arms of a table, with their features in a context."""
        assert self._arms is not None
        arms = self._arms.table(version).eligible(eligible)
        features, outside = self._arms.encoded(context, arms)
        return Offer(features, tuple(name for name, _ in arms), {}, outside)

    def repeated(self, request: Request) -> list[Choice] | None:
        """Return the choices of a request that was made before; None if it is new.

        Raises
        ------
        ValueError
            If its key is that of another request.
        """
        if request.key is None:
            return None
        first = self._journal.trial_of_request(request.key)
        if first is None:
            return None
        if first.params["request"] != request.digest:
            _refuse_key(request.key, first.number)
        last = first.number + first.params["slots"] - 1
        choices: list[Choice] = []
        places = self._decision(first).arms  # those of the first slot are all
        for trial in self._journal.trials(first.number, last=last):
            decision, record = self._decision(trial), trial.params
            arm = decision.arms[decision.chosen]
            about = [record[name] for name in ("propensity", *_EXPLANATION)]
            choices.append(Choice(places.index(arm), arm, trial.number, *about))
        return choices

    def add(self, offers: Sequence[Offer], chosen: Sequence[Chosen]) -> list[Choice]:
        """Record which action of each offer was chosen, and why.

        All at once, so that a failed write records no part of a slate.
        """
        outside = Counter(self.outside)
        for offer in offers:
            outside.update(offer.outside)
        counts = {"outside": to_json_array(outside)}
        arrays = counts if outside != self.outside else {}
        rule = Baseline.of(self._state)
        if rule is not None:
            for offer, one in zip(offers, chosen, strict=True):
                rule = rule.after(offer, one.index)
            arrays = {**arrays, **rule.arrays}
        rows: list[tuple[dict[str, Any], FloatArray]] = []
        first, requests = self._journal.num_trials, dict[str, int]()
        for place, (offer, one) in enumerate(zip(offers, chosen, strict=True)):
            index, params = one.index, {**one.record, **offer.record}
            if "key" in params and requests.setdefault(params["key"], place) < place:
                # The later slots of a slate: the first one has its key.
                params = {n: v for n, v in params.items() if n not in _OF_REQUEST}
            if "context" not in params:
                params |= self._as_earlier(offer.features, first + len(rows))
            is_known = "context" in params or "actions" in params
            rows.append((params, offer.features[index] if is_known else offer.features))
        release = self._journal.num_releases
        tickets = self._journal.add_trials(release, rows, arrays, requests)
        self._state |= arrays
        return [
            Choice(ticket=ticket, arm=offer.arms[one.index], **vars(one))
            for offer, one, ticket in zip(offers, chosen, tickets, strict=True)
        ]

    def _as_earlier(self, features: FloatArray, number: int) -> dict[str, int]:
        """Return which earlier trial has these vectors, if one of the last few has.

        Else they are remembered as those of trial ``number``.
        """
        if not self._sets and number > 0:  # those of another process
            last = self._journal.trial(number - 1)
            if last is not None and "actions" in last.params:
                last = self._journal.trial(last.params["actions"])
            if last is not None and last.point.ndim == 2:
                self._sets[last.point.tobytes()] = last.number
        content = features.tobytes()
        known = self._sets.pop(content, None)
        self._sets[content] = number if known is None else known
        if len(self._sets) > _SETS_KEPT:
            del self._sets[next(iter(self._sets))]
        return {} if known is None else {"actions": known}

    @property
    def outside(self) -> dict[str, int]:
        """How many values were outside of their bounds so far, by field."""
        counts = self._state.get("outside")
        return {} if counts is None else from_json_array(counts)

    # Looking back

    @property
    def awaited(self) -> dict[int, FloatArray]:
        """The actions whose rewards have not come, by ticket."""
        self.expire()
        running = self._journal.trials(running=True)
        return {trial.number: action_of(trial) for trial in running}

    def decisions(self, first: int, end: int) -> list[Decision]:
        """Return the decisions from number ``first`` on, before ``end``."""
        return [self._decision(t) for t in self._journal.trials(first, last=end - 1)]

    def starts(self, first: int, end: int) -> list[tuple[int, float]]:
        """Return number and time of these decisions."""
        trials = self._journal.trials(first, last=end - 1)
        return [(trial.number, trial.started) for trial in trials]

    def _decision(self, trial: Trial) -> Decision:
        record, eligible = trial.params, trial.params.get("eligible")
        if "context" in record:
            offer = self._named(record["arms"], record["context"], eligible)
        elif "actions" in record:
            earlier = self._journal.trial(record["actions"])
            assert earlier is not None
            offer = Offer.of_vectors(earlier.point)
        else:
            offer = Offer.of_vectors(trial.point)
        return Decision(
            number=trial.number,
            time=trial.started,
            context=record.get("context"),
            arms=offer.arms if eligible is None else tuple(eligible),
            features=offer.features,
            chosen=record["chosen"],
            propensity=record["propensity"],
            reward=trial.value,
            key=record.get("key"),
            **{name: record[name] for name in _EXPLANATION},
        )

    # Rewards

    def reward(self, values: Mapping[int, float]) -> list[tuple[Trial, float]]:
        """Record what actions were rewarded with, by ticket: all at once, or none.

        Returns
        -------
        list of (Trial, float)
            The decisions, and their rewards as they were recorded.
        """
        rewards = np.array([number("value", value) for value in values.values()])
        recorded = self._sums.checked_rewards(rewards).tolist()
        pairs = [
            (self._awaited(ticket), value)
            for ticket, value in zip(values, recorded, strict=True)
            if not self._has(ticket, value)
        ]
        if pairs:
            new = [trial for trial, _ in pairs]
            self._complete(new, [value for _, value in pairs], {})
        return pairs

    def _has(self, given: Any, value: float) -> bool:
        """Return whether a reward is on record: it is given again, by a retry."""
        ticket = whole_number("ticket", given)
        trial = self._journal.trial(ticket) if 0 <= ticket < 2**63 else None
        is_rewarded = trial is not None and trial.state == "complete"
        if not is_rewarded or trial is None or self.clock.came_late(trial):
            return False
        return trial.value == value

    def correct(self, given: Any, value: Any) -> None:
        """Replace a reward that no release has yet; see `BanditPolicy.correct`.

        Beliefs notice it by the number of corrections.
        """
        ticket, reward = whole_number("ticket", given), number("value", value)
        trial = self._journal.trial(ticket) if 0 <= ticket < 2**63 else None
        release = self._journal.num_releases
        is_open = trial is not None and trial.state == "complete"
        is_open = is_open and trial is not None and trial.iteration == release
        allowed = "a ticket whose reward has come, and is in no release yet"
        require(is_open, "ticket", given, allowed)
        assert trial is not None
        if self.clock.came_late(trial):
            raise LateRewardError(ticket, trial.value)
        [reward] = self._sums.checked_rewards(np.array([reward])).tolist()
        window = self._sums.with_other_reward(trial, reward)
        count = {"corrected": np.array(int(self._state.get("corrected", 0)) + 1)}
        self._journal.complete_trials(release, [(ticket, reward)], {**window, **count})
        self._sums.recorded(window)
        self._state |= count

    def cancel(self, ticket: int) -> None:
        """Record that a decision was not carried out, and gets no reward."""
        trial, rule = self._awaited(ticket), Baseline.of(self._state)
        arrays = {} if rule is None else rule.without(self._decision(trial)).arrays
        end = trial.number, math.nan
        self._journal.complete_trials(trial.iteration, [end], arrays)
        self._state |= arrays

    def _awaited(self, given: Any) -> Trial:
        """Return the trial of a ticket, if its reward is still awaited."""
        ticket = whole_number("ticket", given)
        require(0 <= ticket < 2**63, "ticket", given, "an int, as `choose` gave it")
        trial = self._journal.trial(ticket)
        if trial is not None and self.clock.is_late(trial):
            self.expire()
            trial = self._journal.trial(ticket)
        if trial is not None and self.clock.came_late(trial):
            raise LateRewardError(ticket, trial.value)
        allowed = "a ticket of `choose` whose reward has not come yet"
        is_awaited = trial is not None and trial.state == "running"
        require(is_awaited, "ticket", ticket, allowed)
        assert trial is not None
        return trial

    def expire(self) -> None:
        """Take rewards as known that did not come in time."""
        timeout = self._timeout
        if timeout is None:
            return
        running = self._journal.trials(running=True)
        early = [trial.number for trial in running if self.clock.is_early(trial)]
        if early:  # the clock was ahead: they would be awaited until that date, and on
            self._journal.begin_again(early)
            running = self._journal.trials(running=True)
        late = [trial for trial in running if self.clock.is_late(trial)]
        if late:
            count = {"timed-out": np.array(self.num_timed_out + len(late))}
            self._complete(late, [timeout.reward] * len(late), count)

    @property
    def num_timed_out(self) -> int:
        """How many rewards did not come in time."""
        return int(self._state.get("timed-out", 0))

    def _complete(
        self,
        trials: Sequence[Trial],
        values: Sequence[float],
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        """Record the rewards of trials, what they add, and arrays: at once."""
        pairs = [(trial.number, v) for trial, v in zip(trials, values, strict=True)]
        sums = self._sums.with_rewards(trials, values)
        release = self._journal.num_releases
        self._journal.complete_trials(release, pairs, {**arrays, **sums})
        self._sums.recorded(sums)
        self._state |= arrays


def _allowed(
    request: Request, known: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the arms that a request leaves, and those that it forbids.

    The latter would be eligible, were they not forbidden.
    """
    for name in request.forbid:
        require_known("forbid", name, known)
    possible = known
    if request.eligible is not None:
        wanted = set(names("eligible", request.eligible))
        for name in wanted:
            require_known("eligible", name, known)
        possible = tuple(name for name in known if name in wanted)
        require(bool(possible), "eligible", (), "one arm or more")
    left = tuple(name for name in possible if name not in request.forbid)
    allowed = "not all that are possible"
    require(bool(left) or not request.forbid, "forbid", [*request.forbid], allowed)
    return left, tuple(name for name in possible if name in request.forbid)


def _refuse_key(key: str, number: int) -> NoReturn:
    text = f"another one: decision {number} has it, for another context or other arms"
    refuse("key", key, text)
