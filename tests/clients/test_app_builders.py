"""A Flower app gains a tuning stage and stays as it is."""

import os
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
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg

from flwr_fbo import InProcessGrid, add_tuning, best_params, with_tuning
from flwr_fbo._compat import NumPyClient
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.site.study_journals import note_last_study
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuning.kind import SITE
from flwr_fbo.tuning.site.tuning_journals import journal_path
from tests.support.begun_journals import begin_journal
from tests.support.federation import (
    NUM_AGENTS,
    assert_same,
    make_objective,
    numpy_app,
    objective_of,
    run,
    strategy,
)

DEFAULT = {"x": 9.0}


class Trainer(NumPyClient):
    """An app's own client: it adds its tuned ``x`` to the model."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def get_properties(self, config: Any) -> dict[str, Any]:
        return {"name": "own"}

    def get_parameters(self, config: Any) -> list[np.ndarray]:
        return [np.full(1, 7.0)]

    def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:
        x = best_params(self.context, default=DEFAULT)["x"]
        return [parameters[0] + x], 1, {}

    def evaluate(self, parameters: Any, config: Any) -> tuple[float, int, Any]:
        return 0.5, 1, {}


def _own_client(context: Context) -> Any:
    return Trainer(context).to_client()


def _ask(app: ClientApp, context: Context, kind: str, record: RecordDict) -> RecordDict:
    InProcessGrid(app, 1)  # lets messages be built outside a run
    return app(Message(record, context.node_id, kind), context).content


def _fit(app: ClientApp, context: Context) -> float:
    arrays, config = ArrayRecord({"0": Array(np.zeros(1))}), ConfigRecord()
    record = RecordDict({"fitins.parameters": arrays, "fitins.config": config})
    reply = _ask(app, context, "train", record)
    return float(reply.array_records["fitres.parameters"]["0"].numpy()[0])


def test_a_numpy_client_app_tunes_first_and_trains_then() -> None:
    app = ClientApp(client_fn=with_tuning(_own_client, make_objective, None))
    grid = InProcessGrid(app, NUM_AGENTS)
    for context in grid.contexts.values():
        assert _fit(app, context) == DEFAULT["x"]
    study = strategy()
    study.start(grid, num_rounds=2)
    agents = grid.agents(study.study)
    _, plain = run(numpy_app(), num_rounds=2)
    assert_same(agents, plain)
    for agent, context in zip(agents, grid.contexts.values(), strict=True):
        best = agent.points[int(np.argmax(agent.values))]
        assert _fit(app, context) == agent.space.from_unit(best)["x"]


def test_the_apps_other_messages_reach_its_own_client() -> None:
    app = ClientApp(client_fn=with_tuning(_own_client, make_objective, None))
    context = next(iter(InProcessGrid(app, 1).contexts.values()))
    config = ConfigRecord()
    reply = _ask(
        app,
        context,
        "get_properties",
        RecordDict({"getpropertiesins.config": config}),
    )
    assert reply.config_records["getpropertiesres.properties"]["name"] == "own"
    reply = _ask(
        app,
        context,
        "get_parameters",
        RecordDict({"getparametersins.config": config}),
    )
    assert reply.array_records["getparametersres.parameters"]["0"].numpy()[0] == 7.0
    arrays = ArrayRecord({"0": Array(np.zeros(1))})
    record = RecordDict(
        {"evaluateins.parameters": arrays, "evaluateins.config": config}
    )
    reply = _ask(app, context, "evaluate", record)
    assert reply.metric_records["evaluateres.loss"]["loss"] == 0.5


def test_a_message_api_app_keeps_its_own_train() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x = float(best_params(context, default=DEFAULT)["x"])
        arrays = ArrayRecord({"w": Array(np.full(1, x))})
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    assert add_tuning(app, make_objective, None) is app
    grid = InProcessGrid(app, NUM_AGENTS)
    study = strategy(client_api="action")
    study.start(grid, num_rounds=2)
    agents = grid.agents(study.study)
    assert_same(agents, run(numpy_app(), num_rounds=2)[1])
    trained = FedAvg(fraction_evaluate=0.0).start(
        grid, ArrayRecord({"w": Array(np.zeros(1))}), num_rounds=1
    )
    best = [a.points[int(np.argmax(a.values))] for a in agents]
    expected = np.mean([agents[0].space.from_unit(point)["x"] for point in best])
    np.testing.assert_allclose(trained.arrays["w"].numpy(), expected)


def test_a_training_message_to_the_tuning_stage_is_named() -> None:
    app = add_tuning(ClientApp(), make_objective, None)
    context = next(iter(InProcessGrid(app, 1).contexts.values()))
    record = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord()})
    InProcessGrid(app, 1)  # lets messages be built outside a run
    reply = app(Message(record, context.node_id, "train.tune"), context)
    assert "StudyMismatchError: This message is not" in str(reply.error.reason)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_best_params_outlive_the_run(tmp_path: Path, direction: str) -> None:
    """A restarted SuperNode has an empty context; the folder has the journal."""
    config = {"fbo-folder": str(tmp_path)}
    grid = InProcessGrid(numpy_app(), NUM_AGENTS, run_config=dict(config))
    study = strategy(direction=direction)
    study.start(grid, num_rounds=2)
    choose = np.argmax if direction == "maximize" else np.argmin
    for slot, agent in enumerate(grid.agents(study.study)):
        fresh = Context(2, 99, {"partition-id": slot}, RecordDict(), dict(config))
        point = agent.points[int(choose(agent.values))]
        assert best_params(fresh, default=DEFAULT) == agent.space.from_unit(point)
    stranger = Context(2, 99, {"partition-id": 77}, RecordDict(), dict(config))
    assert best_params(stranger, default=DEFAULT) == DEFAULT
    assert len(list(tmp_path.glob("study-*.sqlite"))) == NUM_AGENTS


def test_a_client_without_a_number_finds_its_only_journal(tmp_path: Path) -> None:
    config = {"fbo-folder": str(tmp_path)}
    node_configs: list[UserConfig] = [dict(config)]
    grid = InProcessGrid(numpy_app(_first), 1, node_configs=node_configs)
    study = strategy(num_agents=1)
    study.start(grid, num_rounds=2)
    (agent,) = grid.agents(study.study)
    fresh = Context(2, 99, dict(config), RecordDict(), {})
    best = agent.points[int(np.argmax(agent.values))]
    assert best_params(fresh, default=DEFAULT) == agent.space.from_unit(best)
    begin_journal(tmp_path / f"study-{study.study.study_id}-agent-5.sqlite")
    assert best_params(fresh, default=DEFAULT) == DEFAULT  # whose is which?


def _first(context: Context) -> Any:
    return objective_of(0)


def _two_studies(folder: Path) -> tuple[list[Path], Params, Context]:
    """Return an agent's journals of two studies, its last best, and a fresh context."""
    config: UserConfig = {"fbo-folder": str(folder)}
    grid = InProcessGrid(numpy_app(), NUM_AGENTS, run_config=dict(config))
    paths = []
    for seed in (1, 2):
        study = strategy(study_seed=seed)
        study.start(grid, num_rounds=2)
        path = journal_path(folder, study.study, 0)
        assert path is not None
        paths.append(path)
    agent = grid.agents(study.study)[0]
    best = agent.space.from_unit(agent.points[int(np.argmax(agent.values))])
    return paths, best, Context(2, 99, {"agent-id": 0}, RecordDict(), config)


def test_best_params_go_by_no_clock_and_no_file_time(tmp_path: Path) -> None:
    """An older journal may be newer as a file: one that was restored, or touched."""
    (older, newer), best, fresh = _two_studies(tmp_path)
    os.utime(newer, (0, 0))
    older.touch()
    assert best_params(fresh, default=DEFAULT) == best


def test_best_params_of_a_journal_that_is_lost_are_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And not those of the study before it."""
    (_, newer), _, fresh = _two_studies(tmp_path)
    newer.unlink()
    assert best_params(fresh, default=DEFAULT) == DEFAULT
    assert f"{newer}, is not there" in caplog.text


def test_best_params_that_two_studies_could_mean_are_the_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (older, _), best, fresh = _two_studies(tmp_path)
    (tmp_path / "last-study-agent-0").unlink()
    assert best_params(fresh, default=DEFAULT) == DEFAULT
    assert "journals of several studies of agent 0" in caplog.text
    older.unlink()
    assert best_params(fresh, default=DEFAULT) == best


def test_a_note_that_cannot_be_written_leaves_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (strategy(study_seed=seed).study for seed in (1, 2))
    note_last_study(tmp_path, SITE.name, first.study_id, 0)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        note_last_study(tmp_path, SITE.name, second.study_id, 0)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_an_objective_that_gives_no_number_is_loud(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the server too."""

    def make(context: Context) -> Any:
        return lambda trial: (0.5, 1)

    grid = InProcessGrid(numpy_app(make), NUM_AGENTS)
    with pytest.raises(AggregationError, match="returned a tuple, not a number"):
        strategy().start(grid, num_rounds=3)
    for slot in range(NUM_AGENTS):
        assert f"agent {slot}: " in caplog.text
    context = next(iter(grid.contexts.values()))
    assert best_params(context, default=DEFAULT) == DEFAULT


def test_a_damaged_journal_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "study-x-agent-0.sqlite"
    path.touch(0o600)
    path.write_bytes(b"rubbish" * 999)
    context = Context(
        1, 1, {"partition-id": 0, "fbo-folder": str(tmp_path)}, RecordDict(), {}
    )
    with pytest.raises(JournalError, match="not a database"):
        best_params(context, default=DEFAULT)


def test_misuse_is_named() -> None:
    with pytest.raises(ValueError, match="client_fn=3"):
        with_tuning(3, make_objective, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="make_objective=None"):
        with_tuning(_own_client, None, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="make_objective=None"):
        add_tuning(ClientApp(), None, None)  # type: ignore[arg-type]
    for study_id in ("", "../x", "a" * 65):
        with pytest.raises(ValueError, match="study_id="):
            type(strategy().study)(
                strategy().study.space,
                "maximize",
                strategy().study.agent,
                study_id=study_id,
            )
