"""Find the maximum of a function of one variable, drawn from a Gaussian process.

The synthetic experiments of Dai, Low & Jaillet, Differentially Private Federated
Bayesian Optimization with Distributed Exploration (NeurIPS 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import flag, integer, number
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require_index
from flwr_fbo.lab.tasks.base import Objective, ObservationNoise, Task

_GRID_SIZE = 1000
_LENGTHSCALE = 0.03
_NOISE_VARIANCE = 0.01
# Of the largest: a spectrum below that is known to fewer than four digits.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class SyntheticTask(Task):
    """Functions on 1000 points, evenly spaced over [0, 1]; noisy observations.

    Agent n's function in one run is

        f_n = alpha g_n + (1 - alpha) (f + u_n),

    where f, which all agents share, and g_1, ..., g_N are independent draws from a
    Gaussian process with squared-exponential kernel of lengthscale 0.03, each scaled so
    that its least and greatest value are 0 and 1; and u_n is drawn independently for
    each agent and point. An observation is f_n at the point nearest to x, plus Gaussian
    noise of variance 0.01.

    alpha = 0 is the published homogeneous case (appendix B.1.1 of DP-FTS-DE), larger
    alpha with d = 0 the published heterogeneous family (B.1.2). The deviations u_n fade
    with f's share, so that both ends are exact and nothing jumps between them.

    Attributes
    ----------
    alpha : float
        From 0 (agents differ by u_n alone) to 1 (agents have nothing in common).
    deviation : float
        d, from 0; 0.02 as published for DP-FTS-DE; 0.02 and 1.2 for FTS.
    signs : bool
        True: u_n is d or -d, with probability 1/2 each, as published for DP-FTS-DE.
        False: uniform on [-d, d].
    num_exact : int
        The first so many clients have u_n = 0.
    runs_per_function : int
        Number of runs, >= 1, that share their functions and differ in all else. Run s
        has those of number ``first_function + s // runs_per_function``.
    first_function : int
        Number, >= 0, of the functions of run 0.
    """

    name: Literal["synthetic"] = "synthetic"
    alpha: float = field(default=0.0, metadata=number(0, 1))
    deviation: float = field(default=0.02, metadata=number(0))
    signs: bool = field(default=False, metadata=flag())
    num_exact: int = field(default=0, metadata=integer(0))
    runs_per_function: int = field(default=1, metadata=integer(1))
    first_function: int = field(default=0, metadata=integer(0))
    direction: ClassVar[Literal["maximize"]] = "maximize"
    unit: ClassVar[str] = "function value"

    @property
    def loss(self) -> str:
        """Name of 1 - value: the regret of a client without deviation."""
        return f"simple regret (1 - {self.unit})"

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """The variable x in [0, 1]."""
        return {"x": FloatDistribution(0.0, 1.0)}

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the client's noisy function.

        The run's seed, the client, the point and how often it was asked for before
        decide the noise: see `ObservationNoise`.
        """
        function = self.truth(client, num_clients, seed)
        noise = ObservationNoise(seed, client)

        def observe(params: dict[str, Any]) -> float:
            rng = noise.generator((_nearest(params),))
            return function(params) + float(rng.normal(0.0, _NOISE_VARIANCE**0.5))

        return observe

    def group(self, seed: int) -> int:
        """Return the number of the run's functions."""
        return self.first_function + seed // self.runs_per_function

    def truth(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the client's function without noise."""
        require_index("client", client, num_clients)
        number = self.group(seed)
        shared = _draw(generator(number, Purpose.TEST_FUNCTION))
        rng = generator(number, client, Purpose.TEST_FUNCTION)
        of_client = _draw(rng)
        reach = 0.0 if client < self.num_exact else self.deviation
        deviation = rng.uniform(-reach, reach, _GRID_SIZE)
        if self.signs:
            deviation = np.copysign(reach, deviation)
        values = self.alpha * of_client + (1 - self.alpha) * (shared + deviation)
        return lambda params: float(values[_nearest(params)])


def _nearest(params: dict[str, Any]) -> int:
    """Return the index of the grid's point nearest to x."""
    return round(float(params["x"]) * (_GRID_SIZE - 1))


def _draw(rng: np.random.Generator) -> FloatArray:
    """Return a draw from the Gaussian process, scaled to [0, 1]; shape (1000,).

    The grid continued to a circle twice as long has a circulant covariance, whose
    square root is a convolution; the grid's own covariance is a block of it (Dietrich &
    Newsam, 1997). So the draw is exact, and no 1000 x 1000 matrix is ever factorised.
    Where rounding decides the spectrum it is taken for 0: its square root would be 1e-8
    of the draw, and another one on every processor.
    """
    steps = _GRID_SIZE - 1
    around = np.arange(2 * steps)
    distance = np.minimum(around, 2 * steps - around) / steps
    covariance = np.exp(-0.5 * (distance / _LENGTHSCALE) ** 2)
    spectrum = np.fft.rfft(covariance).real
    spectrum[spectrum < _ROUNDING * spectrum.max()] = 0.0
    white = np.fft.rfft(rng.standard_normal(2 * steps))
    draw = np.fft.irfft(np.sqrt(spectrum) * white, 2 * steps)[:_GRID_SIZE]
    return np.asarray((draw - draw.min()) / np.ptp(draw))
