"""A FedUCB agent with its journal.

All of it is in one journal, so that rewards may arrive hours after their actions, at
another process than the one that chose, and Flower's client, a fresh process for every
message, only synchronises:

    trial, window-j, ...  decisions and their rewards: see `RecordedDecisions`
    histories, history-j  logged trials from before the study: see `SiteHistory`
    ledger      this agent's releases, and their draws (`ContinualRelease`)
    total       what the server gave back last
    own         this agent's part of it, where sites differ: its release, or with
                ``local_data="raw"`` what that was made of
    included, contributors  how many of our releases, and agents, are in the total
    synchronisations        how many have made it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import float_array
from flwr_fbo._common.validation import require, require_index, require_name
from flwr_fbo.algorithms.linear_bandit.agent import LinearUCBAgent
from flwr_fbo.algorithms.linear_bandit.arm_table import ArmTable
from flwr_fbo.algorithms.linear_bandit.confidence import Confidence
from flwr_fbo.algorithms.linear_bandit.determinant_trigger import DeterminantTrigger
from flwr_fbo.algorithms.linear_bandit.feature_fields import Encoded
from flwr_fbo.algorithms.linear_bandit.study import LinearBanditStudy
from flwr_fbo.clients.bandits.environment import (
    BanditEnvironment,
    fitting_actions,
    fitting_reward,
)
from flwr_fbo.clients.bandits.offer import Offer, action_of
from flwr_fbo.clients.bandits.policy_summary import PolicySummary
from flwr_fbo.clients.bandits.recorded_decisions import (
    LateRewardError,
    RecordedDecisions,
)
from flwr_fbo.clients.bandits.site_history import LogSum, SiteHistory
from flwr_fbo.clients.recorded_agent import say_left_aside
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.npy import to_json_array
from flwr_fbo.journal.tables import Trial
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy

KIND = "linear-bandit"


class RecordedBandit(RecordedDecisions):
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    study : LinearBanditStudy, optional
        That one, where it is known.
    """

    kind: ClassVar[str] = KIND
    study: LinearBanditStudy

    def __init__(
        self, journal: Journal, study: LinearBanditStudy | None = None
    ) -> None:
        super().__init__(journal)
        self.study = study or LinearBanditStudy.from_dict(journal.identity)

    def _agent_of(self, ticket: int) -> LinearUCBAgent:
        """Return whose turn a trial is: estimators are played in turn."""
        return self.agents[ticket % len(self.agents)]

    def _learn(self, trials: Sequence[Trial], values: Sequence[float]) -> None:
        # Agents that are made later find the trials in the journal.
        if self.study.settings.local_data == "raw" and "agents" in vars(self):
            for trial, value in zip(trials, values, strict=True):
                self._agent_of(trial.number).tell(action_of(trial), value)

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names; see `RecordedBanditAgent.join`."""
        require_index("slot", slot, self.study.num_agents)
        super().join(slot, number)
        vars(self).pop("agents", None)  # of no slot

    def receive(
        self,
        total: FloatArray,
        included: int,
        agents: int = 0,
        num_synchronisations: int = 0,
    ) -> None:
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
        num_synchronisations : int
            How many have made the sum; see `Confidence.after`.
        """
        own = self._own_part(included)
        try:
            estimators = self._agents(total, own, num_synchronisations)
        except np.linalg.LinAlgError:
            say_left_aside()
            return
        counts = {
            "included": np.array(included),
            "contributors": np.array(agents),
            "synchronisations": np.array(num_synchronisations),
        }
        parts = {} if own is None else {"own": own}
        self._put({"total": np.asarray(total), **parts, **counts})
        self.agents = estimators
        self._tell_own()

    @cached_property
    def agents(self) -> list[LinearUCBAgent]:
        """The agent, or the several in turn, with what it has learned so far."""
        num_synchronisations = int(self._state.get("synchronisations", 0))
        total, own = self._state.get("total"), self._state.get("own")
        self.agents = self._agents(total, own, num_synchronisations)
        self._tell_own()
        return self.agents

    def _confidence(self) -> Confidence:
        return Confidence.of(self.study.settings, self.study.num_agents)

    def _own_part(self, included: int) -> FloatArray | None:
        """Return the agent's part of a sum, as `SiteBelief` takes it, or None.

        Of no release that was not made, whatever the server says.
        """
        settings = self.study.settings
        if settings.site_deviation is None:
            return None
        k = min(included, self.num_releases)
        if settings.local_data == "raw" or k == 0:
            return self._running_sum(k)
        return self.release(k)

    def _agents(
        self,
        total: FloatArray | None,
        own: FloatArray | None,
        num_synchronisations: int,
    ) -> list[LinearUCBAgent]:
        confidence = self._confidence().after(num_synchronisations)
        shape = self.study.settings.releases.sum_shape
        total = np.zeros(shape) if total is None else total
        own = np.zeros(shape) if own is None else own
        require(np.shape(total) == shape, "total", np.shape(total), f"shape {shape}")
        sums = (each.reshape(-1, *shape[-2:]) for each in (total, own))
        return [LinearUCBAgent(confidence, *pair) for pair in zip(*sums, strict=True)]

    def _tell_own(self) -> None:
        """Tell the agent its own trials that are not in the total, if it uses them."""
        if self.study.settings.local_data != "raw":
            return
        included = int(self._state.get("included", 0))
        total, counts = self.history.since(included)
        totals = total.reshape(-1, *total.shape[-2:])
        for agent, own, count in zip(self.agents, totals, counts, strict=True):
            if count:
                agent.tell_sum(own, count)
        for trial in self._journal.trials(since=included):
            if trial.state == "complete":
                self._agent_of(trial.number).tell(action_of(trial), trial.value)

    @cached_property
    def history(self) -> SiteHistory:
        """The site's logged trials from before the study."""
        return SiteHistory(self._journal, self.study.settings.releases)

    def add_history(
        self,
        actions: Any,
        rewards: Any,
        contexts: Any,
        arms: ArmTable | None,
        name: str,
    ) -> int:
        """Record what logged trials add; see `LinearBanditPolicy.add_history`."""
        require_name("name", name)
        settings, outside = self.study.settings, Counter(self.outside)
        y = settings.releases.without_excess(float_array("rewards", rewards))
        require(y.ndim == 1 and len(y) > 0, "rewards", y.shape, "(T,), with T >= 1")
        settings.releases.check_rewards(y)
        if settings.encoder is None:
            for field, given in (("contexts", contexts), ("arms", arms)):
                require(given is None, field, given, "None, without an encoder")
            x = float_array("actions", actions)
            shape = (len(y), settings.releases.dimension)
            require(x.shape == shape, "actions", x.shape, f"an array of shape {shape}")
            x = settings.releases.without_excess(x)
            settings.releases.check_norms(x)
            log = LogSum.of(settings.releases, [x], y)
        else:
            chosen = list(actions)
            require(len(chosen) == len(y), "len(actions)", len(chosen), f"{len(y)}")
            blocks = self.arms.log(contexts, chosen, arms)
            log = LogSum.of(settings.releases, _counted(blocks, outside), y)
        changed = self.history.with_log(name, log, self.num_releases)
        if not changed:
            return 0
        self._put({**changed, "outside": to_json_array(outside)})
        vars(self).pop("agents", None)  # who may act on the site's raw trials
        return log.num_trials

    def release(self, k: int) -> FloatArray:
        """Return this agent's release k: drawn and recorded, or the recorded one."""
        self._expire()
        # Of later releases there is nothing here, whatever the server asks for.
        running_sum = self._running_sum(min(k, self.num_releases + 1))
        return self._mechanism.release(k, running_sum)

    def _running_sum(self, last: int) -> FloatArray:
        """Return what release ``last`` is made of; zero for 0."""
        settings = self.study.settings.releases
        first = max(0, last - (settings.sliding_window or last))
        kinds, releases = ("window", "history"), range(first, last)
        names = [f"{kind}-{j}" for kind in kinds for j in releases]
        zero = np.zeros(settings.sum_shape)
        state = self._journal.load_state()
        sums = [zero, *(state.get(name, zero) for name in names)]
        return np.asarray(np.sum(sums, axis=0))

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
        deviations = np.array([agent.deviation for agent in self.agents])
        z = deviations.shape[-1]
        deviation, its_width = deviations.reshape(*shape[:-1], 2, z).swapaxes(0, -2)
        return PolicySummary(
            settings=study.settings,
            estimate=estimates.reshape(shape),
            confidence_width=widths.reshape(shape),
            num_trials=self.num_trials,
            num_awaited=len(self._journal.trials(running=True)),
            num_timed_out=self.num_timed_out,
            num_logged=self.history.num_trials,
            outside=self.outside,
            num_releases=self.num_releases,
            num_included=included,
            num_others=max(contributors - (included > 0), 0),
            max_others=self._confidence().num_agents - 1,
            epsilon_spent=study.epsilon_spent(self.num_releases),
            warning=study.warning,
            deviation=deviation,
            deviation_width=its_width,
        )

    def wants_synchronisation(self, trigger: DeterminantTrigger) -> bool:
        """Return whether an estimator has seen enough since the last one."""
        return any(agent.wants_synchronisation(trigger) for agent in self.agents)

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play in an environment until there are so many trials.

        One that does not fit the study is in no release: see `fitting_actions`. Of a
        context that does not, an action of zeros is on record, without a reward.
        """
        for ticket, action in self.awaited.items():  # of a process that was ended
            if self._actions(environment, ticket) is not None:
                self._take(environment, ticket, action)
        for t in range(self.num_trials, num_trials):
            actions = self._actions(environment, t)
            nothing = np.zeros((1, self.study.settings.releases.dimension))
            offered = nothing if actions is None else actions
            [choice] = self.choose([Offer.of_vectors(offered)])
            if actions is None:
                self.cancel(choice.ticket)
            else:
                self._take(environment, choice.ticket, actions[choice.index])

    def _actions(self, environment: BanditEnvironment, t: int) -> FloatArray | None:
        releases = self.study.settings.releases
        about = releases.dimension, releases.max_action_norm
        return fitting_actions(environment, t, *about)

    def _take(
        self, environment: BanditEnvironment, ticket: int, action: FloatArray
    ) -> None:
        """Record a reward, unless it came too late: then the default is recorded."""
        largest = self.study.settings.releases.max_reward
        value = fitting_reward(environment, ticket, action, largest)
        with suppress(LateRewardError):
            if value is None:
                self.cancel(ticket)
            else:
                self.reward({ticket: value})


def _counted(blocks: Iterable[Encoded], outside: Counter[str]) -> Iterator[FloatArray]:
    """Yield the actions of each block, and count the values that were outside."""
    for block in blocks:
        outside.update(block.outside)
        yield block.features
