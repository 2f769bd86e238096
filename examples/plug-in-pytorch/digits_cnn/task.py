"""The data and the model: a small CNN on scikit-learn's digits."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import Tensor, nn

NUM_TEST = 500
MOMENTUM = 0.9


@dataclass(frozen=True)
class Digits:
    """Images of shape (n, 1, 8, 8), from 0 to 1, and their labels."""

    X: Tensor
    y: Tensor


@cache
def _shuffled(seed: int) -> Digits:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    images = torch.tensor(X[order] / 16, dtype=torch.float32)
    return Digits(images.reshape(-1, 1, 8, 8), torch.tensor(y[order]))


def load_test(seed: int) -> Digits:
    """Return the digits that no site has."""
    digits = _shuffled(seed)
    return Digits(digits.X[:NUM_TEST], digits.y[:NUM_TEST])


def load_site(context: Context) -> tuple[Digits, Digits]:
    """Return this site's digits: two thirds to train on, the rest to validate."""
    site = int(context.node_config["partition-id"])
    num_sites = int(context.node_config["num-partitions"])
    digits = _shuffled(int(context.run_config["seed"]))
    mine = slice(NUM_TEST + site, None, num_sites)
    X, y = digits.X[mine], digits.y[mine]
    return _divided(Digits(X, y), 2 * len(y) // 3)


def hold_out(data: Digits) -> tuple[Digits, Digits]:
    """Return three quarters of training digits, and the held-out rest."""
    return _divided(data, 3 * len(data.y) // 4)


def _divided(data: Digits, cut: int) -> tuple[Digits, Digits]:
    return Digits(data.X[:cut], data.y[:cut]), Digits(data.X[cut:], data.y[cut:])


def make_model(seed: int) -> nn.Module:
    """Return two convolutions and a linear layer, with weights drawn from ``seed``."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def train(
    model: nn.Module, data: Digits, num_epochs: int, batch_size: int, params: Any
) -> None:
    """Run SGD on the cross-entropy; the order of batches is always the same."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=params["learning_rate"],
        momentum=MOMENTUM,
        weight_decay=params["weight_decay"],
    )
    order = torch.Generator().manual_seed(0)
    for _ in range(num_epochs):
        for batch in torch.randperm(len(data.y), generator=order).split(batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data.X[batch]), data.y[batch])
            loss.backward()
            optimizer.step()


def accuracy(model: nn.Module, data: Digits) -> float:
    """Return the share of the images that the model gets right."""
    with torch.no_grad():
        return float((model(data.X).argmax(dim=1) == data.y).float().mean())
