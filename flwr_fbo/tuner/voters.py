"""Who gives a ballot at the end of a rung, where more nodes come than were expected."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

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


class SumSlots:
    """Which node has which slot in secure sums, from its first sum to the end.

    A slot that a node has by its own configuration, or by its key, is its own. Other
    nodes get the lowest slot that nobody has. A slot changes hands only if the node
    that had it is gone, and another one says that it is its own: a SuperNode that has
    come back.

    Parameters
    ----------
    num_agents : int
        N >= 1: the slots are 0 to N - 1.

    Attributes
    ----------
    nodes : dict of int to int
        The node of each slot that is taken.
    """

    def __init__(self, num_agents: int) -> None:
        self._num_agents = num_agents
        self.nodes: dict[int, int] = {}
        # What nodes have said: -1 if they do not know.
        self._said: dict[int, int] = {}
        self._named: set[int] = set()

    def hear(self, node: int, slot: int) -> None:
        """Note which slot a node says that it has."""
        self._said[node] = slot

    def assign(self, voters: Sequence[int]) -> None:
        """Give slots to the nodes that take part, where they have answered before."""
        heard = [node for node in voters if node in self._said]
        for node in heard:
            slot = self._said[node]
            is_slot = 0 <= slot < self._num_agents
            is_new = node not in self.nodes.values()
            if is_slot and is_new and self.nodes.get(slot) not in voters:
                self.nodes[slot] = node
        taken = set(self.nodes) | set(self._said.values())
        free = (slot for slot in range(self._num_agents) if slot not in taken)
        for node in heard:
            if self._said[node] == -1 and node not in self.nodes.values():
                slot = next(free, -1)
                if slot != -1:
                    self.nodes[slot] = node
        left = set(heard) - set(self.nodes.values()) - self._named
        if left:
            _log.warning(
                "Nodes %s are not asked for ballots: their slot is another node's, or "
                "not below num_agents=%d.",
                sorted(left),
                self._num_agents,
            )
        self._named |= left
