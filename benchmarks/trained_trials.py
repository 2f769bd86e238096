"""Federated trainings with many settings, kept for `benchmarks.tune_fedavg` to replay.

    python -m benchmarks.trained_trials TASK FILE [--trials 64] [--jobs 2]

A trial is one run of Flower's `FedAvgM` in the in-process Grid with its own settings: a
network with one hidden layer on the clients' data. FILE gets a line a trial, of JSON:
its settings, and at the end of each rung how many of its validation examples each
client's model gets right, and the accuracy on test examples that no client trains on or
validates with. Trial 0 has the defaults of Flower's quickstarts, the others are a Latin
hypercube. A run that is ended goes on with the trials that FILE lacks.

Tasks: scikit-learn's digits at 20 clients and at 100 (with two shards of the sorted
images each), HAR at its 30 subjects, digits by writer at 100 writers. Where there are
100, a fifth of them trains in each round. MAGIC at 30 clients and Shuttle at 40 came
later, to test what was chosen on the other four: their rows are split at random, such
that both sizes and class shares differ. With five sites of 500 validation examples on
average, for a choice that protects an example: MAGIC, Shuttle and HAR, whose sites have
six subjects each. Landmine detection is left out: with 6 % of
mines accuracy says little, and an area under the curve is no count of examples.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvgM
from joblib import Parallel, delayed
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution, IntDistribution
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

from benchmarks.rows import add_rows, read_rows
from flwr_fbo import InProcessGrid, tuner_mod
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.lab.datasets import digits, emnist, har, magic, shuttle
from flwr_fbo.lab.datasets.base import Split
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuner.candidates.candidates import candidate_settings

Model = list[NDArray[np.float32]]
Examples = tuple[NDArray[np.float32], NDArray[np.int64]]

RUNGS = (3, 9, 27)
SPACE = SearchSpace(
    {
        "learning-rate": FloatDistribution(1e-3, 1.0, log=True),
        "local-epochs": IntDistribution(1, 8, log=True),
        "batch-size": IntDistribution(8, 64, log=True),
        "server-learning-rate": FloatDistribution(0.1, 2.0, log=True),
        "server-momentum": FloatDistribution(0.0, 0.9),
    }
)
DEFAULTS: Params = {
    "learning-rate": 0.01,
    "local-epochs": 1,
    "batch-size": 32,
    "server-learning-rate": 1.0,
    "server-momentum": 0.0,
}

_NUM_HIDDEN = 32


@dataclass(frozen=True)
class TrainingTask:
    """Whose data a model is trained on.

    Attributes
    ----------
    load : callable
        From a client's number to its data.
    num_clients, num_classes : int
    fraction_train : float
        Of the clients, in each round.
    """

    load: Callable[[int], Split]
    num_clients: int
    num_classes: int
    fraction_train: float = 1.0


def two_shards(client: int) -> Split:
    """Return two of 200 shards of digits, mostly of a class each (McMahan, 2017)."""
    X, y = load_digits(return_X_y=True)
    shards = np.array_split(np.argsort(y, kind="stable"), 200)
    of_clients = np.random.default_rng(0).permutation(len(shards)).reshape(100, 2)
    rows = np.concatenate([shards[shard] for shard in of_clients[client]])
    nothing = rows[:0]
    return Split(X[rows], y[rows], X[nothing], y[nothing])


def skewed(
    table: tuple[NDArray[np.float64], NDArray[np.float64]],
    num_rows: int,
    num_clients: int,
    client: int,
) -> Split:
    """Return a client's part of some rows, with its own size and class shares.

    Each class is split by a share a client, drawn from a symmetric Dirichlet
    distribution with parameter 0.5 (Hsu, Qi & Brown, 2019). A fifth of each class is
    split evenly, so that nobody has next to nothing.
    """
    X, y = table
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(y))[:num_rows]
    parts = []
    for of_class in (rows[y[rows] == label] for label in np.unique(y)):
        drawn = rng.dirichlet(np.full(num_clients, 0.5))
        ends = np.cumsum(0.8 * drawn + 0.2 / num_clients)
        places = np.round(ends[:-1] * len(of_class)).astype(np.intp)
        parts.append(np.split(of_class, places)[client])
    own = np.concatenate(parts)
    labels = y.astype(np.int64)
    return Split(X[own], labels[own], X[own[:0]], labels[own[:0]])


def six_of(site: int) -> range:
    """Return the subjects of HAR that one of five sites has."""
    return range(6 * site, 6 * site + 6)


def together(splits: Iterable[Split]) -> Split:
    """Return the examples of several clients as those of one."""
    rows = zip(
        *((s.X_train, s.y_train, s.X_validation, s.y_validation) for s in splits),
        strict=True,
    )
    return Split(*map(np.concatenate, rows))


TASKS = {
    "digits-20": TrainingTask(lambda n: digits.partition(n, 20, seed=0), 20, 10),
    "digits-100": TrainingTask(two_shards, 100, 10, fraction_train=0.2),
    "har": TrainingTask(har.partition, 30, 6),
    "writers": TrainingTask(emnist.partition, 100, 10, fraction_train=0.2),
    "magic": TrainingTask(lambda n: skewed(magic.load(), 12_000, 30, n), 30, 2),
    "shuttle": TrainingTask(lambda n: skewed(shuttle.load(), 16_000, 40, n), 40, 2),
    "magic-5": TrainingTask(lambda n: skewed(magic.load(), 10_000, 5, n), 5, 2),
    "shuttle-5": TrainingTask(lambda n: skewed(shuttle.load(), 10_000, 5, n), 5, 2),
    "har-5": TrainingTask(lambda n: together(map(har.partition, six_of(n))), 5, 6),
}


@dataclass(frozen=True)
class ClientData:
    """What a client has: half to train on, a quarter each to validate and to test."""

    train: Examples
    validation: Examples
    test: Examples


@cache
def load_clients(name: str) -> list[ClientData]:
    """Return the data of all clients of one of `TASKS`."""
    return split_clients(TASKS[name])


def split_clients(task: TrainingTask) -> list[ClientData]:
    """Return all clients' data; features are scaled by what all train on."""
    parts = []
    for client in range(task.num_clients):
        split = task.load(client)
        y = np.concatenate([split.y_train, split.y_validation])
        X = np.concatenate([split.X_train, split.X_validation]).reshape(len(y), -1)
        # By class, so that all three have a share of each.
        order = np.argsort(y, kind="stable")
        parts.append([(X[order[i::4]], y[order[i::4]]) for i in range(4)])
    scaler = StandardScaler().fit(np.concatenate([X for p in parts for X, _ in p[:2]]))
    clients = []
    for part in parts:
        scaled = [(scaler.transform(X).astype(np.float32), y) for X, y in part]
        (X_0, y_0), (X_1, y_1), validation, test = scaled
        train = np.concatenate([X_0, X_1]), np.concatenate([y_0, y_1])
        clients.append(ClientData(train, validation, test))
    return clients


def initial_model(num_features: int, num_classes: int, seed: int) -> Model:
    """Return weights and biases of two layers (He et al., 2015)."""
    rng = generator(seed, Purpose.TRAINING)
    sizes = [(num_features, _NUM_HIDDEN), (_NUM_HIDDEN, num_classes)]
    model: Model = []
    for size in sizes:
        weights = rng.normal(0, (2 / size[0]) ** 0.5, size).astype(np.float32)
        model += [weights, np.zeros(size[1], np.float32)]
    return model


def train(
    model: Model,
    examples: Examples,
    learning_rate: float,
    num_epochs: int,
    batch_size: int,
    rng: np.random.Generator,
) -> Model:
    """Return the model after mini-batch gradient descent on the cross-entropy."""
    X, y = examples
    W_1, b_1, W_2, b_2 = (array.copy() for array in model)
    targets = np.eye(len(b_2), dtype=np.float32)[y]
    for _ in range(num_epochs):
        order = rng.permutation(len(y))
        for begin in range(0, len(y), batch_size):
            batch = order[begin : begin + batch_size]
            hidden = np.maximum(X[batch] @ W_1 + b_1, 0)
            error = (_softmax(hidden @ W_2 + b_2) - targets[batch]) / len(batch)
            back = (error @ W_2.T) * (hidden > 0)
            W_2 -= learning_rate * hidden.T @ error
            b_2 -= learning_rate * error.sum(axis=0)
            W_1 -= learning_rate * X[batch].T @ back
            b_1 -= learning_rate * back.sum(axis=0)
    return [W_1, b_1, W_2, b_2]


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def num_correct(model: Model, examples: Examples) -> int:
    """Return how many examples the model gets right: none, where it has diverged."""
    X, y = examples
    W_1, b_1, W_2, b_2 = model
    scores = np.maximum(X @ W_1 + b_1, 0) @ W_2 + b_2
    right = (scores.argmax(axis=1) == y) & np.isfinite(scores).all(axis=1)
    return int(right.sum())


def client_app(name: str) -> ClientApp:
    """Return the app of a task's clients."""
    app = ClientApp(mods=[tuner_mod])

    def data_of(context: Context) -> ClientData:
        return load_clients(name)[int(context.node_config["partition-id"])]

    @app.train()
    def train_model(message: Message, context: Context) -> Message:
        data = data_of(context)
        config: Any = message.content.config_records["config"]
        key = config["server-round"], int(context.node_config["partition-id"])
        model = train(
            message.content.array_records["arrays"].to_numpy_ndarrays(),
            data.train,
            float(context.run_config["learning-rate"]),
            int(context.run_config["local-epochs"]),
            int(context.run_config["batch-size"]),
            generator(0, *key, Purpose.TRAINING),
        )
        metrics = MetricRecord({"num-examples": len(data.train[1])})
        content = RecordDict({"arrays": ArrayRecord(model), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate_model(message: Message, context: Context) -> Message:
        data = data_of(context)
        model = message.content.array_records["arrays"].to_numpy_ndarrays()
        right, num_examples = (
            num_correct(model, data.validation),
            len(data.validation[1]),
        )
        metrics = MetricRecord(
            {
                "client": int(context.node_config["partition-id"]),
                "num-correct": right,
                "num-examples": num_examples,
                "accuracy": right / max(num_examples, 1),
            }
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@one_blas_thread
def train_trial(name: str, number: int, settings: Params) -> dict[str, Any]:
    """Return a line: one federated training, and its scores at the end of each rung."""
    task, clients = TASKS[name], load_clients(name)
    correct: list[list[int]] = []
    test: list[float] = []

    def note(contents: list[RecordDict], _: str) -> MetricRecord:
        found: list[Any] = [content.metric_records["metrics"] for content in contents]
        by_client = {one["client"]: one["num-correct"] for one in found}
        correct.append([by_client[n] for n in range(task.num_clients)])
        return MetricRecord()

    def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = arrays.to_numpy_ndarrays()
        right = sum(num_correct(model, data.test) for data in clients)
        test.append(right / sum(len(data.test[1]) for data in clients))
        return MetricRecord()

    # The strategy draws the clients of a round with it.
    random.seed(number)
    strategy = FedAvgM(
        server_learning_rate=settings["server-learning-rate"],
        server_momentum=settings["server-momentum"],
        fraction_train=task.fraction_train,
        evaluate_metrics_aggr_fn=note,
    )
    num_features = clients[0].train[0].shape[1]
    grid = InProcessGrid(client_app(name), task.num_clients, run_config=settings)
    with np.errstate(all="ignore"):
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(
                initial_model(num_features, task.num_classes, seed=0)
            ),
            num_rounds=RUNGS[-1],
            evaluate_fn=measure,
        )
    return {
        "task": name,
        "trial": number,
        "settings": settings,
        "num_examples": [len(data.validation[1]) for data in clients],
        # `test` begins with the initial model.
        "rungs": [
            {
                "rounds": rounds,
                "correct": correct[rounds - 1],
                "test": round(test[rounds], 5),
            }
            for rounds in RUNGS
        ],
    }


def read_lines(path: Path) -> list[Mapping[str, Any]]:
    """Return the lines of a file, by trial."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: int(line["trial"]))


def main() -> None:
    """Train what a file lacks."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    settings = candidate_settings(SPACE, asked.trials, DEFAULTS, [], seed=0)
    done = {line["trial"] for line in read_rows(asked.file)}
    missing = [number for number in range(asked.trials) if number not in done]
    work = (delayed(train_trial)(asked.task, n, settings[n]) for n in missing)
    lines = Parallel(n_jobs=asked.jobs, return_as="generator_unordered")(work)
    for line in lines:
        add_rows(asked.file, [line])


if __name__ == "__main__":
    # By its name, so that other processes find what they are to do.
    from benchmarks.trained_trials import main as named_main

    named_main()
