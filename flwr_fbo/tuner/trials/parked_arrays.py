"""Models of trials that wait, on disk."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable
from typing import IO

from flwr.app import Array, Message

from flwr_fbo._common.errors import log_once

# Bytes below which a trial's arrays stay in memory.
_FEW_BYTES = 1_000_000


class ParkedArrays:
    """Puts the arrays of trials that wait on disk, and brings them back unchanged.

    A `main` that waits cannot see that they are gone. Arrays that several trials have
    sent, such as pretrained ones that the app's module holds, stay in memory. So does
    what no message has had, such as a model in the variables of `main`.
    """

    def __init__(self) -> None:
        # By trial and ``id``: what it has sent, as far as that is still in use.
        self._sent: dict[int, dict[int, weakref.ref[Array]]] = {}
        self._files: dict[int, IO[bytes]] = {}
        self._parked: dict[int, list[tuple[weakref.ref[Array], int]]] = {}

    def note(self, trial: int, messages: Iterable[Message]) -> int:
        """Note what a trial sends; return how many bytes of arrays that is."""
        arrays = [array for message in messages for array in _arrays_of(message)]
        known = self._sent.get(trial, {})
        alive = {key: ref for key, ref in known.items() if ref() is not None}
        alive.update({id(array): weakref.ref(array) for array in arrays})
        self._sent[trial] = alive
        return sum(len(array.data) for array in arrays)

    def put_away(self, trial: int, but: Iterable[Message] = ()) -> None:
        """Put the arrays of a trial on disk that no other trial has sent.

        Parameters
        ----------
        trial : int
            Number of the trial.
        but : iterable of Message
            Whose arrays stay.
        """
        if trial in self._files or len(self._sent) == 1:
            return  # of one trial alone it is not known what others will send
        kept = {id(array) for message in but for array in _arrays_of(message)}
        # What two trials have sent is one object: emptied, the other one would lose it.
        others = [sent for number, sent in self._sent.items() if number != trial]
        found = [
            (ref, array)
            for key, ref in self._sent.get(trial, {}).items()
            if (array := ref()) is not None
            and key not in kept
            and not any(key in sent and sent[key]() is array for sent in others)
        ]
        if sum(len(array.data) for _, array in found) < _FEW_BYTES:
            return
        try:
            # Without a name: it is gone with the process, however that ends.
            file = tempfile.TemporaryFile()  # noqa: SIM115
            file.writelines(array.data for _, array in found)
            file.flush()
        except OSError as error:  # a full disk, say
            log_once("a trial's model stays in memory:", f"no temporary file: {error}")
            return
        self._files[trial] = file
        self._parked[trial] = [(ref, len(array.data)) for ref, array in found]
        for _, array in found:
            array.data = b""

    def bring_back(self, trial: int) -> None:
        """Have the arrays of a trial in memory again, if they were put away."""
        if trial not in self._files:
            return
        with self._files.pop(trial) as file:
            file.seek(0)
            for ref, size in self._parked.pop(trial):
                data, array = file.read(size), ref()
                if array is not None:
                    array.data = data


def _arrays_of(message: Message) -> list[Array]:
    records = message.content.array_records.values()
    return [array for record in records for array in record.values()]
