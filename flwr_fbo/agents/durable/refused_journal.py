"""Why an agent stops whose journal is not the one with all that it released."""

from __future__ import annotations

from flwr_fbo.journal.journal_file import JournalError


def older_copy(made: int, known: int) -> JournalError:
    """Return the error for a journal with fewer releases than are known of."""
    return JournalError(
        f"This agent's journal has {made} releases and had {known}: it is an older "
        "copy. Give the newer one back, or begin another study."
    )


def of_another_slot(known: int, named: int) -> JournalError:
    """Return the error for a journal of an agent that the server does not mean."""
    return JournalError(f"This is the journal of agent {known}, not {named}.")


def another_journal() -> JournalError:
    """Return the error for a journal that the server does not know."""
    return JournalError(
        "This is not the journal that this agent enrolled with: releases that it has "
        "made are recorded there, and noise drawn again for their sums would lay them "
        "open. Give it back, or begin another study."
    )
