"""Reward models of non-linear bandits, and how Fed-GO-UCB fits and releases them.

Fed-GO-UCB, *Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR
2024), needs the values f(x; w) of a model and their gradients by the parameters w. In
its experiments the model is a network with one hidden layer, `Network`; `TorchModel`
takes any module. Phase I fits w0 by noisy gradient steps, `LangevinDynamics`. With
privacy `ReferenceFeatures` replace the gradients at w0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import FREE, check_fields, choice, integer, positive
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require_int

Keep = Literal["last", "best"]
Start = Literal["model", "zero"]

# `ReferenceFeatures`: share c of the constant in every action's squared length, number
# R of points, and share of the covariance's trace that is added to its diagonal.
CONSTANT_SHARE = 0.2
_NUM_POINTS = 1000
_JITTER = 1e-10


class RewardModel(Protocol):
    """Interface of the reward models that agents of a non-linear bandit share."""

    @property
    def dimension(self) -> int:
        """D, the coordinates of a point."""

    @property
    def num_parameters(self) -> int:
        """The length of w."""

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return where a regression starts, shape (num_parameters,)."""

    def values(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return f(x; w), as `values_and_gradients` does."""

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return f(x; w) and its gradients by w.

        Parameters
        ----------
        w : ndarray of shape (num_parameters,), or (n, num_parameters)
            The parameters of all points, or of each.
        x : ndarray of shape (n, D)

        Returns
        -------
        values : ndarray of shape (n,)
        gradients : ndarray of shape (n, num_parameters)
        """


@dataclass(frozen=True)
class Network:
    """f(x; w) = W2 sigmoid(W1 x + c1) + c2: one hidden layer, one output.

    w holds W1 by rows, then c1, W2 and c2: width (D + 2) + 1 numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo import Network
    >>> model = Network(dimension=2, width=4)
    >>> w = model.initial(np.random.default_rng(0))
    >>> model.values(w, np.zeros((5, 2))).shape
    (5,)

    Attributes
    ----------
    dimension : int
        D >= 1.
    width : int
        Number of hidden units, >= 1; 25 in the paper.
    spread : float
        > 0: the standard deviation of W1 x in the initial network for a point x of
        norm sqrt(D). Not given in the paper. From small ones a regression starts at
        what is nearly linear, and needs long to leave it.
    """

    dimension: int = field(metadata=integer(1, cap="max_dimension"))
    width: int = field(default=25, metadata=integer(1, cap="max_features"))
    spread: float = field(default=8.0, metadata=positive())

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def num_parameters(self) -> int:
        """The length of w."""
        return self.width * (self.dimension + 2) + 1

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return normal weights: of variance 1 / width in W2, and c2 = 0."""
        first = self.spread * rng.standard_normal(self.width * (self.dimension + 1))
        first[: self.width * self.dimension] /= np.sqrt(self.dimension)
        second = rng.standard_normal(self.width) / np.sqrt(self.width)
        return np.concatenate([first, second, [0.0]])

    def values(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return f(x; w), shape (n,); see `RewardModel`."""
        hidden, second, last = self._hidden(w, x)
        return np.asarray((hidden * second).sum(axis=-1) + last)

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return f(x; w) and its gradients by w; see `RewardModel`."""
        hidden, second, last = self._hidden(w, x)
        values = (hidden * second).sum(axis=-1) + last
        by_bias = second * hidden * (1 - hidden)
        by_weight = (by_bias[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        one = np.ones((len(x), 1))
        return values, np.hstack([by_weight, by_bias, hidden, one])

    def _hidden(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return sigmoid(W1 x + c1), shape (n, width); W2; and c2."""
        h, d = self.width, self.dimension
        first, bias, second, last = np.split(w, [h * d, h * d + h, -1], axis=-1)
        rows = first.reshape(*w.shape[:-1], h, d)
        inner = (rows @ x[..., None])[..., 0] if w.ndim > 1 else x @ rows.T
        from scipy.special import expit

        return expit(inner + bias), second, last[..., 0]


class TorchModel:
    """A torch module as a reward model, by ``torch.func``.

    Examples
    --------
    >>> import numpy as np
    >>> from torch import nn
    >>> from flwr_fbo import TorchModel
    >>> module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    >>> model = TorchModel(module, dimension=2)
    >>> w = model.initial(np.random.default_rng(0))
    >>> model.values(w, np.zeros((5, 2))).shape
    (5,)

    Parameters
    ----------
    module : torch.nn.Module
        From n points, shape (n, D), to n numbers, shape (n,) or (n, 1); each depends on
        its own point only. A copy in double precision is used. Its parameters, in the
        order of ``module.named_parameters()``, are w; buffers stay as they are.
    dimension : int
        D >= 1.

    Raises
    ------
    ImportError
        If PyTorch is not installed; the message names the extra.
    """

    def __init__(self, module: Any, dimension: int) -> None:
        require_int("dimension", dimension, 1)
        try:
            import torch
        except ImportError as error:
            raise ImportError(
                "A torch module as reward model needs PyTorch: "
                "pip install 'flwr-fbo[torch]'."
            ) from error
        self._torch: Any = torch
        self.dimension = dimension
        self._module = deepcopy(module).double().eval()
        self._parameters = {
            name: p.detach() for name, p in self._module.named_parameters()
        }

    @property
    def num_parameters(self) -> int:
        """The length of w."""
        return sum(p.numel() for p in self._parameters.values())

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return the module's own parameters: whoever made it has drawn them."""
        flat = [p.reshape(-1) for p in self._parameters.values()]
        return np.array(self._torch.cat(flat).numpy())

    def values(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return f(x; w), shape (n,); see `RewardModel`."""
        return np.array(self._mapped(self._value, w, x).detach().numpy())

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return f(x; w) and its gradients by w; see `RewardModel`."""
        pair = self._torch.func.grad_and_value(self._value)
        gradients, values = self._mapped(pair, w, x)
        return np.array(values.numpy()), np.array(gradients.numpy())

    def _mapped(self, function: Any, w: FloatArray, x: FloatArray) -> Any:
        """Call ``function(w, x)`` for every point."""
        in_dims = (0 if w.ndim > 1 else None, 0)
        tensors = [self._torch.tensor(a, dtype=self._torch.float64) for a in (w, x)]
        return self._torch.func.vmap(function, in_dims=in_dims)(*tensors)

    def _value(self, w: Any, x: Any) -> Any:
        """Return f(x; w) of one point, as a scalar."""
        sizes = [p.numel() for p in self._parameters.values()]
        parts = zip(self._parameters.items(), w.split(sizes), strict=True)
        parameters = {name: part.view(p.shape) for (name, p), part in parts}
        call = self._torch.func.functional_call
        return call(self._module, parameters, (x[None],)).reshape(())


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
        tau1 > 0.
    inverse_temperature : float
        tau2 > 0.
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
    step: float = field(default=0.1, metadata=positive())
    inverse_temperature: float = field(default=1e6, metadata=positive())
    keep: Keep = field(default="last", metadata=choice(Keep))
    patience: int = field(default=0, metadata=integer(0, cap=FREE))
    start: Start = field(default="model", metadata=choice(Start))

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def needs_losses(self) -> bool:
        """Whether `LangevinDynamics.advance` is told the loss."""
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
    w : ndarray of shape (d_w,)
        Where it starts.
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
        """Whether all steps are made, or the loss has not fallen for too long."""
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
            Of L at `w`.
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


class ReferenceFeatures:
    """A few features in place of a network's many gradients, by points that all know.

    Where sums of gradients are released with noise, the noise is as wide as they are.
    The gradients of a network at w0 are of hundreds of numbers and nearly the same at
    all actions, so that what tells actions apart drowns. Here the difference g(x) -
    mean to the mean gradient of R reference points r_1, .., r_R is told by its products

        u_j(x) = (g(r_j) - mean)'(g(x) - mean),    j = 1, .., k - 1,

    and these are whitened: with the covariance C of u over all R points, C = L L', and
    v = L^-1 u,

        phi(x) = [sqrt(c), sqrt(1 - c) v / ||v||],    c = 1/5,

    whose length is 1: what is released with noise is as long as it may be. The constant
    has a fifth of the squared length, so that what all actions have in common is soon
    learned. (Cholesky's factor, and not eigenvectors, whose signs and order could
    differ between machines.)

    Parameters
    ----------
    model : RewardModel
    w0 : ndarray of shape (d_w,)
    num_features : int
        k >= 2.
    rng : numpy.random.Generator
        Generator of the reference points, uniform in the unit cube: known to all.

    Raises
    ------
    FloatingPointError
        If the model has no finite gradients there, or the same everywhere.
    """

    def __init__(
        self,
        model: RewardModel,
        w0: FloatArray,
        num_features: int,
        rng: np.random.Generator,
    ) -> None:
        points = rng.uniform(size=(_NUM_POINTS, model.dimension))
        with np.errstate(over="ignore", invalid="ignore"):
            _, gradients = model.values_and_gradients(w0, points)
            self._mean = gradients.mean(axis=0)
            centred = gradients - self._mean
            self._directions = centred[: num_features - 1]
            products = centred @ self._directions.T
            covariance = products.T @ products / len(points)
        size = np.trace(covariance)
        if not (np.isfinite(covariance).all() and size > 0):
            raise FloatingPointError(
                "The model's gradients at w0 tell no two points of the unit cube apart."
            )
        jitter = _JITTER * size * np.eye(num_features - 1)
        self._factor = np.linalg.cholesky(covariance + jitter)

    def __call__(self, gradients: FloatArray) -> FloatArray:
        """Return the features of gradients: shape (K, d_w) in, (K, k) out.

        Rows of norm 1; zeros for gradients that are not finite, or too large.
        """
        from scipy.linalg import solve_triangular

        with np.errstate(over="ignore", invalid="ignore"):
            products = (gradients - self._mean) @ self._directions.T
            white = solve_triangular(
                self._factor, products.T, lower=True, check_finite=False
            ).T
            lengths = np.linalg.norm(white, axis=1, keepdims=True)
        finite = np.isfinite(lengths)
        white = np.where(finite, white, 0.0) / np.fmax(lengths, 1e-300)
        phi = np.empty((len(white), white.shape[1] + 1))
        phi[:, 0] = math.sqrt(CONSTANT_SHARE)
        phi[:, 1:] = math.sqrt(1 - CONSTANT_SHARE) * white
        return np.where(finite, phi, 0.0)
