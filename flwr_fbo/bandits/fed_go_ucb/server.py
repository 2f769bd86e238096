"""The server of Fed-GO-UCB: w0 in phase I, sums in phase II, round by round.

Phase I: it sends w, agents answer with the gradients of their own losses, and the mean
of these makes a step of gradient Langevin dynamics. Phase II: agents send their sums,
and get back the total. See `flwr_fbo.bandits.fed_go_ucb.agent`.

Agents play side by side here, an evaluation each a round, where the paper has them take
turns; and a synchronisation does not hold them up: in the round after an agent has
asked for one, all send their sums with what they evaluate then, and in the next one
they have the total. With privacy nobody asks: they send in the rounds of a public
schedule.

An absent agent, or one whose message is malformed, is left out of a step; in the total
its last valid sums stay.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.version import __version__
from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply, NeuralPrivacy
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.models.langevin_regression import LangevinDynamics
from flwr_fbo.models.network import RewardModel
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee
from flwr_fbo.study.codec import is_array, is_raw_sum, is_release
from flwr_fbo.study.server import Server, Step

_log = logging.getLogger("flwr.fbo")

# How far a step of the regression may go, over 1 + the norm of where it starts.
_LONGEST_STEP = 100.0
# Before the names of the regression's arrays in the server's state.
_REGRESSION = "regression-"
# Terms of the epsilon of an agent's releases.
_TERMS = Guarantee(EXAMPLE, "local")


class FedGOUCBServer(Server):
    """Both phases, a round at a time.

    Parameters
    ----------
    study : FedGOUCBStudy
        The study, as all agents are told it.
    model : RewardModel
        With the study's number of parameters.
    num_evaluations : int
        T of each agent, those of phase I included.
    at_own_pace : bool
        Whether sites decide at their own pace. The first iteration only enrols them
        then, and one in which no site has a reward yet is no step of phase I.

    Attributes
    ----------
    ledger : list of LedgerRow
        Messages to all: the iterates of phase I, then the totals.
    heard : list of int
        Number of sums that have come from each agent.
    regression : LangevinDynamics
        Phase I. Its own noise protects nobody: it is as small as the temperature
        says, and known to all.

    Notes
    -----
    *Formal guarantees*: with ``settings.privacy`` those of `NeuralPrivacy`, of what
    agents release; without it none. A client that lies can send any sum up to the
    length of the largest honest one, and so spoil the estimates of all.
    """

    def __init__(
        self,
        study: FedGOUCBStudy,
        model: RewardModel,
        num_evaluations: int,
        *,
        at_own_pace: bool = False,
    ) -> None:
        self.study = study
        self.num_agents = study.num_agents
        self.ledger = []
        self.heard = [0] * self.num_agents
        self._num_evaluations = num_evaluations
        self._asked = False  # whether an agent has asked for a synchronisation
        settings, privacy = study.settings, study.settings.privacy
        explores = settings.num_random_actions > 0
        self._at_own_pace = at_own_pace
        # Iteration of phase II.
        self._first: int | None = None if explores else int(at_own_pace)
        self._due = () if privacy is None else privacy.schedule(num_evaluations)
        # Made once, and not for each message: they hold a factorisation.
        self._releases = None if privacy is None else privacy.releases
        start = settings.regression.initial(model, study.seed)
        longest_step = _LONGEST_STEP * (1 + float(np.linalg.norm(start)))
        self._longest_gradient = longest_step / settings.regression.step
        self.regression = LangevinDynamics(settings.regression, start, study.seed)
        self._sums: dict[int, AgentReply] = {}

    @property
    def regresses(self) -> bool:
        """True in phase I, in which agents send gradients; later they send sums."""
        return self._first is None

    def evaluations_after(self, iteration: int) -> int:
        """Return how many evaluations, of both phases, an agent should have then."""
        explored = self.study.settings.num_random_actions
        later = 0 if self._first is None else iteration + 1 - self._first
        return min(explored + later, self._num_evaluations)

    def step(self, iteration: int) -> Step:
        """Decide: a step of phase I; or an evaluation more, with sums or without.

        Sums are sent once an agent has asked for that, or by a public schedule.
        """
        if self._first is None:
            return Step(iteration, 1)
        explored = self.study.settings.num_random_actions
        later = iteration + 1 - self._first
        is_over = explored + later > self._num_evaluations
        shares = not is_over and (self._asked or later in self._due)
        return Step(iteration, int(shares), is_over=is_over)

    @property
    def w0(self) -> FloatArray:
        """Parameters that phase I has found so far, shape (d_w,)."""
        return self.regression.result

    @property
    def vectors(self) -> FloatArray | None:
        """Message to all agents: w, or the total; None before the first one."""
        if self._first is None:
            return self.regression.w
        last = self.ledger[-1] if self.ledger else None
        return last.vectors if last is not None and last.facts["phase"] == 2 else None

    @property
    def num_synchronisations(self) -> int:
        """Totals so far."""
        return sum(row.facts["phase"] == 2 for row in self.ledger)

    def receive(self, step: Step, messages: Mapping[int, AgentReply]) -> None:
        """Make a step of phase I; or add up, or note that somebody wants that.

        Raises
        ------
        FloatingPointError
            See `receive_gradients`. Nothing has changed.
        """
        if self.regresses:
            gradients = {slot: reply.values for slot, reply in messages.items()}
            if self._at_own_pace and all(g is None for g in gradients.values()):
                _log.info("No site has a reward yet: phase I waits.")
                return
            self.receive_gradients(gradients)
            self._record(step.iteration, 1, self.regression.w)
            if self.regression.is_done:
                self._first = step.iteration + 1
        elif step.release:
            for slot in self.receive_sums(messages):
                self.heard[slot] += 1
            self._asked = False
            self._record(step.iteration, 2, self.total)
        elif self.study.settings.privacy is None:
            wanted = (reply.wants_synchronisation for reply in messages.values())
            self._asked = any(wanted)

    def _record(self, iteration: int, phase: int, vectors: FloatArray) -> None:
        facts = {"phase": phase, "private": self.study.private, "flwr_fbo": __version__}
        self.ledger.append(LedgerRow(iteration, facts, vectors))

    # Phase I

    def receive_gradients(self, messages: Mapping[int, Any]) -> list[int]:
        """Make a step of phase I with the mean of the gradients that have come.

        Returns the slots that they came from.

        Parameters
        ----------
        messages : mapping of int to ndarray of shape (d_w,), or (d_w + 1,)
            By slot; each a `FedGOUCBAgent.regression_message` at ``regression.w``.

        Raises
        ------
        FloatingPointError
            If there is none. Nothing has changed, and the step can be tried again.
        """
        step = self.regression.num_steps + 1
        needs_losses = self.study.settings.regression.needs_losses
        shape = (self.study.num_parameters + needs_losses,)
        good = {}
        for slot in sorted(messages):
            message = messages[slot]
            # With a loss at its end, which no honest agent has below 0.
            if is_array(message, shape) and not (needs_losses and message[-1] < 0):
                good[slot] = self._shortened(slot, message)
            else:
                _log.warning("\t> agent %d: no gradient in step %d", slot, step)
        if not good:
            raise FloatingPointError(
                f"Step {step} of phase I: none of {len(messages)} answers is a finite "
                "gradient. The regression is where it was before."
            )
        mean = np.mean(list(good.values()), axis=0)
        if needs_losses:
            self.regression.advance(mean[:-1], float(mean[-1]))
        else:
            self.regression.advance(mean)
        return list(good)

    def _shortened(self, slot: int, message: FloatArray) -> FloatArray:
        """Return a message with its gradient no longer than the longest.

        A longer one alone could take w so far that others stop being finite.
        """
        size = self.study.num_parameters
        gradient = message[:size]
        length, longest = np.linalg.norm(gradient), self._longest_gradient
        if length <= longest:
            return message
        _log.warning(
            "\t> agent %d: its gradient is %.3g long, and counts as %.3g. If those of "
            "most agents are, step=%g is too large.",
            slot,
            length,
            longest,
            self.study.settings.regression.step,
        )
        return np.append(gradient * (longest / length), message[size:])

    # Phase II

    def receive_sums(self, messages: Mapping[int, Any]) -> list[int]:
        """Put the sums that have come in the place of those before.

        Returns the slots that they came from.

        Parameters
        ----------
        messages : mapping of int to AgentReply
            By slot. One with fewer evaluations than are here is late, and left out.
        """
        taken = []
        for slot, message in messages.items():
            values = message.values if isinstance(message, AgentReply) else None
            if self._releases is None:
                is_valid = is_raw_sum(values, self._shape)
            else:
                is_valid = is_release(values, self._releases)
            if not is_valid:
                _log.warning("\t> agent %d: its message is not a valid sum", slot)
            elif message.num_evaluations >= self.num_included(slot):
                self._sums[slot] = message
                taken.append(slot)
        return taken

    @property
    def _shape(self) -> tuple[int, int]:
        return self.study.settings.sums_shape(self.study.num_parameters)

    def num_included(self, slot: int) -> int:
        """Return how many of an agent's evaluations are in the total."""
        return self._sums[slot].num_evaluations if slot in self._sums else 0

    @property
    def total(self) -> FloatArray:
        """The sums over all agents, of the shape of `AgentReply`."""
        total = np.zeros(self._shape)
        for slot in sorted(self._sums):  # the last bits do not depend on who was first
            total += self._sums[slot].values
        return total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what is needed besides the ledger to go on, as arrays."""
        slots = sorted(self._sums)
        values = [self._sums[slot].values for slot in slots]
        regression = self.regression.state_dict()
        return {
            **{f"{_REGRESSION}{name}": array for name, array in regression.items()},
            "slots": np.array(slots, dtype=np.int64),
            "num_evaluations": np.array([self.num_included(slot) for slot in slots]),
            "sums": np.array(values).reshape(-1, *self._shape),
            "asked": np.array(self._asked),
            "first": np.array(-1 if self._first is None else self._first),
            "heard": np.array(self.heard),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.regression.load_state_dict(
            {
                name.removeprefix(_REGRESSION): array
                for name, array in state.items()
                if name.startswith(_REGRESSION)
            }
        )
        counts = state["num_evaluations"].tolist()
        rows = zip(state["slots"].tolist(), counts, state["sums"], strict=True)
        self._sums = {slot: AgentReply(n, np.array(sums)) for slot, n, sums in rows}
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
            _TERMS.text(s.privacy.epsilon, s.privacy.delta),
        ]
        if s.privacy.epsilon == math.inf:
            lines.append("NOT PRIVATE: epsilon is infinite, so there is no noise")
        elif self.study.noise_seed is not None:
            lines.append("NOT PRIVATE: the noise is seeded, for an experiment only")
        return lines


def spent_by_neural_agent(privacy: NeuralPrivacy, num_releases: int) -> PrivacySpent:
    """Return what an agent has spent that may have released something so often."""
    if num_releases == 0:
        return PrivacySpent(0.0, privacy.delta, 0, "none", guarantee=_TERMS)
    method = "none" if privacy.epsilon == math.inf else "gdp"
    about = privacy.epsilon, privacy.delta, num_releases, method
    return PrivacySpent(*about, guarantee=_TERMS)
