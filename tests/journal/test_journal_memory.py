"""What a journal in memory removes is gone."""

import numpy as np

from flwr_fbo.journal.journal import Journal

ME = {"kind": "a", "slot": "0"}


def test_what_is_removed_in_memory_is_not_carried_on() -> None:
    """Keys and noise that are done with."""
    key = np.frombuffer(b"a key of 16 byte", dtype=np.uint8)
    with Journal(ME) as journal:
        journal.put({"key": key})
        assert key.tobytes() in journal.to_bytes()
        journal.change_state({}, ["key"], [])
        assert key.tobytes() not in journal.to_bytes()
