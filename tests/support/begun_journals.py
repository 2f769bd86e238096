"""Journals that somebody has begun, of whatever kind."""

from pathlib import Path

import numpy as np

from flwr_fbo.journal.journal import Journal


def begin_journal(path: Path) -> None:
    """Make a journal with one array in it."""
    with Journal({"kind": "any"}, path) as journal:
        journal.put({"any": np.zeros(1)})
