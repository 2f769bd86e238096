"""Reward models of non-linear bandits: f(x; w), and its gradient by w.

Fed-GO-UCB, *Communication-Efficient Federated Non-linear Bandit Optimization* (ICLR
2024), needs of a model no more than its values and the gradients of these by the
parameters. In its experiments the model is a network with one hidden layer, `Network`.
`LinearModel` makes DisLinUCB of the same algorithm; `TorchModel` takes any module.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import require_int, require_positive


class RewardModel(Protocol):
    """What the agents of a non-linear bandit believe rewards to be made by."""

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

    dimension: int
    width: int = 25
    spread: float = 8.0

    def __post_init__(self) -> None:
        take_plain(self)
        require_int("dimension", self.dimension, 1)
        require_int("width", self.width, 1)
        require_positive("spread", self.spread)

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


@dataclass(frozen=True)
class LinearModel:
    """f(x; w) = w'[x; 1]: with it Fed-GO-UCB without phase I is DisLinUCB.

    Attributes
    ----------
    dimension : int
        D >= 1.
    """

    dimension: int

    def __post_init__(self) -> None:
        take_plain(self)
        require_int("dimension", self.dimension, 1)

    @property
    def num_parameters(self) -> int:
        """D, and one for the constant."""
        return self.dimension + 1

    def initial(self, rng: np.random.Generator) -> FloatArray:
        """Return zero: so statistics at w0 are those of ridge regression."""
        return np.zeros(self.num_parameters)

    def values(self, w: FloatArray, x: FloatArray) -> FloatArray:
        """Return f(x; w), shape (n,); see `RewardModel`."""
        return self.values_and_gradients(w, x)[0]

    def values_and_gradients(
        self, w: FloatArray, x: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return f(x; w) and its gradients by w; see `RewardModel`."""
        gradients = np.column_stack([x, np.ones(len(x))])
        return (gradients * w).sum(axis=-1), gradients


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
