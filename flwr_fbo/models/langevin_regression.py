"""Gradient Langevin dynamics: the noisy gradient steps of Fed-GO-UCB's phase I.

Phase I of Fed-GO-UCB (ICLR 2024) fits w0 to what all agents have seen by

    w_{k+1} = w_k - tau1 grad L(w_k) + sqrt(2 tau1 / tau2) xi_k,    xi_k ~ N(0, I),

with step tau1 and inverse temperature tau2 (Raginsky, Rakhlin & Telgarsky, 2017). The
paper starts at w = 0 and takes the last iterate (algorithm 2). Here L is half the mean
squared error, so that a step does not depend on how many observations there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import FREE, check_fields, choice, integer, number
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.models.network import RewardModel

Keep = Literal["last", "best"]
Start = Literal["model", "zero"]


@dataclass(frozen=True)
class LangevinSettings:
    """Settings of a regression by gradient Langevin dynamics.

    Phase I of Fed-GO-UCB fits w0 to what all agents have seen by

        w_{k+1} = w_k - tau1 grad L(w_k) + sqrt(2 tau1 / tau2) xi_k,    xi_k ~ N(0, I),

    with step tau1 and inverse temperature tau2 (Raginsky, Rakhlin & Telgarsky, 2017).
    The paper starts at w = 0 and takes the last iterate (algorithm 2). Here L is half
    the mean squared error, so that a step does not depend on how many observations
    there are.

    Attributes
    ----------
    num_iterations : int
        n >= 1.
    step : float
        tau1, from 1e-9 to 1e6.
    inverse_temperature : float
        tau2, from 1e-6 to 1e30.
    keep : {"last", "best"}
        The last iterate, w_n, as printed; or, of those before, the one of least loss.
    patience : int
        >= 0: stop early, once the least loss is so many iterations old. 0 never does.
    start : {"model", "zero"}
        The first iterate: `RewardModel.initial`, or w = 0 as in algorithm 2, line 1.
        At zero all hidden units of a `Network` are equal: only noise tells them apart.

    Notes
    -----
    The best iterate, and stopping early, need the losses: one more scalar an agent and
    iteration.
    """

    num_iterations: int = field(default=200, metadata=integer(1, cap=FREE))
    step: float = field(default=0.1, metadata=number(1e-9, 1e6))
    inverse_temperature: float = field(default=1e6, metadata=number(1e-6, 1e30))
    keep: Keep = field(default="last", metadata=choice(Keep))
    patience: int = field(default=0, metadata=integer(0, cap=FREE))
    start: Start = field(default="model", metadata=choice(Start))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs_losses(self) -> bool:
        """True if `LangevinDynamics.advance` needs the loss."""
        return self.keep == "best" or self.patience > 0

    def initial(self, model: RewardModel, seed: int) -> FloatArray:
        """Return the first iterate of a study: the same for all who know its seed."""
        if self.start == "zero":
            return np.zeros(model.num_parameters)
        return model.initial(generator(seed, Purpose.LANGEVIN))


class LangevinDynamics:
    """One regression, step by step: the caller computes the gradients.

    Parameters
    ----------
    settings : LangevinSettings
        Step sizes, temperature and end of the regression.
    w : ndarray of shape (d_w,)
        First iterate.
    seed : int
        Seed of the noise. Each step has noise of its own, so that a regression that was
        stopped goes on with the noise that it would have had.

    Attributes
    ----------
    w : ndarray of shape (d_w,)
        The iterate: where the next gradient is wanted.
    num_steps : int
        Steps so far.
    """

    def __init__(self, settings: LangevinSettings, w: FloatArray, seed: int) -> None:
        self.settings = settings
        self.w: FloatArray = np.array(w)
        self.num_steps = 0
        self._seed = seed
        self._best = self.w
        self._least_loss = math.inf
        self._best_step = 0

    @property
    def is_done(self) -> bool:
        """True if all steps are made, or the loss has not fallen for too long."""
        s, since = self.settings, self.num_steps - 1 - self._best_step
        return self.num_steps >= s.num_iterations or 0 < s.patience <= since

    @property
    def result(self) -> FloatArray:
        """The iterate that is kept so far, shape (d_w,)."""
        return self._best if self.settings.keep == "best" else self.w

    def advance(self, gradient: FloatArray, loss: float = math.nan) -> None:
        """Make a step.

        Parameters
        ----------
        gradient : ndarray of shape (d_w,)
            Gradient of L at `w`.
        loss : float
            L at `w`; of use only where losses are needed.

        Raises
        ------
        FloatingPointError
            If it leads to no finite numbers. The iterate stays where it is.
        """
        s = self.settings
        rng = generator(self._seed, self.num_steps + 1, Purpose.LANGEVIN)
        noise = math.sqrt(2 * s.step / s.inverse_temperature)
        with np.errstate(over="ignore", invalid="ignore"):
            after = self.w - s.step * gradient
            after += noise * rng.standard_normal(len(self.w))
        if not np.isfinite(after).all():
            raise FloatingPointError(
                f"Step {self.num_steps + 1} of gradient Langevin dynamics leads to "
                f"parameters that are not finite: step={s.step} is too large, or "
                f"inverse_temperature={s.inverse_temperature} too small."
            )
        if loss < self._least_loss:
            self._best, self._least_loss = self.w, loss
            self._best_step = self.num_steps
        self.w = after
        self.num_steps += 1

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where it is, as arrays."""
        return {
            "w": self.w.copy(),
            "num_steps": np.array(self.num_steps),
            "best": self._best.copy(),
            "least_loss": np.array(self._least_loss),
            "best_step": np.array(self._best_step),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.w = np.array(state["w"])
        self.num_steps = int(state["num_steps"])
        self._best = np.array(state["best"])
        self._least_loss = float(state["least_loss"])
        self._best_step = int(state["best_step"])
