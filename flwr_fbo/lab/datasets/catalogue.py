"""The data sets that can be fetched: each loader in this folder describes its own."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import flwr_fbo.lab.datasets
from flwr_fbo._common.validation import require_known
from flwr_fbo.lab.datasets.base import Dataset


def _described() -> dict[str, Dataset]:
    """Return the ``DATASET`` of all modules here, but for those that begin with _."""
    names = {module.name for module in iter_modules(flwr_fbo.lab.datasets.__path__)}
    others = sorted(name for name in names - {"catalogue"} if name[0] != "_")
    modules = [import_module(f"flwr_fbo.lab.datasets.{name}") for name in others]
    found = [one.DATASET for one in modules if hasattr(one, "DATASET")]
    return {dataset.name: dataset for dataset in found}


DATASETS = _described()


def find_dataset(name: str) -> Dataset:
    """Return the data set of that name.

    Raises
    ------
    ValueError
        If there is none; the message has the nearest name.
    """
    require_known("name", name, DATASETS)
    return DATASETS[name]
