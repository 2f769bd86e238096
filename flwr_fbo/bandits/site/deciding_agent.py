"""An agent that decides for a site: its decisions, and the belief they follow from.

All of it is in one journal, so that rewards may arrive hours after their actions, at
another process than the one that chose, and Flower's client, a fresh process for every
message, only synchronises. What is believed differs from bandit to bandit, and so is
behind an interface, `SiteBelief`; what was decided does not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import whole_number
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.bandits.site.decision import Choice, Chosen, Offer, Request
from flwr_fbo.bandits.site.decisions_and_rewards import DecisionLog
from flwr_fbo.bandits.site.environment import (
    BanditEnvironment,
    fitting_actions,
    fitting_reward,
)
from flwr_fbo.bandits.site.late_rewards import LateRewardError
from flwr_fbo.bandits.site.policy_summary import PolicySummary
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial
from flwr_fbo.site.recorded_agent import RecordedBanditAgent


class SiteBelief(Protocol):
    """What a site believes of its actions, as the journal is now."""

    def probabilities(
        self, offers: Sequence[Offer], first: int
    ) -> list[dict[str, float]]:
        """Return with which probability each action would be chosen, by name.

        The offers are those of the decisions with number ``first`` and the following.
        """

    def choose(self, offers: Sequence[Offer], first: int) -> list[Chosen]:
        """Choose once an offer, and say why; ``first`` as above."""

    def tell(self, rewarded: Sequence[tuple[Trial, float]]) -> None:
        """Take rewards that have just been recorded."""


class DecidingAgent(RecordedBanditAgent):
    """Base of the agents that `BanditPolicy` holds, one for each kind of bandit.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.

    Attributes
    ----------
    identity : dict of str to JSON value
        What the journal belongs to.
    state : dict of str to ndarray
        The journal's arrays whose names end in no number.
    decisions : DecisionLog
        Decisions and rewards.
    belief : SiteBelief
        What the site believes.
    """

    decisions: DecisionLog
    belief: SiteBelief

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.identity, self.state = journal.identity, self._state

    @abstractmethod
    def renewed(self, journal: Journal) -> Self:
        """Return the agent as its journal is now, which others may have changed.

        What took long to make is taken from this one, where it still holds.
        """

    @abstractmethod
    def summary(self) -> PolicySummary:
        """Return what the agent has learned, and what it has spent."""

    @property
    @abstractmethod
    def action_bounds(self) -> tuple[int, float]:
        """Dimension of an action, and its largest norm."""

    @property
    @abstractmethod
    def reward_range(self) -> tuple[float, float]:
        """Smallest and largest reward of the study; infinite without any."""

    @property
    def num_releases(self) -> int:
        """Releases made so far."""
        return self._journal.num_releases

    @property
    def num_trials(self) -> int:
        """Actions chosen so far."""
        return self._journal.num_trials

    def put(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Record arrays: all at once."""
        self._put(arrays)

    # What a policy does, and an environment lets it do

    def choose(self, offers: Sequence[Offer]) -> list[Choice]:
        """Choose once an offer, and record all: at once."""
        chosen = self.belief.choose(offers, self.num_trials)
        return self.decisions.add(offers, chosen)

    def answer(self, requests: Sequence[Request]) -> list[Choice]:
        """Choose for each request that is new; repeat what others were answered."""
        keys = [request.key for request in requests if request.key is not None]
        allowed = "each key once"
        require(len(set(keys)) == len(keys), "keys", keys, allowed)
        known = list(map(self.decisions.repeated, requests))
        pairs = zip(requests, known, strict=True)
        offers = [self.decisions.offer(one) for one, old in pairs if old is None]
        made = iter(self.choose(offers))
        return [next(made) if old is None else old[0] for old in known]

    def answer_slate(self, request: Request) -> list[Choice]:
        """Choose a slate, or repeat the one of the same request."""
        known = self.decisions.repeated(request)
        if known is not None:
            return known
        return self.choose_slate(self.decisions.offer(request), request.num_slots)

    def choose_slate(self, offer: Offer, num_slots: Any) -> list[Choice]:
        """Choose several different actions of one offer, and record all: at once."""
        num_slots = whole_number("num_slots", num_slots)
        require_int("num_slots", num_slots, 1, len(offer.arms))
        first, left = self.num_trials, list(range(len(offer.arms)))
        offers, chosen, places = [], [], []
        for i in range(num_slots):
            [one] = self.belief.choose([offer], first + i)
            offers.append(offer)
            chosen.append(one)
            places.append(left.pop(one.index))
            if left:
                offer = offer.without(one.index)
        choices = self.decisions.add(offers, chosen)
        # By their places among all actions, not among those that were left.
        return [replace(c, index=i) for c, i in zip(choices, places, strict=True)]

    def reward(self, values: Mapping[int, float]) -> None:
        """Record rewards, by ticket, all or none, and learn from them."""
        self.belief.tell(self.decisions.reward(values))

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play in an environment until there are so many trials.

        One that does not fit the study is in no release: see `fitting_actions`. Of a
        context that does not, an action of zeros is on record, without a reward.
        """
        # Those of a process that was ended.
        for ticket, action in self.decisions.awaited.items():
            if self.actions_of(environment, ticket) is not None:
                self._take(environment, ticket, action)
        for t in range(self.num_trials, num_trials):
            actions = self.actions_of(environment, t)
            nothing = np.zeros((1, self.action_bounds[0]))
            offered = nothing if actions is None else actions
            [choice] = self.choose([Offer.of_vectors(offered)])
            if actions is None:
                self.decisions.cancel(choice.ticket)
            else:
                self._take(environment, choice.ticket, actions[choice.index])

    def _take(
        self, environment: BanditEnvironment, ticket: int, action: FloatArray
    ) -> None:
        """Record a reward, unless it came too late: then the default is recorded."""
        value = self.reward_of(environment, ticket, action)
        with suppress(LateRewardError):
            if value is None:
                self.decisions.cancel(ticket)
            else:
                self.reward({ticket: value})

    def actions_of(self, environment: BanditEnvironment, t: int) -> FloatArray | None:
        """Return the actions of trial t; None if it is left out."""
        return fitting_actions(environment, t, *self.action_bounds)

    def reward_of(
        self, environment: BanditEnvironment, t: int, action: FloatArray
    ) -> float | None:
        """Return what an action gives in trial t; None if it is left out."""
        return fitting_reward(environment, t, action, self.reward_range)
