"""Durable files of a site: its folder, its slot, and its agents' journals.

Between messages an agent lives in its `Journal`: a file in the site's folder, which
survives whatever ends the client; without a folder, bytes in ``context.state``, which
live as long as the run. Neither leaves the client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from flwr_fbo._common.errors import NodeConfigError
from flwr_fbo.journal.journal import Journal, open_patiently
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError, has_journal
from flwr_fbo.site.recorded_agent import older_copy


def configured_folder(context: Context) -> Path | None:
    """Return the folder that the node config, else the run config, names."""
    folder = context.node_config.get("fbo-folder", context.run_config.get("fbo-folder"))
    if not folder:
        return None
    path = Path(str(folder))
    if not path.is_absolute():
        raise _not_allowed("fbo-folder", folder, "an absolute path")
    return path


def configured_slot(context: Context) -> int:
    """Return the slot that the node config names, or -1.

    Raises
    ------
    ValueError
        If the node config's value is not an integer >= 0.
    """
    for key in ("agent-id", "partition-id"):
        if key in context.node_config:
            value = context.node_config[key]
            # A SuperNode's --node-config may give it as text.
            if str(value).isdecimal():
                return int(value)
            expected = "an integer from 0 to the number of agents - 1"
            raise _not_allowed(f"node config {key}", value, expected)
    return -1


def _not_allowed(field: str, value: object, allowed: str) -> NodeConfigError:
    return NodeConfigError(
        f"{field}={value!r} is not allowed: {allowed}.",
        public=f"{field} is not allowed: {allowed}.",
    )


@contextmanager
def held_journal(
    context: Context,
    identity: Mapping[str, Any],
    path: Path | None,
    *,
    record: str,
    may_begin: bool,
    patience: float,
) -> Iterator[Journal]:
    """Hold the journal of this client's agent: in a file, or in ``context.state``.

    Parameters
    ----------
    context : flwr.app.Context
        Its state remembers the journal, or how many releases were in it.
    identity : mapping
        Identity of the journal's study and agent; with ``study_id``.
    path : Path, optional
        The file.
    record : str
        Name of the record in ``context.state``.
    may_begin : bool
        Whether there may be none yet: then one is begun. Whether it is the one that an
        agent had, the server says.
    patience : float
        Seconds to wait while another process has the file.

    Raises
    ------
    JournalError
        If it cannot be used, is lost, or had more releases in it earlier in this run: a
        server that has the later ones notices too, but it may have lost them.
    JournalHeldError
        If another process still has it.
    """
    records = context.state.config_records
    known = dict(records.get(record, {}))
    if any(known.get(key) != identity.get(key, -1) for key in _OWNER):
        known = {}  # of another owner
    had: Any = known.get("num-releases", 0)
    content: Any = known.get("journal") if path is None else None
    if not may_begin and not (content if path is None else has_journal(path)):
        where = "in context.state" if path is None else str(path)
        text = (
            "This agent's journal is lost, with the noise of its releases, so the "
            "agent stops. Restore the journal, or begin another study."
        )
        raise JournalError(f"{text} It was {where}.", public=text)
    try:
        if path is None:
            journal = Journal(identity, content=content)
        else:
            journal = open_patiently(identity, path, patience)
    except JournalHeldError:
        raise JournalHeldError.told(
            "This site is busy: another process holds its journal, such as a running "
            "evaluation of an earlier round."
        ) from None
    with closing(journal):
        if not may_begin and journal.num_releases < had:
            raise older_copy(journal.num_releases, had)
        try:
            yield journal
        finally:
            # What was played and released is kept, whatever came after it.
            kept: dict[str, Any] = {key: identity.get(key, -1) for key in _OWNER}
            if path is None:
                kept["journal"] = journal.to_bytes()
            else:
                kept["num-releases"] = max(had, journal.num_releases)
            records[record] = ConfigRecord(kept)


_OWNER = ("study_id", "slot")


def record_name(kind: str) -> str:
    """Return the record of ``context.state`` for the journals of one kind."""
    return f"flwr-fbo-{kind}"


def noted_slot(context: Context, record: str, study_id: str) -> int:
    """Return the slot of a study's journal that ``context.state`` knows, or -1."""
    known = context.state.config_records.get(record)
    if not known or known["study_id"] != study_id:
        return -1
    return int(str(known["slot"]))
