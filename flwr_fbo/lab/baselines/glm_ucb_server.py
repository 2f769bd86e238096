"""The server of Fed-GLB-UCB: accelerated gradient descent on the loss of all agents.

Li & Wang (NeurIPS 2022), algorithm 1; see the agent's module. A synchronisation
of N agents whose x have d coordinates, with k gradients, takes

    N d^2 (sums of x x', up) + 2 N d k (points, gradients) + N (d^2 + d) (result, down)

scalars. In simulations every agent answers; so what is no answer is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.validation import require
from flwr_fbo.lab.baselines.glm import AcceleratedDescent
from flwr_fbo.lab.baselines.glm_ucb_settings import GLMUCBSettings, Gram
from flwr_fbo.study.codec import is_array, is_sum


class GLMBanditServer:
    """`receive` what agents send first; then `receive_gradients` until it `is_done`.

    Parameters
    ----------
    settings : GLMUCBSettings
    dimension : int
        D, an action's coordinates.

    Attributes
    ----------
    gram : ndarray of shape (d, d)
        Sum of x x' over all agents, d = D + 1.
    """

    def __init__(self, settings: GLMUCBSettings, dimension: int) -> None:
        self.settings = settings
        self.gram: FloatArray = np.zeros((dimension + 1, dimension + 1))
        self._descent: AcceleratedDescent | None = None

    @property
    def point(self) -> FloatArray:
        """Where gradients are needed; what came out, once it `is_done`: shape (d,)."""
        if self._descent is None:
            return np.zeros(len(self.gram))
        return self._descent.point

    @property
    def is_done(self) -> bool:
        """Whether no more gradients are needed."""
        return self._descent is None or self._descent.is_done

    @one_blas_thread
    def receive(self, messages: Sequence[Gram]) -> None:
        """Begin a descent, where the last one ended, from one message an agent.

        The sums bound the eigenvalues of the loss's Hessian, from above with the
        largest slope of the link, from below with c_mu.

        Raises
        ------
        ValueError
            If one is no sum of x x'.
        """
        size, settings = len(self.gram), self.settings
        for message in messages:
            ok = is_sum(message.values, (size, size))
            allowed = f"a finite, symmetric array of shape {(size, size)}"
            require(ok, "message", message.values, allowed)
        self.gram = np.sum([message.values for message in messages], axis=0)
        count = max(sum(message.num_evaluations for message in messages), 1)
        eigenvalues = np.linalg.eigvalsh(self.gram)
        self._descent = AcceleratedDescent(
            self.point,
            smoothness=settings.link.largest_slope * eigenvalues[-1] + settings.ridge,
            strong_convexity=settings.curvature * max(eigenvalues[0], 0.0)
            + settings.ridge,
            accuracy=settings.accuracy / count,
            max_iterations=settings.max_iterations,
        )

    @one_blas_thread
    def receive_gradients(self, gradients: Sequence[FloatArray]) -> None:
        """Make a step with the agents' gradients at `point`, each of shape (d,).

        Raises
        ------
        ValueError
            If one is not so many finite numbers.
        RuntimeError
            If none are needed.
        """
        if self._descent is None or self._descent.is_done:
            raise RuntimeError("No gradients are needed.")
        size = len(self.gram)
        for gradient in gradients:
            ok = is_array(gradient, (size,))
            require(ok, "gradient", gradient, f"{size} finite numbers")
        total = np.sum(gradients, axis=0) + self.settings.ridge * self.point
        self._descent.advance(total)
