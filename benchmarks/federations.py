"""Federated trainings in NumPy, as fast as thousands of them need.

A `Federation` has the clients of a task of `benchmarks.trained_trials`, at most 100
examples each to train on and 50 to validate with; more than 64 features are projected
on 64 principal components of what all train on. Clients train the network of that
module, all at once. The server is Flower's `FedAvgM`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_sample_images

from benchmarks.trained_trials import (
    TASKS,
    ClientData,
    Model,
    TrainingTask,
    initial_model,
    skewed,
    split_clients,
)
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.datasets import digits, har, landmine, magic, shuttle
from flwr_fbo.lab.datasets.base import Split
from flwr_fbo.space.search_space import Params

_MOST_TRAIN, _MOST_VALIDATION, _MOST_FEATURES = 100, 50, 64


def balanced_fields(fields: Iterable[int]) -> Split:
    """Return the mines of some landmine fields, and as many of their other examples."""
    parts = []
    for field in fields:
        split = landmine.partition(field)
        X = np.concatenate([split.X_train, split.X_validation])
        y = np.concatenate([split.y_train, split.y_validation])
        mines = np.flatnonzero(y == 1)
        others = np.random.default_rng(field).permutation(np.flatnonzero(y == 0))
        own = np.concatenate([mines, others[: len(mines)]])
        parts.append((X[own], y[own]))
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Split(X, y, X[:0], y[:0])


def from_mixture(client: int, most: int = 240) -> Split:
    """Return a client's draws from a mixture of Gaussians in 20 dimensions.

    Each of eight classes has two components. A client has its own shift, its own
    shares of the classes, and from a quarter of ``most`` examples to ``most``.
    """
    centers = np.random.default_rng(0).normal(0, 0.8, (8, 2, 20))
    rng = np.random.default_rng([1, client])
    shares, shift = rng.dirichlet(np.full(8, 0.7)), rng.normal(0, 0.4, 20)
    y = rng.choice(8, rng.integers(most // 4, most + 1), p=shares)
    X = centers[y, rng.integers(0, 2, len(y))] + shift + rng.normal(0, 1, (len(y), 20))
    return Split(X, y, X[:0], y[:0])


def from_camera(client: int, num_patches: int = 200) -> Split:
    """Return patches of two photographs, as a client's camera sees them.

    The class says from which photograph and which third of it a patch of 8 x 8 pixels
    comes. A camera has its own colours, brightness and shares of the classes.
    """
    rng = np.random.default_rng([2, client])
    y = rng.choice(6, num_patches, p=rng.dirichlet(np.full(6, 0.7)))
    gain, offset = rng.uniform(0.8, 1.2, 3), rng.uniform(-0.1, 0.1, 3)
    patches = []
    for label in y:
        image = load_photographs()[label // 3]
        height, third = image.shape[0], image.shape[1] // 3
        top = rng.integers(height - 8)
        left = third * (label % 3) + rng.integers(third - 8)
        patches.append(image[top : top + 8, left : left + 8] * gain + offset)
    X = np.array(patches).reshape(len(y), -1)
    return Split(X, y, X[:0], y[:0])


@cache
def load_photographs() -> list[NDArray[np.float64]]:
    """Return scikit-learn's two photographs, with values from 0 to 1."""
    return [image / 255 for image in load_sample_images().images]


def _few(num: int) -> dict[str, TrainingTask]:
    """Return tasks of few clients, with more data each: by name, without the number."""

    def of_table(load: Any, num_rows: int) -> Any:
        return lambda client: skewed(load(), num_rows, num, client)

    def of_fields(client: int) -> Split:
        return balanced_fields(range(client, _NUM_FIELDS, num))

    return {
        "digits": TrainingTask(lambda n: digits.partition(n, num, seed=0), num, 10),
        "har": TrainingTask(har.partition, num, 6),
        "magic": TrainingTask(of_table(magic.load, 1_000 * num), num, 2),
        "shuttle": TrainingTask(of_table(shuttle.load, 1_000 * num), num, 2),
        "cancer": TrainingTask(of_table(_load_cancer, 569), num, 2),
        "landmine": TrainingTask(of_fields, num, 2),
        "mixture": TrainingTask(lambda n: from_mixture(n, 1_000), num, 8),
        "cameras": TrainingTask(lambda n: from_camera(n, 800), num, 6),
    }


def _load_cancer() -> Any:
    return load_breast_cancer(return_X_y=True)


_NUM_FIELDS = 20
# Tasks on which the tuner's constants were chosen, and tasks on which nothing was.
CHOSEN_ON = ("digits", "har", "magic", "shuttle", "writers")
FEDERATIONS: dict[str, TrainingTask] = {
    **TASKS,
    "landmine-20": TrainingTask(lambda n: balanced_fields([n]), _NUM_FIELDS, 2),
    "mixture-50": TrainingTask(from_mixture, 50, 8),
    "cameras-100": TrainingTask(from_camera, 100, 6, fraction_train=0.2),
    **{f"{name}-{num}": task for num in (5, 10) for name, task in _few(num).items()},
}


class Federation:
    """The clients of a task.

    Parameters
    ----------
    name : str
        One of ``FEDERATIONS``.

    Attributes
    ----------
    num_clients, num_asked : int
        Clients, and how many of them train in a round of the app.
    num_trained : int
        Models that clients have trained so far, as a measure of work.
    """

    def __init__(self, name: str) -> None:
        task = FEDERATIONS[name]
        clients = split_clients(task)
        self.num_clients = len(clients)
        self._fraction = task.fraction_train
        self.num_asked = self.num_in_round(self.num_clients)
        self.num_trained = 0
        project = _projection(clients)
        # Shuffled, as a client's examples are in order of their classes.
        train = [_some(one.train, _MOST_TRAIN) for one in clients]
        self.num_train = np.array([len(y) for _, y in train])
        shape = len(clients), self.num_train.max()
        features = project(train[0][0]).shape[1]
        self._X = np.zeros((*shape, features), np.float32)
        self._targets = np.zeros((*shape, task.num_classes), np.float32)
        for client, (X, y) in enumerate(train):
            self._X[client, : len(y)] = project(X)
            self._targets[client, np.arange(len(y)), y] = 1
        validation = [_some(one.validation, _MOST_VALIDATION) for one in clients]
        self.num_validation = np.array([len(y) for _, y in validation])
        self._validation = _joined(validation, project)
        self._starts = np.cumsum(self.num_validation) - self.num_validation
        self._test = _joined([one.test for one in clients], project)

    def initial_model(self) -> Model:
        """Return the model that each training begins with."""
        return initial_model(self._X.shape[2], self._targets.shape[2], seed=0)

    def num_in_round(self, num_nodes: int) -> int:
        """Return how many of some nodes a round of the app asks to train."""
        return max(int(num_nodes * self._fraction), min(2, num_nodes))

    def sampled(
        self, nodes: Sequence[int], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the nodes that train in a round, from those that a trial has."""
        return rng.permutation(np.array(nodes))[: self.num_in_round(len(nodes))]

    def trained(
        self,
        model: Model,
        clients: NDArray[np.int64],
        settings: Params,
        rng: np.random.Generator,
    ) -> Model:
        """Return the models of some clients, stacked."""
        self.num_trained += len(clients)
        num = self.num_train[clients]
        most = int(num.max())
        X, targets = self._X[clients, :most], self._targets[clients, :most]
        W_1, b_1, W_2, b_2 = (np.repeat(one[None], len(clients), 0) for one in model)
        rate, size = np.float32(settings["learning-rate"]), settings["batch-size"]
        rows = np.arange(len(clients))[:, None]
        for _ in range(settings["local-epochs"]):
            key = rng.random((len(clients), most))
            key[np.arange(most) >= num[:, None]] = 2.0  # padding comes last
            order = np.argsort(key, axis=1)
            for begin in range(0, most, size):
                batch = order[:, begin : begin + size]
                is_own = np.arange(begin, begin + batch.shape[1]) < num[:, None]
                weights = is_own / np.maximum(is_own.sum(1, keepdims=True), 1)
                inputs = X[rows, batch]
                hidden = np.maximum(inputs @ W_1 + b_1[:, None], 0)
                error = _softmax(hidden @ W_2 + b_2[:, None]) - targets[rows, batch]
                error *= weights.astype(np.float32)[..., None]
                back = (error @ W_2.transpose(0, 2, 1)) * (hidden > 0)
                W_2 -= rate * (hidden.transpose(0, 2, 1) @ error)
                b_2 -= rate * error.sum(1)
                W_1 -= rate * (inputs.transpose(0, 2, 1) @ back)
                b_1 -= rate * back.sum(1)
        return [W_1, b_1, W_2, b_2]

    def mean(self, models: Model, clients: NDArray[np.int64]) -> Model:
        """Return the mean of stacked models, weighted by the clients' examples."""
        weights = self.num_train[clients] / self.num_train[clients].sum()
        return [np.tensordot(weights.astype(np.float32), one, 1) for one in models]

    def scores(self, model: Model) -> FloatArray:
        """Return each client's validation accuracy; -inf if the model has diverged."""
        X, y = self._validation
        found = _outputs(model, X)
        if not np.isfinite(found).all():
            return np.full(self.num_clients, -np.inf)
        right = (found.argmax(1) == y).astype(np.float64)
        shares: FloatArray = np.add.reduceat(right, self._starts) / self.num_validation
        return shares

    def own_scores(
        self, models: Model, clients: NDArray[np.int64]
    ) -> tuple[FloatArray, FloatArray]:
        """Return validation accuracy and loss of each client with its own model.

        A model that has diverged has accuracy 0 and an infinite loss.
        """
        X, y = self._validation
        accuracies, losses = np.zeros(len(clients)), np.full(len(clients), np.inf)
        for place, client in enumerate(clients):
            begin, num = self._starts[client], self.num_validation[client]
            own = slice(begin, begin + num)
            found = _outputs([one[place] for one in models], X[own])
            if np.isfinite(found).all():
                accuracies[place] = (found.argmax(1) == y[own]).mean()
                shares = _softmax(found)[np.arange(num), y[own]]
                losses[place] = -np.log(np.maximum(shares, 1e-9)).mean()
        return accuracies, losses

    def test(self, model: Model) -> float:
        """Return the accuracy on examples that no client trains or validates with."""
        X, y = self._test
        found = _outputs(model, X)
        is_right = (found.argmax(1) == y) & np.isfinite(found).all(1)
        return float(is_right.mean())


class Training:
    """A federated training with some settings.

    Attributes
    ----------
    model : list of ndarray
    round_number : int
        Rounds that it has been trained for.
    """

    def __init__(self, federation: Federation, settings: Params) -> None:
        self.federation, self.settings = federation, settings
        self.model = federation.initial_model()
        self.round_number = 0
        self._velocity: Model | None = None

    def advance(self, nodes: Sequence[int], rng: np.random.Generator) -> None:
        """Train for a round, in which a part of some nodes takes part."""
        clients = self.federation.sampled(nodes, rng)
        with np.errstate(all="ignore"):
            models = self.federation.trained(self.model, clients, self.settings, rng)
            self.step(self.federation.mean(models, clients))

    def step(self, mean: Model) -> None:
        """Take the server's step towards the mean of the clients' models."""
        self.round_number += 1
        rate = np.float32(self.settings["server-learning-rate"])
        momentum = np.float32(self.settings["server-momentum"])
        change = [old - new for old, new in zip(self.model, mean, strict=True)]
        if self._velocity is not None and momentum > 0:
            pairs = zip(self._velocity, change, strict=True)
            change = [momentum * old + new for old, new in pairs]
        self._velocity = change
        pairs = zip(self.model, change, strict=True)
        self.model = [old - rate * new for old, new in pairs]

    def run(self, num_rounds: int, rng: np.random.Generator) -> Training:
        """Train to a round, all clients taking part; return this training."""
        everybody = range(self.federation.num_clients)
        while self.round_number < num_rounds:
            self.advance(everybody, rng)
        return self


def _softmax(outputs: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _outputs(model: Model, X: NDArray[np.float32]) -> NDArray[np.float32]:
    W_1, b_1, W_2, b_2 = model
    with np.errstate(all="ignore"):
        return np.asarray(np.maximum(X @ W_1 + b_1, 0) @ W_2 + b_2)


def _some(examples: tuple[Any, Any], most: int) -> tuple[Any, Any]:
    X, y = examples
    own = np.random.default_rng(0).permutation(len(y))[:most]
    return X[own], y[own]


def _joined(parts: Sequence[tuple[Any, Any]], project: Any) -> tuple[Any, Any]:
    X = np.concatenate([project(X) for X, _ in parts])
    return X, np.concatenate([y for _, y in parts])


def _projection(clients: Sequence[ClientData]) -> Any:
    """Return a function from features to at most 64 of the same scale, clipped."""
    X = np.concatenate([one.train[0] for one in clients])
    if X.shape[1] <= _MOST_FEATURES:
        return lambda X: np.clip(X, -6, 6)
    _, spread, axes = np.linalg.svd(X - X.mean(0), full_matrices=False)
    axes = axes[:_MOST_FEATURES].T
    scale = spread[:_MOST_FEATURES].mean() / len(X) ** 0.5
    middle = X.mean(0)
    return lambda X: np.clip((X - middle) @ axes / scale, -6, 6).astype(np.float32)
