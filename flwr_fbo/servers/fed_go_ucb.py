"""The server of Fed-GO-UCB as a strategy runs it: one answer of every agent a round.

The algorithm is `NeuralBanditServer`'s. Agents play side by side here, an evaluation
each a round, where the paper has them take turns; and a synchronisation does not hold
them up: in the round after an agent has asked for one, all send their sums with what
they evaluate then, and in the next one they have the total.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo import __version__
from flwr_fbo.agents.neural_study import NeuralBanditStudy
from flwr_fbo.agents.neural_ucb import Sums
from flwr_fbo.journal import LedgerRow
from flwr_fbo.models.network import RewardModel
from flwr_fbo.servers.neural_bandit import NeuralBanditServer

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NeuralReply:
    """What an agent has answered.

    Attributes
    ----------
    array : ndarray, or None
        Its gradient, or its sums; None without.
    num_evaluations : int
        Of phase II, so far.
    wants_synchronisation : bool
    """

    array: Any
    num_evaluations: int
    wants_synchronisation: bool


class FedGOUCBServer:
    """Both phases, a round at a time.

    Parameters
    ----------
    study : NeuralBanditStudy
    model : RewardModel

    Attributes
    ----------
    ledger : list of LedgerRow
        What was sent to all: the iterates of phase I, then the totals.
    sums_wanted : bool
        Whether agents are to send their sums in the next round.

    Notes
    -----
    *Formal guarantees*: none. Gradients and sums are of raw evaluations.
    """

    def __init__(self, study: NeuralBanditStudy, model: RewardModel) -> None:
        self.study = study
        self.ledger: list[LedgerRow] = []
        self.sums_wanted = False
        self._half = NeuralBanditServer(study.settings, model, study.seed)

    @property
    def num_agents(self) -> int:
        """N, the slots of the study."""
        return self.study.settings.num_agents

    @property
    def in_regression(self) -> bool:
        """Whether phase I goes on."""
        explores = self.study.settings.num_exploration > 0
        return explores and not self._half.regression.is_done

    @property
    def w0(self) -> FloatArray:
        """What phase I has found so far, shape (d_w,)."""
        return self._half.w0

    @property
    def vectors(self) -> FloatArray | None:
        """What all agents receive: w, or the total; None before the first one."""
        if self.in_regression:
            return self._half.regression.w
        last = self.ledger[-1] if self.ledger else None
        return last.vectors if last is not None and last.facts["phase"] == 2 else None

    @property
    def num_synchronisations(self) -> int:
        """Totals so far."""
        return sum(row.facts["phase"] == 2 for row in self.ledger)

    def num_included(self, slot: int) -> int:
        """Return how many of an agent's evaluations are in the total."""
        return self._half.num_included(slot)

    def wants_messages(self, iteration: int) -> bool:
        """Return whether agents are asked for an array now."""
        return self.in_regression or self.sums_wanted

    def receive(self, iteration: int, messages: Mapping[int, NeuralReply]) -> None:
        """Make a step of phase I; or add up, or note that somebody wants that.

        Raises
        ------
        NoGradients, FloatingPointError
            See `NeuralBanditServer.receive_gradients`. Nothing has changed.
        """
        if self.in_regression:
            gradients = {slot: reply.array for slot, reply in messages.items()}
            self._half.receive_gradients(gradients)
            self._record(iteration, 1, self._half.regression.w)
        elif self.sums_wanted:
            self._half.receive(
                {slot: Sums(r.num_evaluations, r.array) for slot, r in messages.items()}
            )
            self.sums_wanted = False
            self._record(iteration, 2, self._half.total)
        else:
            wanted = (reply.wants_synchronisation for reply in messages.values())
            self.sums_wanted = any(wanted)

    def _record(self, iteration: int, phase: int, vectors: FloatArray) -> None:
        facts = {"phase": phase, "private": False, "flwr_fbo": __version__}
        self.ledger.append(LedgerRow(iteration, facts, vectors))

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run sent."""
        self.ledger = list(ledger)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what is needed besides the ledger to go on, as arrays."""
        return {**self._half.state_dict(), "sums_wanted": np.array(self.sums_wanted)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._half.load_state_dict(state)
        self.sums_wanted = bool(state["sums_wanted"])

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        s, size = self.study.settings, self.study.num_parameters
        model = "a network" if self.study.network is not None else "the clients' model"
        steps = s.regression.num_iterations if s.num_exploration else 0
        return [
            f"{s.num_agents} agents; {model} of {size} parameters",
            f"phase I: {s.num_exploration} evaluations an agent at random, {steps} "
            "steps of gradient Langevin dynamics",
            f"phase II: sums of {size} x {size + 1} numbers, once an agent's "
            f"evaluations since the last ones are worth {s.threshold:g}",
            "NOT PRIVATE: gradients and sums of raw evaluations are sent as they are",
        ]
