"""A small convolutional network for images of digits, trained by Adam.

This module imports PyTorch, an extra: import it where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, relu

NUM_EPOCHS, BATCH_SIZE = 10, 16
# Two 3 x 3 convolutions, each halved by pooling (28, 26, 13, 11, 5); a linear layer.
_SHAPES = ((16, 1, 3, 3), (32, 16, 3, 3), (10, 32 * 5 * 5))


@dataclass(frozen=True, eq=False)
class Start:
    """All that is random about a training; settings that share it compare well.

    Attributes
    ----------
    weights : tuple of ndarray
        He's initial weights of each layer; biases start at zero.
    orders : tuple of ndarray of shape (n,)
        Orders of the examples, one per epoch.
    """

    weights: tuple[NDArray[np.float32], ...]
    orders: tuple[NDArray[np.int64], ...]

    @classmethod
    def draw(cls, rng: np.random.Generator, num_examples: int) -> Start:
        """Return a start; PyTorch's own generator is neither used nor moved."""
        weights = tuple(
            (rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype("f4")
            for shape in _SHAPES
        )
        orders = tuple(rng.permutation(num_examples) for _ in range(NUM_EPOCHS))
        return cls(weights, orders)


class Network:
    """The network, trained on one client's images.

    Parameters
    ----------
    images : ndarray of shape (n, 28, 28)
        Grey values of the images.
    labels : ndarray of shape (n,)
        From 0 to 9.
    start : Start
        Initial weights, and the order of the examples in each epoch.
    learning_rate, decay, l2 : float
        Step t = 0, 1, ... of Adam has the rate learning_rate / (1 + decay t), and l2
        times the weights is added to the gradient. Adam's steps are no longer than
        its rate, so that the weights stay finite.
    """

    def __init__(
        self,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        start: Start,
        *,
        learning_rate: float,
        decay: float,
        l2: float,
    ) -> None:
        # Copies, and from NumPy: float32 on the CPU, whatever PyTorch's defaults are.
        self._layers = [
            tuple(
                torch.from_numpy(array).requires_grad_()
                for array in (weights.copy(), np.zeros(len(weights), np.float32))
            )
            for weights in start.weights
        ]
        with one_thread(), torch.enable_grad():
            self._train(images, labels, start.orders, learning_rate, decay, l2)

    def predict(self, images: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the digit of each image, shape (n,)."""
        with one_thread(), torch.no_grad():
            scores = self._scores(_tensor(images))
        return np.asarray(scores.argmax(dim=1))

    def _train(
        self,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        orders: tuple[NDArray[np.int64], ...],
        learning_rate: float,
        decay: float,
        l2: float,
    ) -> None:
        parameters = [tensor for layer in self._layers for tensor in layer]
        adam = torch.optim.Adam(parameters, learning_rate, weight_decay=l2, fused=True)
        rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda t: 1 / (1 + decay * t))
        X, y = _tensor(images), torch.from_numpy(labels)
        for order in orders:
            for batch in torch.from_numpy(order).split(BATCH_SIZE):
                adam.zero_grad()
                cross_entropy(self._scores(X[batch]), y[batch]).backward()
                adam.step()
                rate.step()

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        *convolutions, last = self._layers
        for weights, bias in convolutions:
            x = max_pool2d(relu(conv2d(x, weights, bias)), 2)
        return linear(x.flatten(1), *last)


def _tensor(images: NDArray[np.float32]) -> torch.Tensor:
    """Return images as one-channel maps, shape (n, 1, 28, 28)."""
    return torch.from_numpy(images)[:, None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one of PyTorch's threads, and then again as many as before.

    The maps are so small that more cost time, and move the last bits of the results.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
