"""How the releases of a ledger are added up and shown; each kind has its own views."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent

Cell = Callable[[LedgerRow], str]
Numbering = Mapping[str, Callable[[LedgerRow], int]]


def norm(row: LedgerRow) -> str:
    """Return the norm of what was released."""
    return f"{np.linalg.norm(row.vectors):.4g}"


def fact(name: str, form: str = "") -> Cell:
    """Return what shows a fact of a row."""
    return lambda row: format(row.facts[name], form)


def columns(**cells: Cell) -> dict[str, Cell]:
    """Return a release's columns between its time and its version, by heading."""
    named = {name.replace("_", " "): cell for name, cell in cells.items()}
    return {"committed": committed, **named, "version": fact("flwr_fbo")}


def committed_text(seconds: float) -> str:
    """Return a time of a ledger in this machine's own time zone."""
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def committed(row: LedgerRow) -> str:
    """Return when a row was committed."""
    return committed_text(row.committed)


# A server's releases are told apart by the round that they were made in, those of a
# site by their own number.
ROUND: Numbering = {"round": lambda row: row.made_after + 1}
RELEASE: Numbering = {"release": lambda row: row.iteration}


@dataclass(frozen=True)
class LedgerView:
    """How one sort of ledger is added up and shown.

    Attributes
    ----------
    spent : callable
        Adds up some rows; None where they have no epsilon.
    numbering : dict of callable
        Which release a row is, from 1, by heading; empty where ``columns`` say it.
    columns : dict of callable
        What else is shown of a row, by heading.
    whose : str
        Whose releases they are, in words.
    why_not : str
        Why releases are not private.
    parts : callable
        Returns the rows that are added up, by whose they are: ``whose`` unless named.
    study : str
        What a server's study is of; empty where no server keeps this ledger.
    lengths : callable, optional
        Returns how many numbers an agent sends for a release, and how many each gets
        back; None where the server does not know.
    """

    spent: Callable[[Mapping[str, Any], list[LedgerRow]], PrivacySpent | None]
    numbering: Numbering
    columns: Mapping[str, Cell]
    whose: str = ""
    why_not: str = "the noise was seeded, or there was none."
    parts: Callable[[list[LedgerRow]], dict[str, list[LedgerRow]]] = lambda rows: {
        "": rows
    }
    study: str = ""
    lengths: Callable[[LedgerRow], tuple[int, int]] | None = None

    @property
    def headings(self) -> tuple[str, ...]:
        """What is shown of each row."""
        return (*self.numbering, *self.columns)

    def numbers(self, row: LedgerRow) -> dict[str, int]:
        """Return which release a row is, by heading."""
        return {name: number(row) for name, number in self.numbering.items()}

    def cells(self, row: LedgerRow) -> list[str]:
        """Return what is shown of a row, below each heading."""
        shown = [cell(row) for cell in self.columns.values()]
        return [*map(str, self.numbers(row).values()), *shown]
