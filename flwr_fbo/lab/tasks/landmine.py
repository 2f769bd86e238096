"""Tune C and gamma of an SVM that finds landmines, one field a client.

From the experiments of Dai, Low & Jaillet, Federated Bayesian Optimization via
Thompson Sampling (NeurIPS 2020) and Differentially Private Federated Bayesian
Optimization with Distributed Exploration (NeurIPS 2021).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution

from flwr_fbo._common.fields import flag
from flwr_fbo._common.validation import require
from flwr_fbo.lab.datasets.base import Split
from flwr_fbo.lab.datasets.landmine import NUM_FIELDS, partition
from flwr_fbo.lab.tasks.base import (
    Objective,
    ObservationNoise,
    Task,
    require_clients,
)
from flwr_fbo.lab.tasks.surface import SurfaceSource, compute_missing
from flwr_fbo.space.search_space import Params

if TYPE_CHECKING:
    from sklearn.svm import SVC

# Of the surface, settings of C and of gamma.
GRID_SHAPE = (41, 41)
# Of the grid that keys the noise, per unit of C and of gamma.
_CELLS = 100


@dataclass(frozen=True)
class LandmineTask(Task):
    """Area under the ROC curve, in [0, 1], of an RBF-kernel SVM on a landmine field.

    The SVM is fitted on the first half of the field and validated on the second. The
    data are the same in every run.

    Attributes
    ----------
    noisy : bool
        False: the curve of the decision function, which has no noise. True: that of
        the probabilities, as in the authors' code. libsvm fits their sigmoid (Platt) in
        five folds of the training data, drawn at random, and where mines are few its
        slope often has the wrong sign: then the ranking is reversed and the value is
        1 minus the area. Over fields and settings this befalls a quarter of values; on
        some fields large regions always, at others now and then. The authors left the
        folds to unseeded global state. Here the run's seed, the client, where the
        setting is on a grid of 1000 x 1000 and how often it was asked for before decide
        them: each draw is independent, and a run repeats.
    surface : bool
        True: in place of the area, without noise, its `flwr_fbo.lab.tasks.surface`,
        which costs nothing to ask for. It differs by 0.001 in the mean over settings,
        and by up to 0.3 where the area jumps.
    """

    name: Literal["landmine"] = "landmine"
    noisy: bool = field(default=False, metadata=flag())
    surface: bool = field(default=False, metadata=flag())
    direction: ClassVar[Literal["maximize"]] = "maximize"
    unit: ClassVar[str] = "validation AUC"

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "False, where the objective is noisy"
        require(not (self.noisy and self.surface), "surface", self.surface, expected)

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """C in [1e-4, 10] and gamma in [0.01, 10], both on a linear scale."""
        return {
            "C": FloatDistribution(1e-4, 10.0),
            "gamma": FloatDistribution(1e-2, 10.0),
        }

    @property
    def customary(self) -> list[Params]:
        """C = 1 and gamma = 1 / 9, scikit-learn's "auto" for nine features."""
        return [{"C": 1.0, "gamma": 1 / 9}]

    def check(self, num_clients: int) -> None:
        """Raise ValueError unless clients are 1 to 29; DataError without the data.

        Computes the surfaces if they are wanted and have never been computed.
        """
        require_clients(num_clients, NUM_FIELDS, "field")
        partition(0)
        if self.surface:
            compute_missing([self.source(client) for client in range(num_clients)])

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the area on the client's field; ``seed`` matters if noisy.

        libsvm's random state is one a process: two threads that evaluate noisy
        objectives at once disturb each other's draws.
        """
        if self.surface:
            return self.source(client).surface()
        from sklearn.metrics import roc_auc_score
        from sklearn.svm import SVC

        data = partition(client)
        noise = ObservationNoise(seed, client)

        def area(params: dict[str, Any]) -> float:
            model = SVC(C=params["C"], gamma=params["gamma"])
            if self.noisy:
                rng = noise.generator(_cell(params))
                scores = _probabilities(model, data, int(rng.integers(2**32)))
            else:
                model.fit(data.X_train, data.y_train)
                scores = model.decision_function(data.X_validation)
            return float(roc_auc_score(data.y_validation, scores))

        return area

    def source(self, client: int) -> SurfaceSource:
        """Return what a client's surface is made from."""
        objective = LandmineTask().objective(client, NUM_FIELDS, 0)
        data, name = partition(client), f"landmine-field-{client}"
        return SurfaceSource(name, objective, self.space, GRID_SHAPE, data)


def _cell(params: dict[str, Any]) -> tuple[int, int]:
    """Return where a setting is on the grid that keys the noise."""
    return round(_CELLS * params["C"]), round(_CELLS * params["gamma"])


def _probabilities(model: SVC, data: Split, random_state: int) -> NDArray[np.float64]:
    """Return P(mine) by libsvm's own Platt scaling, shape (n,).

    scikit-learn 1.9 deprecates it, and 1.11 is to remove it, in favour of
    CalibratedClassifierCV, whose folds and fit are others: its values are not the
    published ones.
    """
    model.set_params(probability=True, random_state=random_state)
    with warnings.catch_warnings():
        message = "The `probability` parameter was deprecated"
        warnings.filterwarnings("ignore", message, FutureWarning)
        model.fit(data.X_train, data.y_train)
    return np.asarray(model.predict_proba(data.X_validation)[:, 1])
