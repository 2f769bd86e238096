"""The server of FedUCB: what it keeps does not grow with what it has received."""

import tracemalloc

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.fed_ucb.server import FedUCBServer
from flwr_fbo.bandits.linear.study import LinearBanditStudy

NUM_AGENTS, DIMENSION, NUM_RELEASES = 200, 20, 12
RELEASES = ContinualSettings(NUM_RELEASES, DIMENSION, 4.0, 1e-5)
STUDY = LinearBanditStudy(
    LinearUCBSettings(RELEASES, "released"), NUM_AGENTS, study_id="one"
)


def _server() -> FedUCBServer:
    server = FedUCBServer(STUDY)
    server.iterations = range(NUM_RELEASES)
    return server


def _messages(seed: int, slots: range = range(NUM_AGENTS)) -> dict[int, FloatArray]:
    size = DIMENSION + 1
    draws = np.random.default_rng(seed).normal(size=(len(slots), size, size))
    return dict(zip(slots, draws + np.swapaxes(draws, 1, 2), strict=True))


def test_keeps_the_last_releases_only() -> None:
    server = _server()
    sizes = []
    tracemalloc.start()
    for k in range(NUM_RELEASES):
        server.receive(server.step(k), _messages(k))
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    of_one = NUM_AGENTS * (DIMENSION + 1) ** 2 * 8
    # What a row has: a total, and how many releases each agent has made.
    assert sizes[-1] - sizes[0] < (NUM_RELEASES - 1) * of_one / 10
    assert {row.vectors.shape for row in server.ledger} == {(21, 21)}


def test_an_absent_agent_is_in_the_total_after_a_restart() -> None:
    server, others = _server(), range(1, NUM_AGENTS)
    first, second = _messages(0), _messages(1, others)
    server.receive(server.step(0), first)
    again = _server()
    again.resume(server.ledger)
    again.load_state_dict(server.state_dict())
    for one in (server, again):
        one.receive(one.step(1), second)
        expected = first[0] + np.sum(list(second.values()), axis=0)
        assert one.vectors is not None
        np.testing.assert_allclose(one.vectors, expected, rtol=1e-12, atol=1e-12)
        [last] = one.state_dict().values()
        above = np.triu_indices(DIMENSION + 1)
        assert np.array_equal(last[0], first[0][above])
        assert np.array_equal(last[5], second[5][above])
    assert np.array_equal(server.ledger[1].vectors, again.ledger[1].vectors)


def test_what_is_on_record_is_not_changed_by_the_next_release() -> None:
    server = _server()
    server.receive(server.step(0), _messages(0))
    (kept,) = server.state_dict().values()
    before = kept.copy()
    (same,) = server.state_dict().values()
    assert same is kept  # so that it is not written again
    server.receive(server.step(1), _messages(1))
    assert np.array_equal(kept, before)


def test_a_server_that_begins_anew_has_no_release() -> None:
    """As after a first record that could not be written."""
    server = _server()
    server.receive(server.step(0), _messages(0))
    server.resume([])
    server.load_state_dict({})
    server.receive(server.step(0), _messages(1, range(1, 2)))
    assert server.vectors is not None
    np.testing.assert_array_equal(server.vectors, _messages(1, range(1, 2))[1])
