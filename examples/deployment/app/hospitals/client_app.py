"""The client: what a site tunes, on a file that only the site can read."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Context
from sklearn.svm import SVC

from flwr_fbo import tuning_app
from flwr_fbo.lab.datasets.digits import partition


def load_site(context: Context) -> dict[str, Any]:
    """Return the arrays of the file that the site's node config names.

    A simulated node has no file: it gets its share of scikit-learn's digits.
    """
    node = context.node_config
    if "data" in node:
        with np.load(str(node["data"])) as file:
            return dict(file)
    return vars(partition(int(node["partition-id"]), int(node["num-partitions"]), 0))


def make_objective(context: Context) -> Callable[[dict[str, Any]], float]:
    """Return the validation accuracy of an SVM on the site's data."""
    data = load_site(context)

    def accuracy(params: dict[str, Any]) -> float:
        model = SVC(C=params["C"], gamma=params["gamma"])
        model.fit(data["X_train"], data["y_train"])
        return float(model.score(data["X_validation"], data["y_validation"]))

    return accuracy


app = tuning_app(make_objective)
