"""What makes a data set of the file that is fetched.

Each writes new files of its own, with the permissions of any new file.
"""

from __future__ import annotations

import lzma
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import ZipFile

_CHUNK = 1 << 20


def as_is(fetched: Path, to: Path) -> None:
    """Copy what is fetched: it is the data set."""
    with fetched.open("rb") as source:
        _write(source, to)


def decompressed(fetched: Path, to: Path) -> None:
    """Write the one file that is compressed in an ``.xz`` or ``.lzma`` file."""
    with lzma.open(fetched) as source:
        _write(source, to)


@dataclass(frozen=True)
class FromZipInZip:
    """Write some files of a zip archive that lies in a zip archive.

    Attributes
    ----------
    inner : str
        The name of the archive in the archive.
    folder : str
        Of the inner archive, which holds the files.
    members : tuple of str
        Their names below that folder, here and there. The archive's own names are never
        made into paths, so nothing can be written elsewhere.
    """

    inner: str
    folder: str
    members: tuple[str, ...]

    def __call__(self, fetched: Path, to: Path) -> None:
        """Write ``members`` below ``to``, or raise KeyError if one is not there."""
        with (
            ZipFile(fetched) as outer,
            outer.open(self.inner) as file,
            ZipFile(file) as archive,
        ):
            for member in self.members:
                with archive.open(f"{self.folder}/{member}") as source:
                    _write(source, to / member)


def _write(source: IO[bytes], to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("xb") as target:
        shutil.copyfileobj(source, target, _CHUNK)
