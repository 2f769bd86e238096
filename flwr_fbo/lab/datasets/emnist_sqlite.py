"""The SQLite file in which TensorFlow Federated publishes EMNIST by writer.

A row of its table ``examples`` is one image, as a serialised ``tf.train.Example``.
TensorFlow is not needed to read it: the protobuf runtime, which Flower brings, parses
the message once it is told the four message types that matter.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from numpy.typing import NDArray

from flwr_fbo.lab.datasets.base import Split, damaged

SPLITS = ("digits_only_train", "digits_only_test")
SIDE = 28

_PLACES = "SELECT rowid, client_id, split_name FROM examples"
_COUNTS = "SELECT num_examples, client_id, split_name FROM client_metadata"
_OF_DIGITS = " WHERE split_name IN (?, ?)"
_BLOB = "SELECT serialized_example_proto FROM examples WHERE rowid = ?"

# What TensorFlow's example.proto and feature.proto say of messages with such features.
_SCHEMA = """
name: "flwr_fbo/example.proto"
syntax: "proto3"
message_type {
  name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".Features" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: ".Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL
            type: TYPE_MESSAGE type_name: ".Feature" }
  }
}
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_BYTES }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: ".FloatList" }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL oneof_index: 0
          type: TYPE_MESSAGE type_name: ".Int64List" }
}
message_type {
  name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
"""


class SqliteWriters:
    """The writers with digits in both splits, in the order of their ids.

    Which rows are whose is asked once, for all writers: with an index on split and
    writer (the published file has one) that reads the index and no image; without one
    it is a single pass over the file, where a query per writer would be a pass each.
    From then on an image is a look-up by row number, of which 8 bytes each are kept.

    Parameters
    ----------
    path : Path
        Path of the unpacked file.

    Raises
    ------
    DataError
        If it is another database, or has other rows than its ``client_metadata`` says.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _opened(path) as connection:
            rows: dict[tuple[str, str], array[int]] = defaultdict(lambda: array("q"))
            for row, writer, split in connection.execute(_PLACES + _OF_DIGITS, SPLITS):
                rows[writer, split].append(row)
            counted = connection.execute(_COUNTS + _OF_DIGITS, SPLITS).fetchall()
        there = {(writer, split): len(ids) for (writer, split), ids in rows.items()}
        said = {(writer, split): number for number, writer, split in counted}
        for place in sorted(there.keys() | said.keys(), key=str):
            found, expected = there.get(place, 0), said.get(place, 0)
            if found != expected:
                which = f"{place[1]} has {found} rows of writer {place[0]!r}"
                raise damaged(path, f"{which}, and {expected} by client_metadata")
        train, test = ({w for w, s in there if s == split} for split in SPLITS)
        if not train & test:
            raise damaged(path, f"no writer has rows in {SPLITS[0]} and in {SPLITS[1]}")
        self._rows = [
            tuple(np.sort(rows[writer, split]) for split in SPLITS)
            for writer in sorted(train & test, key=str)
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def split(self, index: int) -> Split:
        """Return one writer's images; no others are read."""
        with _opened(self._path) as connection:
            train, test = (self._read(connection, ids) for ids in self._rows[index])
        return Split(*train, *test)

    def _read(
        self, connection: sqlite3.Connection, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        images = np.empty((len(rows), SIDE, SIDE), np.float32)
        labels = np.empty(len(rows), np.int64)
        for i, row in enumerate(rows.tolist()):
            (message,) = connection.execute(_BLOB, (row,)).fetchone()
            try:
                images[i], labels[i] = parse_example(message)
            except ValueError as error:
                raise damaged(self._path, f"row {row} of examples {error}") from error
        return images, labels


def parse_example(message: object) -> tuple[NDArray[np.float32], int]:
    """Return image and class of a serialised ``tf.train.Example``.

    Parameters
    ----------
    message : bytes
        With a feature ``pixels`` of 784 floats in [0, 1], 1.0 being the background, and
        a feature ``label`` of one integer from 0 to 9. Others are left alone.

    Returns
    -------
    image : array of shape (28, 28)
        One less the pixels: 0.0 is the background.
    label : int
        Digit from 0 to 9.

    Raises
    ------
    ValueError
        If the message is malformed.
    """
    if not isinstance(message, bytes):
        raise ValueError(f"is no bytes but {type(message).__name__}")
    try:
        feature = _example_type().FromString(message).features.feature
    except DecodeError as error:
        raise ValueError("is no tf.train.Example") from error
    # A look-up in a message's map adds what is missing: empty lists, refused below.
    pixels = np.array(feature["pixels"].float_list.value, np.float32)
    labels = list(feature["label"].int64_list.value)
    if pixels.shape != (SIDE**2,):
        raise ValueError(f"has {len(pixels)} floats 'pixels' in place of {SIDE**2}")
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError("has 'pixels' outside 0..1")
    if len(labels) != 1 or not 0 <= labels[0] <= 9:
        raise ValueError(f"has 'label' {labels[:3]} in place of one from 0 to 9")
    return 1 - pixels.reshape(SIDE, SIDE), labels[0]


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    # Immutable: neither locks nor files beside it, in a folder that may be read-only.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            # SQLite itself takes zeros for what is missing of the last page.
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            size = path.stat().st_size
            if size != pages * page_size:
                raise damaged(path, f"{size} bytes in place of {pages * page_size}")
            yield connection
    except sqlite3.Error as error:
        raise damaged(path, f"SQLite: {error}") from error


@cache
def _example_type() -> Any:
    """Return the class of ``tf.train.Example``, in a pool where TensorFlow's is not."""
    pool = DescriptorPool()
    pool.Add(text_format.Parse(_SCHEMA, FileDescriptorProto()))
    return GetMessageClass(pool.FindMessageTypeByName("Example"))
