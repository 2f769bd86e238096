"""Tune C and gamma of an SVM on a client's share of scikit-learn's digits."""

from __future__ import annotations

from typing import Any

from optuna.distributions import FloatDistribution
from sklearn.svm import SVC

from flwr_fbo.datasets.digits import partition
from flwr_fbo.tasks.base import Objective, Task


def objective(client: int, num_clients: int, seed: int) -> Objective:
    """Return the validation accuracy, in [0, 1], of an RBF-kernel SVM."""
    data = partition(client, num_clients, seed)

    def accuracy(params: dict[str, Any]) -> float:
        model = SVC(C=params["C"], gamma=params["gamma"])
        model.fit(data.X_train, data.y_train)
        return float(model.score(data.X_validation, data.y_validation))

    return accuracy


DIGITS = Task(
    name="digits",
    space={
        "C": FloatDistribution(1e-3, 1e3, log=True),
        "gamma": FloatDistribution(1e-6, 1e1, log=True),
    },
    direction="maximize",
    unit="validation accuracy",
    objective=objective,
)
