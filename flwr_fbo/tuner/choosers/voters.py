"""Voters: the nodes that give a ballot, and their slots in secure sums."""

from __future__ import annotations

import logging
from collections.abc import Iterable

_log = logging.getLogger("flwr.fbo")


class Voters:
    """The nodes that give a ballot where more come than expected, and their slots.

    Of the connected nodes, those N give a ballot that were seen first. So they are the
    same in all rungs, while they stay connected, and a release is over N ballots at
    most. A SuperNode that comes back with another node id takes a place that is free.

    In secure sums each has a slot, from its first sum to the end. A slot that a node
    has by its own configuration, or by its key, is its own. Other nodes get the lowest
    free one. A slot changes hands only if the node that had it is gone, and another
    one says that the slot is its own: a SuperNode that has come back. Under two slots a
    client could be summed twice.

    Parameters
    ----------
    num_agents : int
        N >= 1; the slots are 0 to N - 1.

    Attributes
    ----------
    slots : dict of int to int
        The node of each slot that is taken.
    """

    def __init__(self, num_agents: int) -> None:
        self._num_agents = num_agents
        self.slots: dict[int, int] = {}
        # In the order in which they came.
        self._seen: list[int] = []
        # Which slot nodes have said they have: -1 if they do not know.
        self._said: dict[int, int] = {}
        # Nodes without a ballot that the log has already.
        self._named: set[int] = set()

    def among(self, connected: Iterable[int]) -> list[int]:
        """Note who is connected; return those of them that give a ballot, sorted."""
        nodes = set(connected)
        self._seen += sorted(nodes - set(self._seen))
        in_order = [node for node in self._seen if node in nodes]
        # The release is divided by N: more ballots would have more weight than that.
        voters, others = in_order[: self._num_agents], in_order[self._num_agents :]
        self._warn(
            others,
            "num_agents=%(num_agents)d nodes were there before nodes %(nodes)s, which "
            "are trained with, but are not asked for ballots.",
        )
        return sorted(voters)

    def hear(self, node: int, slot: int) -> None:
        """Note which slot a node says that it has."""
        self._said[node] = slot

    def assign_slots(self, connected: Iterable[int]) -> None:
        """Give slots to the nodes that give a ballot, where they answered before."""
        voters = self.among(connected)
        heard = [node for node in voters if node in self._said]
        for node in heard:
            slot = self._said[node]
            is_new = node not in self.slots.values()
            # A slot whose node is gone is free for the one that comes back.
            is_free = self.slots.get(slot) not in voters
            if 0 <= slot < self._num_agents and is_new and is_free:
                self.slots[slot] = node
        taken = set(self.slots) | set(self._said.values())
        free = (slot for slot in range(self._num_agents) if slot not in taken)
        for node in heard:
            if self._said[node] == -1 and node not in self.slots.values():
                slot = next(free, -1)
                if slot != -1:
                    self.slots[slot] = node
        self._warn(
            set(heard) - set(self.slots.values()),
            "Nodes %(nodes)s are not asked for ballots: their slot is another node's, "
            "or not below num_agents=%(num_agents)d.",
        )

    def _warn(self, nodes: Iterable[int], line: str) -> None:
        if unnamed := sorted(set(nodes) - self._named):
            values = {"nodes": unnamed, "num_agents": self._num_agents}
            _log.warning(line, values)
        self._named |= set(nodes)
