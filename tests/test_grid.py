"""The in-process grid keeps to Flower's `Grid`."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import DPFTSDE, FedVote, InProcessGrid, Seeds, VotingSettings
from flwr_fbo._compat import CLIENT_APP_RAISED, Run
from flwr_fbo.agents.tuning import expected_improvement
from flwr_fbo.agents.tuning.expected_improvement import Found, Search
from flwr_fbo.agents.tuning.registry import create_agent
from flwr_fbo.lab.simulation.loop import run_loop
from tests.federation import (
    NUM_AGENTS,
    SPACE,
    assert_same,
    numpy_app,
    objective_of,
    strategy,
)


def _echo() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: object) -> Message:
        config = message.content.config_records["config"]
        if config["fail"]:
            raise RuntimeError("on purpose")
        config["seen"] = True
        return Message(message.content, reply_to=message)

    return app


def _message(grid: InProcessGrid, node: int, fail: bool) -> Message:
    content = RecordDict({"config": ConfigRecord({"fail": fail})})
    return Message(content, node, "train", group_id="7")


def test_messages_are_answered_and_replies_given_once() -> None:
    grid = InProcessGrid(_echo(), 2, run_config={"lr": 0.1})
    nodes = list(grid.get_node_ids())
    assert [c.node_config["partition-id"] for c in grid.contexts.values()] == [0, 1]
    assert grid.contexts[nodes[0]].run_config == {"lr": 0.1}
    asked = [_message(grid, nodes[0], False), _message(grid, nodes[1], True)]
    ids = list(grid.push_messages(asked))
    good, bad = grid.pull_messages(ids)
    assert list(grid.pull_messages(ids)) == []
    assert good.metadata.reply_to_message_id == ids[0] == asked[0].metadata.message_id
    assert (good.metadata.src_node_id, good.metadata.group_id) == (nodes[0], "7")
    assert bad.has_error()
    assert bad.error.code == CLIENT_APP_RAISED
    assert "on purpose" in str(bad.error.reason)


def test_the_run_can_be_set() -> None:
    grid = InProcessGrid(_echo(), 1)
    grid.set_run(Run.create_empty(5))
    assert grid.run.run_id == 5
    made = grid.create_message(RecordDict(), "train", 1001, "1")
    assert made.metadata.dst_node_id == 1001


def test_nodes_and_workers_are_needed() -> None:
    with pytest.raises(ValueError, match="num_nodes=0"):
        InProcessGrid(_echo(), 0)
    with pytest.raises(ValueError, match="num_workers=0"):
        InProcessGrid(_echo(), 1, num_workers=0)
    with pytest.raises(ValueError, match="client_app=3 is not allowed"):
        InProcessGrid(3, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"node_configs=\[\{\}\] .* one a node, 2"):
        InProcessGrid(_echo(), 2, node_configs=[{}])


def test_workers_answer_in_processes_of_their_own() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Fail at the second node; else say how often it was asked, and where."""
        if context.node_config["partition-id"] == 1:
            raise RuntimeError("on purpose")
        seen = context.state.config_records.setdefault("seen", ConfigRecord({"n": 0}))
        seen["n"] = int(str(seen["n"])) + 1
        record = ConfigRecord({"n": seen["n"], "process": os.getpid()})
        return Message(RecordDict({"config": record}), reply_to=message)

    grid = InProcessGrid(app, 3, num_workers=2)
    nodes = list(grid.get_node_ids())
    # The first node is asked twice at once: its second message finds what it has kept.
    asked = [_message(grid, node, False) for node in [*nodes, nodes[0]]]
    replies = list(grid.send_and_receive(asked))
    ids = [message.metadata.message_id for message in asked]
    assert [reply.metadata.reply_to_message_id for reply in replies] == ids
    assert [reply.has_error() for reply in replies] == [False, True, False, False]
    assert "on purpose" in str(replies[1].error.reason)
    good = [r.content.config_records["config"] for r in replies if not r.has_error()]
    assert [config["n"] for config in good] == [1, 1, 2]
    assert os.getpid() not in {config["process"] for config in good}
    (again,) = grid.send_and_receive([_message(grid, nodes[2], False)])
    assert again.content.config_records["config"]["n"] == 2


def improving() -> FedVote:
    """Return a study whose agents search by expected improvement."""
    agent = VotingSettings(num_initial=3, num_candidates=50)
    seeds = Seeds(study=1, features=3, noise=2)
    more: dict[str, Any] = {"seeds": seeds, "client_api": "numpy"}
    return FedVote(
        SPACE, "maximize", NUM_AGENTS, agent=agent, epsilon=2, delta=1e-3, **more
    )


@pytest.mark.parametrize("make", [strategy, improving])
def test_a_study_in_workers_is_that_of_one_process(
    make: Callable[[], DPFTSDE | FedVote],
) -> None:
    vectors, agents = [], []
    for num_workers in (1, 2):
        study = make()
        grid = InProcessGrid(numpy_app(), NUM_AGENTS, num_workers=num_workers)
        study.start(grid, num_rounds=4)
        vectors.append([row.vectors for row in study.server.ledger])
        agents.append(grid.agents(study.study))
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert_same(agents[0], agents[1])


def test_agents_that_wait_for_each_other_end_as_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the grid and in the loop; and they were blocks indeed."""
    sizes: list[int] = []
    search = expected_improvement.search_all

    def counted(searches: Sequence[Search]) -> list[Found]:
        sizes.append(len(searches))
        return search(searches)

    monkeypatch.setattr(
        "flwr_fbo.agents.tuning.expected_improvement.search_all", counted
    )
    agents = []
    for at_once in (100, 1):
        monkeypatch.setattr("flwr_fbo.agents.tuning.blocks._AT_ONCE", at_once)
        study = improving()
        grid = InProcessGrid(numpy_app(), NUM_AGENTS)
        study.start(grid, num_rounds=4)
        agents.append(grid.agents(study.study))
        study = improving()
        study.plan(3)
        loop = [create_agent(study.study, slot, 1) for slot in range(NUM_AGENTS)]
        run_loop(study.server, loop, list(map(objective_of, range(NUM_AGENTS))), 3)
        agents.append(loop)
        assert max(sizes) == (NUM_AGENTS if at_once > 1 else 1)
        sizes.clear()
    for others in agents[1:]:
        assert_same(agents[0], others)
