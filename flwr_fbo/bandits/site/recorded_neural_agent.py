"""A Fed-GO-UCB agent with its journal, while one process holds that.

`NeuralBelief` says what it keeps there, besides its decisions and releases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Self

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import number
from flwr_fbo.bandits.fed_go_ucb.server import spent_by_neural_agent
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.kind import NEURAL_SITE
from flwr_fbo.bandits.site.deciding_agent import DecidingAgent
from flwr_fbo.bandits.site.decisions_and_rewards import DecisionLog
from flwr_fbo.bandits.site.environment import BanditEnvironment, fitting_reward
from flwr_fbo.bandits.site.neural_belief import NeuralBelief
from flwr_fbo.bandits.site.policy_summary import NeuralPolicySummary
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.models.network import RewardModel
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.site.recorded_agent import older_copy, say_left_aside


class RecordedNeuralAgent(DecidingAgent):
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    model : RewardModel, optional
        See `FedGOUCBStudy.model`.
    """

    kind: ClassVar[str] = NEURAL_SITE.name
    study: FedGOUCBStudy
    belief: NeuralBelief

    def __init__(self, journal: Journal, model: RewardModel | None = None) -> None:
        super().__init__(journal)
        self.study = FedGOUCBStudy.from_dict(journal.identity)
        self._given_model, self._model = model, self.study.model(model)
        self.belief = NeuralBelief(self.study, self._model, journal, self.state)
        timeout = self.study.settings.reward_timeout
        self.decisions = DecisionLog(journal, timeout, self.state, self.belief)

    def renewed(self, journal: Journal) -> Self:
        """Return the agent as its journal is now; see `DecidingAgent.renewed`."""
        renewed = type(self)(journal, self._given_model)
        renewed.belief.take_agent(self.belief)
        renewed.decisions.take_sets(self.decisions)
        return renewed

    @staticmethod
    def must_be_kept(study: FedGOUCBStudy) -> bool:
        """Whether another journal could release the same trials with other noise."""
        return study.settings.privacy is not None

    @property
    def action_bounds(self) -> tuple[int, float]:
        """Dimension of an action, and its largest norm: any."""
        return self._model.dimension, math.inf

    @property
    def reward_range(self) -> tuple[float, float]:
        """Range that rewards are clipped to with privacy; else any reward counts."""
        privacy = self.study.settings.privacy
        return (-math.inf, math.inf) if privacy is None else privacy.reward_range

    def summary(self) -> NeuralPolicySummary:
        """Return what the agent has learned, and what that is made of."""
        self.decisions.expire()
        privacy = self.study.settings.privacy
        spent, warning = (
            0.0,
            "NOT PRIVATE: sums of raw evaluations are sent as they are",
        )
        if privacy is not None:
            spent = spent_by_neural_agent(privacy, self.num_releases).epsilon
            seeded = "NOT PRIVATE: the noise is seeded, or epsilon is infinite"
            warning = "" if self.study.private else seeded
        elif self.belief.num_arrived:
            spent = math.inf
        included = int(self.state.get("included", 0))
        return NeuralPolicySummary(
            settings=self.study.settings,
            phase=1 if self.belief.agent.w0 is None else 2,
            num_trials=self.num_trials,
            num_awaited=len(self._journal.trials(running=True)),
            num_timed_out=self.decisions.num_timed_out,
            num_rewarded=self.belief.num_arrived,
            num_releases=self.num_releases,
            num_included=included if privacy is None else None,
            has_total="total" in self.state,
            epsilon_spent=spent,
            warning=warning,
        )

    # What a server asks for

    def receive(
        self, instruction: FedGOUCBInstruction, arrays: Sequence[FloatArray]
    ) -> None:
        """Take what came along: w0, and a total.

        Raises
        ------
        ValueError, RuntimeError, FloatingPointError, JournalError
            See `FedGOUCBAgent`.
        """
        made = self._journal.num_releases
        if self.must_be_kept(self.study) and made < instruction.heard:
            # Trials that are in later releases would be played and released again.
            raise older_copy(made, instruction.heard)
        if instruction.regresses:
            return
        left = list(arrays)
        if instruction.starts:
            w0 = left.pop(0)
            if self.belief.agent.w0 is None:
                self._put(self.belief.start(w0))
        if self.belief.agent.w0 is None:
            raise JournalError.told(
                "This agent's journal is of phase I, and the server has told it that "
                "this is over: it is an older copy. Give the newer one back, or begin "
                "another study."
            )
        if instruction.totals:
            try:
                total = self.belief.receive(left.pop(0), instruction.included)
            except np.linalg.LinAlgError:
                say_left_aside()
            else:
                self._put(total)

    def message(
        self, instruction: FedGOUCBInstruction, arrays: Sequence[FloatArray]
    ) -> list[FloatArray]:
        """Return the arrays that an instruction asks for, once it was played."""
        self.decisions.expire()
        if instruction.regresses:
            # A site that decides by itself may have no reward yet.
            known = self.belief.num_arrived > 0
            agent = self.belief.agent
            return [agent.regression_message(arrays[0])] if known else []
        if not instruction.send_sums:
            return []
        if self.study.settings.privacy is None:
            return [self.belief.own]
        return [self._mechanism.release(instruction.release, self.belief.own)]

    @cached_property
    def _mechanism(self) -> ContinualRelease:
        privacy = self.study.settings.privacy
        assert privacy is not None
        return ContinualRelease(privacy.releases, self.entropy(), self._journal)

    # An environment

    def actions_of(self, environment: BanditEnvironment, t: int) -> FloatArray | None:
        """Return the actions of trial t; with privacy None if it is left out.

        Without, what the agent sends tells more than an error.
        """
        if self.study.settings.privacy is None:
            return environment.contexts(t)
        return super().actions_of(environment, t)

    def reward_of(
        self, environment: BanditEnvironment, t: int, action: FloatArray
    ) -> float | None:
        """Return what an action gives; with privacy None if it is left out."""
        if self.study.settings.privacy is None:
            return number("reward", environment.reward(action))
        return fitting_reward(environment, t, action)  # it is clipped where it counts
