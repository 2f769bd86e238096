"""Sites with a limit refuse the round that would exceed it, wherever Flower runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import FederationTuner, Halving, InProcessGrid, PrivateChoice, tuner_mod
from flwr_fbo import charge_training as charge
from flwr_fbo.privacy import DPSGD
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT, EXAMPLE, ONE_EXAMPLE_LESS
from flwr_fbo.privacy.spending_ledger import TRAINING, Facts, SpendingLedger
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    SPACE,
    main_of,
    message_app,
    server_context,
)
from tests.support.deployed import begun
from tests.support.engine import FlwrRun
from tests.support.tuned_apps import write_app

# A client that writes down each round that it trains, and charges it first.
CLIENT_APP = """
from pathlib import Path

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fbo import Limits, charge_training
from flwr_fbo.privacy import DPSGD

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    most = float(context.run_config["max-epsilon"])
    limits = Limits(max_epsilon_per_example=most, max_delta=1e-5) if most else None
    charge_training(context, DPSGD(1.0, 0.1, 10), limits=limits)
    weights = message.content["arrays"]["w"].numpy() + 1.0
    with open(context.run_config["trained"], "a") as file:
        file.write(f"{context.node_id}\\n")
    metrics = MetricRecord({"num-examples": 1})
    content = {"arrays": ArrayRecord({"w": Array(weights)}), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
"""
SERVER_APP = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
    arrays = ArrayRecord({"w": Array(np.zeros(2))})
    result = strategy.start(grid, arrays, num_rounds=4)
    print("weights", result.arrays["w"].numpy().tolist())
"""
SETTINGS = """
max-epsilon = 0.0
trained = ""
"""
# Three rounds, one after another, are within it, and a fourth is not.
ROUND = DPSGD(1.0, 0.1, 10)
DELTA, LIMIT = 1e-5, 6.0
NUM_NODES, NUM_ROUNDS = 2, 3


def spent_on(rounds: int) -> float:
    """Return what a site's ledger has of rounds that are charged one by one."""
    return Spent(((ROUND.charge,),) * rounds).epsilon(DELTA)


def test_the_limit_is_between_three_rounds_and_four() -> None:
    assert spent_on(NUM_ROUNDS) < LIMIT < spent_on(NUM_ROUNDS + 1)


def own_app(folder: Path) -> Path:
    """Write the app, and return its folder."""
    return write_app(folder, client=CLIENT_APP, server=SERVER_APP, more=SETTINGS)


def facts_in(folder: Path) -> list[Facts]:
    with SpendingLedger.held(folder) as ledger:
        return ledger.facts()


def assert_trained(marks: Path) -> None:
    """Assert that each node has trained as often as its limit allows."""
    nodes = marks.read_text().split()
    assert len(nodes) == NUM_NODES * NUM_ROUNDS
    assert sorted(nodes.count(node) for node in set(nodes)) == [NUM_ROUNDS] * NUM_NODES


def test_in_process(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(CLIENT_APP, names)
    server: dict[str, Any] = {}
    exec(SERVER_APP, server)
    marks, folders = tmp_path / "trained", [tmp_path / f"site-{i}" for i in (0, 1)]
    configs: list[Any] = [
        {
            "fbo-folder": str(folder),
            "fbo-max-epsilon-per-example": LIMIT,
            "fbo-max-delta": DELTA,
        }
        for folder in folders
    ]
    run_config: Any = {"max-epsilon": 0.0, "trained": str(marks)}
    grid = InProcessGrid(
        names["app"], NUM_NODES, node_configs=configs, run_config=run_config
    )
    server["app"](grid, Context(1, 0, {}, RecordDict(), {}))
    assert_trained(marks)
    for folder in folders:
        facts = facts_in(folder)
        assert len(facts) == NUM_ROUNDS
        spent = Spent.of(ONE_EXAMPLE_LESS, facts)
        assert spent.epsilon(DELTA) == pytest.approx(spent_on(NUM_ROUNDS))
    for context in grid.contexts.values():
        assert context.run_config == run_config


def test_what_a_server_learns_of_a_refusal(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(CLIENT_APP, names)
    config: Any = {"fbo-max-epsilon-per-example": 0.1, "fbo-max-delta": DELTA}
    run_config: Any = {"max-epsilon": 0.0, "trained": str(tmp_path / "trained")}
    grid = InProcessGrid(names["app"], 1, node_configs=[config], run_config=run_config)
    [node] = grid.get_node_ids()
    arrays = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(2))})})
    [reply] = grid.send_and_receive([grid.create_message(arrays, "train", node, "1")])
    assert reply.has_error()
    reason = str(reply.error.reason)
    assert "This site takes no part: its limits." in reason
    assert "max_epsilon_per_example" not in reason
    assert not (tmp_path / "trained").exists()


TRIAL_ROUND = DPSGD(1.0, 0.05, 10)


def tuned(
    folder: Path | None,
    limit: float,
    plan: DPSGD | None = None,
    resets_state: bool = False,
) -> tuple[InProcessGrid, FederationTuner, list[int]]:
    """Return sites and a tuner whose trials train with DP-SGD, with one limit.

    And the nodes that have trained, a number for each round.
    """
    trained: list[int] = []
    honest = message_app(first=())
    app = ClientApp(mods=[tuner_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        charge(context, TRIAL_ROUND, plan=plan)
        trained.append(context.node_id)
        if resets_state:
            context.state = RecordDict()
        return honest(message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return honest(message, context)

    configs: list[Any] = [
        {
            "partition-id": i,
            "fbo-max-epsilon-per-example": limit,
            "fbo-max-delta": DELTA,
            **({} if folder is None else {"fbo-folder": str(folder / f"site-{i}")}),
        }
        for i in range(NUM_CLIENTS)
    ]
    grid = InProcessGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG, node_configs=configs)
    tuner = FederationTuner(
        space=SPACE,
        metric="distance",
        direction="minimize",
        num_agents=NUM_CLIENTS,
        schedule=Halving(2, (1,)),
        privacy=PrivateChoice(epsilon=0.1, delta=1e-3),
    )
    return grid, tuner, trained


@pytest.mark.parametrize(
    ("has_folder", "resets_state"), [(True, False), (False, False), (False, True)]
)
def test_trials_of_a_tuner_share_one_limit(
    tmp_path: Path, has_folder: bool, resets_state: bool
) -> None:
    rounds = [Spent(((TRIAL_ROUND.charge,),) * k).epsilon(DELTA) for k in (1, 2)]
    folder, limit = tmp_path if has_folder else None, sum(rounds) / 2
    grid, tuner, trained = tuned(folder, limit, resets_state=resets_state)
    tuner.start(main_of(), grid, server_context())
    # One round of the first trial at each site; the second failed.
    assert [trained.count(node) for node in set(trained)] == [1] * NUM_CLIENTS


def test_training_and_choice_of_a_tuner_are_one_count(tmp_path: Path) -> None:
    grid, tuner, _ = tuned(tmp_path, 20.0, DPSGD(1.0, 0.05, 60))
    tuner.start(main_of(), grid, server_context())
    for i in range(NUM_CLIENTS):
        facts = facts_in(tmp_path / f"site-{i}")
        kinds = [one["study_kind"] for one in facts]
        assert kinds[0] == TRAINING
        assert {*kinds} == {TRAINING, "federation-tuner"}
        training = [one for one in facts if one["study_kind"] == TRAINING]
        ballots = [one for one in facts if one["study_kind"] != TRAINING]
        parts = [Spent.of(ONE_EXAMPLE_LESS, some) for some in (training, ballots)]
        together = Spent.of(ONE_EXAMPLE_LESS, facts).epsilon(DELTA)
        assert max(part.epsilon(DELTA) for part in parts) < together
        assert together < Spent.of(EXAMPLE, facts).epsilon(DELTA)
        # A client's own total has no training in it.
        assert Spent.of(CLIENT, facts).groups == Spent.of(CLIENT, ballots).groups


@pytest.mark.slow
def test_on_the_engine(flwr_run: FlwrRun, tmp_path: Path) -> None:
    marks = tmp_path / "trained"
    app = own_app(tmp_path / "own")
    printed = flwr_run(app, NUM_NODES, {"max-epsilon": LIMIT, "trained": str(marks)})
    assert "weights [3.0, 3.0]" in printed
    assert_trained(marks)


@pytest.mark.slow
def test_in_a_deployment(federation: Any, tmp_path: Path) -> None:
    marks = tmp_path / "trained"
    app = own_app(tmp_path / "own")
    federation.start_superlink()
    for i in range(NUM_NODES):
        federation.register(f"site-{i}")
        folder = federation.folder / f"site-{i}"
        folder.mkdir(exist_ok=True)
        config: dict[str, Any] = {
            "agent-id": i,
            "fbo-folder": str(folder / "journal"),
            "fbo-max-epsilon-per-example": str(LIMIT),
            "fbo-max-delta": str(DELTA),
        }
        federation.start_supernode(f"site-{i}", config)
    with begun(federation, app, f'trained="{marks}"') as end:
        printed = end(300)
    assert "weights [3.0, 3.0]" in printed
    assert_trained(marks)
    for i in range(NUM_NODES):
        facts = facts_in(federation.folder / f"site-{i}" / "journal")
        assert [one["release"] for one in facts] == [1, 2, 3]
        assert "max_epsilon_per_example=6" in federation.log(f"site-{i}")
    assert "max_epsilon_per_example" not in printed
