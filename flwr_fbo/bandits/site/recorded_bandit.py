"""A FedUCB agent with its journal, with a centre or among peers.

All of it is in one journal, so that rewards may arrive hours after their actions, at
another process than the one that chose, and Flower's client, a fresh process for every
message, only synchronises:

    trial, window-j, ...  what the site has decided, and what that gave: `BanditStore`
    ledger      this agent's releases, and their draws (`ContinualRelease`)
    total       what the server gave back last
    included, contributors  how many of our releases, and agents, are in the total
    synchronisations        how many have made it
    pool, alpha  among peers: whose sums it adds up, and its pool's share of alpha
    heard, ...  among peers: see `PeerMail`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import whole_number
from flwr_fbo._common.validation import (
    MOST,
    require,
    require_index,
    require_int,
)
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import exploration_rng
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.bandit_store import (
    BanditStore,
    LateRewardError,
    Offer,
    action_of,
)
from flwr_fbo.bandits.site.decision import Choice
from flwr_fbo.bandits.site.environment import (
    BanditEnvironment,
    fitting_actions,
    fitting_reward,
)
from flwr_fbo.bandits.site.policy_summary import PolicySummary
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.site.recorded_agent import RecordedBanditAgent, say_left_aside
from flwr_fbo.study.codec import is_sum

# Actions whose probabilities are computed together: enough to be fast.
_ACTIONS_AT_ONCE = 1 << 14


class RecordedBandit(RecordedBanditAgent):
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    study : LinearBanditStudy, optional
        That one, where it is known.

    Attributes
    ----------
    store : BanditStore
        Decisions, rewards, arms and logs.
    """

    kind: ClassVar[str] = LINEAR_SITE.name
    study: LinearBanditStudy

    def __init__(
        self, journal: Journal, study: LinearBanditStudy | None = None
    ) -> None:
        super().__init__(journal)
        self.study = study or LinearBanditStudy.from_dict(journal.identity)
        settings = self.study.settings
        self.store = BanditStore(journal, settings, self._state, self._learn)
        self._made: list[LinearUCBAgent] = []
        self._is_told = False
        self._digest = -1

    def follow(self) -> None:
        """Take what another process has changed in the journal."""
        vars(self).pop("_mechanism", None)
        self._is_told = False
        self.store.forget_window()
        digest = self._journal.unnumbered_digest
        if digest == self._digest:
            return
        before = self._received
        self._digest = digest
        self._state = self.store.state = self._journal.load_unnumbered()
        if before != self._received:
            self._made = []

    @property
    def num_releases(self) -> int:
        """Releases made so far."""
        return self._journal.num_releases

    @property
    def num_trials(self) -> int:
        """Actions chosen so far."""
        return self._journal.num_trials

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names; see `RecordedBanditAgent.join`."""
        require_index("slot", slot, self.study.num_agents)
        super().join(slot, number)
        self._made = []  # of no slot

    def _facts_of(self, slot: int) -> dict[str, NDArray[Any]]:
        """Return the pool, which takes long to find, and its share of alpha."""
        graph = self.study.graph
        if graph is None:
            return {}
        own = graph.confidence_of(slot, self.study.settings)
        return {"pool": np.array(graph.pools[slot]), "alpha": np.array(own.alpha)}

    def _confidence(self) -> Confidence:
        if "pool" not in self._state:  # it has no peers, or no slot yet
            return Confidence.of(self.study.settings, self.study.num_agents)
        pool, alpha = self._state["pool"], float(self._state["alpha"])
        return Confidence(self.study.settings, len(pool), alpha)

    # Choosing

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
        return self.store.add(offers, [found[i] for i in range(len(offers))])

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
        choices = self.store.add(offers, chosen)
        return [replace(c, index=i) for c, i in zip(choices, places, strict=True)]

    def _rngs(self, places: Sequence[int]) -> list[np.random.Generator]:
        """Return what the decisions at these places after the last one draw from."""
        seed, first = self.study.noise_seed, self.num_trials
        if seed is None:
            return [np.random.default_rng()] * len(places)
        return [exploration_rng(seed, self.slot, first + i) for i in places]

    # Learning

    @property
    def agents(self) -> list[LinearUCBAgent]:
        """The agent, or the several in turn, with what it has learned so far."""
        if not self._made:
            self._made = self._agents(self._state.get("total"), *self._numbers)
            self._is_told = False
        if not self._is_told:
            self._tell_own()
            self._is_told = True
        return self._made

    @property
    def _numbers(self) -> tuple[int, int, int]:
        """How many releases, agents and synchronisations are in the total."""
        names = "included", "contributors", "synchronisations"
        included, contributors, times = (int(self._state.get(n, 0)) for n in names)
        return included, contributors, times

    @property
    def _received(self) -> tuple[Any, ...]:
        """What agents are made of: slot, total and its numbers; and corrections."""
        total, none = self._state.get("total", np.zeros(0)), np.array(0)
        corrected = int(self._state.get("corrected", none))
        return self.slot, total.tobytes(), self._numbers, corrected

    def _agent_of(self, ticket: int) -> LinearUCBAgent:
        """Return whose turn a trial is: estimators are played in turn."""
        return self.agents[ticket % len(self.agents)]

    def _learn(self, trial: Trial, value: float) -> None:
        # Agents that are made, or told, later find the trials in the journal.
        if self._uses_own and self._is_told:
            self._agent_of(trial.number).tell(action_of(trial), value)

    def receive(
        self,
        total: FloatArray,
        included: int,
        agents: int = 0,
        num_synchronisations: int = 0,
    ) -> None:
        """Take the sum of all agents' releases, ``included`` of our own among them.

        One that nothing can be learned from, as an agent that lies may make it, or that
        is larger than any honest one is left aside, and what was received before stays.
        The total alone decides, before own data are looked at.

        Parameters
        ----------
        total : ndarray of shape ``sum_shape``
        included : int
            Own releases in the sum.
        agents : int
            Agents with a release in the sum, for `summary`.
        num_synchronisations : int
            How many have made the sum; see `Confidence.after`.

        Raises
        ------
        ValueError
            If it is not an array of finite numbers of that shape, symmetric.
        """
        releases, count = self.study.settings.releases, self.study.num_agents
        shape, allowed = releases.sum_shape, "symmetric, with finite numbers"
        ok = is_sum(np.asarray(total, dtype=float), shape, MOST)
        require(ok, "total", np.shape(total), f"of shape {shape}, {allowed}")
        try:
            # No honest total is larger: what then overflows, own data would decide.
            if (np.abs(total) > count * releases.largest_entries).any():
                raise np.linalg.LinAlgError("the total is too large")
            estimators = self._agents(total, included, agents, num_synchronisations)
        except np.linalg.LinAlgError:
            say_left_aside()
            return
        self._put(
            {
                "total": np.asarray(total),
                "included": np.array(included),
                "contributors": np.array(agents),
                "synchronisations": np.array(num_synchronisations),
            }
        )
        self._made, self._is_told = estimators, False

    @property
    def _uses_own(self) -> bool:
        """Whether the agent acts on its own trials that are not released."""
        return self.study.settings.fixed_rows

    def _own_parts(self, included: int) -> list[OwnPart]:
        """Return the agent's part of a total, by stream.

        It is never taken from a release that was not made, whatever the server says.
        """
        k = min(included, self.num_releases)
        clean, counts = self.store.sum_of(*self.store.window_of(k))
        message = self.release(k) if k else clean
        size = clean.shape[-1]
        parts = message.reshape(-1, size, size), clean.reshape(-1, size, size), counts
        return [OwnPart(*each) for each in zip(*parts, strict=True)]

    def _agents(
        self,
        total: FloatArray | None,
        included: int,
        contributors: int,
        num_synchronisations: int,
    ) -> list[LinearUCBAgent]:
        confidence = self._confidence().after(num_synchronisations)
        settings = self.study.settings
        shape = settings.releases.sum_shape
        total = np.zeros(shape) if total is None else total
        require(np.shape(total) == shape, "total", np.shape(total), f"shape {shape}")
        totals = total.reshape(-1, *shape[-2:])
        own: list[OwnPart | None] = [None] * len(totals)
        if settings.uses_own_data:
            own = [*self._own_parts(included)]
        num_others = max(contributors - (included > 0), 0)
        return [
            LinearUCBAgent(confidence, each, part, num_others)
            for each, part in zip(totals, own, strict=True)
        ]

    def _tell_own(self) -> None:
        """Tell the agent its own trials that it was not told, if it uses them.

        These are not in the total. By their sums: to read the trials would take longer
        the more there are. With "raw" one that was told them one by one has an older
        bound on the eigenvalues, and so wider intervals; both hold.
        """
        if not self._uses_own:
            return
        included = min(int(self._state.get("included", 0)), self.num_releases)
        total, counts = self.store.sum_of(included, self.num_releases + 1)
        totals = total.reshape(-1, *total.shape[-2:])
        for agent, own, count in zip(self._made, totals, counts, strict=True):
            if count > agent.num_trials:
                agent.tell_sum(own - agent.running_sum, count - agent.num_trials)

    def correct(self, ticket: int, value: float) -> None:
        """Replace a reward; see `LinearBanditPolicy.correct`."""
        self.store.correct(ticket, value)
        self._made = []  # who were told another one

    def add_history(
        self,
        actions: Any,
        rewards: Any,
        contexts: Any = None,
        arms: ArmTable | None = None,
        name: str = "history",
    ) -> int:
        """Record what logged trials add; see `LinearBanditPolicy.add_history`."""
        added = self.store.add_history(actions, rewards, contexts, arms, name)
        self._is_told = False
        return added

    def wants_synchronisation(self) -> bool:
        """Return whether an estimator has seen enough since the last one."""
        trigger, among_peers = self.study.trigger, self.study.graph is not None
        return trigger is not None and any(
            agent.wants_synchronisation(trigger, among_peers) for agent in self.agents
        )

    # Releasing

    def release(self, k: int) -> FloatArray:
        """Return this agent's release k: drawn and recorded, or the recorded one."""
        self.store.expire()
        # Later releases have no sums yet, whatever the server asks for.
        running_sum = self.store.running_sum(min(k, self.num_releases + 1))
        return self._mechanism.release(k, running_sum)

    @cached_property
    def _mechanism(self) -> ContinualRelease:
        releases = self.study.settings.releases
        return ContinualRelease(releases, self.entropy(), self._journal)

    def summary(self) -> PolicySummary:
        """Return what the agent has learned, and what that is made of."""
        self.store.expire()
        study, store, releases = self.study, self.store, self.study.settings.releases
        included, contributors, _ = self._numbers
        shape = (*releases.sum_shape[:-2], releases.dimension)
        estimates = np.array([agent.estimate for agent in self.agents])
        widths = np.array([agent.confidence_width for agent in self.agents])
        worths = [agent.worth_of_others for agent in self.agents]
        return PolicySummary(
            settings=study.settings,
            estimate=estimates.reshape(shape),
            confidence_width=widths.reshape(shape),
            num_trials=self.num_trials,
            num_awaited=len(self._journal.trials(running=True)),
            num_timed_out=store.num_timed_out,
            num_logged=store.num_logged,
            outside=store.outside,
            num_releases=self.num_releases,
            num_included=included,
            num_others=max(contributors - (included > 0), 0),
            max_others=self._confidence().num_agents - 1,
            epsilon_spent=study.epsilon_spent(self.num_releases),
            warning=study.warning,
            worth_of_others=worths[0] if len(worths) == 1 else None,
        )

    # Playing in an environment

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play in an environment until there are so many trials.

        One that does not fit the study is in no release: see `fitting_actions`. Of a
        context that does not, an action of zeros is on record, without a reward.
        """
        releases = self.study.settings.releases
        bounds = releases.dimension, releases.max_action_norm
        for ticket, action in self.store.awaited.items():  # of a process that was ended
            if fitting_actions(environment, ticket, *bounds) is not None:
                self._take(environment, ticket, action)
        for t in range(self.num_trials, num_trials):
            actions = fitting_actions(environment, t, *bounds)
            nothing = np.zeros((1, releases.dimension))
            offered = nothing if actions is None else actions
            [choice] = self.choose([Offer.of_vectors(offered)])
            if actions is None:
                self.store.cancel(choice.ticket)
            else:
                self._take(environment, choice.ticket, actions[choice.index])

    def _take(
        self, environment: BanditEnvironment, ticket: int, action: FloatArray
    ) -> None:
        """Record a reward, unless it came too late: then the default is recorded."""
        allowed = self.study.settings.releases.reward_range
        value = fitting_reward(environment, ticket, action, allowed)
        with suppress(LateRewardError):
            if value is None:
                self.store.cancel(ticket)
            else:
                self.store.reward({ticket: value})
