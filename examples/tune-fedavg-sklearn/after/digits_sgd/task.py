"""The data and the model: scikit-learn's digits, and a linear classifier of them."""

from functools import lru_cache

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

NUM_PIXELS, NUM_CLASSES = 64, 10

Arrays = list[NDArray[np.float64]]
Data = tuple[NDArray[np.float64], NDArray[np.int64]]


@lru_cache(maxsize=1)
def _split() -> tuple[Data, Data]:
    """Return the sites' digits, sorted by class, and those of the test."""
    X, y = load_digits(return_X_y=True)
    rows = np.arange(len(y))
    train, test = train_test_split(rows, test_size=500, random_state=0, stratify=y)
    train = train[np.argsort(y[train], kind="stable")]
    return (X[train] / 16, y[train]), (X[test] / 16, y[test])


def load_test() -> Data:
    """Return the digits that no site has."""
    return _split()[1]


def load_site(context: Context) -> tuple[Data, Data]:
    """Return a site's digits: to train on, and to evaluate on."""
    index = int(context.node_config["partition-id"])
    num_sites = int(context.node_config["num-partitions"])
    X, y = _split()[0]
    X, y = X[index::num_sites], y[index::num_sites]
    is_train = np.arange(len(y)) % 3 > 0
    return (X[is_train], y[is_train]), (X[~is_train], y[~is_train])


def initial_model() -> Arrays:
    """Return the coefficients and intercepts that the first round begins with."""
    return [np.zeros((NUM_CLASSES, NUM_PIXELS)), np.zeros(NUM_CLASSES)]


def train(model: Arrays, data: Data, learning_rate: float, num_epochs: int) -> Arrays:
    """Return the model after some epochs of gradient descent."""
    classifier = SGDClassifier(
        loss="log_loss",
        learning_rate="constant",
        eta0=learning_rate,
        max_iter=num_epochs,
        tol=None,
        random_state=0,
    )
    classifier.fit(*data, coef_init=model[0], intercept_init=model[1])
    return [classifier.coef_, classifier.intercept_]


def accuracy(model: Arrays, data: Data) -> float:
    """Return the share of the images that the model gets right."""
    X, y = data
    return float(np.mean(np.argmax(X @ model[0].T + model[1], axis=1) == y))
