"""The belief of a site's bandit: its agents, as what it received and played makes them.

In the journal are

    total       the sum of all agents' releases that the server gave back last
    included, contributors  how many of our releases, and agents, are in the total
    synchronisations        how many have made it
    pool, alpha  among peers: whose sums it adds up, and its pool's share of alpha
    prior, prior-trials  what the site was told before: its sum, and trials in it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import exploration_rng
from flwr_fbo.bandits.linear.prior import Prior
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.decision import Offer, action_of
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial
from flwr_fbo.site.recorded_agent import NO_SLOT

# Actions whose probabilities are computed together: enough to be fast.
_ACTIONS_AT_ONCE = 1 << 14


@dataclass(frozen=True, eq=False)
class Received:
    """What agents are made of: equal if the same agents would be made.

    Attributes
    ----------
    slot : int
        Slot of the site's agent.
    total : ndarray or None
        Sum of all agents' releases; None before the first one.
    included : int
        Own releases in the sum.
    contributors : int
        Agents with a release in the sum.
    synchronisations : int
        Synchronisations that have made it.
    corrected : int
        Rewards that the site has corrected: agents may have been told the old ones.
    """

    slot: int
    total: FloatArray | None
    included: int = 0
    contributors: int = 0
    synchronisations: int = 0
    corrected: int = 0

    @classmethod
    def of(cls, state: Mapping[str, NDArray[Any]]) -> Received:
        """Return what is in the arrays of a journal."""
        names = "included", "contributors", "synchronisations", "corrected"
        numbers = [int(state.get(name, 0)) for name in names]
        return cls(int(state.get("slot", NO_SLOT)), state.get("total"), *numbers)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Received) or self._numbers != other._numbers:
            return False
        if self.total is other.total or self.total is None or other.total is None:
            return self.total is other.total
        return np.array_equal(self.total, other.total)

    @property
    def _numbers(self) -> tuple[int, ...]:
        numbers = self.included, self.contributors, self.synchronisations
        return (self.slot, self.corrected, *numbers)

    @property
    def num_others(self) -> int:
        """Other agents with a release in the sum."""
        return max(self.contributors - (self.included > 0), 0)


class SiteBelief:
    """The agent of a site, or several in turn: estimators are played in turn.

    Agents are made of `Received` when that has changed, and told the site's own trials
    that they lack when they are used: no call has to say that something has changed.

    Parameters
    ----------
    study : LinearBanditStudy
        Study of the journal.
    journal : Journal
        Journal of the site's bandit.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`, as they are now.
    sums : RunningSums
        Sums of the site's own trials.
    """

    def __init__(
        self,
        study: LinearBanditStudy,
        journal: Journal,
        state: Mapping[str, NDArray[Any]],
        sums: RunningSums,
    ) -> None:
        self._study, self._journal, self._state = study, journal, state
        self._sums = sums
        self._made: tuple[Received, list[LinearUCBAgent]] | None = None

    def take_agents(self, other: SiteBelief) -> None:
        """Take the agents of a belief in the same journal, which may be an older one.

        They are used if the same ones would be made.
        """
        if self.prior == other.prior:
            self._made = other._made

    @property
    def received(self) -> Received:
        """What the server gave back last."""
        return Received.of(self._state)

    @property
    def prior(self) -> Prior:
        """What the site was told before its own trials; it is in none of its sums."""
        if "prior" not in self._state:
            return Prior.none(self._study.settings.releases.dimension)
        return Prior(self._state["prior"], int(self._state["prior-trials"]))

    def set_prior(self, prior: Prior) -> dict[str, NDArray[Any]]:
        """Make agents with another prior from now on; return the arrays to record.

        Raises
        ------
        ValueError
            If it is of another dimension.
        """
        size = self._study.settings.releases.dimension + 1
        shape = prior.total.shape
        require(shape == (size, size), "prior.total", shape, f"shape ({size}, {size})")
        self._made = None
        return {"prior": prior.total, "prior-trials": np.array(prior.num_trials)}

    @property
    def confidence(self) -> Confidence:
        """The confidence of the study, or of the agent's pool among peers."""
        settings = self._study.settings
        if "pool" not in self._state:  # it has no peers, or no slot yet
            return Confidence.of(settings, self._study.num_agents)
        pool, alpha = self._state["pool"], float(self._state["alpha"])
        return Confidence(settings, len(pool), alpha)

    # Choosing

    def probabilities(
        self, offers: Sequence[Offer], first: int
    ) -> list[dict[str, float]]:
        """Return with which probability each action would be chosen, by name.

        The offers are those of the decisions with number ``first`` and the following.
        """
        found: dict[int, dict[str, float]] = {}
        for agent, places, features in self._batches(offers, first):
            rngs = self._rngs(first, places)
            rows = agent.probabilities_many(features, rngs).tolist()
            for i, row in zip(places, rows, strict=True):
                found[i] = dict(zip(offers[i].arms, row, strict=True))
        return [found[i] for i in range(len(offers))]

    def choose(self, offers: Sequence[Offer], first: int) -> list[tuple[int, float]]:
        """Choose once an offer; return the index and propensity of each choice.

        The offers are those of the decisions with number ``first`` and the following.
        """
        found: dict[int, tuple[int, float]] = {}
        for agent, places, features in self._batches(offers, first):
            rngs = partial(self._rngs, first, places)
            found.update(zip(places, agent.choose_many(features, rngs), strict=True))
        return [found[i] for i in range(len(offers))]

    def _batches(
        self, offers: Sequence[Offer], first: int
    ) -> Iterator[tuple[LinearUCBAgent, list[int], FloatArray]]:
        """Yield agents with offers of as many actions: places and features."""
        alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        agents = self.agents
        for i, offer in enumerate(offers):
            key = (first + i) % len(agents), offer.features.shape
            alike.setdefault(key, []).append(i)
        for (turn, (num_actions, *_)), places in alike.items():
            at_once = max(1, _ACTIONS_AT_ONCE // max(1, num_actions))
            for start in range(0, len(places), at_once):
                some = places[start : start + at_once]
                yield agents[turn], some, np.stack([offers[i].features for i in some])

    def _rngs(self, first: int, places: Sequence[int]) -> list[np.random.Generator]:
        """Return what the decisions at these places after ``first`` draw from."""
        seed = self._study.noise_seed
        if seed is None:
            return [np.random.default_rng()] * len(places)
        slot = self.received.slot
        return [exploration_rng(seed, slot, first + i) for i in places]

    # Learning

    @property
    def agents(self) -> list[LinearUCBAgent]:
        """The agents, with what they have learned so far."""
        received = self.received
        if self._made is None or self._made[0] != received:
            self._made = received, self._agents_of(received)
        agents = self._made[1]
        if not self._uses_own:
            return agents
        counts = self._own_counts(received)
        if any(a.num_trials > n for a, n in zip(agents, counts, strict=True)):
            # The file was exchanged for an older one.
            agents = self._agents_of(received)
            self._made = received, agents
        if [agent.num_trials for agent in agents] != counts:
            # By their sums: to read the trials would take longer the more there are.
            # With "raw" one that was told them one by one has an older bound on the
            # eigenvalues, and so wider intervals; both hold.
            total = self._sums.total(*self._own_window(received))
            totals = total.reshape(-1, *total.shape[-2:])
            for agent, own, count in zip(agents, totals, counts, strict=True):
                if count > agent.num_trials:
                    agent.tell_sum(own - agent.running_sum, count - agent.num_trials)
        return agents

    def tell(self, rewarded: Sequence[tuple[Trial, float]]) -> None:
        """Tell rewards that have just been recorded, one by one.

        Agents that lack others, too, find all of them in the sums.
        """
        received = self.received
        if not self._uses_own or self._made is None or self._made[0] != received:
            return
        agents, counts = self._made[1], self._own_counts(received)
        missing = sum(counts) - sum(agent.num_trials for agent in agents)
        if missing == len(rewarded):
            for trial, value in rewarded:
                agents[trial.number % len(agents)].tell(action_of(trial), value)

    def receive(self, total: FloatArray, numbers: Sequence[int]) -> dict[str, Any]:
        """Make the agents of a total; return the arrays that record it.

        Parameters
        ----------
        total : ndarray of shape ``sum_shape``
            Sum of all agents' releases.
        numbers : sequence of int
            Own releases in the sum, agents in it, and synchronisations that made it.

        Raises
        ------
        numpy.linalg.LinAlgError
            If nothing can be learned from it. The agents are the ones before then.
        """
        included, contributors, synchronisations = numbers
        arrays = {
            "total": np.asarray(total),
            "included": np.array(included),
            "contributors": np.array(contributors),
            "synchronisations": np.array(synchronisations),
        }
        received = Received.of({**self._state, **arrays})
        self._made = received, self._agents_of(received)
        return arrays

    @property
    def _uses_own(self) -> bool:
        """Whether agents act on the site's own trials that are not released."""
        return self._study.settings.fixed_rows

    def _own_window(self, received: Received) -> tuple[int, int]:
        """Return the releases between which are the own trials outside of the total."""
        made = self._journal.num_releases
        return min(received.included, made), made + 1

    def _own_counts(self, received: Received) -> list[int]:
        return self._sums.counts(*self._own_window(received))

    def _agents_of(self, received: Received) -> list[LinearUCBAgent]:
        settings, total = self._study.settings, received.total
        confidence = self.confidence.after(received.synchronisations)
        shape = settings.releases.sum_shape
        total = np.zeros(shape) if total is None else total
        require(np.shape(total) == shape, "total", np.shape(total), f"shape {shape}")
        totals = total.reshape(-1, *shape[-2:])
        own: list[OwnPart | None] = [None] * len(totals)
        if settings.uses_own_data:
            own = [*self._own_parts(received.included)]
        prior = self.prior
        return [
            LinearUCBAgent(confidence, each, part, received.num_others, prior)
            for each, part in zip(totals, own, strict=True)
        ]

    def _own_parts(self, included: int) -> list[OwnPart]:
        """Return the agent's part of a total, by stream.

        It is never taken from a release that was not made, whatever the server says.
        """
        k = min(included, self._journal.num_releases)
        window = self._sums.window_of(k)
        clean, counts = self._sums.total(*window), self._sums.counts(*window)
        message = self._journal.ledger(k)[0].vectors if k else clean
        size = clean.shape[-1]
        parts = message.reshape(-1, size, size), clean.reshape(-1, size, size), counts
        return [OwnPart(*each) for each in zip(*parts, strict=True)]

    def wants_synchronisation(self) -> bool:
        """Return whether an estimator has seen enough since the last one."""
        trigger, among_peers = self._study.trigger, self._study.graph is not None
        return trigger is not None and any(
            agent.wants_synchronisation(trigger, among_peers) for agent in self.agents
        )
