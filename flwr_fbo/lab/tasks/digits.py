"""Tune C and gamma of an SVM on a client's share of scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from optuna.distributions import BaseDistribution, FloatDistribution

from flwr_fbo.lab.datasets.digits import NUM_PIXELS, PIXEL_VARIANCE, partition
from flwr_fbo.lab.tasks.base import Objective, Task
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.search.portfolios import Portfolio


@dataclass(frozen=True)
class DigitsTask(Task):
    """Validation accuracy, in [0, 1], of an RBF-kernel SVM on digits."""

    name: Literal["digits"] = "digits"
    direction: ClassVar[Literal["maximize"]] = "maximize"
    unit: ClassVar[str] = "validation accuracy"

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """C in [1e-3, 1e3] and gamma in [1e-6, 10], both on a log scale."""
        return {
            "C": FloatDistribution(1e-3, 1e3, log=True),
            "gamma": FloatDistribution(1e-6, 1e1, log=True),
        }

    @property
    def customary(self) -> list[Params]:
        """C = 1 with scikit-learn's gamma: "scale" (of all the images), and "auto"."""
        return [{"C": 1.0, "gamma": 4.3e-4}, {"C": 1.0, "gamma": 1 / 64}]

    @property
    def listed(self) -> list[Params]:
        """Those of an SVM. They are for standardised features; pixels are not."""
        found = Portfolio.of("svc")
        return found.settings_in(self.space, round(NUM_PIXELS * PIXEL_VARIANCE))

    def check(self, num_clients: int) -> None:
        """Raise ValueError unless the images suffice for so many clients."""
        partition(0, num_clients, seed=0)

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the accuracy on the client's share of the run's Dirichlet split."""
        from sklearn.svm import SVC

        data = partition(client, num_clients, seed)

        def accuracy(params: dict[str, Any]) -> float:
            model = SVC(C=params["C"], gamma=params["gamma"])
            model.fit(data.X_train, data.y_train)
            return float(model.score(data.X_validation, data.y_validation))

        return accuracy
