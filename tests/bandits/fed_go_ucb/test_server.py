"""The server of Fed-GO-UCB: which sums are in its total."""

import numpy as np
import pytest

from flwr_fbo.bandits.fed_go_ucb.settings import AgentReply
from tests.support.neural_agents import MODEL, SETTINGS, _agent, points
from tests.support.servers import server_of


def replies_of(slot: int, *counts: int) -> list[AgentReply]:
    """Return what an agent sends after so many evaluations."""
    agent, (x, y) = _agent(slot), points(max(counts), slot)
    agent.start(SETTINGS.regression.initial(MODEL, 7))
    replies = []
    for count in counts:
        for trial in range(agent.num_in_sums, count):
            agent.tell(x[trial], y[trial])
        replies.append(agent.message())
    return replies


def test_sums_that_come_late_do_not_take_the_place_of_newer_ones() -> None:
    server = server_of(SETTINGS, MODEL, 7)
    early, late = replies_of(0, 2, 5)
    [other] = replies_of(3, 4)
    assert server.receive_sums({0: late, 3: other}) == [0, 3]
    assert server.receive_sums({0: early}) == []
    np.testing.assert_array_equal(server.total, late.values + other.values)
    assert [server.num_included(slot) for slot in (0, 1, 3)] == [5, 0, 4]
    assert server.receive_sums({0: late}) == [0]  # the same again is no fault
    np.testing.assert_array_equal(server.total, late.values + other.values)


def test_what_is_no_sum_leaves_the_one_that_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = server_of(SETTINGS, MODEL, 7)
    [good] = replies_of(0, 3)
    server.receive_sums({0: good})
    for values in (good.values[:-1], np.full_like(good.values, np.nan)):
        assert server.receive_sums({0: AgentReply(9, values)}) == []
    assert server.receive_sums({0: None}) == []
    np.testing.assert_array_equal(server.total, good.values)
    assert caplog.text.count("agent 0: its message is not a valid sum") == 3
