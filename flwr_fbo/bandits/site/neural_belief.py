"""The belief of a site of Fed-GO-UCB, and the sums of its rewarded trials.

In the journal are

    w0          the parameters that phase I has found; none in phase I
    explored    how many rewards had come then
    arrived     how many rewards have come so far
    arrived-i   ticket of the i-th reward, in the order in which they came
    own         sums over the trials whose rewards came in phase II, as they are sent
    total       sums of all agents, as they were received last
    included    how many own rewards of phase II are in it, in the order of arrival
    received    how many totals have come

A trial belongs to the phase in which its reward came. One at which the model is not
finite, as a server may choose w0, adds nothing and counts as one more reward.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, first_best
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent, checked_actions
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.bandits.linear.exploration import drawn
from flwr_fbo.bandits.site.decision import Chosen, Offer, action_of
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial
from flwr_fbo.models.network import RewardModel
from flwr_fbo.site.recorded_agent import NO_SLOT

_log = logging.getLogger("flwr.fbo")
# Rewards that an agent is told together: each has a gradient.
_RECALLED_AT_ONCE = 1000


@dataclass(frozen=True)
class _Received:
    """What an agent was made of: equal if the same one would be made."""

    slot: int
    is_started: bool
    num_totals: int
    num_corrected: int

    @classmethod
    def of(cls, state: Mapping[str, NDArray[Any]]) -> _Received:
        numbers = (int(state.get(name, 0)) for name in ("received", "corrected"))
        return cls(int(state.get("slot", NO_SLOT)), "w0" in state, *numbers)


class NeuralBelief:
    """The agent of a site, made of its journal when it is used, and its sums.

    It is told the rewards that it lacks: no call has to say that something has changed.

    Parameters
    ----------
    study : FedGOUCBStudy
        Study of the journal.
    model : RewardModel
        The study's.
    journal : Journal
        Journal of the site's bandit.
    state : dict of str to ndarray
        Arrays of `Journal.load_unnumbered`, as they are now.
    """

    def __init__(
        self,
        study: FedGOUCBStudy,
        model: RewardModel,
        journal: Journal,
        state: dict[str, NDArray[Any]],
    ) -> None:
        self._study, self._model = study, model
        self._journal, self._state = journal, state
        # What an agent was made of, and how many rewards it knows.
        self._made: tuple[_Received, FedGOUCBAgent, int] | None = None

    def take_agent(self, other: NeuralBelief) -> None:
        """Take the agent of a belief in the same journal, which may be an older one."""
        self._made = other._made

    # Choosing

    def probabilities(
        self, offers: Sequence[Offer], first: int
    ) -> list[dict[str, float]]:
        """Return with which probability each action would be chosen, by name."""
        found = []
        for number, offer in enumerate(offers, first):
            _, row = self._decided(offer, number)
            by_name = dict(zip(offer.arms, row.tolist(), strict=True))
            found.append(by_name | dict.fromkeys(offer.forbidden, 0.0))
        return found

    def choose(self, offers: Sequence[Offer], first: int) -> list[Chosen]:
        """Choose once an offer, and say why."""
        chosen, by_bound = [], self._study.settings.exploration == "optimism"
        for number, offer in enumerate(offers, first):
            index, row = self._decided(offer, number)
            if index is None:
                index, _ = drawn(row, np.random.default_rng())
            about = self.agent.expectations(offer.features)
            propensity = float(row[index])
            one = Chosen.explained(
                offer, index, propensity, *about, is_optimistic=by_bound
            )
            chosen.append(one)
        return chosen

    def _decided(self, offer: Offer, number: int) -> tuple[int | None, FloatArray]:
        """Return the agent's choice, and the probability of each action, shape (K,).

        No choice where floors, or chance alone, are to decide: draw one, then.
        """
        agent, x = self.agent, offer.features
        if not offer.explore and agent.w0 is not None:  # else nothing is known
            means, _ = agent.expectations(x)
            row = np.zeros(len(x))
            row[first_best(np.where(np.isnan(means), -np.inf, means))] = 1
            return None, offer.raised(row)
        try:
            index, row = agent.decide(x, self._number(number))
        except FloatingPointError as error:  # of a w0 that the server has chosen
            _log.warning("Decision %d is at random: %s", number, error)
            return None, offer.raised(np.full(len(x), 1 / len(x)))
        return index if offer.is_plain else None, offer.raised(row)

    def _number(self, decision: int) -> int:
        """Return the number of a decision in its phase."""
        return decision - int(self._state.get("explored", 0))

    # Learning

    @property
    def num_arrived(self) -> int:
        """Rewards that have come so far."""
        return int(self._state.get("arrived", 0))

    @property
    def num_in_sums(self) -> int:
        """Those of them that came in phase II."""
        if self.agent.w0 is None:
            return 0
        return self.num_arrived - int(self._state.get("explored", 0))

    @property
    def own(self) -> FloatArray:
        """Sums over the trials whose rewards came in phase II."""
        return self._state.get("own", self._zero)

    @property
    def _zero(self) -> FloatArray:
        return np.zeros(self._study.settings.sums_shape(self._model.num_parameters))

    @property
    def agent(self) -> FedGOUCBAgent:
        """The agent, with what it has learned so far."""
        received, arrived = _Received.of(self._state), self.num_arrived
        made = self._made
        if made is None or made[0] != received or made[2] > arrived:
            made = received, *self._agent_of(received)
        _, agent, told = made
        if self._study.settings.privacy is None:  # else it acts on totals only
            for first in range(told, arrived, _RECALLED_AT_ONCE):
                end = min(first + _RECALLED_AT_ONCE, arrived)
                trials = [*self._arrivals(first, end)]
                actions = np.array([action_of(trial) for trial in trials])
                agent.recall(actions, np.array([trial.value for trial in trials]))
        self._made = received, agent, arrived
        return agent

    def _agent_of(self, received: _Received) -> tuple[FedGOUCBAgent, int]:
        """Return an agent, and how many rewards are in what it was made of."""
        study, state = self._study, self._state
        agent = FedGOUCBAgent(
            study.settings,
            self._model,
            study.seed,
            received.slot,
            num_agents=study.num_agents,
        )
        if received.is_started and agent.w0 is None:
            agent.start(state["w0"])
        if agent.w0 is None:
            return agent, 0
        included = int(state.get("included", 0))
        agent.resume(state.get("total", self._zero), included)
        return agent, int(state.get("explored", 0)) + included

    def _arrivals(self, first: int, end: int) -> Iterator[Trial]:
        """Yield the trials whose rewards came as number ``first`` to ``end`` - 1."""
        names = [f"arrived-{i}" for i in range(first, end)]
        tickets = self._journal.load_arrays(names) if names else {}
        for name in names:
            trial = self._journal.trial(int(tickets[name]))
            assert trial is not None
            yield trial

    def start(self, w0: FloatArray) -> dict[str, NDArray[Any]]:
        """Begin phase II; return the arrays that record it.

        Raises
        ------
        ValueError, FloatingPointError
            See `FedGOUCBAgent.start`.
        """
        self.agent.start(w0)
        self._made = None
        return {"w0": np.array(w0), "explored": np.array(self.num_arrived)}

    def receive(self, total: FloatArray, included: int) -> dict[str, NDArray[Any]]:
        """Take a total with so many own rewards; return the arrays that record it.

        Raises
        ------
        ValueError, numpy.linalg.LinAlgError
            See `FedGOUCBAgent.receive`. The agent is the one before, then.
        """
        self.agent.receive(total, included)
        self._made = None
        count = int(self._state.get("received", 0)) + 1
        numbers = {"included": np.array(included), "received": np.array(count)}
        return {"total": np.asarray(total, dtype=float), **numbers}

    def tell(self, rewarded: Sequence[tuple[Trial, float]]) -> None:
        """Take rewards that have just been recorded: the agent finds them there."""

    # What rewards add up to

    def checked_actions(self, actions: FloatArray) -> FloatArray:
        """Return actions, if they are finite and of the model's dimension."""
        x = checked_actions(actions, self._model.dimension)
        require(bool(np.isfinite(x).all()), "actions", actions, "finite numbers")
        return x

    def checked_rewards(self, rewards: FloatArray) -> FloatArray:
        """Return rewards, if they are finite; those out of range are clipped later."""
        for value in rewards.tolist():
            require(math.isfinite(value), "value", value, "a finite number")
        return rewards

    def with_rewards(
        self, trials: Sequence[Trial], values: Sequence[float]
    ) -> dict[str, NDArray[Any]]:
        """Return what is to be recorded with rewards that have just come."""
        arrived, own, agent = self.num_arrived, self.own, self.agent
        changed: dict[str, NDArray[Any]] = {}
        for i, (trial, value) in enumerate(zip(trials, values, strict=True), arrived):
            changed[f"arrived-{i}"] = np.array(trial.number)
            if agent.w0 is not None:
                own = own + self._added(agent, trial, value)
        if agent.w0 is not None:
            changed["own"] = own
        return {**changed, "arrived": np.array(arrived + len(trials))}

    def with_other_reward(self, trial: Trial, value: float) -> dict[str, NDArray[Any]]:
        """Return the sums with another reward of a trial; of phase I they have none."""
        agent, explored = self.agent, int(self._state.get("explored", 0))
        in_phase_one = {one.number for one in self._arrivals(0, explored)}
        if agent.w0 is None or trial.number in in_phase_one:
            return {}
        before = self._added(agent, trial, trial.value)
        return {"own": self.own + self._added(agent, trial, value) - before}

    def _added(self, agent: FedGOUCBAgent, trial: Trial, value: float) -> FloatArray:
        try:
            return agent.added(action_of(trial), value)
        except FloatingPointError:  # of a w0 that the server has chosen
            _log.warning("Decision %d adds nothing: no finite model.", trial.number)
            return self._zero

    def recorded(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take note that arrays, as the methods above return them, are on disk."""
        known = ("own", "arrived")
        self._state |= {name: arrays[name] for name in known if name in arrays}
