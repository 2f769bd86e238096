"""Who gives a ballot at the end of a rung, where more nodes come than were expected."""

from __future__ import annotations

import logging
from collections.abc import Iterable

_log = logging.getLogger("flwr.fbo")


class Voters:
    """Of the nodes that are connected, the N that were seen first.

    So they are the same in all rungs, while they stay connected, and a release is over
    N ballots at most. A SuperNode that comes back with another node id takes a place
    that is free.

    Parameters
    ----------
    num_agents : int
        N >= 1.
    """

    def __init__(self, num_agents: int) -> None:
        self._num_agents = num_agents
        # In the order in which they came.
        self._seen: list[int] = []
        self._named: set[int] = set()

    def among(self, connected: Iterable[int]) -> list[int]:
        """Note who is connected; return those of them that give a ballot, sorted."""
        nodes = set(connected)
        self._seen += sorted(nodes - set(self._seen))
        in_order = [node for node in self._seen if node in nodes]
        voters, others = in_order[: self._num_agents], in_order[self._num_agents :]
        if unnamed := sorted(set(others) - self._named):
            _log.warning(
                "num_agents=%d nodes were there before nodes %s, which are trained "
                "with, but are not asked for ballots.",
                self._num_agents,
                unnamed,
            )
        self._named |= set(others)
        return sorted(voters)
