"""Nodes that come while the trials are trained, more of them than were expected."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flwr_fbo import Halving, InProcessGrid, PrivateChoice
from flwr_fbo.tuner.message_headers import BallotHeader, read_header
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    DyingGrid,
    Ended,
    main_of,
    message_app,
    recording,
    server_context,
    tuner,
)

SCHEDULE = Halving(4, (1, 2), parallel=4)


class GrowingGrid(InProcessGrid):
    """Two nodes, with the smallest ids, come after some sends."""

    def __init__(self, comes_after: int) -> None:
        super().__init__(message_app(), NUM_CLIENTS + 2, run_config=RUN_CONFIG)
        self._left = comes_after
        self.voters: list[list[int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.contexts)[2 if self._left > 0 else 0 :]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        asked = list(messages)
        self._left -= 1
        if isinstance(read_header(asked[0].content), BallotHeader):
            self.voters.append([m.metadata.dst_node_id for m in asked])
        return super().send_and_receive(asked, timeout=timeout)


@pytest.mark.parametrize(
    ("comes_after", "privacy"),
    [
        (1, None),
        (2, PrivateChoice(1000.0, 1e-3)),
    ],
)
def test_late_nodes_are_not_asked_for_ballots(
    comes_after: int, privacy: PrivateChoice | None, caplog: pytest.LogCaptureFixture
) -> None:
    grid = GrowingGrid(comes_after)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        result = tuner(schedule=SCHEDULE, privacy=privacy).start(
            main_of(), grid, server_context()
        )
    assert len(result.rungs) == len(grid.voters) == 2
    assert grid.voters == [sorted(grid.contexts)[2:]] * 2
    named = [m for m in caplog.messages if "not asked for ballots" in m]
    assert len(named) == 1
    assert "nodes [1001, 1002]" in named[0]


def test_a_run_that_goes_on_may_find_more_nodes(tmp_path: Path) -> None:
    """What is decided cannot be used with another ``num_agents``."""
    dying = DyingGrid(message_app(), NUM_CLIENTS, run_config=RUN_CONFIG)
    dying.dies_at = 4
    options: dict[str, Any] = {"schedule": SCHEDULE, "folder": tmp_path}
    with pytest.raises(Ended):
        tuner(**options).start(main_of(), dying, server_context())
    grid = GrowingGrid(0)
    result = tuner(**options).start(main_of(), grid, server_context())
    assert len(result.rungs) == 2
    assert grid.voters == [sorted(grid.contexts)[:NUM_CLIENTS]]
    again = tuner(**options).start(main_of(), GrowingGrid(0), server_context())
    assert again == result


def test_at_the_beginning_more_nodes_than_agents_leave_no_record(
    tmp_path: Path,
) -> None:
    """So that the tuner can be started with another ``num_agents``."""
    with pytest.raises(ValueError, match=r"^num_agents=5"):
        tuner(num_agents=5, folder=tmp_path).start(
            main_of(), recording(), server_context()
        )
    assert list(tmp_path.iterdir()) == []
