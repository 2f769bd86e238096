"""Reward models of non-linear bandits, and the features that Fed-GO-UCB releases.

Fed-GO-UCB, *Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR
2024), needs the values f(x; w) of a model and their gradients by the parameters w. In
its experiments the model is a network with one hidden layer, `Network`; `TorchModel`
takes any module. With privacy `reference_features` replace the gradients at w0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, integer, number
from flwr_fbo._common.validation import require_int

# `reference_features`: share c of the constant in every action's squared length, number
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
            Points of the unit cube.

        Returns
        -------
        values : ndarray of shape (n,)
            f(x; w) of each point.
        gradients : ndarray of shape (n, num_parameters)
            Gradient by w at each point.
        """


@dataclass(frozen=True)
class Network:
    """f(x; w) = W2 sigmoid(W1 x + c1) + c2: one hidden layer, one output.

    w holds W1 by rows, then c1, W2 and c2: width (D + 2) + 1 numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import Network
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
        Standard deviation of W1 x in the initial network for a point x of norm sqrt(D),
        from 1e-9 to 1e9. Not given in the paper. From small ones a regression starts at
        what is nearly linear, and needs long to leave it.
    """

    dimension: int = field(metadata=integer(1, cap="max_dimension"))
    width: int = field(default=25, metadata=integer(1, cap="max_features"))
    spread: float = field(default=8.0, metadata=number(1e-9, 1e9))

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
        ones = np.ones((len(x), 1))
        return values, np.hstack([by_weight, by_bias, hidden, ones])

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
    >>> from flwr_fbo.bandits import TorchModel
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


def reference_features(
    model: RewardModel, w0: FloatArray, num_features: int, rng: np.random.Generator
) -> Callable[[FloatArray], FloatArray]:
    """Return a few features in place of a network's many gradients.

    By points that all know.

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
        Reward model whose gradients are replaced.
    w0 : ndarray of shape (d_w,)
        Parameters at which the gradients are taken.
    num_features : int
        k >= 2.
    rng : numpy.random.Generator
        Generator of the reference points, uniform in the unit cube: known to all.

    Returns
    -------
    callable
        From gradients, shape (K, d_w), to features, shape (K, k): rows of norm 1; zeros
        for gradients that are not finite, or too large.

    Raises
    ------
    FloatingPointError
        If the model has no finite gradients there, or the same everywhere.
    """
    points = rng.uniform(size=(_NUM_POINTS, model.dimension))
    with np.errstate(over="ignore", invalid="ignore"):
        _, gradients = model.values_and_gradients(w0, points)
        mean = gradients.mean(axis=0)
        centred = gradients - mean
        directions = centred[: num_features - 1]
        products = centred @ directions.T
        covariance = products.T @ products / len(points)
    size = np.trace(covariance)
    if not (np.isfinite(covariance).all() and size > 0):
        raise FloatingPointError(
            "The model's gradients at w0 tell no two points of the unit cube apart."
        )
    jitter = _JITTER * size * np.eye(num_features - 1)
    factor = np.linalg.cholesky(covariance + jitter)

    def features(gradients: FloatArray) -> FloatArray:
        from scipy.linalg import solve_triangular

        with np.errstate(over="ignore", invalid="ignore"):
            products = (gradients - mean) @ directions.T
            white = solve_triangular(
                factor, products.T, lower=True, check_finite=False
            ).T
            lengths = np.linalg.norm(white, axis=1, keepdims=True)
        finite = np.isfinite(lengths)
        white = np.where(finite, white, 0.0) / np.fmax(lengths, 1e-300)
        phi = np.empty((len(white), white.shape[1] + 1))
        phi[:, 0] = math.sqrt(CONSTANT_SHARE)
        phi[:, 1:] = math.sqrt(1 - CONSTANT_SHARE) * white
        return np.where(finite, phi, 0.0)

    return features
