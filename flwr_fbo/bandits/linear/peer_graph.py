"""Graph of the agents that hear each other, where there is no centre.

Dubey & Pentland, *Differentially-Private Federated Linear Bandits* (NeurIPS 2020), the
peer-to-peer setting: messages travel along an undirected graph G, one hop a trial, and
die after gamma hops, so that an agent hears all that are next to it in the gamma-th
power of G.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.fields import check_fields, choice, integer, ruled
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_int, require_known

if TYPE_CHECKING:
    from flwr_fbo.bandits.linear.confidence import Confidence
    from flwr_fbo.bandits.linear.settings import LinearUCBSettings

Pooling = Literal["clique", "neighbourhood"]
GraphName = Literal["complete", "ring", "star", "line", "random"]

# How often a random graph is drawn until one is connected, as most are.
_MAX_DRAWS = 1000


@dataclass(frozen=True)
class PeerGraph:
    """The agents' graph, and how they use it; public, fixed for a study.

    Examples
    --------
    >>> from flwr_fbo.bandits import PeerGraph
    >>> ring = PeerGraph.named("ring", 6, hops=2, pooling="neighbourhood")
    >>> ring.neighbours(0)
    [1, 5]
    >>> PeerGraph(num_agents=3, edges=[(0, 1), (1, 2)]).diameter
    2

    Attributes
    ----------
    num_agents : int
        Number M >= 2 of agents.
    edges : iterable of (int, int)
        Pairs of slots that hear each other, from 0 to M - 1, such as the ``edges`` of a
        networkx graph; kept as a sorted tuple. All agents must be connected.
    hops : int
        Number gamma of hops that messages travel, from 1 to the graph's diameter.
    pooling : {"clique", "neighbourhood"}
        Agents whose sums an agent adds up. ``"clique"``, the paper's: those of its
        clique in a clique cover of the power graph, so that all agents of a clique have
        the same sum. ``"neighbourhood"``: all agents that it hears, which are as many
        or more.
    num_estimators : int, optional
        Number of estimators that an agent keeps and plays in turn, from 1 to gamma. The
        default is gamma, which the paper's analysis needs. With 1 the estimator learns
        from all of the agent's trials; the guarantee is the same.

    Raises
    ------
    ValueError
        If a field is not allowed; the message names it.
    """

    num_agents: int = field(metadata=integer(2, cap="max_peers"))
    edges: tuple[tuple[int, int], ...] = field(
        metadata=ruled(
            lambda name, value: require(
                isinstance(value, Iterable), name, value, "pairs of slots"
            ),
            cap="max_peers",
        )
    )
    hops: int = field(default=1, metadata=integer(1, cap="max_peers"))
    pooling: Pooling = field(default="clique", metadata=choice(Pooling))
    num_estimators: int | None = field(
        default=None, metadata=integer(1, optional=True, cap="max_dimension")
    )

    def __post_init__(self) -> None:
        check_fields(self)
        pairs = {_pair(edge, self.num_agents) for edge in self.edges}
        object.__setattr__(self, "edges", tuple(sorted(pairs)))
        apart = np.flatnonzero(np.isinf(self._lengths[0]))[:5].tolist()
        expected = f"a connected graph of all agents; no path from 0 to {apart}"
        require(not apart, "edges", self.edges[:8], expected)
        expected = f"at most {self.diameter}, the graph's diameter"
        require(self.hops <= self.diameter, "hops", self.hops, expected)
        count, expected = self.num_estimators, f"at most hops={self.hops}"
        require(self.streams <= self.hops, "num_estimators", count, expected)

    @classmethod
    def named(
        cls,
        name: str,
        num_agents: int,
        seed: int = 0,
        *,
        hops: int = 1,
        pooling: Pooling = "clique",
        num_estimators: int | None = None,
    ) -> PeerGraph:
        """Return a graph by its name.

        Parameters
        ----------
        name : {"complete", "ring", "star", "line", "random"}
            The centre of a star is agent 0. Of a random graph each edge is there with
            probability 2 log(M) / M, drawn again until it is connected.
        num_agents : int
            M >= 2; 3 for a ring.
        seed : int
            Seed of the random graph; public.
        hops, pooling, num_estimators
            Attributes of the graph.
        """
        require_known("graph", name, get_args(GraphName))
        require_int("seed", seed, 0)
        require_int("num_agents", num_agents, 3 if name == "ring" else 2)
        edges = _drawn(name, num_agents, seed).edges
        return cls(num_agents, edges, hops, pooling, num_estimators)

    @cached_property
    def _lengths(self) -> NDArray[np.float64]:
        """The lengths of shortest paths, shape (M, M); inf where there is none."""
        m = self.num_agents
        rows, columns = np.array(self.edges, dtype=int).reshape(-1, 2).T
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import shortest_path

        linked = csr_array((np.ones(len(rows)), (rows, columns)), shape=(m, m))
        lengths = shortest_path(linked, directed=False, unweighted=True)
        return np.asarray(lengths)

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Number of hops between two agents, shape (M, M)."""
        return self._lengths.astype(np.int64)

    @cached_property
    def diameter(self) -> int:
        """The longest of the distances."""
        return int(self.distances.max())

    @property
    def streams(self) -> int:
        """Number of estimators that an agent keeps."""
        return self.hops if self.num_estimators is None else self.num_estimators

    def neighbours(self, slot: int) -> list[int]:
        """Return who hears an agent directly, in order."""
        return [int(other) for other in np.flatnonzero(self.distances[slot] == 1)]

    @cached_property
    def cliques(self) -> tuple[tuple[int, ...], ...]:
        """A clique cover of the gamma-th power graph: every agent is in one clique.

        The colours of the complement by the greedy DSATUR order (Brelaz, 1979): next is
        the agent whose neighbours there have the most colours, then the one with the
        most neighbours, then the lowest. The smallest cover is NP-hard to find; this
        one is small, and made in O(M^2) steps.
        """
        # networkx has the same colouring, and the same cover: for 500 agents in 13 s
        # where this takes 20 ms.
        apart = self.distances > self.hops
        degrees = apart.sum(axis=1)
        taken = np.zeros((self.num_agents, self.num_agents), dtype=bool)
        left = np.ones(self.num_agents, dtype=bool)
        members: dict[int, list[int]] = {}
        saturation = np.zeros(self.num_agents, dtype=np.int64)
        for _ in range(self.num_agents):
            rank = saturation * self.num_agents + degrees
            slot = int(np.argmax(np.where(left, rank, -1)))
            left[slot] = False
            color = int(np.argmin(taken[slot]))
            members.setdefault(color, []).append(slot)
            saturation += apart[slot] & ~taken[:, color]
            taken[apart[slot], color] = True
        return tuple(sorted(tuple(sorted(clique)) for clique in members.values()))

    @cached_property
    def pools(self) -> tuple[tuple[int, ...], ...]:
        """Agents whose sums each agent adds up, itself among them, in order."""
        if self.pooling == "clique":
            mine = {slot: clique for clique in self.cliques for slot in clique}
            return tuple(mine[slot] for slot in range(self.num_agents))
        hears = self.distances <= self.hops
        return tuple(tuple(np.flatnonzero(row).tolist()) for row in hears)

    @property
    def regret_factor(self) -> float:
        """sqrt(chi gamma), by which the paper's bound exceeds that with a centre.

        chi is the size of the clique cover.
        """
        return math.sqrt(len(self.cliques) * self.hops)

    def confidence_of(self, slot: int, settings: LinearUCBSettings) -> Confidence:
        """Return what an agent believes by: of its pool, and of its share of alpha.

        Only as many agents' noise is in its sums as are in its pool. alpha, how likely
        any ellipsoid of any agent may ever miss theta, is shared equally by all
        estimators of all agents; those of one pool, as a clique is, have their shares
        in common, as they believe the same: while no message is lost.
        """
        from flwr_fbo.bandits.linear.confidence import Confidence

        pool = self.pools[slot]
        shares = self.num_agents * self.streams
        alpha = settings.alpha * self.pools.count(pool) / shares
        return Confidence(settings, len(pool), alpha)


def _pair(edge: Any, num_agents: int) -> tuple[int, int]:
    """Return an edge, the lower slot first."""
    is_pair = isinstance(edge, tuple | list) and len(edge) == 2
    expected = "a pair of slots, such as one of a networkx graph's `edges`"
    require(is_pair, "edges", edge, expected)
    are_slots = all(isinstance(slot, int | np.integer) for slot in edge)
    are_slots = are_slots and all(0 <= slot < num_agents for slot in edge)
    require(are_slots, "edges", edge, f"slots from 0 to {num_agents - 1}")
    first, second = sorted(map(int, edge))
    require(first != second, "edges", edge, "no agent that is linked with itself")
    return first, second


def _drawn(name: str, num_agents: int, seed: int) -> Any:
    """Return a named graph of networkx."""
    import networkx as nx

    makers = {
        "complete": nx.complete_graph,
        "ring": nx.cycle_graph,
        "star": lambda m: nx.star_graph(m - 1),
        "line": nx.path_graph,
    }
    if name != "random":
        return makers[name](num_agents)
    probability = min(1.0, 2 * math.log(num_agents) / num_agents)
    for attempt in range(_MAX_DRAWS):
        rng = generator(seed, attempt, Purpose.GRAPH)
        graph = nx.gnp_random_graph(num_agents, probability, seed=rng)
        if nx.is_connected(graph):
            return graph
    raise AssertionError("a connected graph is far more likely than that")
