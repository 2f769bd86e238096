from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from scipy.stats import hypergeom

from flwr_fbo.secure.graph import (
    COLLUDING,
    DROPPED,
    FAILURE,
    MaskGraph,
    sparse_rule,
)
from flwr_fbo.secure.terms import SumTerms, default_threshold

SEED = "5a" * 32


def terms_of(num_members: int, attempt: str = "01") -> SumTerms:
    least = default_threshold(num_members)
    slots = tuple(range(1, num_members + 1))
    return SumTerms("5a", attempt, slots, least, least, length=1, num_bits=8)


def as_networkx(graph: MaskGraph) -> "nx.Graph[int]":
    return nx.Graph((a, b) for a in graph.ring for b in graph.neighbours(a))


@pytest.mark.parametrize("num_members", [2, 3, 50])
def test_all_are_neighbours_up_to_fifty(num_members: int) -> None:
    graph = MaskGraph.of(terms_of(num_members), SEED)
    assert graph.is_complete
    assert graph.threshold == default_threshold(num_members) - 1
    assert nx.is_isomorphic(as_networkx(graph), nx.complete_graph(num_members))
    assert graph.fewest([1, 2]) == (1, 1)


@pytest.mark.parametrize("num_members", [51, 200])
def test_above_the_graph_is_regular_and_as_connected_as_can_be(
    num_members: int,
) -> None:
    graph = MaskGraph.of(terms_of(num_members), SEED)
    whole = as_networkx(graph)
    assert {degree for _, degree in whole.degree()} == {2 * graph.reach}
    if num_members == 51:
        assert nx.node_connectivity(whole) == 2 * graph.reach  # Harary's


def test_the_order_is_that_of_the_roster_and_of_nothing_that_the_server_chooses() -> (
    None
):
    graph = MaskGraph.of(terms_of(60), SEED)
    assert MaskGraph.of(terms_of(60, attempt="02"), SEED) == graph
    assert MaskGraph.of(replace(terms_of(60), context="77"), SEED) == graph
    assert MaskGraph.of(terms_of(60), "5b" * 32) != graph
    assert MaskGraph.of(terms_of(60), None) != MaskGraph.of(terms_of(60, "02"), None)


@pytest.mark.parametrize("num_members", [60, 200, 1000])
def test_the_rule_holds_with_the_stated_chances(num_members: int) -> None:
    n = num_members
    rule = sparse_rule(n)
    assert rule is not None
    reach, threshold = rule
    colluding, dropped = int(COLLUDING * n), int(DROPPED * n)
    crowd = hypergeom.sf(threshold - reach - 1, n - 1, colluding, reach)
    assert 2 * n * crowd <= 1.001 * FAILURE
    lost = hypergeom.sf(2 * reach - threshold, n - 1, dropped, 2 * reach)
    assert n * lost <= 1.001 * FAILURE


def test_members_of_a_set_stay_connected_whoever_is_left_out() -> None:
    """Colluders and those left out are chosen by an adversary who sees the ring.

    It keeps every member at the threshold, and no window with too many colluders.
    """
    rng = np.random.default_rng(0)
    graph = MaskGraph.of(terms_of(200), SEED)
    whole, ring = as_networkx(graph), graph.ring
    crowd = graph.threshold - graph.reach - 1
    refused = connected = 0
    for _ in range(60):
        # In every window as many colluders as the rule allows, at most.
        colluding = {
            ring[place]
            for place in range(len(ring))
            if place % graph.reach < crowd and place < len(ring) - graph.reach
        }
        honest = [slot for slot in ring if slot not in colluding]
        start = int(rng.integers(len(honest)))
        width = int(rng.integers(1, graph.reach))
        second = start + len(honest) // 2
        gaps = [*range(start, start + width), *range(second, second + width)]
        left_out = {honest[i % len(honest)] for i in gaps}
        present = set(ring) - left_out
        if graph.fewest(present)[1] < graph.threshold:
            refused += 1
            continue
        connected += 1
        assert nx.is_connected(whole.subgraph(present - colluding))
    assert refused >= 5
    assert connected >= 5


@pytest.mark.parametrize("num_members", [20, 101])
def test_the_fewest_neighbours_are_counted_right(num_members: int) -> None:
    rng = np.random.default_rng(1)
    graph = MaskGraph.of(terms_of(num_members), SEED)
    whole = as_networkx(graph)
    for _ in range(20):
        size = int(rng.integers(2, num_members + 1))
        present = rng.choice(graph.ring, size, replace=False).tolist()
        counts = dict(whole.subgraph(present).degree())
        slot, count = graph.fewest(present)
        assert counts[slot] == count == min(counts.values())
