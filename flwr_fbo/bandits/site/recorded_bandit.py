"""A FedUCB agent with its journal, with a centre or among peers.

All of it is in one journal, so that rewards may arrive hours after their actions, at
another process than the one that chose, and Flower's client, a fresh process for every
message, only synchronises. Each part says what it keeps there:

    `DecisionLog`   what the site has decided, and what that gave
    `ArmVersions`   the named arms that it has offered
    `RunningSums`   what its trials add up to, between its releases
    `SiteBelief`    what the server gave back, and what the site believes
    `PeerMail`      among peers: what it has heard, and passes on

Its releases are in the ledger, and their draws in ``draw-k`` (`ContinualRelease`).
Where sites sum their blocks the ledger has a row without numbers for each release that
the site has sent a block for; its facts say of which window between two rows that is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
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
    require_name,
)
from flwr_fbo._common.version import __version__
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.arm_versions import ArmVersions
from flwr_fbo.bandits.site.decision import Choice, Offer, Request
from flwr_fbo.bandits.site.decisions_and_rewards import DecisionLog
from flwr_fbo.bandits.site.environment import (
    BanditEnvironment,
    fitting_actions,
    fitting_reward,
)
from flwr_fbo.bandits.site.late_rewards import LateRewardError
from flwr_fbo.bandits.site.logged_trials import LoggedTrials
from flwr_fbo.bandits.site.policy_summary import PolicySummary
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.bandits.site.site_belief import Left, SiteBelief, left_in
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import to_json_array
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.secure import SumIdentity
from flwr_fbo.site.recorded_agent import RecordedBanditAgent, say_left_aside
from flwr_fbo.study.codec import is_sum


class RecordedBandit(RecordedBanditAgent):
    """One agent and its journal, as long as nobody else changes that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    study : LinearBanditStudy, optional
        That one, where it is known.
    in_sums : SumIdentity, optional
        The site's key and roster in secure sums; by default it has none.

    Attributes
    ----------
    identity : dict of str to JSON value
        What the journal belongs to.
    state : dict of str to ndarray
        The journal's arrays whose names end in no number.
    arms : ArmVersions
        Named arms of the site.
    sums : RunningSums
        Sums of the site's trials.
    decisions : DecisionLog
        Decisions and rewards.
    belief : SiteBelief
        What the site believes.
    in_sums : SumIdentity
        The site's key and roster in secure sums.
    """

    kind: ClassVar[str] = LINEAR_SITE.name
    study: LinearBanditStudy

    def __init__(
        self,
        journal: Journal,
        study: LinearBanditStudy | None = None,
        in_sums: SumIdentity | None = None,
    ) -> None:
        super().__init__(journal)
        self.in_sums = SumIdentity() if in_sums is None else in_sums
        self.identity = journal.identity
        self.study = study or LinearBanditStudy.from_dict(journal.identity)
        self.state, settings = self._state, self.study.settings
        self.arms = ArmVersions(journal, settings, self.state)
        self.sums = RunningSums(journal, settings.releases, self.state)
        self.decisions = DecisionLog(
            journal, settings, self.state, self.arms, self.sums
        )
        self.belief = SiteBelief(self.study, journal, self.state, self.sums)
        self.sums.promised = self.belief.promised

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

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names; see `RecordedBanditAgent.join`."""
        require_index("slot", slot, self.study.num_agents)
        super().join(slot, number)

    def _facts_of(self, slot: int) -> dict[str, NDArray[Any]]:
        """Return the pool, which takes long to find, and its share of alpha."""
        graph = self.study.graph
        if graph is None:
            return {}
        own = graph.confidence_of(slot, self.study.settings)
        return {"pool": np.array(graph.pools[slot]), "alpha": np.array(own.alpha)}

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

    def add_history(
        self,
        actions: Any,
        rewards: Any,
        contexts: Any = None,
        arms: ArmTable | None = None,
        name: str = "history",
    ) -> int:
        """Record what logged trials add; see `LinearBanditPolicy.add_history`."""
        require_name("name", name)
        log = LoggedTrials.summed(
            self.study.settings,
            self.arms,
            actions=actions,
            rewards=rewards,
            contexts=contexts,
            arms=arms,
        )
        outside = Counter(self.decisions.outside) + log.outside
        is_new = self.sums.add_log(
            name,
            log.total,
            num_trials=log.num_trials,
            digest=log.digest,
            arrays={"outside": to_json_array(outside)},
        )
        return log.num_trials if is_new else 0

    def summary(self) -> PolicySummary:
        """Return what the agent has learned, and what that is made of."""
        self.decisions.expire()
        study, releases = self.study, self.study.settings.releases
        received, agents = self.belief.received, self.belief.agents
        shape = (*releases.sum_shape[:-2], releases.dimension)
        estimates = np.array([agent.estimate for agent in agents])
        widths = np.array([agent.confidence_width for agent in agents])
        worths = [agent.worth_of_others for agent in agents]
        return PolicySummary(
            settings=study.settings,
            estimate=estimates.reshape(shape),
            confidence_width=widths.reshape(shape),
            num_trials=self.num_trials,
            num_awaited=len(self._journal.trials(running=True)),
            num_timed_out=self.decisions.num_timed_out,
            num_logged=self.sums.num_logged,
            outside=self.decisions.outside,
            num_releases=self.num_releases,
            num_included=received.included,
            num_others=received.num_others,
            max_others=self.belief.confidence.num_agents - 1,
            epsilon_spent=study.epsilon_spent(self.num_releases),
            warning=study.warning,
            worth_of_others=worths[0] if len(worths) == 1 else None,
            left="" if self.left is None else str(self.left),
        )

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play in an environment until there are so many trials.

        One that does not fit the study is in no release: see `fitting_actions`. Of a
        context that does not, an action of zeros is on record, without a reward.
        """
        releases = self.study.settings.releases
        bounds = releases.dimension, releases.max_action_norm
        # Those of a process that was ended.
        for ticket, action in self.decisions.awaited.items():
            if fitting_actions(environment, ticket, *bounds) is not None:
                self._take(environment, ticket, action)
        for t in range(self.num_trials, num_trials):
            actions = fitting_actions(environment, t, *bounds)
            nothing = np.zeros((1, releases.dimension))
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
        allowed = self.study.settings.releases.reward_range
        value = fitting_reward(environment, ticket, action, allowed)
        with suppress(LateRewardError):
            if value is None:
                self.decisions.cancel(ticket)
            else:
                self.reward({ticket: value})

    # What a server asks for

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
            Sum of the agents' last releases.
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
        is_total = is_sum(np.asarray(total, dtype=float), shape, MOST)
        require(is_total, "total", np.shape(total), f"of shape {shape}, {allowed}")
        try:
            # No honest total is larger: what then overflows, own data would decide.
            if (np.abs(total) > count * releases.largest_entries).any():
                raise np.linalg.LinAlgError("the total is too large")
            numbers = included, agents, num_synchronisations
            arrays = self.belief.receive(total, numbers)
        except np.linalg.LinAlgError:
            say_left_aside()
            return
        self._put(arrays)

    def receive_blocks(self, totals: Any, summed: Any) -> None:
        """Take all totals of blocks, and which agents are in each.

        What nothing can be learned from, or is larger than honest, is left aside, as by
        `receive`.

        Parameters
        ----------
        totals : ndarray of shape (k, d + 1, d + 1)
            The totals.
        summed : ndarray of shape (k, M)
            Which agents are in each, as 0 and 1.

        Raises
        ------
        ValueError
            If they are not such arrays.
        """
        releases, count = self.study.settings.releases, self.study.num_agents
        k, shape = len(np.atleast_1d(totals)), releases.sum_shape
        require(1 <= k <= releases.max_releases, "len(totals)", k, "a release each")
        allowed = f"of shape (k, {shape[0]}, {shape[0]}), symmetric, finite numbers"
        is_total = is_sum(totals, (k, *shape), MOST)
        require(is_total, "totals", np.shape(totals), allowed)
        is_matrix = isinstance(summed, np.ndarray) and summed.dtype == np.uint8
        is_matrix = is_matrix and summed.shape == (k, count) and bool(summed.max() <= 1)
        allowed = f"of shape ({k}, {count}), 0 or 1"
        require(is_matrix, "summed", np.shape(summed), allowed)
        try:
            if (np.abs(totals) > count * releases.largest_entries).any():
                raise np.linalg.LinAlgError("a total is too large")
            arrays = self.belief.receive_blocks(totals, summed)
        except np.linalg.LinAlgError:
            say_left_aside()
            return
        self._put(arrays)

    @property
    def left(self) -> Left | None:
        """When and why the site has left; None while it shares its trials."""
        return left_in(self._state)

    def block(self, release: int) -> FloatArray:
        """Return what the site adds to the sum of a release, shape (d + 1, d + 1).

        The trials rewarded since the last release that it has sent a block for, and
        logs that were added since. That is on disk before the block is returned: later
        trials are in a later block, whether this one ever arrives or not, so that a
        trial is in one sum at most. Zero where the site has left.
        """
        rows = self._journal.ledger(release)
        if not rows:
            self.decisions.expire()
            window = self.num_releases
            # With the row: another draw of a misfit's noise would not be charged.
            arrays = self._leaving(window, release)
            private = self.study.private
            facts = {"window": window, "private": private, "flwr_fbo": __version__}
            row = LedgerRow(release, facts, np.zeros(0))
            self._journal.add_release(row, arrays)
            self._state |= arrays
            rows = [row]
        window, left = int(rows[0].facts["window"]), self.left
        if left is not None and window > left.window:
            return np.zeros(self.study.settings.releases.sum_shape)
        return self.sums.total(window, window + 1)

    def _leaving(self, window: int, release: int) -> dict[str, NDArray[Any]]:
        """Return what records that the site leaves with this block, if it does.

        By the misfit of the block's trials: how far their rewards were below what the
        totals promised as they came. Its noise is charged with the study.
        """
        missing, num_trials = self.sums.missing(window)
        if self.left is not None or not self.belief.received.synchronisations:
            return {}
        measure, entropy = self.study.misfit, self.entropy()
        assert entropy is not None, "sums of blocks have noise"
        noise = entropy.add_noise(release, np.zeros((1, 1)), np.array([measure.std]))
        if not measure.leaves(float(missing + noise[0, 0]), int(num_trials)):
            return {}
        return Left(window, release, "misfit").arrays()

    def release(self, k: int) -> FloatArray:
        """Return this agent's release k: drawn and recorded, or the recorded one."""
        self.decisions.expire()
        # Later releases have no sums yet, whatever the server asks for.
        running_sum = self.sums.running_sum(min(k, self.num_releases + 1))
        return self._mechanism.release(k, running_sum)

    @cached_property
    def _mechanism(self) -> ContinualRelease:
        releases = self.study.settings.releases
        return ContinualRelease(releases, self.entropy(), self._journal)
