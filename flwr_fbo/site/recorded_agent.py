"""Base classes of agents that live in a journal between messages.

A message that is asked for again, because its answer was lost, is answered again:
nothing is evaluated twice, and nothing released twice.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import NOTES, notes_of, with_note
from flwr_fbo.study.codec import Study

if TYPE_CHECKING:
    from flwr_fbo.privacy.noise import Entropy

NO_SLOT = -1

_log = logging.getLogger("flwr.fbo")


class RecordedAgent:
    """One agent and its journal, while this process holds that.

    Parameters
    ----------
    journal : Journal
        With `identity_of` a study.

    Attributes
    ----------
    kind : str
        The kind of its journal.
    """

    kind: ClassVar[str]

    def __init__(self, journal: Journal) -> None:
        journal.require_kind(self.kind)
        self._journal = journal
        # But for the numbered arrays, which are read where they are needed.
        self._state = journal.load_unnumbered()

    @classmethod
    def identity_of(cls, study: Study) -> dict[str, Any]:
        """Return what the journal of an agent belongs to, as JSON values."""
        return {"kind": cls.kind, **study.fields}

    @property
    def charged(self) -> list[int]:
        """The releases that the site was charged for, from 1."""
        return [int(note["release"]) for note in notes_of(self._state.get(NOTES))]

    def note_charge(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Remember that the site is about to be charged; see `with_note`."""
        note, arrays = with_note(notes_of(self._state.get(NOTES)), facts)
        self._put(arrays)
        return note

    @property
    def journal(self) -> Journal:
        """The journal."""
        return self._journal

    def _put(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._journal.put(arrays)
        self._state |= arrays


class RecordedBanditAgent(RecordedAgent):
    """One agent of a bandit; the server knows its journal by a number.

    Attributes
    ----------
    study
        Study that the journal belongs to.
    """

    study: Any

    @property
    def number(self) -> int:
        """The journal's own number, to tell it from one that was begun anew."""
        if "number" not in self._state:
            self.take_number(lambda: secrets.randbits(62))
        return int(self._state["number"])

    def take_number(self, number: Callable[[], int]) -> None:
        """Give the journal its number, unless it has one."""
        if "number" not in self._state:
            self._put({"number": np.array(number())})

    @property
    def slot(self) -> int:
        """The agent's slot, -1 before it was told."""
        return int(self._state.get("slot", NO_SLOT))

    @staticmethod
    def must_be_kept(study: Any) -> bool:
        """Return whether another journal could release a trial with other noise."""
        return True

    def entropy(self) -> Entropy | None:
        """Return what noise is drawn from; None without noise.

        Raises
        ------
        ImportError
            If OpenDP is missing, which makes the noise.
        """
        if not self.study.has_noise:
            return None
        # Imported now: an agent that tunes would wait for it.
        from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy

        seed = self.study.noise_seed
        return OsEntropy() if seed is None else SeededEntropy(seed, self.slot)

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names.

        Raises
        ------
        JournalError
            If the journal is of another slot, or is not the one that the server knows:
            releases may have been made that are not in it.
        ValueError
            If the slot does not exist.
        """
        known = self.slot
        if known not in (NO_SLOT, slot):
            raise of_another_slot(known, slot)
        if self.must_be_kept(self.study) and number != self.number:
            raise JournalError.told(
                "This agent enrolled with another journal, which has its releases. Two "
                "noises for one sum would reveal the sum. Restore that journal, or "
                "begin another study."
            )
        if known == NO_SLOT:
            self._put({"slot": np.array(slot), **self._facts_of(slot)})

    def _facts_of(self, slot: int) -> dict[str, NDArray[Any]]:
        """Return what the agent of a slot keeps of the study, as arrays."""
        return {}


def say_left_aside() -> None:
    """Log that a total is of no use: without noise a lying agent can make it so."""
    _log.warning(
        "The agents' total is ignored, because it is not positive definite. This "
        "agent continues with the last valid total."
    )


def older_copy(made: int, known: int) -> JournalError:
    """Return the error for a journal with fewer releases than are known of."""
    advice = "is an older copy. Give the newer one back, or begin another study."
    return JournalError(
        f"This agent's journal has {made} releases and had {known}: it {advice}",
        public=f"This agent's journal {advice}",
    )


def lacks_release(release: int) -> JournalError:
    """Return the error for a journal that does not know of the site's own release."""
    advice = "is an older copy, or another one. Give it back, or begin another study."
    return JournalError(
        f"This agent's journal lacks release {release} of this site: it {advice}",
        public=f"This agent's journal {advice}",
    )


def of_another_slot(known: int, named: int) -> JournalError:
    """Return the error for a journal of an agent that the server does not mean."""
    return JournalError(
        f"This is the journal of agent {known}, not {named}.",
        public="This is the journal of another agent.",
    )
