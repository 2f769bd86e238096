"""Data at hand, under the names of the data sets that Flower's apps load.

`benchmarks.flower_examples` lets a copy of an app import from here what it imports from
``flwr_datasets`` and ``datasets``, and writes the files that an app expects on disk.
Nothing is downloaded:

- CIFAR-10, MNIST and Fashion-MNIST are digits by writer (`FLWR_FBO_DATA`), in the sizes
  and colours of the originals. So are the five sets of digits of FedBN.
- Iris is Iris.
- HIGGS and Adult are MAGIC (`FLWR_FBO_DATA`): two classes, and 10 features. Adult has
  four of them twice, and eight of them as words.
- TON IoT, of StatAvg, is scikit-learn's digits 0 to 5: eight principal components.
- The passengers of the Titanic are made up: women and first-class passengers survive
  more often.

What the clients share and the server's test set are apart: digits of one writer are in
one of them.
"""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from numpy.typing import NDArray

from flwr_fbo.lab.datasets import emnist, magic

# Examples of clients together, and of the server's test set.
NUM_SHARED, NUM_TEST = 2000, 500
TRAIN, TEST = "train", "test"
_NUM_TEST_WRITERS = 10

_Columns = dict[str, Any]


class FederatedDataset:
    """Shares a data set among clients, as ``flwr_datasets`` does.

    Parameters
    ----------
    dataset : str
        Of `COLUMNS`.
    partitioners : dict
        One partitioner, of ``"train"`` or of all parts merged.
    preprocessor : callable, optional
        Ignored: it merges or moves parts of the original's size.
    """

    def __init__(
        self,
        dataset: str,
        partitioners: dict[str, Any],
        preprocessor: Callable[..., Any] | None = None,
    ) -> None:
        [self._partitioner] = partitioners.values()
        self._partitioner.dataset = load_dataset(dataset, split=TRAIN)

    def load_partition(self, partition_id: int, split: str = TRAIN) -> Dataset:
        """Return a client's examples."""
        return self._partitioner.load_partition(partition_id)


def load_dataset(path: str, split: str | None = None) -> Any:
    """Return a part of a data set, or both parts by name."""
    if split is None:
        return {part: load_dataset(path, part) for part in (TRAIN, TEST)}
    columns = COLUMNS[path](split)
    pictures = [name for name in ("img", "image") if name in columns]
    if not pictures:
        return Dataset.from_dict(columns)
    label = ClassLabel(names=[str(digit) for digit in range(10)])
    return Dataset.from_dict(columns, Features({pictures[0]: Image(), "label": label}))


def save_fedbn(app: Path) -> None:
    """Write the five sets of digits that the baseline FedBN reads."""
    images, labels = _pictures()[TRAIN]
    sets = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
    for number, name in enumerate(sets):
        x, y = images[number :: len(sets)][:550], labels[number :: len(sets)][:550]
        if name in ("SVHN", "SynthDigits", "MNIST_M"):  # these have colours
            x = np.repeat(x[..., None], 3, axis=3)
        folder = app / "data" / name
        (folder / "partitions").mkdir(parents=True)
        _pickle(folder / "test.pkl", (x[500:], y[500:]))
        for part in range(10):  # of 50 digits
            rows = slice(50 * part, 50 * (part + 1))
            path = folder / "partitions" / f"train_part{part}.pkl"
            _pickle(path, (x[rows], y[rows]))


def save_statavg(app: Path) -> None:
    """Write the table that the baseline StatAvg reads: 8 features of 6 classes."""
    from sklearn.datasets import load_digits
    from sklearn.decomposition import PCA

    X, y = load_digits(n_class=6, return_X_y=True)
    (app / "dataset").mkdir()
    with (app / "dataset" / "dataset.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        features = [f"feature-{number}" for number in range(8)]
        writer.writerow(["PID", "CMD", *features, "label", "type"])
        for row, kind in zip(PCA(8, random_state=0).fit_transform(X), y, strict=True):
            writer.writerow([0, "none", *row.round(4), int(kind > 0), f"type-{kind}"])


def _pickle(path: Path, value: Any) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file)


def _digits(
    name: str, shape: tuple[int, ...], split: str, size: int = NUM_SHARED
) -> _Columns:
    images, labels = _pictures()[split]
    images, labels = images[:size], labels[:size]
    if len(shape) == 3:  # colours, and a margin
        margin = (shape[0] - images.shape[1]) // 2
        images = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
        images = np.repeat(images[..., None], shape[2], axis=3)
    return {name: list(images), "label": labels.tolist()}


@cache
def _pictures() -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Return images and labels of each part: its own writers' digits, shuffled."""
    writers = [emnist.partition(writer) for writer in range(emnist.num_partitions())]
    parts = {TRAIN: writers[_NUM_TEST_WRITERS:], TEST: writers[:_NUM_TEST_WRITERS]}
    found = {}
    for split, of_part in parts.items():
        X = np.concatenate([x for w in of_part for x in (w.X_train, w.X_validation)])
        y = np.concatenate([y for w in of_part for y in (w.y_train, w.y_validation)])
        chosen = np.random.default_rng(0).permutation(len(y))
        if split == TEST:
            chosen = chosen[:NUM_TEST]
        found[split] = np.round(255 * X[chosen]).astype(np.uint8), y[chosen]
    return found


def _rows(X: Any, y: Any, split: str, size: int = NUM_SHARED) -> tuple[Any, Any]:
    """Return the rows of a part of a table; a tenth is the test set.

    Rows that follow each other have the classes in equal shares.
    """
    order = np.random.default_rng(0).permutation(len(y))
    tested, shared = np.split(order, [len(y) // 10])
    rows = (tested if split == TEST else shared)[:size]
    labels = np.unique(y[rows], return_inverse=True)[1]
    turn = [np.sum(labels[:i] == label) for i, label in enumerate(labels)]
    rows = rows[np.argsort((np.array(turn) + 0.5) / np.bincount(labels)[labels])]
    return X[rows], y[rows]


def _iris(names: tuple[str, ...], split: str) -> _Columns:
    from sklearn.datasets import load_iris

    table: Any = load_iris()
    X, y = _rows(table.data, table.target, split)
    *features, label = names
    return {**dict(zip(features, X.T.tolist(), strict=True)), label: y.tolist()}


def _magic(split: str) -> _Columns:
    X, y = _rows(*magic.load(), split)
    return {"inputs": X.tolist(), "label": y.tolist()}


_NUMBERS = (
    *("age", "fnlwgt", "education.num", "capital.gain", "capital.loss"),
    "hours.per.week",
)
_WORDS = (
    *("workclass", "education", "marital.status", "occupation", "relationship"),
    *("race", "sex", "native.country"),
)


def _adult(split: str) -> _Columns:
    X, y = _rows(*magic.load(), split)
    numbers = {name: X[:, i].tolist() for i, name in enumerate(_NUMBERS)}
    words = {}
    for i, name in enumerate(_WORDS, start=len(_NUMBERS)):
        column = X[:, i % X.shape[1]]
        bins = np.searchsorted(np.quantile(column, [0.25, 0.5, 0.75]), column)
        words[name] = [f"{name}-{number}" for number in bins]
    return {**numbers, **words, "income": [("<=50K", ">50K")[int(one)] for one in y]}


def _titanic(split: str) -> _Columns:
    rng, size = np.random.default_rng(0), 800
    sex, pclass = rng.integers(2, size=size), rng.integers(1, 4, size=size)
    age, relatives = rng.integers(1, 80, size=size), rng.integers(4, size=(2, size))
    fare = np.round(rng.gamma(2.0, 40 / pclass), 2)
    lead = 2.5 * sex - 1.0 * (pclass - 2) - 0.02 * (age - 30) - 1.0
    survived = rng.random(size) < 1 / (1 + np.exp(-lead))
    titles = np.where(sex == 1, "Mrs.", "Mr.")
    return {
        "Survived": survived.astype(int).tolist(),
        "Pclass": pclass.tolist(),
        "Name": [f"{title} Number {i}" for i, title in enumerate(titles)],
        "Sex": np.where(sex == 1, "female", "male").tolist(),
        "Age": age.astype(float).tolist(),
        "Siblings/Spouses Aboard": relatives[0].tolist(),
        "Parents/Children Aboard": relatives[1].tolist(),
        "Fare": fare.tolist(),
    }


_IRIS = ("sepal_length", "sepal_width", "petal_length", "petal_width", "species")
_IRIS_CM = ("SepalLengthCm", "SepalWidthCm", "PetalLengthCm", "PetalWidthCm", "Species")

COLUMNS: dict[str, Callable[[str], _Columns]] = {
    "uoft-cs/cifar10": lambda split: _digits("img", (32, 32, 3), split),
    # Of two baselines, one of which wants 500 for each client.
    "cifar10": lambda split: _digits("img", (32, 32, 3), split, 5000),
    "ylecun/mnist": lambda split: _digits("image", (28, 28), split),
    "zalando-datasets/fashion_mnist": lambda split: _digits("image", (28, 28), split),
    "hitorilabs/iris": lambda split: _iris(_IRIS, split),
    "scikit-learn/iris": lambda split: _iris(_IRIS_CM, split),
    "scikit-learn/adult-census-income": _adult,
    "jxie/higgs": _magic,
    "julien-c/titanic-survival": _titanic,
}
