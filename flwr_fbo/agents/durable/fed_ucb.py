"""A FedUCB agent with its journal.

All of it is in one journal, so that rewards may arrive hours after their actions, at
another process than the one that chose, and Flower's client, a fresh process for every
message, only synchronises:

    trial       one row a decision; its number is the ticket: see `offer`
    arms-v      version v of the site's arms: see `SiteArms`
    outside     how many values were outside of their bounds, by field
    timed-out   how many rewards did not come in time
    window-j    what trials rewarded between releases j and j + 1 add to the running sum
    ledger      this agent's releases, and their draws (`ContinualRelease`)
    total       what the server gave back last
    included, contributors  how many of our releases, and agents, are in the total
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._arrays import FloatArray
from flwr_fbo._validation import require, require_index, require_int
from flwr_fbo.agents.bandits.fed_ucb import LinearUCBAgent
from flwr_fbo.agents.durable.decision import Decision
from flwr_fbo.agents.durable.offer import Choice, Offer, action_of
from flwr_fbo.agents.durable.policy_summary import PolicySummary
from flwr_fbo.agents.durable.recorded_agent import (
    RecordedBanditAgent,
    say_left_aside,
)
from flwr_fbo.agents.durable.site_arms import SiteArms
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.trial_table import Trial
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from flwr_fbo.protocol.determinant_trigger import DeterminantTrigger
from flwr_fbo.protocol.exploration import exploration_rng
from flwr_fbo.protocol.linear_bandit_study import LinearBanditStudy
from flwr_fbo.protocol.linear_ucb_settings import Confidence

FILE_NAME, KIND = "linear-bandit.sqlite", "linear-bandit"


class BanditEnvironment(Protocol):
    """A bandit that is played without waiting, for experiments.

    What it gives in trial t may depend on nothing but t: a trial that was cut off is
    played again.
    """

    def contexts(self, t: int) -> FloatArray:
        """Return the actions of trial t >= 0, shape (K, d)."""

    def reward(self, x: FloatArray) -> float:
        """Return what action ``x`` gives in the trial whose contexts were last."""


class RecordedBandit(RecordedBanditAgent):
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    study : LinearBanditStudy, optional
        That one, where it is known.
    """

    kind: ClassVar[str] = KIND
    file_name: ClassVar[str] = FILE_NAME
    study: LinearBanditStudy

    def __init__(
        self, journal: Journal, study: LinearBanditStudy | None = None
    ) -> None:
        super().__init__(journal)
        self.study = study or LinearBanditStudy.from_dict(journal.identity)

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
        return Offer.of_vectors(context)

    def probabilities(self, offer: Offer) -> FloatArray:
        """Return with which probability each action would be chosen, shape (K,)."""
        number = self.num_trials
        return self._agent_of(number).probabilities(offer.features, self._rng(number))

    def choose(self, offers: Sequence[Offer]) -> list[Choice]:
        """Choose once an offer, and record all: at once."""
        first = self.num_trials
        chosen = [self._chosen(first + i, offer) for i, offer in enumerate(offers)]
        return self._recorded(offers, chosen)

    def choose_slate(self, offer: Offer, num_slots: int) -> list[Choice]:
        """Choose several different actions of one offer, and record all: at once."""
        require_int("num_slots", num_slots, 1, len(offer.arms))
        first, left = self.num_trials, list(range(len(offer.arms)))
        offers, chosen, places = [], [], []
        for i in range(num_slots):
            index, propensity = self._chosen(first + i, offer)
            offers.append(offer)
            chosen.append((index, propensity))
            places.append(left.pop(index))
            if left:
                offer = offer.without(index)
        choices = self._recorded(offers, chosen)
        return [replace(c, index=i) for c, i in zip(choices, places, strict=True)]

    def _chosen(self, number: int, offer: Offer) -> tuple[int, float]:
        return self._agent_of(number).choose(offer.features, self._rng(number))

    def _rng(self, number: int) -> np.random.Generator:
        seed = self.study.noise_seed
        if seed is None:
            return np.random.default_rng()
        return exploration_rng(seed, self.slot, number)

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

    def decisions(self) -> list[Decision]:
        """Return all decisions so far, with the rewards that have come."""
        self._expire()
        return [self._decision(trial) for trial in self._journal.trials()]

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

    def reward(self, ticket: int, value: float) -> None:
        """Record what the action of a ticket was rewarded with."""
        ok = isinstance(value, Real) and not isinstance(value, bool)
        require(ok, "value", value, "a number")
        ok = type(ticket) is int and 0 <= ticket < 2**63
        require(ok, "ticket", ticket, "an int, as `choose` gave it")
        trial = self._journal.awaited_trial(ticket)
        if trial is not None and self._is_late(trial):
            self._expire()
            trial = None
        allowed = "a ticket of `choose` whose reward has not come yet, or is not late"
        require(trial is not None, "ticket", ticket, allowed)
        assert trial is not None
        self._complete([trial], float(value), {})

    def _expire(self) -> None:
        """Take rewards as known that did not come in time."""
        timeout = self.study.settings.reward_timeout
        if timeout is None:
            return
        late = [t for t in self._journal.trials(running=True) if self._is_late(t)]
        if late:
            count = {"timed-out": np.array(self.num_timed_out + len(late))}
            self._complete(late, timeout.reward, count)

    def _is_late(self, trial: Trial) -> bool:
        timeout = self.study.settings.reward_timeout
        return timeout is not None and trial.started + timeout.seconds <= time.time()

    @property
    def num_timed_out(self) -> int:
        """How many rewards did not come in time."""
        return int(self._state.get("timed-out", 0))

    def _complete(
        self, trials: Sequence[Trial], value: float, arrays: dict[str, NDArray[Any]]
    ) -> None:
        """Record what each of some trials was rewarded with, and arrays: at once."""
        tickets, release = [trial.number for trial in trials], self.num_releases
        actions = [action_of(trial) for trial in trials]
        releases = self.study.settings.releases
        products = releases.outer_products(actions, [value] * len(trials))
        added = self._window(release).copy()
        streams = added.reshape(releases.num_streams, *products.shape[1:])
        for ticket, product in zip(tickets, products, strict=True):
            streams[ticket % releases.num_streams] += product
        changed = {**arrays, f"window-{release}": added}
        self._journal.complete_trials(tickets, release, value, changed)
        self._state |= changed
        # Agents that are made later find the trials in the journal.
        if self.study.settings.local_data == "raw" and "agents" in vars(self):
            for ticket, action in zip(tickets, actions, strict=True):
                self._agent_of(ticket).tell(action, value)

    def _window(self, release: int) -> FloatArray:
        """Return what trials rewarded after a release, and before the next, add."""
        name = f"window-{release}"
        if name not in self._state:
            added = self._journal.load_array(name)
            shape = self.study.settings.releases.sum_shape
            self._state[name] = np.zeros(shape) if added is None else added
        return self._state[name]

    def _agent_of(self, ticket: int) -> LinearUCBAgent:
        """Return whose turn a trial is: estimators are played in turn."""
        return self.agents[ticket % len(self.agents)]

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names; see `RecordedBanditAgent.join`."""
        require_index("slot", slot, self.study.num_agents)
        super().join(slot, number)
        vars(self).pop("agents", None)  # of no slot

    def receive(self, total: FloatArray, included: int, agents: int = 0) -> None:
        """Take the sum of all agents' releases, ``included`` of our own among them.

        One that nothing can be learned from, as an agent that lies may make it, is left
        aside, and what was received before stays.

        Parameters
        ----------
        total : ndarray of shape ``sum_shape``
        included : int
            Own releases in the sum.
        agents : int
            Agents with a release in the sum, for `summary`.
        """
        try:
            estimators = self._agents(total)
        except np.linalg.LinAlgError:
            say_left_aside()
            return
        counts = {"included": np.array(included), "contributors": np.array(agents)}
        self._put({"total": np.asarray(total), **counts})
        self.agents = estimators
        self._tell_own()

    @cached_property
    def agents(self) -> list[LinearUCBAgent]:
        """The agent, or the several in turn, with what it has learned so far."""
        self.agents = self._agents(self._state.get("total"))
        self._tell_own()
        return self.agents

    def _confidence(self) -> Confidence:
        return self.study.settings.confidence(self.study.num_agents)

    def _agents(self, total: FloatArray | None) -> list[LinearUCBAgent]:
        confidence, shape = self._confidence(), self.study.settings.releases.sum_shape
        total = np.zeros(shape) if total is None else total
        require(np.shape(total) == shape, "total", np.shape(total), f"shape {shape}")
        return [LinearUCBAgent(confidence, t) for t in total.reshape(-1, *shape[-2:])]

    def _tell_own(self) -> None:
        """Tell the agent its own trials that are not in the total, if it uses them."""
        if self.study.settings.local_data != "raw":
            return
        included = int(self._state.get("included", 0))
        for trial in self._journal.trials(since=included):
            if trial.state == "complete":
                self._agent_of(trial.number).tell(action_of(trial), trial.value)

    def release(self, k: int) -> FloatArray:
        """Return this agent's release k: drawn and recorded, or the recorded one."""
        self._expire()
        # Of later releases there is nothing here, whatever the server asks for.
        names = [f"window-{j}" for j in range(min(k, self.num_releases + 1))]
        zero = np.zeros(self.study.settings.releases.sum_shape)
        state = self._journal.load_state()
        running_sum = np.sum([state.get(name, zero) for name in names], axis=0)
        return self._mechanism.release(k, running_sum)

    @cached_property
    def _mechanism(self) -> ContinualRelease:
        releases = self.study.settings.releases
        return ContinualRelease(releases, self._entropy(), self._journal)

    def require_entropy(self) -> None:
        """Raise ImportError unless there is what the noise is made with."""
        self._entropy()

    def _entropy(self) -> Entropy | None:
        if self.study.settings.releases.noise_std == 0:
            return None
        seed = self.study.noise_seed
        return OsEntropy() if seed is None else SeededEntropy(seed, self.slot)

    def summary(self) -> PolicySummary:
        """Return what the agent has learned, and what that is made of."""
        self._expire()
        study, releases = self.study, self.study.settings.releases
        included = int(self._state.get("included", 0))
        contributors = int(self._state.get("contributors", 0))
        shape = (*releases.sum_shape[:-2], releases.dimension)
        estimates = np.array([agent.estimate for agent in self.agents])
        widths = np.array([agent.confidence_width for agent in self.agents])
        return PolicySummary(
            estimate=estimates.reshape(shape),
            confidence_width=widths.reshape(shape),
            confidence=1 - study.settings.alpha,
            num_trials=self.num_trials,
            num_awaited=len(self._journal.trials(running=True)),
            num_timed_out=self.num_timed_out,
            outside=self.outside,
            num_releases=self.num_releases,
            max_releases=releases.num_releases,
            num_included=included,
            num_others=max(contributors - (included > 0), 0),
            max_others=self._confidence().num_agents - 1,
            epsilon=releases.epsilon,
            epsilon_spent=study.epsilon_spent(self.num_releases),
            delta=releases.delta,
            warning=study.warning,
            feature_names=study.settings.feature_names,
        )

    def wants_synchronisation(self, trigger: DeterminantTrigger) -> bool:
        """Return whether an estimator has seen enough since the last one."""
        return any(agent.wants_synchronisation(trigger) for agent in self.agents)

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play in an environment until there are so many trials."""
        for ticket, action in self.awaited.items():  # of a process that was ended
            environment.contexts(ticket)
            self.reward(ticket, environment.reward(action))
        for t in range(self.num_trials, num_trials):
            actions = environment.contexts(t)
            [choice] = self.choose([Offer.of_vectors(actions)])
            self.reward(choice.ticket, environment.reward(actions[choice.index]))
