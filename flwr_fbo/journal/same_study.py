"""Same study: what goes on from a journal must be what the journal belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr_fbo._common.version import __version__
from flwr_fbo.journal.journal_file import JournalError


def check_same_study(
    path: Path | None, stored: Mapping[str, Any], now: Mapping[str, Any], made_by: str
) -> None:
    """Raise JournalError if settings differ from those of a journal.

    Parameters
    ----------
    path : Path, optional
        File of the journal, for the message.
    stored : mapping of str to JSON value
        Settings that the journal belongs to.
    now : mapping of str to JSON value
        Settings of what would go on from it.
    made_by : str
        Version of the package that made the journal; empty if it is not known.
    """
    if stored == now:
        return
    now = json.loads(json.dumps(dict(now)))  # as they are stored: lists, not tuples
    different = {
        name: (stored.get(name), now.get(name))
        for name in sorted(stored.keys() | now.keys())
        if stored.get(name) != now.get(name)
    }
    if not different:
        return
    maker = f" It was made by flwr_fbo {made_by}, this is {__version__}."
    if made_by in ("", __version__):
        maker = ""
    raise JournalError(
        f"The journal {path} belongs to another study. What differs "
        f"(stored, now): {different}.{maker} To continue it, start it as it "
        "was. In a folder of its own this one is a new study; a private one "
        "then spends epsilon again."
    )
