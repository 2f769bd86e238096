"""Messages of peers: what is written is what is read, and a forged header is not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits.decentralized_fed_ucb.server import PeerMessage
from tests.support.peer_studies import RELEASES, RING, M

SETTINGS = replace(RELEASES, num_streams=2)
MESSAGE = PeerMessage(M - 1, 3, RING.hops - 1, np.zeros(SETTINGS.sum_shape))


def test_a_message_is_read_as_it_was_written() -> None:
    release = np.arange(float(MESSAGE.release.size)).reshape(SETTINGS.sum_shape)
    release = SETTINGS.grid * (release + np.swapaxes(release, -1, -2))
    written = replace(MESSAGE, release=release).to_bytes()
    read = PeerMessage.from_bytes(written, SETTINGS, RING)
    assert (read.origin, read.number, read.hops) == (M - 1, 3, RING.hops - 1)
    np.testing.assert_array_equal(read.release, release)


@pytest.mark.parametrize(
    "forged",
    [
        {"origin": M},
        {"origin": -1},
        {"number": 0},
        {"number": SETTINGS.max_releases + 1},
        {"hops": RING.hops},
        {"hops": -1},
    ],
)
def test_a_header_that_no_agent_writes_is_refused(forged: dict[str, Any]) -> None:
    written = replace(MESSAGE, **forged).to_bytes()
    with pytest.raises(ValueError, match="of an agent, a synchronisation, a hop"):
        PeerMessage.from_bytes(written, SETTINGS, RING)
