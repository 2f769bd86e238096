"""The connection of a journal to its file, for tests that disturb it."""

import sqlite3

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalFile


def connection_of(journal: Journal) -> sqlite3.Connection:
    """Return the connection of a journal in a file."""
    store = journal._store
    assert isinstance(store, JournalFile)
    return store._connection
