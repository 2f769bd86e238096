"""The same study, however it is run, gives array-equal histories."""

from typing import Any

import numpy as np
import pytest

from flwr_fbo import tuning_app
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.tuning import FedVoteSettings
from flwr_fbo.tuning.search.study import create_agent
from tests.support.federation import (
    NUM_AGENTS,
    NUM_ITERATIONS,
    assert_same,
    make_objective,
    numpy_app,
    objective_of,
    run,
    strategy,
)


def test_replies_in_any_order() -> None:
    plain, agents = run(numpy_app())
    for shuffle_seed in (1, 2):
        shuffled, others = run(numpy_app(), shuffle_seed=shuffle_seed)
        assert_same(agents, others)
        np.testing.assert_array_equal(plain.server.vectors, shuffled.server.vectors)


def test_numpy_client_and_message_api() -> None:
    _, agents = run(numpy_app())
    _, others = run(tuning_app(make_objective))
    assert_same(agents, others)


@pytest.mark.parametrize("client_api", ["numpy", "both"])
def test_messages_written_for_numpy_clients(client_api: str) -> None:
    _, agents = run(numpy_app())
    _, others = run(numpy_app(), client_api=client_api)
    assert_same(agents, others)


def test_messages_written_for_the_message_api() -> None:
    _, agents = run(numpy_app())
    _, others = run(tuning_app(make_objective), client_api="message")
    assert_same(agents, others)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"agent": FedVoteSettings(num_initial=4), "epsilon": 4},
        # An early vote and a late one.
        {"agent": FedVoteSettings(num_initial=17), "release_after": (2, 4)},
    ],
)
def test_without_flower(options: dict[str, Any]) -> None:
    """simulation/loop.py, the algorithm and nothing else."""
    with_flower, agents = run(numpy_app(), **options)
    without = strategy(**options)
    without.plan(NUM_ITERATIONS)
    others = [create_agent(without.study, n, 11) for n in range(NUM_AGENTS)]
    objectives = [objective_of(n) for n in range(NUM_AGENTS)]
    run_loop(without.server, others, objectives, NUM_ITERATIONS)
    assert_same(agents, others)
    np.testing.assert_array_equal(with_flower.server.vectors, without.server.vectors)
    assert with_flower.privacy_spent == without.privacy_spent


def test_seeds_matter() -> None:
    _, agents = run(numpy_app())
    for name in ("study_seed", "feature_seed", "noise_seed"):
        _, others = run(numpy_app(), **{name: 99})
        with pytest.raises(AssertionError):
            assert_same(agents, others)


def test_unseeded_studies_differ() -> None:
    runs = [
        run(numpy_app(), study_seed=None, feature_seed=None, noise_seed=None)
        for _ in range(2)
    ]
    assert all(strategy.server.release.private for strategy, _ in runs)
    with pytest.raises(AssertionError):
        assert_same(runs[0][1], runs[1][1])
    # One agent's draws are not another's either.
    first, second = runs[0][1][0], runs[0][1][1]
    assert not np.array_equal(first.points[0], second.points[0])
