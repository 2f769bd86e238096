"""What ``flwr-fbo show`` prints of a record: as text, JSON or CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Listing:
    """A table of a record.

    Attributes
    ----------
    rows : sequence of mapping of str to value
        All rows, for CSV; each has the same names.
    shown : sequence of mapping of str to value
        Those of them that the text has a line for.
    values : mapping of str to value
        All of it, for JSON.
    title : str
        Line above the table.
    headings : mapping of str to str
        Headings of names that are to be shown otherwise.
    notes : sequence of str
        Lines below the table.
    """

    rows: Sequence[Mapping[str, Any]]
    shown: Sequence[Mapping[str, Any]]
    values: Mapping[str, Any]
    title: str
    headings: Mapping[str, str]
    notes: Sequence[str]
