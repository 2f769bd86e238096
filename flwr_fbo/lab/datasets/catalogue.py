"""The data sets that can be fetched: each loader in this folder describes its own."""

from __future__ import annotations

from flwr_fbo.lab.datasets import emnist, har, landmine, magic
from flwr_fbo.lab.datasets.base import Dataset

DATASETS: dict[str, Dataset] = {
    module.DATASET.name: module.DATASET for module in (emnist, har, landmine, magic)
}
