"""A bandit's journal at its client, held while one message is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from flwr_fbo.agents.durable.refused_journal import older_copy
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import JournalError

# Seconds to wait while another process has the journal: for the time of one call.
_PATIENCE = 30.0


@contextmanager
def held_journal(
    context: Context,
    identity: Mapping[str, Any],
    path: Path | None,
    may_begin: bool,
) -> Iterator[Journal]:
    """Hold the journal of this client's agent: in a file, or in ``context.state``.

    Parameters
    ----------
    context : flwr.app.Context
        Its state remembers, for each kind of bandit, the journal or how many releases
        were in it.
    identity : mapping
        What the journal belongs to; with ``kind`` and ``study_id``.
    path : Path, optional
        The file.
    may_begin : bool
        Whether there may be none yet: then one is begun. Whether it is the one that an
        agent had, the server says.

    Raises
    ------
    JournalError
        If it cannot be used, is lost, or had more releases in it earlier in this run: a
        server that has the later ones notices too, but it may have lost them.
    """
    records, name = context.state.config_records, record_name(identity["kind"])
    mine = {"study-id": str(identity["study_id"])}
    known = records.get(name)
    if known is not None and known["study-id"] != mine["study-id"]:
        known = None  # of another study
    if path is not None:
        if not may_begin and not path.is_file():
            raise _lost(str(path))
        had = 0 if known is None else known.get("num-releases", 0)
        assert isinstance(had, int)
        with open_patiently(identity, path, _PATIENCE) as journal:
            if not may_begin and journal.num_releases < had:
                raise older_copy(journal.num_releases, had)
            try:
                yield journal
            finally:
                most = max(had, journal.num_releases)
                records[name] = ConfigRecord({**mine, "num-releases": most})
        return
    content = None if known is None else known.get("journal")
    assert content is None or isinstance(content, bytes)
    if content is None and not may_begin:
        raise _lost("in context.state")
    with Journal(identity, content=content) as journal:
        try:
            yield journal
        finally:
            # What was played and released is kept, whatever came after it.
            records[name] = ConfigRecord({**mine, "journal": journal.to_bytes()})


def record_name(kind: str) -> str:
    """Return the record of ``context.state`` for the journals of one kind."""
    return f"flwr-fbo-{kind}"


def _lost(where: str) -> JournalError:
    return JournalError(
        "This agent's journal is lost, and with it the noise of its releases, so it "
        f"stops: give it back, or begin another study. It was {where}."
    )
