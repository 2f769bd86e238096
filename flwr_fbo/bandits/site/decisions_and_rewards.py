"""The decisions of one site's bandit and their rewards, in its journal.

trial       one row a decision; its number is the ticket, and it has

            params  {"chosen": index, "propensity": p}; of named arms also "context",
                    and "arms", the version of their table; and "eligible", the names,
                    where they are not all
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import mapping, number, plain, whole_number
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.site.arm_versions import ArmVersions
from flwr_fbo.bandits.site.decision import Choice, Decision, Offer, action_of
from flwr_fbo.bandits.site.late_rewards import LateRewardError, RewardClock
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial

# How many different sets of vectors a process looks for among earlier ones.
_SETS_KEPT = 16


class DecisionLog:
    """Decisions and rewards of one site, each on disk when a call returns.

    Parameters
    ----------
    journal : Journal
        Journal of the site's bandit.
    settings : LinearUCBSettings
        Settings of the study.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`; what is recorded here is added.
    arms : ArmVersions
        Arms that named decisions are among.
    sums : RunningSums
        Sums that rewards are added to, in the transaction that records them.
    """

    def __init__(
        self,
        journal: Journal,
        settings: LinearUCBSettings,
        state: dict[str, NDArray[Any]],
        arms: ArmVersions,
        sums: RunningSums,
    ) -> None:
        self._journal, self._settings, self._state = journal, settings, state
        self._arms, self._sums = arms, sums
        self._clock = RewardClock(settings.reward_timeout)
        # The trials that have the last different sets of vectors, by their bytes.
        self._sets: dict[bytes, int] = {}

    def take_sets(self, other: DecisionLog) -> None:
        """Take the sets of vectors that a log of the same journal knew earlier."""
        # Fewer trials: the file was exchanged for an older one.
        if max(other._sets.values(), default=-1) < self._journal.num_trials:
            self._sets = other._sets

    # Choosing

    def offer(self, context: Any, eligible: Collection[str] | None = None) -> Offer:
        """Return what a decision is among; see `LinearBanditPolicy.choose`."""
        if self._settings.encoder is None:
            require(eligible is None, "eligible", eligible, "None, without an encoder")
            offer = Offer.of_vectors(context)
            features = self._settings.releases.without_excess(offer.features)
            return replace(offer, features=features)
        given, newest = mapping("context", context), self._arms.newest
        offer = self._named(newest, given, eligible)
        values = {name: plain(value) for name, value in given.items()}
        record: dict[str, Any] = {"context": values, "arms": newest}
        if eligible is not None:
            record["eligible"] = list(offer.arms)
        return replace(offer, record=record)

    def _named(
        self, version: int, context: Any, eligible: Collection[str] | None
    ) -> Offer:
        """Return the eligible arms of a table, with their features in a context."""
        arms = self._arms.table(version).eligible(eligible)
        longest = self._settings.releases.max_action_norm
        features, outside = self._arms.encoder.encode(context, arms, longest)
        return Offer(features, tuple(name for name, _ in arms), {}, outside)

    def add(
        self, offers: Sequence[Offer], chosen: Sequence[tuple[int, float]]
    ) -> list[Choice]:
        """Record which action of each offer was chosen, by index, and its propensity.

        All at once, so that a failed write records no part of a slate.
        """
        outside = Counter(self.outside)
        for offer in offers:
            outside.update(offer.outside)
        counts = {"outside": to_json_array(outside)}
        arrays = counts if outside != self.outside else {}
        rows: list[tuple[dict[str, Any], FloatArray]] = []
        first = self._journal.num_trials
        for offer, (index, propensity) in zip(offers, chosen, strict=True):
            params = {"chosen": index, "propensity": propensity, **offer.record}
            if "context" not in params:
                params |= self._as_earlier(offer.features, first + len(rows))
            is_known = "context" in params or "actions" in params
            rows.append((params, offer.features[index] if is_known else offer.features))
        tickets = self._journal.add_trials(self._journal.num_releases, rows, arrays)
        self._state |= arrays
        return [
            Choice(index, offer.arms[index], ticket, propensity)
            for offer, (index, propensity), ticket in zip(
                offers, chosen, tickets, strict=True
            )
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

    def decisions(self, settled: bool = False) -> list[Decision]:
        """Return decisions so far; see `LinearBanditPolicy.decisions`."""
        self.expire()
        trials = self._journal.trials()
        return [
            self._decision(trial)
            for trial in (self._clock.settled(trials) if settled else trials)
        ]

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
        trials = [self._awaited(ticket) for ticket in values]
        recorded = self._settings.releases.without_excess(rewards).tolist()
        if trials:
            self._complete(trials, recorded, {})
        return list(zip(trials, recorded, strict=True))

    def correct(self, given: Any, value: Any) -> None:
        """Replace a reward that no release has yet; see `LinearBanditPolicy.correct`.

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
        if self._clock.came_late(trial):
            raise LateRewardError(ticket, trial.value)
        [reward] = self._settings.releases.without_excess(np.array([reward])).tolist()
        window = self._sums.with_other_reward(trial, reward)
        count = {"corrected": np.array(int(self._state.get("corrected", 0)) + 1)}
        self._journal.complete_trials(release, [(ticket, reward)], {**window, **count})
        self._sums.recorded(window)
        self._state |= count

    def cancel(self, ticket: int) -> None:
        """Record that a decision gets no reward."""
        self._journal.end_trial(self._awaited(ticket).number, math.nan)

    def _awaited(self, given: Any) -> Trial:
        """Return the trial of a ticket, if its reward is still awaited."""
        ticket = whole_number("ticket", given)
        require(0 <= ticket < 2**63, "ticket", given, "an int, as `choose` gave it")
        trial = self._journal.trial(ticket)
        if trial is not None and self._clock.is_late(trial):
            self.expire()
            trial = self._journal.trial(ticket)
        if trial is not None and self._clock.came_late(trial):
            raise LateRewardError(ticket, trial.value)
        allowed = "a ticket of `choose` whose reward has not come yet"
        is_awaited = trial is not None and trial.state == "running"
        require(is_awaited, "ticket", ticket, allowed)
        assert trial is not None
        return trial

    def expire(self) -> None:
        """Take rewards as known that did not come in time."""
        timeout = self._settings.reward_timeout
        if timeout is None:
            return
        running = self._journal.trials(running=True)
        early = [trial.number for trial in running if self._clock.is_early(trial)]
        if early:  # the clock was ahead: they would be awaited until that date, and on
            self._journal.begin_again(early)
            running = self._journal.trials(running=True)
        late = [trial for trial in running if self._clock.is_late(trial)]
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
