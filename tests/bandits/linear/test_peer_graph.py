"""The graph of who hears whom: its cliques, its pools, and what it refuses."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest

from flwr_fbo import InProcessGrid
from flwr_fbo.bandits import PeerGraph
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from tests.support.peer_studies import APP, COMPLETE, RING, SETTINGS, M, strategy_of


@pytest.mark.parametrize(
    ("name", "hops"),
    [
        ("complete", 1),
        ("ring", 2),
        ("star", 1),
        ("star", 2),
        ("line", 2),
        ("random", 2),
    ],
)
def test_cliques_cover_the_power_graph(name: str, hops: int) -> None:
    graph = PeerGraph.named(name, 12, hops=hops)
    assert sorted(slot for clique in graph.cliques for slot in clique) == [*range(12)]
    drawn = nx.Graph(graph.edges)
    for clique in graph.cliques:
        for a in clique:
            assert all(nx.shortest_path_length(drawn, a, b) <= hops for b in clique)


def test_known_covers() -> None:
    def covers(name: str, hops: int) -> int:
        return len(PeerGraph.named(name, 12, hops=hops).cliques)

    assert covers("complete", 1) == 1
    assert [covers("ring", hops) for hops in (1, 2, 3)] == [6, 4, 3]
    assert [covers("line", hops) for hops in (1, 2, 3)] == [6, 4, 3]
    assert [covers("star", hops) for hops in (1, 2)] == [11, 1]
    assert PeerGraph.named("ring", 12, hops=2).regret_factor == math.sqrt(8)


def test_a_neighbourhood_is_all_that_is_heard() -> None:
    line = PeerGraph.named("line", 5, hops=2, pooling="neighbourhood")
    assert line.pools == ((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4), (1, 2, 3, 4),
                          (2, 3, 4))  # fmt: skip
    counts = [line.confidence_of(i, SETTINGS).num_agents for i in range(5)]
    assert counts == [3, 4, 5, 4, 3]


def test_alpha_is_shared_out() -> None:
    """A union over cliques, and estimators, gives no more than alpha."""
    shares = [RING.confidence_of(clique[0], SETTINGS).alpha for clique in RING.cliques]
    assert sum(shares) * RING.streams == pytest.approx(SETTINGS.alpha)
    open_ring = replace(RING, pooling="neighbourhood", num_estimators=1)
    assert sum(open_ring.confidence_of(i, SETTINGS).alpha for i in range(M)) == (
        pytest.approx(SETTINGS.alpha)
    )
    for pooling in ("clique", "neighbourhood"):
        graph = replace(COMPLETE, pooling=pooling)
        assert graph.confidence_of(3, SETTINGS) == Confidence.of(SETTINGS, M)
    # With one clique, and one estimator, all is as at a centre.
    assert COMPLETE.confidence_of(3, SETTINGS) == Confidence.of(SETTINGS, M)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PeerGraph(4, ((0, 1), (2, 3))), r"edges=.*connected.*no path .*2, 3"),
        (lambda: PeerGraph(3, ((0, 1), (1, 1))), r"edges=\(1, 1\).*itself"),
        (
            lambda: PeerGraph(3, ((0, 1), (1, 3))),
            r"edges=\(1, 3\).*slots from 0 to 2",
        ),
        (lambda: PeerGraph(3, ((0, 1, 2),)), "edges=.*a pair of slots"),  # type: ignore[arg-type]
        (lambda: PeerGraph.named("random", 6, seed=1.5), "seed=1.5"),  # type: ignore[arg-type]
        (lambda: PeerGraph.named("ring", 6, hops=4), "hops=4.*at most 3, the graph's"),
        (lambda: PeerGraph.named("ring", 2), "num_agents=2"),
        (lambda: PeerGraph.named("rng", 6), "graph='rng'.*ring"),
        (lambda: PeerGraph.named("ring", 6, pooling="all"), "pooling='all'"),  # type: ignore[arg-type]
        (lambda: PeerGraph.named("ring", 6, num_estimators=2), "num_estimators=2.*1"),
        (
            lambda: LinearBanditStudy(SETTINGS, 5, graph=COMPLETE),
            "num_agents=5 is not allowed: 6, those of the graph",
        ),
        (lambda: strategy_of(RING, schedule=[10, 11]), r"schedule=.*at least 2 trials"),
        (lambda: strategy_of(RING, num_trials=15), "num_trials=15"),
        (lambda: strategy_of("ring"), "graph='ring'"),  # type: ignore[arg-type]
        (
            lambda: LinearBanditStudy(SETTINGS, M, graph=RING),
            "num_streams=1 is not allowed: 2, the estimators",
        ),
        (
            lambda: strategy_of(RING, interval=0.0).start(
                InProcessGrid(APP, M), None, 3
            ),
            "num_rounds=3.*multiple of 3",
        ),
    ],
)
def test_what_is_not_allowed(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_random_graphs_repeat_and_are_connected() -> None:
    graphs = {seed: PeerGraph.named("random", 20, seed) for seed in range(20)}
    assert graphs[3] == PeerGraph.named("random", 20, 3)
    assert len({graph.edges for graph in graphs.values()}) == 20
