"""Tables of many small data sets, for lists that no public table is there for.

    python -m benchmarks.portfolio_tables mlp results/portfolio-tables

Trains a learner of scikit-learn with 48 settings on each of `DATA_SETS`: those that
scikit-learn brings or generates. None of them is a task of `benchmarks.portfolios`.
Each is as small as a site often is. A score is the AUC where there are two classes,
else the accuracy, on the half that is not trained on. Adds a line to ``LEARNER.jsonl``
for each data set that it lacks.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats.qmc import Sobol
from sklearn import datasets
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.rows import add_rows, read_rows
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuning.search.portfolios import LEARNERS

NUM_SETTINGS = 48
Data = tuple[FloatArray, FloatArray]


def _generated(seed: int) -> Data:
    """Return a data set with a number of rows, features and classes of its own."""
    rng = np.random.default_rng(seed)
    features, classes = int(rng.integers(5, 60)), int(rng.integers(2, 6))
    informative = int(rng.integers(4, max(5, features // 2 + 1)))
    share = rng.dirichlet(np.full(classes, 5.0))
    x, y = datasets.make_classification(
        n_samples=int(rng.integers(160, 700)),
        n_features=features,
        n_informative=informative,
        n_redundant=int(rng.integers(0, features - informative + 1)),
        n_classes=classes,
        n_clusters_per_class=int(rng.integers(1, 4)),
        class_sep=float(rng.uniform(0.5, 1.5)),
        flip_y=float(rng.uniform(0.0, 0.15)),
        weights=share.tolist(),
        random_state=seed,
    )
    return x, y


def _noisy(seed: int) -> Data:
    """Return a data set of two classes that overlap, one of which is rare."""
    rng = np.random.default_rng([seed, 1])
    features = int(rng.integers(5, 40))
    x, y = datasets.make_classification(
        n_samples=int(rng.integers(300, 700)),
        n_features=features,
        n_informative=int(rng.integers(3, 6)),
        n_redundant=0,
        n_clusters_per_class=int(rng.integers(1, 4)),
        class_sep=float(rng.uniform(0.3, 1.0)),
        flip_y=float(rng.uniform(0.0, 0.1)),
        weights=[1.0 - float(rng.uniform(0.05, 0.3))],
        random_state=seed,
    )
    return x, y


DATA_SETS: dict[str, Callable[[], Data]] = {
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast_cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "moons": lambda: datasets.make_moons(400, noise=0.3, random_state=0),
    "circles": lambda: datasets.make_circles(
        400, noise=0.2, factor=0.5, random_state=0
    ),
    "quantiles": lambda: datasets.make_gaussian_quantiles(
        n_samples=500, n_features=8, n_classes=3, random_state=0
    ),
    "hastie": lambda: datasets.make_hastie_10_2(500, random_state=0),
    **{f"generated-{seed}": partial(_generated, seed) for seed in range(24)},
    **{f"noisy-{seed}": partial(_noisy, seed) for seed in range(16)},
}


def learner_of(name: str, params: Params, seed: int) -> Any:
    """Return a learner of scikit-learn with a list's settings."""
    if name == "svc":
        return SVC(random_state=seed, max_iter=200_000, **params)
    if name == "random_forest":
        return RandomForestClassifier(50, random_state=seed, **params)
    if name == "mlp":
        shape = {**params, "hidden_layer_sizes": (params["hidden_layer_sizes"],)}
        return MLPClassifier(max_iter=40, random_state=seed, **shape)
    assert name == "gradient_boosting"
    return HistGradientBoostingClassifier(
        random_state=seed, early_stopping=False, **params
    )


def score(model: Any, train: Data, test: Data) -> float:
    """Return the AUC of two classes, or else the accuracy; 0 where training fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(*train)
            if len(np.unique(train[1])) == 2:
                return float(roc_auc_score(test[1], decisions(model, test[0])))
            return float(accuracy_score(test[1], model.predict(test[0])))
        except ValueError:  # of a network that diverged
            return 0.0


def decisions(model: Any, x: FloatArray) -> FloatArray:
    """Return how sure a model of two classes is of the second one, shape (n,)."""
    if isinstance(model, SVC):
        return np.asarray(model.decision_function(x))
    return np.asarray(model.predict_proba(x)[:, 1])


@one_blas_thread
def row_of(learner: str, data_set: str) -> dict[str, Any]:
    """Return all settings' scores on a data set."""
    space = SearchSpace(LEARNERS[learner].space)
    unit = Sobol(space.dim, rng=np.random.default_rng(0)).random(NUM_SETTINGS)
    points = space.snap_discrete(unit)
    x, y = DATA_SETS[data_set]()
    halves = train_test_split(x, y, test_size=0.5, stratify=y, random_state=0)
    scaler = StandardScaler().fit(halves[0])
    train, test = (
        (scaler.transform(half), labels)
        for half, labels in zip(halves[:2], halves[2:], strict=True)
    )
    settings = [space.from_unit(point) for point in points]
    scores = []
    for params in settings:
        divided = {
            name: value / x.shape[1] if name in LEARNERS[learner].per_feature else value
            for name, value in params.items()
        }
        scores.append(score(learner_of(learner, divided, 0), train, test))
    return {
        "data_set": data_set,
        "settings": settings,
        "scores": [round(float(value), 5) for value in scores],
    }


def main() -> None:
    """Add the data sets that a table lacks."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument(
        "learner", choices=("svc", "random_forest", "gradient_boosting", "mlp")
    )
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / f"{asked.learner}.jsonl"
    done = {row["data_set"] for row in read_rows(path)}
    for data_set in DATA_SETS:
        if data_set not in done:
            add_rows(path, [row_of(asked.learner, data_set)])


if __name__ == "__main__":
    main()
