"""The data sets that can be fetched: from where, what they are, whose they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr_fbo._validation import nearest, require
from flwr_fbo.datasets.unpack import FromZipInZip, as_is, decompressed


@dataclass(frozen=True)
class Dataset:
    """One data set. Paths are relative to the folder of all data sets.

    Attributes
    ----------
    name : str
        As in ``flwr-fbo data download NAME``.
    summary : str
        What it is.
    url : str
        Of the file that is fetched.
    sha256 : str
        Of that file.
    size : int
        Of that file, bytes.
    unpack : callable
        Makes the data set (its second argument) of that file (its first).
    unpacked : int
        What it makes, bytes.
    target : str
        The file or folder that is the data set, in a folder of its own.
    members : tuple of str
        If ``target`` is a folder: the files in it that must be there.
    accepted : tuple of str
        Files that the loader reads where ``target`` is not there.
    licence, citation : str
        As the origin has them.
    """

    name: str
    summary: str
    url: str
    sha256: str
    size: int
    unpack: Callable[[Path, Path], None]
    unpacked: int
    target: str
    licence: str
    citation: str
    members: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    def is_complete(self, folder: Path) -> bool:
        """Return whether the data set itself is there."""
        target = folder / self.target
        files = [target / m for m in self.members] or [target]
        return all(file.is_file() for file in files)

    def found(self, folder: Path) -> str | None:
        """Return ``target`` if it is there, else what is accepted in its place.

        None where the target is not complete: the loaders refuse to look past it.
        """
        if (folder / self.target).exists():
            return self.target if self.is_complete(folder) else None
        return next((a for a in self.accepted if (folder / a).is_file()), None)


_LANDMINE = Dataset(
    name="landmine",
    summary="Landmines seen by radar: 29 fields, 14,820 examples of 9 features.",
    # The place that the data's authors name offers plain HTTP only, so this is the copy
    # in the repository of the first paper, at one commit; size and hash were counted
    # from that file.
    url="https://raw.githubusercontent.com/daizhongxiang/"
    "Differentially-Private-Federated-Bayesian-Optimization/"
    "e01b3f438de4a70dd03fe33cae231cc375fa8f26/LandmineData.mat",
    sha256="2163ab20a80e33a8b65593c48cf283c540599dcb291105e63fa4af2ce24c2bea",
    size=1_085_456,
    unpack=as_is,
    unpacked=1_085_456,
    target="landmine/LandmineData.mat",
    licence="None stated; published for research.",
    citation="Xue, Liao, Carin & Krishnapuram, Multi-task learning for classification "
    "with Dirichlet process priors, JMLR 8, 2007.",
)

_HAR_MEMBERS = (
    "README.txt",
    *(
        f"{part}/{column}_{part}.txt"
        for part in ("train", "test")
        for column in ("X", "y", "subject")
    ),
)
_HAR = Dataset(
    name="har",
    summary="Human activity recognition: smartphones worn by 30 subjects, 10,299 "
    "windows of 561 features, 6 activities.",
    # UCI states no hash. This hash and this size are what independent public
    # repositories recorded of their downloads, all the same.
    url="https://archive.ics.uci.edu/static/public/240/"
    "human+activity+recognition+using+smartphones.zip",
    sha256="c00b803081a5c797cd5e4b83700a9810b38d53d9d84e01917e090e1fdbc81031",
    size=61_005_872,
    unpack=FromZipInZip("UCI HAR Dataset.zip", "UCI HAR Dataset", _HAR_MEMBERS),
    unpacked=92_517_559,
    target="har/UCI HAR Dataset",
    members=_HAR_MEMBERS,
    accepted=("har/har_features561_rebuilt.npz",),
    licence="CC BY 4.0 by UCI; the README in the archive prohibits commercial use.",
    citation="Anguita, Ghio, Oneto, Parra & Reyes-Ortiz, A public domain dataset for "
    "human activity recognition using smartphones, ESANN 2013.",
)

_EMNIST = Dataset(
    name="emnist",
    summary="Federated EMNIST: handwritten digits of 3,383 writers, 28 x 28 pixels.",
    # TensorFlow Federated names the place and no hash. Hash and sizes are what public
    # repositories recorded of their downloads, all the same.
    url="https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma",
    sha256="c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
    size=170_507_172,
    unpack=decompressed,
    unpacked=4_708_990_976,
    target="emnist/emnist_all.sqlite",
    accepted=("emnist/emnist_digits.npz", "digits/digits_by_writer_100.npz"),
    licence="None stated; made of NIST Special Database 19, a U.S. government work.",
    citation="Cohen, Afshar, Tapson & van Schaik, EMNIST: extending MNIST to "
    "handwritten letters, IJCNN 2017; Caldas et al., LEAF: a benchmark for federated "
    "settings, 2018.",
)

_MAGIC = Dataset(
    name="magic",
    summary="MAGIC gamma telescope: 19,020 showers in the air, 10 features, by gamma "
    "rays or by hadrons.",
    # UCI states no hash: a public copy at one commit; size and hash were counted.
    url="https://raw.githubusercontent.com/TanishaSharma01/"
    "MAGIC-gamma-hadron-classification/"
    "8895e72ade7e042cc154730da133fa3ec298414c/magic04.data",
    sha256="e9314b7ebd4b4b59a3b3d65f7316663963777b16a46786877651dbbaa640b36a",
    size=1_477_391,
    unpack=as_is,
    unpacked=1_477_391,
    target="magic/magic04.data",
    licence="CC BY 4.0.",
    citation="Bock et al., Methods for multidimensional event classification: a case "
    "study using images from a Cherenkov gamma-ray telescope, NIM A 516, 2004.",
)

DATASETS = {d.name: d for d in (_LANDMINE, _HAR, _EMNIST, _MAGIC)}


def find_dataset(name: str) -> Dataset:
    """Return the data set of that name.

    Raises
    ------
    ValueError
        If there is none; the message has the nearest name.
    """
    require(name in DATASETS, "name", name, nearest(name, DATASETS))
    return DATASETS[name]
