"""What the server of Fed-GO-UCB computes: w0 in phase I, sums in phase II.

Phase I: it sends w, agents answer with the gradients of their own losses, and the mean
of these makes a step of gradient Langevin dynamics. Phase II: agents send their sums,
and get back the total. See `flwr_fbo.algorithms.fed_go_ucb.agent`.

An agent that is away, or sends what is no such message, is left out of a step, and is
in the total with what it sent last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.algorithms.fed_go_ucb.settings import FedGOUCBSettings, Sums
from flwr_fbo.models.network import LangevinDynamics, RewardModel
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.study.codec import is_array, is_raw_sum, is_release

_log = logging.getLogger("flwr.fbo")


# How far a step of the regression may go, over 1 + the norm of where it starts.
_LONGEST_STEP = 100.0


class NoGradientsError(RuntimeError):
    """In an iteration of phase I no agent has sent a gradient."""


class NeuralBanditServer:
    """Both phases' server half.

    Parameters
    ----------
    settings : FedGOUCBSettings
    model : RewardModel
    seed : int
        Of the study.

    Attributes
    ----------
    regression : LangevinDynamics
        Phase I. Its own noise is no privacy: it is as small as the temperature says,
        and known to all.

    Notes
    -----
    *Formal guarantees*: with ``settings.privacy`` those of the agents' releases, of
    which all here is a function; without it none.
    """

    def __init__(
        self, settings: FedGOUCBSettings, model: RewardModel, seed: int
    ) -> None:
        self.settings = settings
        self._size = model.num_parameters
        self._shape = settings.sums_shape(self._size)
        # Made once, and not for each message: they hold a factorisation.
        self._releases: ContinualSettings | None = None
        if settings.privacy is not None:
            self._releases = settings.privacy.releases
        start = settings.regression.initial(model, seed)
        longest_step = _LONGEST_STEP * (1 + float(np.linalg.norm(start)))
        self._longest_gradient = longest_step / settings.regression.step
        self.regression = LangevinDynamics(settings.regression, start, seed)
        self._sums: dict[int, Sums] = {}

    def receive_gradients(self, messages: Mapping[int, Any]) -> list[int]:
        """Make a step of phase I with the mean of the gradients that have come.

        Returns the slots that they came from.

        Parameters
        ----------
        messages : mapping of int to ndarray of shape (d_w,), or (d_w + 1,)
            By slot; each a `FedGOUCBAgent.regression_message` at ``regression.w``.

        Raises
        ------
        NoGradientsError
            If there is none. Nothing has changed, and the step can be tried again.
        """
        step = self.regression.num_steps + 1
        good = {}
        for slot in sorted(messages):
            if self._is_gradient(messages[slot]):
                good[slot] = self._shortened(slot, messages[slot])
            else:
                _log.warning("\t> agent %d: no gradient in step %d", slot, step)
        if not good:
            raise NoGradientsError(
                f"Step {step} of phase I: none of {len(messages)} answers is a finite "
                "gradient. The regression is where it was before."
            )
        mean = np.mean(list(good.values()), axis=0)
        if self.settings.regression.needs_losses:
            self.regression.advance(mean[:-1], float(mean[-1]))
        else:
            self.regression.advance(mean)
        return list(good)

    def _is_gradient(self, message: Any) -> bool:
        """Return whether an honest agent may send it in phase I."""
        if not self.settings.regression.needs_losses:
            return is_array(message, (self._size,))
        return is_array(message, (self._size + 1,)) and message[-1] >= 0

    def _shortened(self, slot: int, message: FloatArray) -> FloatArray:
        """Return a message with its gradient no longer than the longest.

        One that is longer would, alone, take w so far that others may be finite no
        more.
        """
        gradient = message[: self._size]
        length, longest = np.linalg.norm(gradient), self._longest_gradient
        if length <= longest:
            return message
        _log.warning(
            "\t> agent %d: its gradient is %.3g long, and counts as %.3g. If those of "
            "most agents are, step=%g is too large.",
            slot,
            length,
            longest,
            self.settings.regression.step,
        )
        return np.append(gradient * (longest / length), message[self._size :])

    def _is_sum(self, values: Any) -> bool:
        """Return whether an honest agent may send it in phase II."""
        if self._releases is not None:
            return is_release(values, self._releases)
        return is_raw_sum(values, self._shape)

    @property
    def w0(self) -> FloatArray:
        """What phase I has found, shape (d_w,)."""
        return self.regression.result

    def receive(self, messages: Mapping[int, Any]) -> list[int]:
        """Put the sums that have come in the place of those before.

        Returns the slots that they came from.

        Parameters
        ----------
        messages : mapping of int to Sums
            By slot. One with fewer evaluations than are here is late, and left out.
        """
        taken = []
        for slot, message in messages.items():
            if not (isinstance(message, Sums) and self._is_sum(message.values)):
                _log.warning("\t> agent %d: its message is not a valid sum", slot)
            elif message.num_evaluations >= self.num_included(slot):
                self._sums[slot] = message
                taken.append(slot)
        return taken

    def num_included(self, slot: int) -> int:
        """Return how many of an agent's evaluations are in the total."""
        return self._sums[slot].num_evaluations if slot in self._sums else 0

    @property
    def total(self) -> FloatArray:
        """The sums over all agents, of the shape of `Sums`."""
        total = np.zeros(self._shape)
        for slot in sorted(self._sums):  # the last bits do not depend on who was first
            total += self._sums[slot].values
        return total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that is needed to go on, as arrays."""
        slots = sorted(self._sums)
        values = [self._sums[slot].values for slot in slots]
        return {
            **{f"regression-{k}": v for k, v in self.regression.state_dict().items()},
            "slots": np.array(slots, dtype=np.int64),
            "num_evaluations": np.array([self.num_included(slot) for slot in slots]),
            "sums": np.array(values).reshape(-1, *self._shape),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        prefix = "regression-"
        self.regression.load_state_dict(
            {k.removeprefix(prefix): v for k, v in state.items() if prefix in k}
        )
        counts = state["num_evaluations"].tolist()
        rows = zip(state["slots"].tolist(), counts, state["sums"], strict=True)
        self._sums = {slot: Sums(int(n), np.array(v)) for slot, n, v in rows}
