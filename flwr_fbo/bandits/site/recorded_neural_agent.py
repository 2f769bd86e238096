"""A Fed-GO-UCB agent with its journal, while one process holds that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.kind import NEURAL_SITE
from flwr_fbo.bandits.site.environment import (
    BanditEnvironment,
    fitting_actions,
    fitting_reward,
)
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.models.network import RewardModel
from flwr_fbo.site.recorded_agent import (
    RecordedBanditAgent,
    older_copy,
    say_left_aside,
)

_log = logging.getLogger("flwr.fbo")


class RecordedNeuralAgent(RecordedBanditAgent):
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.
    model : RewardModel, optional
        See `FedGOUCBStudy.model`.

    Attributes
    ----------
    agent : FedGOUCBAgent
        Once it has joined.
    """

    kind: ClassVar[str] = NEURAL_SITE.name
    study: FedGOUCBStudy
    agent: FedGOUCBAgent

    def __init__(self, journal: Journal, model: RewardModel | None) -> None:
        super().__init__(journal)
        self.study = FedGOUCBStudy.from_dict(journal.identity)
        self._model = self.study.model(model)

    @staticmethod
    def must_be_kept(study: FedGOUCBStudy) -> bool:
        """Whether another journal could release the same trials with other noise."""
        return study.settings.privacy is not None

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names; see `RecordedBanditAgent.join`."""
        super().join(slot, number)
        self.agent = FedGOUCBAgent(
            self.study.settings,
            self._model,
            self.study.seed,
            slot,
            num_agents=self.study.num_agents,
            entropy=self.entropy(),
            journal=self._journal,
        )
        if "own" in self._state:
            self.agent.load_state_dict(self._state)
        self._explored = int(self._state.get("num_explored", 0))

    @property
    def num_evaluations(self) -> int:
        """Evaluations of both phases together."""
        if self.agent.w0 is None:
            return self.agent.num_evaluations
        return self._explored + self.agent.num_evaluations

    def play(
        self,
        instruction: FedGOUCBInstruction,
        arrays: Sequence[FloatArray],
        environment: BanditEnvironment,
    ) -> None:
        """Take what came along, and play until there are enough evaluations.

        Raises
        ------
        ValueError, RuntimeError, FloatingPointError, JournalError
            See `FedGOUCBAgent`. What was evaluated before that is kept.
        """
        made = self._journal.num_releases
        if self.must_be_kept(self.study) and made < instruction.heard:
            # Trials that are in later releases would be played and released again.
            raise older_copy(made, instruction.heard)
        if not instruction.regresses:
            self._take(instruction, arrays)
        self._play(environment, instruction.num_evaluations)

    def answer(
        self, instruction: FedGOUCBInstruction, arrays: Sequence[FloatArray]
    ) -> list[FloatArray]:
        """Return the arrays that an instruction asks for, once it was played."""
        if instruction.regresses:
            return [self.agent.regression_message(arrays[0])]
        if not instruction.send_sums:
            return []
        return [self.agent.message(instruction.release).values]

    def _take(
        self, instruction: FedGOUCBInstruction, arrays: Sequence[FloatArray]
    ) -> None:
        """Take what came along: w0, and a total."""
        left = list(arrays)
        if instruction.starts:
            w0 = left.pop(0)
            if self.agent.w0 is None:
                self._explored = self.agent.num_evaluations
                self.agent.start(w0)
        if self.agent.w0 is None:
            raise JournalError.told(
                "This agent's journal is of phase I, and the server has told it that "
                "this is over: it is an older copy. Give the newer one back, or begin "
                "another study."
            )
        if instruction.totals:
            try:
                self.agent.receive(left.pop(0), instruction.included)
            except np.linalg.LinAlgError:
                say_left_aside()
        self._save()

    def _play(self, environment: BanditEnvironment, num_evaluations: int) -> None:
        """Play until there are so many evaluations; each is kept at once.

        With privacy one that does not fit is left out: see `fitting_actions`. Without,
        what the agent sends tells more than an error.
        """
        for t in range(self.num_evaluations, num_evaluations):
            if self.study.settings.privacy is not None:
                self._play_private(environment, t)
            else:
                actions = environment.contexts(t)
                chosen = actions[self.agent.choose(actions)]
                self.agent.tell(chosen, environment.reward(chosen))
            self._save()

    def _play_private(self, environment: BanditEnvironment, t: int) -> None:
        actions = fitting_actions(environment, t, self._model.dimension)
        try:
            if actions is not None:
                chosen = actions[self.agent.choose(actions)]
                value = fitting_reward(environment, t, chosen)
                if value is not None:
                    self.agent.tell(chosen, value)
                    return
        except FloatingPointError as error:  # of a w0 that the server has chosen
            _log.warning("Trial %d is left out: %s", t, error)
        self.agent.leave_out()

    def _save(self) -> None:
        explored = np.array(self._explored)
        self._put({**self.agent.state_dict(), "num_explored": explored})
