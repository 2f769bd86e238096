"""Apps with messages, models and metrics of other kinds, as Flower's examples have."""

import json
import logging
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
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, QFedAvg

from flwr_fbo import Halving, InProcessGrid, PrivateChoice, tuner_mod
from flwr_fbo.tuner.first_round import FirstRound
from flwr_fbo.tuner.trials.trial_grid import HiddenMetricsError
from tests.support.apps import (
    NUM_CLIENTS,
    RUN_CONFIG,
    in_process,
    main_of,
    message_app,
    server_context,
    tuner,
)

PRIVATE = PrivateChoice(1000.0, 1e-3)
SCHEDULE = Halving(4, (1, 2))
BEST = {"learning-rate": 1.0}


def _model(content: RecordDict) -> float:
    stored = content.config_records["model"]["bytes"]
    assert isinstance(stored, bytes)
    return float(stored)


class _InConfig(FedAvg):
    """A strategy whose model is bytes in a ConfigRecord, as one of trees has it."""

    def configure_train(
        self, server_round: int, arrays: Any, config: Any, grid: Grid
    ) -> Any:
        for message in super().configure_train(server_round, arrays, config, grid):
            message.content["model"] = ConfigRecord({"bytes": self.model})
            yield message

    model = b"0"

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        contents = [reply.content for reply in replies if reply.has_content()]
        models = [_model(content) for content in contents]
        self.model = str(np.mean(models)).encode()
        found = [c.metric_records["metrics"]["auc"] for c in contents]
        return None, MetricRecord({"auc": float(np.mean(found))})


def _of_trees() -> ClientApp:
    """Return a client that reports its score in the reply to ``train``."""
    app = ClientApp(mods=[tuner_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = _model(message.content)
        model += float(context.run_config["learning-rate"]) * (1.0 - model)
        record = ConfigRecord({"bytes": str(model).encode()})
        metrics = MetricRecord({"auc": model, "num-examples": 3})
        return Message(
            RecordDict({"model": record, "metrics": metrics}), reply_to=message
        )

    return app


def _main_of_trees(grid: Grid, context: Context) -> None:
    rounds = int(context.run_config["num-server-rounds"])
    _InConfig(fraction_evaluate=0.0).start(grid, ArrayRecord(), rounds)


def _trees() -> InProcessGrid:
    return InProcessGrid(_of_trees(), NUM_CLIENTS, run_config=RUN_CONFIG)


def test_a_model_in_a_config_and_a_score_in_replies_to_train() -> None:
    options = {"metric": "auc", "direction": "maximize", "score": "server"}
    study = tuner(privacy=None, schedule=SCHEDULE, enqueue=[BEST], **options)
    result = study.start(_main_of_trees, _trees(), server_context())
    assert result.best["learning-rate"] == BEST["learning-rate"]
    first = FirstRound.of(_main_of_trees, _trees(), server_context())
    assert (first.train, first.server, first.has_evaluated) == ({"auc"}, {"auc"}, False)


def _query_app() -> ClientApp:
    app = message_app()

    @app.query("embed")
    def embed(message: Message, context: Context) -> Message:
        value = float(context.run_config["learning-rate"])
        record = ArrayRecord({"embedding": Array(np.array([value]))})
        return Message(RecordDict({"embeddings": record}), reply_to=message)

    return app


def _asks_first(grid: Grid, context: Context) -> None:
    """Ask clients for something else before each round of training."""

    class Asking(FedAvg):
        def configure_train(self, *about: Any) -> Any:
            nodes = grid.get_node_ids()
            asked = [Message(RecordDict(), node, "query.embed") for node in nodes]
            replies = list(grid.send_and_receive(asked))
            assert len(replies) == NUM_CLIENTS
            rate = replies[0].content.array_records["embeddings"]["embedding"].numpy()
            assert rate == context.run_config["learning-rate"]
            return super().configure_train(*about)

    main_of(Asking)(grid, context)


@pytest.mark.parametrize("schedule", [SCHEDULE, None])
def test_without_privacy_a_message_may_be_of_any_type(schedule: Any) -> None:
    study = tuner(privacy=None, schedule=schedule, enqueue=[{"learning-rate": 0.9}])
    result = study.start(_asks_first, in_process(_query_app()), server_context())
    rounds = [rung.rounds for rung in result.rungs]
    # Where clients are few, the first rung of a race takes longer.
    assert rounds[0] == (3 if schedule is None else 1)
    assert not result.rungs[-1].failed
    private = tuner(privacy=PRIVATE, schedule=SCHEDULE)
    with pytest.raises(ValueError, match=r"'query.embed'.*Without privacy any type"):
        private.start(_asks_first, in_process(_query_app()), server_context())


def _text_app() -> ClientApp:
    """Return a client with a metric of text, which only a ConfigRecord holds."""
    app = message_app()
    del app._registered_funcs["evaluate.default"]

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        w = message.content.array_records["arrays"]["w"].numpy()
        metrics = MetricRecord({"distance": float(np.sum(w**2)), "num-examples": 1})
        report = ConfigRecord({"per-class": json.dumps({"a": 1})})
        content = RecordDict({"metrics": metrics, "report": report})
        return Message(content, reply_to=message)

    return app


class _ReadsText(FedAvg):
    def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
        for reply in replies:
            json.loads(str(reply.content.config_records["report"]["per-class"]))


def test_an_error_names_the_texts_that_stay_at_the_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = in_process(_text_app())
    caplog.set_level(logging.WARNING, "flwr.fbo")
    with pytest.raises(HiddenMetricsError, match=r"JSONDecode.*\['per-class'\]"):
        tuner(privacy=PRIVATE).start(main_of(_ReadsText), grid, server_context())
    assert "has failed" not in caplog.text
    tuner(privacy=None).start(
        main_of(_ReadsText), in_process(_text_app()), server_context()
    )


def test_a_strategy_that_needs_metrics_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = message_app(train_metrics=lambda _: {"train_loss": 1.0, "num-examples": 1})
    main = main_of(lambda: QFedAvg(client_learning_rate=0.1))
    caplog.set_level(logging.WARNING, "flwr.fbo")
    with pytest.raises(ValueError, match="as QFedAvg their training loss"):
        tuner(privacy=PRIVATE).start(main, in_process(app), server_context())
    lines = [r for r in caplog.records if "QFedAvg their" in r.getMessage()]
    assert len(lines) == 1  # with which the study ends


def test_defaults_that_no_client_can_score_have_failed() -> None:
    app = message_app()
    del app._registered_funcs["evaluate.default"]

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        rate = float(context.run_config["learning-rate"])
        if rate == RUN_CONFIG["learning-rate"]:
            raise ZeroDivisionError
        metrics = MetricRecord({"distance": rate, "num-examples": 1})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    study = tuner(privacy=PRIVATE, schedule=Halving(4, (1,)))
    result = study.start(main_of(), in_process(app), server_context())
    assert result.best_trial != 0
    assert result.rungs[0].failed == (0,)
    assert result.over_defaults is None
    assert result.verdict.startswith("could not be scored")
