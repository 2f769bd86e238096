"""Data at hand, under the names of the data sets that Flower's examples load.

`benchmarks.flower_examples` lets an example import from here what it imports from
``flwr_datasets``, ``datasets`` and ``evaluate``. Nothing is downloaded:

- CIFAR-10, MNIST and Fashion-MNIST are digits by writer (`FLWR_FBO_DATA`), in the sizes
  and colours of the originals.
- Iris is Iris.
- HIGGS and Adult are MAGIC (`FLWR_FBO_DATA`): two classes, and 10 features. Adult has
  four of them twice.
- IMDB is made here: each text has more good than bad words, or more bad ones.

Each has three parts: what the clients share, a test set for the server, and what is
held out from both, on which `benchmarks.flower_engine` judges. Digits of one writer are
in one part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from numpy.typing import NDArray

from flwr_fbo.lab.datasets import emnist, magic

# Examples of clients together, and of the server's test set.
NUM_SHARED, NUM_TEST, NUM_TEXTS = 2000, 500, 6000
SHARED, TEST, HELD_OUT = "train", "test", "held out"

_Columns = dict[str, Any]


class FederatedDataset:
    """Shares a data set among clients; who has a higher number gets what is held out.

    Parameters
    ----------
    dataset : str
        Of `COLUMNS`.
    partitioners : dict
        Of ``"train"``, with its ``num_partitions``.
    """

    def __init__(self, dataset: str, partitioners: dict[str, Any]) -> None:
        self._name = dataset
        self._partitioner = partitioners[SHARED]
        self._partitioner.dataset = load_dataset(dataset, split=SHARED)

    def load_partition(self, partition_id: int, split: str = SHARED) -> Dataset:
        """Return a client's examples, or what is held out."""
        if split == SHARED and partition_id >= self._partitioner.num_partitions:
            return load_dataset(self._name, split=HELD_OUT)
        return self._partitioner.load_partition(partition_id)


def load_dataset(path: str, split: str | None = None) -> Any:
    """Return a part of a data set, or all parts by name."""
    if split is None:
        return {part: load_dataset(path, part) for part in (SHARED, TEST)}
    columns = COLUMNS[path](split)
    pictures = [name for name in ("img", "image") if name in columns]
    if not pictures:
        return Dataset.from_dict(columns)
    label = ClassLabel(names=[str(digit) for digit in range(10)])
    return Dataset.from_dict(columns, Features({pictures[0]: Image(), "label": label}))


def load_metric(name: str) -> Accuracy:
    """Return the metric ``"accuracy"``."""
    assert name == "accuracy", name
    return Accuracy()


class Accuracy:
    """The share of predictions that are right, over all batches."""

    def __init__(self) -> None:
        self._right: list[bool] = []

    def add_batch(self, predictions: Any, references: Any) -> None:
        """Count a batch."""
        self._right += [bool(one) for one in predictions == references]

    def compute(self) -> dict[str, float]:
        """Return the share."""
        return {"accuracy": float(np.mean(self._right))}


def save_tiny_bert(folder: Path) -> None:
    """Save a small BERT with random weights, and its tokenizer.

    Parameters
    ----------
    folder : Path
        Made anew.
    """
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        BertTokenizerFast,
    )

    folder.mkdir(parents=True)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *_WORDS]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(special) + len(_WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def _digits(name: str, shape: tuple[int, ...], split: str) -> _Columns:
    images, labels = _pictures()[split]
    if len(shape) == 3:  # colours, and a margin
        margin = (shape[0] - images.shape[1]) // 2
        images = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
        images = np.repeat(images[..., None], shape[2], axis=3)
    return {name: list(images), "label": labels.tolist()}


@cache
def _pictures() -> dict[str, tuple[NDArray[np.uint8], NDArray[np.int64]]]:
    """Return images and labels of each part: its own writers' digits."""
    writers = [emnist.partition(writer) for writer in range(emnist.num_partitions())]
    parts = {SHARED: writers[40:], TEST: writers[30:40], HELD_OUT: writers[:30]}
    found = {}
    for (split, of_part), size in zip(
        parts.items(), (NUM_SHARED, NUM_TEST, None), strict=True
    ):
        X = np.concatenate([x for w in of_part for x in (w.X_train, w.X_validation)])
        y = np.concatenate([y for w in of_part for y in (w.y_train, w.y_validation)])
        chosen = np.random.default_rng(0).permutation(len(y))[:size]
        found[split] = np.round(255 * X[chosen]).astype(np.uint8), y[chosen]
    return found


def _parts(X: Any, y: Any, split: str, size: int = NUM_SHARED) -> tuple[Any, Any]:
    """Return the rows of a part of a table: a third is held out.

    Apps evaluate on a fifth of a client's rows, so those that are held out are there
    five times. Rows that follow each other have the classes in equal shares.
    """
    order = np.random.default_rng(0).permutation(len(y))
    held_out, shared = np.split(order, [len(y) // 3])
    if split == HELD_OUT:
        rows = np.tile(held_out, 5)
    else:
        rows = shared[:size]
        labels = y[rows].astype(int)
        turn = [np.sum(labels[:i] == label) for i, label in enumerate(labels)]
        rows = rows[np.argsort((np.array(turn) + 0.5) / np.bincount(labels)[labels])]
    return X[rows], y[rows]


def _iris(split: str) -> _Columns:
    from sklearn.datasets import load_iris

    table: Any = load_iris()
    X, y = _parts(table.data, table.target, split)
    names = ("sepal_length", "sepal_width", "petal_length", "petal_width")
    return {**dict(zip(names, X.T.tolist(), strict=True)), "species": y.tolist()}


def _magic(split: str) -> _Columns:
    X, y = _parts(*magic.load(), split, 6 * NUM_SHARED)
    return {"inputs": X.tolist(), "label": y.tolist()}


def _adult(split: str) -> _Columns:
    X, y = _parts(*magic.load(), split)
    columns = {f"column-{i}": X[:, i % X.shape[1]].tolist() for i in range(14)}
    return {**columns, "income": [("<=50K", ">50K")[int(one)] for one in y]}


_GOOD = [f"good{i}" for i in range(20)]
_BAD = [f"bad{i}" for i in range(20)]
_WORDS = [*_GOOD, *_BAD, *(f"word{i}" for i in range(100))]


def _texts(split: str) -> _Columns:
    rng = np.random.default_rng(list(map(ord, split)))
    labels = rng.integers(2, size=NUM_TEXTS)
    return {"text": list(_each_text(rng, labels)), "label": labels.tolist()}


def _each_text(rng: np.random.Generator, labels: NDArray[np.int64]) -> Iterator[str]:
    for label in labels:
        more, fewer = (_GOOD, _BAD) if label else (_BAD, _GOOD)
        words = [*rng.choice(more, 8), *rng.choice(fewer, 1), *rng.choice(_WORDS, 4)]
        yield " ".join(rng.permutation(words))


COLUMNS: dict[str, Callable[[str], _Columns]] = {
    "uoft-cs/cifar10": lambda split: _digits("img", (32, 32, 3), split),
    "ylecun/mnist": lambda split: _digits("image", (28, 28), split),
    "zalando-datasets/fashion_mnist": lambda split: _digits("image", (28, 28), split),
    "hitorilabs/iris": _iris,
    "scikit-learn/adult-census-income": _adult,
    "jxie/higgs": _magic,
    "stanfordnlp/imdb": _texts,
}
