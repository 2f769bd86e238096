"""A FedUCB agent with its journal, with a centre or among peers.

Each part of it says what it keeps in the journal:

    `DecisionLog`   what the site has decided, and what that gave
    `ArmVersions`   the named arms that it has offered
    `RunningSums`   what its trials add up to, between its releases
    `LinearBelief`  what the server gave back, and what the site believes
    `PeerMail`      among peers: what it has heard, and passes on

Its releases are in the ledger, and their draws in ``draw-k`` (`ContinualRelease`).
Where sites sum their blocks the ledger has a row without numbers for each release that
the site has sent a block for; its facts say of which window between two rows that is.
``realised`` has the last estimate of the realised epsilon, which never leaves the site.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import MOST, require, require_index, require_name
from flwr_fbo._common.version import __version__
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.arm_versions import ArmVersions
from flwr_fbo.bandits.site.deciding_agent import DecidingAgent
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.bandits.site.decisions_and_rewards import DecisionLog
from flwr_fbo.bandits.site.linear_belief import Left, LinearBelief, left_in
from flwr_fbo.bandits.site.logged_trials import LoggedTrials
from flwr_fbo.bandits.site.policy_summary import LinearPolicySummary
from flwr_fbo.bandits.site.realised_privacy import (
    PlayedStream,
    RealisedPrivacy,
    Told,
)
from flwr_fbo.bandits.site.running_sums import RunningSums
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import from_json_array, to_json_array
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.secure import SumIdentity
from flwr_fbo.site.recorded_agent import say_left_aside
from flwr_fbo.study.codec import is_sum


class RecordedBandit(DecidingAgent):
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
    arms : ArmVersions
        Named arms of the site.
    sums : RunningSums
        Sums of the site's trials.
    in_sums : SumIdentity
        The site's key and roster in secure sums.
    """

    kind: ClassVar[str] = LINEAR_SITE.name
    study: LinearBanditStudy
    belief: LinearBelief

    def __init__(
        self,
        journal: Journal,
        study: LinearBanditStudy | None = None,
        in_sums: SumIdentity | None = None,
    ) -> None:
        super().__init__(journal)
        self.in_sums = SumIdentity() if in_sums is None else in_sums
        self.study = study or LinearBanditStudy.from_dict(journal.identity)
        settings = self.study.settings
        self.arms = ArmVersions(journal, settings, self.state)
        self.sums = RunningSums(
            journal,
            settings.releases,
            self.state,
            lambda actions: self.belief.promised(actions),
        )
        arms = None if settings.encoder is None else self.arms
        timeout = settings.reward_timeout
        self.decisions = DecisionLog(journal, timeout, self.state, self.sums, arms)
        self.belief = LinearBelief(self.study, journal, self.state, self.sums)

    def renewed(self, journal: Journal) -> Self:
        """Return the agent as its journal is now; see `DecidingAgent.renewed`."""
        renewed = type(self)(journal, self.study, self.in_sums)
        renewed.belief.take_agents(self.belief)
        renewed.decisions.take_sets(self.decisions)
        return renewed

    @property
    def action_bounds(self) -> tuple[int, float]:
        """Dimension of an action, and its largest norm."""
        releases = self.study.settings.releases
        return releases.dimension, releases.max_action_norm

    @property
    def reward_range(self) -> tuple[float, float]:
        """Smallest and largest reward of the study."""
        return self.study.settings.releases.reward_range

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

    def summary(self) -> LinearPolicySummary:
        """Return what the agent has learned, and what that is made of."""
        self.decisions.expire()
        study, releases = self.study, self.study.settings.releases
        received, agents = self.belief.received, self.belief.agents
        shape = (*releases.sum_shape[:-2], releases.dimension)
        estimates = np.array([agent.estimate for agent in agents])
        widths = np.array([agent.confidence_width for agent in agents])
        worths = [agent.worth_of_others for agent in agents]
        return LinearPolicySummary(
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
            realised=self.realised,
        )

    @property
    def realised(self) -> RealisedPrivacy | None:
        """The estimate of the realised epsilon that was made last; see `played`."""
        known = self._state.get("realised")
        return None if known is None else RealisedPrivacy(**from_json_array(known))

    def keep_realised(self, found: RealisedPrivacy) -> None:
        """Record an estimate of the realised epsilon, for summaries."""
        self.put({"realised": to_json_array(asdict(found))})

    def played(self) -> PlayedStream:
        """Return all that the site has decided, received and learned, in its order.

        Raises
        ------
        ValueError
            If its study has no centre.
        """
        graph, allowed = self.study.graph, "None: among peers it is not estimated"
        require(graph is None, "graph", graph, allowed)
        self.decisions.expire()
        releases, made = self.study.settings.releases, self.num_releases
        told = []
        for trial in self._journal.trials():
            if trial.state == "complete":
                [product] = releases.outer_products([action_of(trial)], [trial.value])
                window = trial.iteration
                told.append(Told(trial.finished, window, product, 1, trial.number))
        # Of logs sums are kept: what a window has besides its rewards.
        begun = [-math.inf, *(row.committed for row in self._journal.ledger())]
        for j in range(made + 1):
            rewarded = [one.total for one in told if one.window == j]
            total = self.sums.total(j, j + 1) - sum(rewarded)
            count = sum(self.sums.counts(j, j + 1)) - len(rewarded)
            if count:
                told.append(Told(begun[j], j, total, count))
        return PlayedStream(
            confidence=self.belief.confidence,
            prior=self.belief.prior,
            decisions=self.decisions.decisions(0, self.num_trials),
            told=sorted(told, key=lambda one: one.time),
            totals=[*self.belief.heard()],
            num_releases=made,
        )

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
