"""A site with limits says no more by an error, or by its app's own replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from flwr_fbo import InProcessGrid, Limits, tuner_mod, with_tuning
from flwr_fbo._common.errors import AppFailedError
from flwr_fbo.bandits import Network
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBInstruction, FedGOUCBStudy
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.site.gate import NO_ANSWER
from flwr_fbo.site.site import Answer
from flwr_fbo.tuner.message_headers import HEADER, SettingsHeader, header_record
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.support.federation import charges_in
from tests.support.private_agent import SETTINGS as NEURAL
from tests.support.site_budget import (
    RELEASES,
    Environment,
    Node,
    asked_of,
    study_of,
)

LIMITS = Limits(
    max_epsilon_per_client=30.0, max_epsilon_per_example=90.0, max_delta=1e-3
)
# With more digits than the times in a message: those never look like it.
SCORE = 0.7312904867


def _fails(*_: Any) -> Any:
    raise ZeroDivisionError("patient 17")


def _tuning(folder: Path, fails: bool, limits: Limits | None, releases: bool) -> Answer:
    make = _fails if fails else lambda _: lambda trial: 0.5
    site, study = TuningSite(make, limits=limits), study_of((Charge(9.0),))
    return Node(folder).ask(site, asked_of(study, 0, int(releases)))


def _linear(folder: Path, fails: bool, limits: Limits | None, releases: bool) -> Answer:
    make = _fails if fails else lambda _: Environment()
    site, node = LinearBanditSite(None, make, limits), Node(folder)
    settings = LinearUCBSettings(RELEASES, local_data="released")
    study = LinearBanditStudy(settings, 2)
    number = int(node.ask(site, study.enrolment()).metrics["journal"])
    asked = LinearBanditInstruction(
        "round", study, 0, number, send_release=releases, num_trials=1
    )
    return node.ask(site, asked.to_config())


def _neural(folder: Path, fails: bool, limits: Limits | None, releases: bool) -> Answer:
    make = _fails if fails else lambda _: Environment()
    site, node = NeuralBanditSite(make, limits=limits), Node(folder)
    network = Network(6, width=3)
    study = FedGOUCBStudy(NEURAL, 2, network.num_parameters, network, seed=1)
    number = int(node.ask(site, study.enrolment()).metrics["journal"])
    asked = FedGOUCBInstruction(
        "round", study, 0, number, 2, send_sums=releases, release=int(releases)
    )
    return node.ask(site, asked.to_config())


KINDS = pytest.mark.parametrize("ask", [_tuning, _linear, _neural])
Ask = Callable[[Path, bool, Limits | None, bool], Answer]


@KINDS
def test_a_round_without_a_release_looks_the_same_where_the_app_fails(
    ask: Ask, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [
        ask(tmp_path / str(fails), fails, LIMITS, False) for fails in (False, True)
    ]
    for answer in answers:
        assert answer.arrays == []
        assert answer.metrics == answers[0].metrics
        assert charges_in(tmp_path / "True") == []
    assert "ZeroDivisionError" in caplog.text  # in the site's own log


@KINDS
def test_a_release_is_charged_where_the_app_fails(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(AppFailedError) as error:
        ask(tmp_path, True, LIMITS, True)
    assert error.value.public == NO_ANSWER
    assert len(charges_in(tmp_path)) == 1


@KINDS
@pytest.mark.parametrize("releases", [True, False])
def test_a_site_without_limits_tells_the_type_of_an_error(
    ask: Ask, releases: bool, tmp_path: Path
) -> None:
    with pytest.raises(AppFailedError, match="ZeroDivisionError"):
        ask(tmp_path, True, None, releases)


def _own_app(limits: Limits | None = None) -> ClientApp:
    """Return an app whose own functions say all that they can."""
    app = ClientApp(mods=[tuner_mod])

    @app.train()
    @app.evaluate()
    @app.query()
    def answer(message: Message, context: Context) -> Message:
        if context.run_config["x"] == "raises":
            raise ValueError(SCORE)
        if context.run_config["x"] == "an error":
            return Message(Error(7, f"{SCORE}"), reply_to=message)
        metrics = MetricRecord({"accuracy": SCORE, "num-examples": 8, "of": [SCORE]})
        content = RecordDict({"metrics": metrics})
        content["config"] = ConfigRecord({"text": f"{SCORE}"})
        content["arrays"] = ArrayRecord({"model": Array(np.ones(2))})
        return Message(content, reply_to=message)

    return app


def _numpy_app(limits: Limits | None = None) -> ClientApp:
    class Own(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return [np.ones(2)], 8, {"accuracy": SCORE}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return SCORE, 8, {"accuracy": SCORE}

    client_fn = with_tuning(lambda _: Own(), lambda _: len, None, limits=limits)
    return ClientApp(client_fn=client_fn, mods=[tuner_mod])


def _reply(
    app: ClientApp, kind: str, is_named: bool, x: str = "", **node: Any
) -> Message:
    """Return what a site replies to a message with a setting, or without."""
    grid = InProcessGrid(app, 1, run_config={"x": x}, node_configs=[node])
    [client] = grid.get_node_ids()
    content = RecordDict({"arrays": ArrayRecord({"model": Array(np.zeros(2))})})
    for name in ("fitins", "evaluateins"):
        content[f"{name}.parameters"] = content["arrays"]
        content[f"{name}.config"] = ConfigRecord({})
    if is_named:
        content[HEADER] = header_record(SettingsHeader({"x": x}, is_hidden=False))
    [reply] = grid.send_and_receive([Message(content, client, kind)])
    return reply


BOUND: list[dict[str, Any]] = [
    {"fbo-max-epsilon-per-client": 1.0, "fbo-max-delta": 1e-5},
    {"fbo-max-releases": 3},
    {"fbo-min-agents": 5},
    {"fbo-min-noise-multiplier": 1.0},
    {"fbo-roster": "/etc/fbo/roster.json", "fbo-key": "/etc/fbo/key.pem"},
]
NAMED = pytest.mark.parametrize("is_named", [True, False])


@NAMED
@pytest.mark.parametrize("node", BOUND, ids=lambda node: next(iter(node)))
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_no_reply_of_an_app_has_a_score(
    kind: str, node: dict[str, Any], is_named: bool
) -> None:
    reply = _reply(_own_app(), kind, is_named, **node)
    assert str(SCORE) not in repr(reply)
    metrics = reply.content.metric_records["metrics"]
    assert metrics["num-examples"] == (8 if kind == "train" else 1)
    assert np.isnan(metrics["accuracy"])
    assert metrics["of"] == []
    models = reply.content.array_records["arrays"]
    assert (len(models) > 0) == (kind == "train")  # the model is not covered
    free = _reply(_own_app(), kind, is_named)
    assert str(SCORE) in repr(free)


@NAMED
@pytest.mark.parametrize("x", ["raises", "an error"])
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_no_error_of_an_app_has_a_score(kind: str, x: str, is_named: bool) -> None:
    reply = _reply(_own_app(), kind, is_named, x, **BOUND[0])
    assert reply.has_error()
    assert str(SCORE) not in str(reply.error.reason)
    assert NO_ANSWER.removesuffix(".") in str(reply.error.reason)
    assert str(SCORE) in str(_reply(_own_app(), kind, is_named, x).error.reason)


@NAMED
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_limits_that_an_app_gives_its_clients_hold_too(
    kind: str, is_named: bool
) -> None:
    reply = _reply(_numpy_app(LIMITS), kind, is_named)
    assert str(SCORE) not in repr(reply)
    assert str(SCORE) in repr(_reply(_numpy_app(), kind, is_named))


def test_a_study_is_answered_through_the_same_mod() -> None:
    """Its replies are a site's own, which it has charged, and not the app's."""
    grid = InProcessGrid(_numpy_app(LIMITS), 1, run_config={"x": ""})
    [client] = grid.get_node_ids()
    study = study_of((Charge(9.0),))
    content = RecordDict({"fitins.parameters": ArrayRecord({})})
    content["fitins.config"] = ConfigRecord({**study.enrolment()})
    [reply] = grid.send_and_receive([Message(content, client, "train")])
    assert reply.content.config_records["fitres.metrics"]["agent-id"] == 0


def test_a_message_that_only_looks_like_a_study_gets_no_score() -> None:
    grid = InProcessGrid(_own_app(), 1, run_config={"x": ""}, node_configs=BOUND[:1])
    [client] = grid.get_node_ids()
    content = RecordDict({"arrays": ArrayRecord({})})
    content["config"] = ConfigRecord({**study_of((Charge(9.0),)).enrolment()})
    for kind in ("train", "evaluate"):
        [reply] = grid.send_and_receive([Message(content, client, kind)])
        assert str(SCORE) not in repr(reply)
