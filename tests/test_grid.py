"""The in-process grid keeps to Flower's `Grid`."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
    UserConfig,
)
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_PARAMS_RECORD

from flwr_fbo import DPFTSDE, FedVote, InProcessGrid, Seeds
from flwr_fbo._compat import CLIENT_APP_RAISED, Run
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.tuning import FedVoteSettings
from flwr_fbo.tuning.search import expected_improvement
from flwr_fbo.tuning.search.expected_improvement import Found, Search
from flwr_fbo.tuning.search.study import create_agent
from tests.support import mutating_app
from tests.support.engine import FlwrRun
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    assert_same,
    numpy_app,
    objective_of,
    strategy,
)
from tests.support.grouped import hosted


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


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_client_that_exits_does_not_end_its_server(num_workers: int) -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise SystemExit("on purpose")

    grid = InProcessGrid(app, 2, num_workers=num_workers)
    asked = [_message(grid, node, False) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked))
    assert [reply.error.code for reply in replies] == [CLIENT_APP_RAISED] * 2
    assert all("on purpose" in str(reply.error.reason) for reply in replies)


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
    agent = FedVoteSettings(num_initial=3, num_candidates=50)
    seeds = Seeds(study=1, features=3, noise=2)
    more: dict[str, Any] = {"seeds": seeds, "client_api": "numpy", "delta": 1e-3}
    return hosted(
        FedVote, SPACE, "maximize", NUM_AGENTS, agent=agent, epsilon=2, **more
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
        "flwr_fbo.tuning.search.expected_improvement.search_all", counted
    )
    agents = []
    for at_once in (100, 1):
        monkeypatch.setattr("flwr_fbo.tuning.search.agents_at_once._AT_ONCE", at_once)
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


MUTATING = """
[project]
name = "mutating"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr-fbo"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["mutating"]

[tool.flwr.app]
publisher = "flwr-fbo"

[tool.flwr.app.components]
serverapp = "mutating.app:server"
clientapp = "mutating.app:client"

[tool.flwr.app.config]
file = ""
num-clients = 0
"""
NUM_MUTATING = 3


def _as_sent(number: int, client: int) -> dict[str, Any]:
    """Return what a client of the app sees if nobody has changed its records."""
    return {
        "client": client,
        "names": ["arrays", "config", "metrics"],
        "lr": 1.0,
        "layers": [8, 4],
        "losses": [0.25, 0.125],
        "w": [0.0, 0.0],
        "kept": number - 1,
        "round": number,
    }


AS_SENT = {
    "clients": [
        _as_sent(number, client) for number in (1, 2) for client in range(NUM_MUTATING)
    ],
    "server": [["arrays", "config", "metrics"], 1.0, [8, 4], ["w"]],
}


@pytest.mark.parametrize("num_workers", [1, 2])
def test_nobody_sees_what_others_do_to_their_records(
    num_workers: int, tmp_path: Path
) -> None:
    config: UserConfig = {
        "file": str(tmp_path / "seen.json"),
        "num-clients": NUM_MUTATING,
    }
    grid = InProcessGrid(
        mutating_app.client, NUM_MUTATING, run_config=config, num_workers=num_workers
    )
    mutating_app.server(grid, Context(1, 1, {}, RecordDict(), dict(config)))
    assert json.loads((tmp_path / "seen.json").read_text()) == AS_SENT


@pytest.mark.gate
def test_nor_on_the_engine(tmp_path: Path, flwr_run: FlwrRun) -> None:
    package = tmp_path / "source" / "mutating"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    shutil.copy(mutating_app.__file__, package / "app.py")
    (package.parent / "pyproject.toml").write_text(MUTATING)
    file = tmp_path / "seen.json"
    config: UserConfig = {"file": str(file), "num-clients": NUM_MUTATING}
    flwr_run(package.parent, NUM_MUTATING, config)
    assert json.loads(file.read_text()) == AS_SENT


def test_a_reply_that_cannot_be_sent_is_an_error_of_its_client() -> None:
    """As on the way to another machine: no number of more than 64 bits."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        config = message.content["config"]
        kind = type(config["numpy"]).__name__
        large = ConfigRecord({"n": 2 ** (64 if config["fail"] else 63), "type": kind})
        return Message(RecordDict({"config": large}), reply_to=message)

    grid = InProcessGrid(app, 2)
    asked = [
        _message(grid, node, fail)
        for node, fail in zip(grid.get_node_ids(), (False, True), strict=True)
    ]
    for message in asked:
        message.content.config_records["config"]["numpy"] = np.float64(0.5)
    good, bad = grid.send_and_receive(asked)
    assert good.content["config"] == {"n": 2**63, "type": "float"}
    assert bad.error.code == CLIENT_APP_RAISED
    assert good.metadata.reply_to_message_id == asked[0].metadata.message_id
    assert bad.metadata.reply_to_message_id == asked[1].metadata.message_id


def test_what_a_client_keeps_is_not_the_servers() -> None:
    """Also where a reply has the very record, which Flower's simulation shares."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        kept: Any = context.state.setdefault("kept", message.content["config"])
        kept["n"] += 1
        content = RecordDict({"kept": context.state["kept"]})
        return Message(content, reply_to=message)

    grid = InProcessGrid(app, 1)
    (node,) = grid.get_node_ids()
    content: Any = RecordDict({"config": ConfigRecord({"n": 0})})
    for number in (1, 2):
        (reply,) = grid.send_and_receive([Message(content, node, "train")])
        kept = reply.content.config_records["kept"]
        assert kept["n"] == number
        kept["n"] = 100
    assert content["config"]["n"] == 0


def test_configurations_are_each_clients_own() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        for config in (context.run_config, context.node_config):
            config["n"] = int(config["n"]) + 1
        return Message(RecordDict(), reply_to=message)

    run_config: UserConfig = {"n": 0}
    grid = InProcessGrid(app, 2, run_config=run_config, node_configs=[run_config] * 2)
    grid.send_and_receive([_message(grid, node, False) for node in grid.get_node_ids()])
    for context in grid.contexts.values():
        assert context.run_config == context.node_config == {"n": 1}
    assert run_config == {"n": 0}


def test_arrays_are_not_copied() -> None:
    grid = InProcessGrid(_echo_of_all(), 1)
    array = Array(np.zeros(10))
    content = RecordDict(
        {"arrays": ArrayRecord({"w": array}), "config": ConfigRecord({"fail": False})}
    )
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, "train")])
    back = reply.content["arrays"]["w"]
    assert back == array
    assert back is not array
    assert back.data is array.data


def _echo_of_all() -> ClientApp:
    app = ClientApp()
    app.train()(lambda message, context: Message(message.content, reply_to=message))
    return app


def test_secure_aggregation_of_flower_works() -> None:
    app = ClientApp(mods=[secaggplus_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(str(context.node_config["partition-id"])) + 1
        content = RecordDict(
            {
                "fitres.parameters": ArrayRecord({"0": Array(np.full(3, number / 4))}),
                "fitres.num_examples": MetricRecord({"num_examples": 1}),
                "fitres.metrics": ConfigRecord(),
                "fitres.status": ConfigRecord({"code": 0, "message": ""}),
            }
        )
        return Message(content, reply_to=message)

    context = LegacyContext(
        Context(1, 1, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=1),
        strategy=FedAvg(
            fraction_evaluate=0.0,
            min_available_clients=4,
            initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
        ),
    )
    workflow = SecAggPlusWorkflow(1.0, 0.5, max_weight=1.0)
    DefaultWorkflow(fit_workflow=workflow)(InProcessGrid(app, 4), context)
    (mean,) = context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()
    np.testing.assert_allclose(mean, (1 + 2 + 3 + 4) / 16, atol=1e-5)
