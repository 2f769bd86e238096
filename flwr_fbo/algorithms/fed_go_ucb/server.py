"""The server of Fed-GO-UCB round by round: whom it asks what, what it sends.

The algorithm is `NeuralBanditServer`'s. Agents play side by side here, an evaluation
each a round, where the paper has them take turns; and a synchronisation does not hold
them up: in the round after an agent has asked for one, all send their sums with what
they evaluate then, and in the next one they have the total. With privacy nobody asks:
they send in the rounds of a public schedule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.version import __version__
from flwr_fbo.algorithms.fed_go_ucb.phases import NeuralBanditServer
from flwr_fbo.algorithms.fed_go_ucb.settings import Sums
from flwr_fbo.algorithms.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.models.network import RewardModel
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.study.server import Server, Step


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


@dataclass(frozen=True)
class NeuralStep(Step):
    """What agents are asked in one iteration; ``release``: for an array, or not.

    Attributes
    ----------
    regresses : bool
        Whether it is a step of phase I, for which gradients are asked; else sums are.
    num_evaluations : int
        How many evaluations, of both phases, an agent should have then.
    """

    regresses: bool = False
    num_evaluations: int = 0


class FedGOUCBServer(Server):
    """Both phases, a round at a time.

    Parameters
    ----------
    study : FedGOUCBStudy
    model : RewardModel
    num_evaluations : int
        T of each agent, those of phase I included.

    Attributes
    ----------
    ledger : list of LedgerRow
        What was sent to all: the iterates of phase I, then the totals.
    heard : list of int
        How many sums have come from each agent.

    Notes
    -----
    *Formal guarantees*: with ``settings.privacy`` those of `NeuralPrivacy`, of what
    agents release; without it none. A client that lies can send any sum up to the
    length of the largest honest one, and so spoil the estimates of all.
    """

    def __init__(
        self, study: FedGOUCBStudy, model: RewardModel, num_evaluations: int
    ) -> None:
        self.study = study
        self.num_agents = study.num_agents
        self.ledger = []
        self.heard = [0] * self.num_agents
        self._num_evaluations = num_evaluations
        self._half = NeuralBanditServer(study.settings, model, study.seed)
        self._asked = False  # whether an agent has asked for a synchronisation
        explores = study.settings.num_random_actions > 0
        self._first: int | None = None if explores else 0  # iteration of phase II
        privacy = study.settings.privacy
        self._due = () if privacy is None else privacy.schedule(num_evaluations)

    def step(self, iteration: int) -> NeuralStep:
        """Decide: a step of phase I; or an evaluation more, with sums or without.

        Sums are sent once an agent has asked for that, or by a public schedule.
        """
        explored = self.study.settings.num_random_actions
        if self._first is None:
            return NeuralStep(iteration, 1, regresses=True, num_evaluations=explored)
        later = iteration + 1 - self._first
        played = min(explored + later, self._num_evaluations)
        is_over = explored + later > self._num_evaluations
        shares = not is_over and (self._asked or played - explored in self._due)
        return NeuralStep(
            iteration, int(shares), num_evaluations=played, is_over=is_over
        )

    @property
    def w0(self) -> FloatArray:
        """What phase I has found so far, shape (d_w,)."""
        return self._half.w0

    @property
    def vectors(self) -> FloatArray | None:
        """What all agents receive: w, or the total; None before the first one."""
        if self._first is None:
            return self._half.regression.w
        last = self.ledger[-1] if self.ledger else None
        return last.vectors if last is not None and last.facts["phase"] == 2 else None

    @property
    def num_steps(self) -> int:
        """Steps of phase I so far."""
        return self._half.regression.num_steps

    @property
    def num_synchronisations(self) -> int:
        """Totals so far."""
        return sum(row.facts["phase"] == 2 for row in self.ledger)

    def num_included(self, slot: int) -> int:
        """Return how many of an agent's evaluations are in the total."""
        return self._half.num_included(slot)

    def receive(self, step: Step, messages: Mapping[int, NeuralReply]) -> None:
        """Make a step of phase I; or add up, or note that somebody wants that.

        Raises
        ------
        NoGradientsError
            See `NeuralBanditServer.receive_gradients`. Nothing has changed.
        """
        assert isinstance(step, NeuralStep)
        iteration = step.iteration
        if step.regresses:
            gradients = {slot: reply.array for slot, reply in messages.items()}
            self._half.receive_gradients(gradients)
            self._record(iteration, 1, self._half.regression.w)
            if self._half.regression.is_done:
                self._first = iteration + 1
        elif step.release:
            replies = messages.items()
            sums = {slot: Sums(r.num_evaluations, r.array) for slot, r in replies}
            for slot in self._half.receive(sums):
                self.heard[slot] += 1
            self._asked = False
            self._record(iteration, 2, self._half.total)
        elif self.study.settings.privacy is None:
            wanted = (reply.wants_synchronisation for reply in messages.values())
            self._asked = any(wanted)

    def _record(self, iteration: int, phase: int, vectors: FloatArray) -> None:
        facts = {"phase": phase, "private": self.study.private, "flwr_fbo": __version__}
        self.ledger.append(LedgerRow(iteration, facts, vectors))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what is needed besides the ledger to go on, as arrays."""
        return {
            **self._half.state_dict(),
            "asked": np.array(self._asked),
            "first": np.array(-1 if self._first is None else self._first),
            "heard": np.array(self.heard),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._half.load_state_dict(state)
        self._asked = bool(state["asked"])
        first = int(state["first"])
        self._first = None if first < 0 else first
        self.heard = state["heard"].tolist()

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        s, size = self.study.settings, self.study.num_parameters
        model = "a network" if self.study.network is not None else "the clients' model"
        lines = [f"{self.num_agents} agents; {model} of {size} parameters"]
        if s.privacy is None:
            explored = s.num_random_actions
            steps = s.regression.num_iterations if explored else 0
            return [
                *lines,
                f"phase I: {explored} evaluations an agent at random, {steps} "
                "steps of gradient Langevin dynamics"
                + (" at most" if s.regression.patience else ""),
                f"phase II: sums of {size} x {size + 1} numbers, once an agent's "
                f"evaluations since the last ones are worth {s.threshold:g}",
                "NOT PRIVATE: gradients and sums of raw evaluations are sent as they "
                "are",
            ]
        rows = s.privacy.releases.dimension + 1
        lines += [
            f"{s.privacy.num_synchronisations} releases an agent of "
            f"{rows} x {rows} numbers, {s.privacy.mechanism}",
            f"epsilon {s.privacy.epsilon:g} at delta {s.privacy.delta:g} for one trial "
            "of an agent",
        ]
        if s.privacy.epsilon == math.inf:
            lines.append("NOT PRIVATE: epsilon is infinite, so there is no noise")
        elif self.study.noise_seed is not None:
            lines.append("NOT PRIVATE: the noise is seeded, for an experiment only")
        return lines


def spent_by_neural_agent(privacy: NeuralPrivacy, num_releases: int) -> PrivacySpent:
    """Return what an agent has spent that may have released something so often."""
    if num_releases == 0:
        return PrivacySpent(0.0, privacy.delta, 0, "none")
    method = "none" if privacy.epsilon == math.inf else "gdp"
    return PrivacySpent(privacy.epsilon, privacy.delta, num_releases, method)
