"""The data and the model: softmax regression on scikit-learn's digits."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits

NUM_TEST = 500
NUM_PIXELS, NUM_CLASSES = 64, 10
NUM_EPOCHS, BATCH_SIZE = 5, 16

Images = NDArray[np.float64]
Labels = NDArray[np.int64]
Model = list[NDArray[np.float64]]  # weights and biases

INITIAL: Model = [np.zeros((NUM_PIXELS, NUM_CLASSES)), np.zeros(NUM_CLASSES)]


@dataclass(frozen=True)
class Site:
    """One site's digits."""

    X_train: Images
    y_train: Labels
    X_validation: Images
    y_validation: Labels


@lru_cache(maxsize=1)
def _digits() -> tuple[Images, Labels]:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order] / 16, y[order]


def load_test() -> tuple[Images, Labels]:
    """Return the digits that no site has."""
    X, y = _digits()
    return X[:NUM_TEST], y[:NUM_TEST]


def load_site(context: Context) -> Site:
    """Return this site's digits, two thirds of them to train on."""
    index = int(context.node_config["partition-id"])
    num_sites = int(context.node_config["num-partitions"])
    X, y = _digits()
    X, y = X[NUM_TEST:][index::num_sites], y[NUM_TEST:][index::num_sites]
    cut = 2 * len(y) // 3
    return Site(X[:cut], y[:cut], X[cut:], y[cut:])


def accuracy(model: Model, X: Images, y: Labels) -> float:
    """Return the share of the images that the model gets right."""
    weights, biases = model
    return float(np.mean(np.argmax(X @ weights + biases, axis=1) == y))


def train(
    model: Model, site: Site, learning_rate: float, l2: float
) -> tuple[Model, float]:
    """Run SGD at one site; return the new model and its validation accuracy."""
    weights, biases = (array.copy() for array in model)
    rng = np.random.default_rng(0)
    num_batches = -(-len(site.y_train) // BATCH_SIZE)
    for _ in range(NUM_EPOCHS):
        rows = rng.permutation(len(site.y_train))
        for batch in np.array_split(rows, num_batches):
            X, y = site.X_train[batch], site.y_train[batch]
            error: Any = softmax(X @ weights + biases, axis=1) - np.eye(NUM_CLASSES)[y]
            weights -= learning_rate * (X.T @ error / len(batch) + l2 * weights)
            biases -= learning_rate * error.mean(axis=0)
    new = [weights, biases]
    return new, accuracy(new, site.X_validation, site.y_validation)
