"""What a site tunes, and on which data: scikit-learn's digits, and an SVM of them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold, cross_val_score, train_test_split
from sklearn.svm import SVC

from flwr_fbo.tuning import Objective

Params = dict[str, Any]
Data = tuple[NDArray[np.float64], NDArray[np.int64]]

# The setting that tuning must beat: scikit-learn's own, gamma="scale" of these digits.
DEFAULT: Params = {"C": 1.0, "gamma": 0.11}


@lru_cache(maxsize=1)
def _split() -> tuple[Data, Data]:
    """Return the sites' digits, and those of the test."""
    X, y = load_digits(return_X_y=True)
    rows = np.arange(len(y))
    train, test = train_test_split(rows, test_size=300, random_state=0, stratify=y)
    return (X[train] / 16, y[train]), (X[test] / 16, y[test])


def load_test() -> Data:
    """Return the digits that no site has."""
    return _split()[1]


def load_site(context: Context) -> tuple[Data, Data]:
    """Return a site's digits: to tune on, and to compare on."""
    index = int(context.node_config["partition-id"])
    num_sites = int(context.node_config["num-partitions"])
    X, y = _split()[0]
    X, y = X[index::num_sites], y[index::num_sites]
    is_held_out = np.arange(len(y)) % 4 == 3
    return (X[~is_held_out], y[~is_held_out]), (X[is_held_out], y[is_held_out])


def svm(params: Params) -> SVC:
    """Return a model with a setting, not trained."""
    return SVC(C=params["C"], gamma=params["gamma"])


def accuracy(params: Params, train: Data, test: Data) -> float:
    """Return the accuracy on some digits of a model that is trained on others."""
    return float(svm(params).fit(*train).score(*test))


def make_objective(context: Context) -> Objective:
    """Return what the site maximises: the accuracy in a cross-validation."""
    X, y = load_site(context)[0]
    return lambda trial: float(cross_val_score(svm(trial), X, y, cv=KFold(4)).mean())


def compare(context: Context) -> tuple[Params, Callable[[Params], float]]:
    """Return the default, and a score of settings on digits not used in the tuning."""
    return DEFAULT, lambda params: accuracy(params, *load_site(context))
