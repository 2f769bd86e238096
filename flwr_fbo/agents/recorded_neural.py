"""An agent of Fed-GO-UCB and its journal, while one process holds that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.agents.neural_study import NeuralBanditStudy, NeuralInstruction
from flwr_fbo.agents.neural_ucb import NeuralUCBAgent
from flwr_fbo.agents.policy import BanditEnvironment
from flwr_fbo.journal import Journal, JournalError
from flwr_fbo.models.network import RewardModel

FloatArray = NDArray[np.float64]

FILE_NAME, KIND = "neural-bandit.sqlite", "neural-bandit"


def neural_identity(study: NeuralBanditStudy) -> dict[str, Any]:
    """Return what the journal of an agent belongs to, as JSON values."""
    return {"kind": KIND, **study.to_dict()}


class RecordedNeuralAgent:
    """One agent that lives in a journal between messages.

    A message that is asked for again, because its answer was lost, is answered again:
    nothing is evaluated twice.

    Parameters
    ----------
    journal : Journal
        With `neural_identity`.
    slot : int
        The agent's.
    model : RewardModel, optional
        See `NeuralBanditStudy.model`.

    Raises
    ------
    JournalError
        If the journal is of another slot.
    """

    def __init__(self, journal: Journal, slot: int, model: RewardModel | None) -> None:
        journal.require_kind(KIND)
        study = NeuralBanditStudy.from_dict(journal.identity)
        self._journal, self._slot = journal, slot
        self.agent = NeuralUCBAgent(
            study.settings, study.model(model), study.seed, slot
        )
        state = journal.load_state()
        if state:
            known = int(state["slot"])
            if known != slot:
                raise JournalError(f"This is the journal of agent {known}, not {slot}.")
            self.agent.load_state_dict(state)
        self._explored = int(state.get("num_explored", 0))

    @property
    def num_evaluations(self) -> int:
        """Of both phases together."""
        if self.agent.w0 is None:
            return self.agent.num_evaluations
        return self._explored + self.agent.num_evaluations

    def carry_out(
        self,
        instruction: NeuralInstruction,
        arrays: Sequence[FloatArray],
        environment: BanditEnvironment,
    ) -> list[FloatArray]:
        """Do what is asked; return the arrays of the answer.

        Raises
        ------
        ValueError, RuntimeError, FloatingPointError
            See `NeuralUCBAgent`. What was evaluated before that is kept.
        """
        if not instruction.regresses:
            self._take(instruction, arrays)
        self._play(environment, instruction.num_evaluations)
        if instruction.regresses:
            return [self.agent.regression_message(arrays[0])]
        return [self.agent.message().values] if instruction.send_sums else []

    def _take(
        self, instruction: NeuralInstruction, arrays: Sequence[FloatArray]
    ) -> None:
        """Take what came along: w0, and a total."""
        left = list(arrays)
        if instruction.starts:
            w0 = left.pop(0)
            if self.agent.w0 is None:
                self._explored = self.agent.num_evaluations
                self.agent.start(w0)
        if instruction.totals:
            self.agent.receive(left.pop(0), instruction.included)
        self._save()

    def _play(self, environment: BanditEnvironment, num_evaluations: int) -> None:
        """Play until there are so many evaluations; each is kept at once."""
        for t in range(self.num_evaluations, num_evaluations):
            actions = environment.contexts(t)
            chosen = actions[self.agent.choose(actions)]
            self.agent.tell(chosen, environment.reward(chosen))
            self._save()

    def _save(self) -> None:
        extra = {
            "slot": np.array(self._slot),
            "num_explored": np.array(self._explored),
        }
        self._journal.save_state({**self.agent.state_dict(), **extra})
