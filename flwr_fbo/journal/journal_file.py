"""One SQLite file: opening and locking it, whose it is, transactions and errors."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from flwr_fbo.journal.checksums import LABELS, CheckedTables, Part, digests_of
from flwr_fbo.journal.checksums import JournalError as JournalError
from flwr_fbo.journal.checksums import JournalHeldError as JournalHeldError

SCHEMA_VERSION = 4

_SCHEMA = """
CREATE TABLE identity (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    digest BLOB NOT NULL
);
CREATE TABLE part (
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    count INTEGER NOT NULL,
    total BLOB NOT NULL,
    last INTEGER NOT NULL,
    running INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (name, number)
) WITHOUT ROWID;
INSERT INTO part VALUES ('head', 0, 0, zeroblob(32), -1, 0, zeroblob(0));
CREATE TABLE trial (
    number INTEGER PRIMARY KEY,
    iteration INTEGER NOT NULL,
    params TEXT NOT NULL,
    point BLOB NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'failed')),
    value REAL,
    interruptions INTEGER NOT NULL,
    started REAL NOT NULL,
    finished REAL,
    digest BLOB NOT NULL
);
CREATE TABLE state (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    digest BLOB NOT NULL
);
CREATE TABLE ledger (
    iteration INTEGER PRIMARY KEY,
    facts TEXT NOT NULL,
    vectors BLOB NOT NULL,
    committed REAL NOT NULL,
    digest BLOB NOT NULL
);
"""


class JournalFile(CheckedTables):
    """Base of `Journal`: the file, its lock and its identity."""

    def __init__(
        self,
        identity: Mapping[str, Any] | None,
        path: Path | None = None,
        content: bytes | None = None,
    ) -> None:
        self.path = path
        if identity is None and path is not None and not path.is_file():
            raise JournalError(f"There is no journal {path}.")
        self._connection = self._open(content)
        self._parts = {table: defaultdict(Part) for table in LABELS}
        self._before = {}
        try:
            self.identity = self._prepare(identity, may_begin=content is None)
        except BaseException:
            self._connection.close()
            raise

    def _open(self, content: bytes | None) -> sqlite3.Connection:
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Only a new file: closing an old one would drop this process's lock on it.
            if self.path is not None and not self.path.exists():
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
                os.close(os.open(self.path, flags, 0o600))
        except OSError as error:
            raise JournalError(
                f"The journal {self.path} cannot be written: {error.strerror}."
            ) from error
        with self._explained():
            where = self.path or ":memory:"
            connection = sqlite3.connect(where, isolation_level=None, timeout=0.0)
            if self.path is None:
                # A quarter of the usual: most pages of a small journal are empty.
                connection.execute("PRAGMA page_size = 1024")
            if content is not None:
                connection.deserialize(content)
            # The lock is kept until the connection, or its process, ends.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA synchronous = FULL")
            return connection

    def _prepare(
        self, identity: Mapping[str, Any] | None, may_begin: bool
    ) -> dict[str, Any]:
        """Create or check the content; return whom it belongs to."""
        with self._transaction():
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if version == SCHEMA_VERSION:
                self._read_parts()
            elif version != 0:
                raise JournalError(
                    f"The journal {self.path} has schema version {version}, this is "
                    f"version {SCHEMA_VERSION}: use the flwr_fbo that wrote it."
                )
            elif may_begin and identity is not None and self._is_empty():
                self._create(identity)
            else:
                raise JournalError(f"{self.path} is no journal of flwr_fbo.")
            rows = self._connection.execute(
                "SELECT name, value, digest FROM identity"
            ).fetchall()
            self._check("identity", 0, rows)
            stored = {name: json.loads(value) for name, value, _ in rows}
        if identity is None:
            return stored
        now = json.loads(json.dumps(dict(identity)))
        different = {
            name: (stored.get(name), now.get(name))
            for name in sorted(stored.keys() | now.keys())
            if stored.get(name) != now.get(name)
        }
        if different:
            raise JournalError(
                f"The journal {self.path} belongs to another study: give this one a "
                f"folder of its own. What differs (stored, now): {different}."
            )
        return stored

    def _is_empty(self) -> bool:
        """Return whether there is nothing in the file, of anybody's."""
        rows = self._connection.execute("SELECT count(*) FROM sqlite_master")
        return bool(rows.fetchone()[0] == 0)

    def _create(self, identity: Mapping[str, Any]) -> None:
        for statement in _SCHEMA.split(";"):
            self._connection.execute(statement)
        rows = [(name, json.dumps(value)) for name, value in identity.items()]
        digests = digests_of("identity", rows)
        self._connection.executemany(
            "INSERT INTO identity VALUES (?, ?, ?)",
            [(*row, digest) for row, digest in zip(rows, digests, strict=True)],
        )
        self._change("identity", new=digests)
        self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def require_kind(self, kind: str) -> None:
        """Raise JournalError unless the journal belongs to a ``kind``."""
        found = self.identity.get("kind")
        if found != kind:
            raise JournalError(
                f"The journal {self.path} is of kind {found!r}, not {kind!r}."
            )

    def to_bytes(self) -> bytes:
        """Return the whole journal, for a later ``content``."""
        return self._connection.serialize()

    def close(self) -> None:
        """Let the file go; nothing is lost without it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
