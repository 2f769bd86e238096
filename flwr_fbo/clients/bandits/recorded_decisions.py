"""The decisions of a site's linear bandit, in its journal, and their rewards.

trial       one row a decision; its number is the ticket: see `offer`
arms-v      version v of the site's arms: see `SiteArms`
outside     how many values were outside of their bounds, by field
timed-out   how many rewards did not come in time
window-j    what trials rewarded between releases j and j + 1 add to the running sum
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import number, whole_number
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.algorithms.linear_bandit.agent import LinearUCBAgent
from flwr_fbo.algorithms.linear_bandit.exploration import exploration_rng
from flwr_fbo.algorithms.linear_bandit.study import LinearBanditStudy
from flwr_fbo.clients.bandits.decision import Decision
from flwr_fbo.clients.bandits.offer import Choice, Offer, action_of
from flwr_fbo.clients.bandits.site_arms import SiteArms
from flwr_fbo.clients.recorded_agent import RecordedBanditAgent
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import Trial

# Actions whose probabilities are computed together: enough to be fast.
_ACTIONS_AT_ONCE = 1 << 14


class LateRewardError(ValueError):
    """A reward came after the study's `RewardTimeout`, and nothing is recorded.

    Examples
    --------
    >>> from flwr_fbo import LateRewardError
    >>> print(LateRewardError(7, 0.0))
    ticket=7 is not allowed: its time is over, and its reward was taken to be 0.
    """

    def __init__(self, ticket: int, reward: float) -> None:
        text = f"its time is over, and its reward was taken to be {reward:g}"
        super().__init__(f"ticket={ticket} is not allowed: {text}.")


class RecordedDecisions(RecordedBanditAgent):
    """What one agent has decided, and what that gave, while it holds its journal."""

    study: LinearBanditStudy

    @abstractmethod
    def _agent_of(self, ticket: int) -> LinearUCBAgent:
        """Return whose turn a trial is."""

    @abstractmethod
    def _learn(self, trials: Sequence[Trial], values: Sequence[float]) -> None:
        """Use rewards that have just been recorded."""

    @property
    def num_releases(self) -> int:
        """Releases made so far."""
        return self._journal.num_releases

    @property
    def num_trials(self) -> int:
        """Actions chosen so far."""
        return self._journal.num_trials

    @property
    def awaited(self) -> dict[int, FloatArray]:
        """The actions whose rewards have not come, by ticket."""
        self._expire()
        running = self._journal.trials(running=True)
        return {trial.number: action_of(trial) for trial in running}

    @cached_property
    def arms(self) -> SiteArms:
        """The site's named arms, where the study has an encoder."""
        settings = self.study.settings
        longest = settings.releases.max_action_norm
        return SiteArms(self._journal, settings.encoder, longest)

    def offer(self, context: Any, eligible: Collection[str] | None = None) -> Offer:
        """Return what a decision is among; see `LinearBanditPolicy.choose`."""
        if self.study.settings.encoder is not None:
            return self.arms.offer(context, eligible)
        require(eligible is None, "eligible", eligible, "None, without an encoder")
        offer = Offer.of_vectors(context)
        features = self.study.settings.releases.without_excess(offer.features)
        return replace(offer, features=features)

    def probabilities(self, offers: Sequence[Offer]) -> list[dict[str, float]]:
        """Return with which probability each action would be chosen, by name."""
        found: dict[int, dict[str, float]] = {}
        for agent, places, features in self._batches(offers):
            rows = agent.probabilities_many(features, self._rngs(places)).tolist()
            for i, row in zip(places, rows, strict=True):
                found[i] = dict(zip(offers[i].arms, row, strict=True))
        return [found[i] for i in range(len(offers))]

    def choose(self, offers: Sequence[Offer]) -> list[Choice]:
        """Choose once an offer, and record all: at once."""
        found: dict[int, tuple[int, float]] = {}
        for agent, places, features in self._batches(offers):
            chosen = agent.choose_many(features, partial(self._rngs, places))
            found.update(zip(places, chosen, strict=True))
        return self._recorded(offers, [found[i] for i in range(len(offers))])

    def _batches(
        self, offers: Sequence[Offer]
    ) -> Iterator[tuple[LinearUCBAgent, list[int], FloatArray]]:
        """Yield agents with offers of as many actions: places and features."""
        alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        first = self.num_trials
        for i, offer in enumerate(offers):
            key = id(self._agent_of(first + i)), offer.features.shape
            alike.setdefault(key, []).append(i)
        for (_, (num_actions, *_)), places in alike.items():
            at_once = max(1, _ACTIONS_AT_ONCE // max(1, num_actions))
            for start in range(0, len(places), at_once):
                some = places[start : start + at_once]
                features = np.stack([offers[i].features for i in some])
                yield self._agent_of(first + some[0]), some, features

    def choose_slate(self, offer: Offer, num_slots: int) -> list[Choice]:
        """Choose several different actions of one offer, and record all: at once."""
        num_slots = whole_number("num_slots", num_slots)
        require_int("num_slots", num_slots, 1, len(offer.arms))
        first, left = self.num_trials, list(range(len(offer.arms)))
        offers, chosen, places = [], [], []
        for i in range(num_slots):
            agent = self._agent_of(first + i)
            index, propensity = agent.choose(offer.features, *self._rngs([i]))
            offers.append(offer)
            chosen.append((index, propensity))
            places.append(left.pop(index))
            if left:
                offer = offer.without(index)
        choices = self._recorded(offers, chosen)
        return [replace(c, index=i) for c, i in zip(choices, places, strict=True)]

    def _rngs(self, places: Sequence[int]) -> list[np.random.Generator]:
        """Return what the decisions at these places after the last one draw from."""
        seed, first = self.study.noise_seed, self.num_trials
        if seed is None:
            return [np.random.default_rng()] * len(places)
        return [exploration_rng(seed, self.slot, first + i) for i in places]

    def _recorded(
        self, offers: Sequence[Offer], chosen: Sequence[tuple[int, float]]
    ) -> list[Choice]:
        outside = Counter(self.outside)
        for offer in offers:
            outside.update(offer.outside)
        counts = {"outside": to_json_array(outside)}
        arrays = counts if outside != self.outside else {}
        pairs = list(zip(offers, chosen, strict=True))
        rows = [offer.row(*own) for offer, own in pairs]
        tickets = self._journal.add_trials(self.num_releases, rows, arrays)
        self._state |= arrays
        return [
            Choice(index, offer.arms[index], ticket, propensity)
            for (offer, (index, propensity)), ticket in zip(pairs, tickets, strict=True)
        ]

    @property
    def outside(self) -> dict[str, int]:
        """How many values were outside of their bounds so far, by field."""
        counts = self._state.get("outside")
        return {} if counts is None else from_json_array(counts)

    def decisions(self, settled: bool = False) -> list[Decision]:
        """Return decisions so far; see `LinearBanditPolicy.decisions`."""
        self._expire()
        timeout, trials = self.study.settings.reward_timeout, self._journal.trials()
        if settled and timeout is not None:
            latest = time.time() - timeout.seconds
            trials = [trial for trial in trials if trial.started <= latest]
        return [self._decision(trial) for trial in trials]

    def _decision(self, trial: Trial) -> Decision:
        record = trial.params
        is_named = "context" in record
        offer = (self.arms.again if is_named else Offer.of_trial)(trial)
        return Decision(
            number=trial.number,
            time=trial.started,
            context=record.get("context"),
            arms=offer.arms,
            features=offer.features,
            chosen=record["chosen"],
            propensity=record["propensity"],
            reward=trial.value,
        )

    def reward(self, values: Mapping[int, float]) -> None:
        """Record what actions were rewarded with, by ticket: all at once, or none."""
        rewards = np.array([number("value", value) for value in values.values()])
        trials = [self._awaited(self._checked(ticket)) for ticket in values]
        rewards = self.study.settings.releases.without_excess(rewards)
        self._complete(trials, rewards.tolist(), {})

    def cancel(self, ticket: int) -> None:
        """Record that a decision gets no reward."""
        trial = self._awaited(self._checked(ticket))
        self._journal.end_trial(trial.number, math.nan)

    def _checked(self, ticket: Any) -> int:
        found = whole_number("ticket", ticket)
        require(0 <= found < 2**63, "ticket", ticket, "an int, as `choose` gave it")
        return found

    def _awaited(self, ticket: int) -> Trial:
        """Return the trial of a ticket, if its reward is still awaited."""
        trial = self._journal.trial(ticket)
        if trial is not None and self._is_late(trial):
            self._expire()
            trial = self._journal.trial(ticket)
        if trial is not None and self._has_timed_out(trial):
            raise LateRewardError(ticket, trial.value)
        allowed = "a ticket of `choose` whose reward has not come yet"
        ok = trial is not None and trial.state == "running"
        require(ok, "ticket", ticket, allowed)
        assert trial is not None
        return trial

    def _expire(self) -> None:
        """Take rewards as known that did not come in time."""
        timeout = self.study.settings.reward_timeout
        if timeout is None:
            return
        running = self._journal.trials(running=True)
        late = [trial for trial in running if self._is_late(trial)]
        if late:
            count = {"timed-out": np.array(self.num_timed_out + len(late))}
            self._complete(late, [timeout.reward] * len(late), count)

    def _is_late(self, trial: Trial) -> bool:
        """Return whether a reward is awaited, and does not come in time."""
        is_awaited = trial.state == "running"
        return is_awaited and self._waits_too_long(time.time() - trial.started)

    def _has_timed_out(self, trial: Trial) -> bool:
        """Return whether a trial's value is that of a reward that did not come."""
        return self._waits_too_long(trial.finished - trial.started)  # NaN before

    def _waits_too_long(self, seconds: float) -> bool:
        timeout = self.study.settings.reward_timeout
        return timeout is not None and seconds >= timeout.seconds

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
        """Record the rewards of trials, and arrays: at once."""
        if not trials:
            return
        releases, release = self.study.settings.releases, self.num_releases
        added = self._window(release).copy()
        streams = added.reshape(releases.num_streams, *added.shape[-2:])
        for trial, value in zip(trials, values, strict=True):
            # One by one: the products of many would take much memory.
            [product] = releases.outer_products([action_of(trial)], [value])
            streams[trial.number % releases.num_streams] += product
        changed = {**arrays, f"window-{release}": added}
        tickets = [trial.number for trial in trials]
        pairs = list(zip(tickets, values, strict=True))
        self._journal.complete_trials(release, pairs, changed)
        self._state |= changed
        self._learn(trials, values)

    def _window(self, release: int) -> FloatArray:
        """Return what trials rewarded after a release, and before the next, add."""
        name = f"window-{release}"
        if name not in self._state:
            added = self._journal.load_array(name)
            shape = self.study.settings.releases.sum_shape
            self._state[name] = np.zeros(shape) if added is None else added
        return self._state[name]
