"""The catalogue of data sets: sound, and of known files."""

import hashlib
from pathlib import PurePosixPath

import pytest

from flwr_fbo.lab.datasets.base import data_folder
from flwr_fbo.lab.datasets.catalogue import DATASETS


def test_the_catalogue_is_sound() -> None:
    for dataset in DATASETS.values():
        assert dataset.url.startswith("https://")
        assert len(bytes.fromhex(dataset.sha256)) == 32
        assert dataset.sha256.islower()
        assert 0 < dataset.size <= dataset.unpacked
        # data_file() makes a data set's name of the first part of a path.
        assert PurePosixPath(dataset.target).parts[0] == dataset.name
        for path in (dataset.target, *dataset.members, *dataset.accepted):
            pure = PurePosixPath(path)
            assert not pure.is_absolute()
            assert ".." not in pure.parts
        assert DATASETS[dataset.name] is dataset


@pytest.mark.parametrize("name", ["landmine", "magic"])
def test_the_file_is_the_known_one(name: str) -> None:
    dataset = DATASETS[name]
    path = data_folder() / dataset.target
    if not path.is_file():
        pytest.skip(f"{dataset.target} is not in the folder that FLWR_FBO_DATA names")
    content = path.read_bytes()
    assert len(content) == dataset.size == dataset.unpacked
    assert hashlib.sha256(content).hexdigest() == dataset.sha256
