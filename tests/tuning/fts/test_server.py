"""The server of FTS: what is no message is missing."""

from __future__ import annotations

import numpy as np

from flwr_fbo.tuning.fts.server import FTSServer


def test_what_is_no_message_is_missing() -> None:
    server = FTSServer(8, 3)
    assert server.vectors is None
    strange = [
        np.ones(2),
        np.array([1, np.nan, 1]),
        None,
        np.array(["a", "b", "c"]),
        np.array([1j, 1, 1]),
        np.array([{}, 1, 2], dtype=object),
    ]
    server.receive(server.step(0), {0: np.ones(3), **dict(enumerate(strange, start=1))})
    assert server.vectors is not None
    np.testing.assert_array_equal(np.isnan(server.vectors).all(axis=1), [0] + [1] * 7)
    once = FTSServer(4, 3, after=3)
    for iteration in range(4):
        once.receive(once.step(iteration), {0: np.full(3, float(iteration))})
    assert [row.iteration for row in once.ledger] == [2]
    np.testing.assert_array_equal(once.ledger[0].vectors[0], 2)
