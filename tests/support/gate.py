"""What `tests/site/test_gate.py` and others share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.app import (
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from flwr_fbo import InProcessGrid, Limits, tuner_mod
from flwr_fbo._common.fields import to_json
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, Network
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    Promise,
)
from flwr_fbo.tuner.message_headers import (
    HEADER,
    BallotHeader,
    TrialsHeader,
    header_record,
    pack,
)
from tests.support.private_agent import PRIVACY
from tests.support.private_agent import SETTINGS as NEURAL_SETTINGS
from tests.support.site_budget import Environment

PROMISE = to_json(Promise((Charge(20.0),), private=True))


NODE = {
    "agent-id": 0,
    "fbo-max-epsilon-per-client": 0.5,
    "fbo-max-delta": 1e-5,
    "fbo-max-releases": 1,
}


def gate_app(mods: Any = (tuner_mod,)) -> ClientApp:
    app = ClientApp(mods=[*mods])

    @app.train()
    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        accuracy = float(context.run_config["x"])
        metrics = MetricRecord({"acc": accuracy, "num-examples": 1})
        return Message(RecordDict({"m": metrics}), reply_to=message)

    return app


class Site:
    """One site that a lying server writes to."""

    def __init__(self, app: ClientApp, **config: Any) -> None:
        self.grid = InProcessGrid(
            app, 1, run_config={"x": 0.0}, node_configs=[{"agent-id": 0, **config}]
        )

    def ask(self, content: RecordDict, kind: str = "evaluate") -> Message:
        [node] = self.grid.get_node_ids()
        [reply] = self.grid.send_and_receive([Message(content, node, kind)])
        return reply

    def run_trials(
        self, promise: Any = PROMISE, is_hidden: bool = True, kind: str = "evaluate"
    ) -> Message:
        settings = {"x": 0.0}, {"x": 1.0}
        numbers = 0, 1
        header = TrialsHeader(
            "a", numbers, settings, numbers, {"acc": 1.0}, is_hidden, promise
        )
        return self.ask(pack(header, {0: RecordDict(), 1: RecordDict()}), kind)

    def ask_ballot(self, **fields: Any) -> Message:
        return self.ask(RecordDict({HEADER: header_record(ballot_of(**fields))}))


def ballot_of(**fields: Any) -> BallotHeader:
    given: dict[str, Any] = {
        "attempt": "a",
        "rung": 0,
        "trials": [0, 1],
        "failed": [],
        "is_exact": False,
        "maximize": True,
        "promise": PROMISE,
        "release": 1,
    }
    return BallotHeader(**{**given, **fields})


def simple_objective(context: Context) -> Callable[[Any], float]:
    return lambda trial: 0.0


def private_bandit_study(kind: str, limits: Limits) -> Any:
    def linear(name: str) -> Any:
        releases = ContinualSettings(2, 3, epsilon=1.0, delta=1e-5)
        study = LinearBanditStudy(
            LinearUCBSettings(releases, local_data="released"), 3, study_id=name
        )
        return study, lambda number: LinearBanditInstruction(
            "round", study, 0, number, send_release=True, num_trials=2
        ).to_config()

    def neural(name: str) -> Any:
        privacy = replace(PRIVACY, epsilon=1.0, delta=1e-5)
        settings = replace(NEURAL_SETTINGS, privacy=privacy)
        network = Network(3, width=3)
        about = settings, 2, network.num_parameters, network, 1
        study = FedGOUCBStudy(*about, study_id=name)
        return study, lambda number: FedGOUCBInstruction(
            "round", study, 0, number, 2, send_sums=True, release=1
        ).to_config()

    if kind == "linear":
        made: Any = LinearBanditSite(None, lambda _: Environment(), limits)
        return made, linear
    return NeuralBanditSite(lambda _: Environment(), limits=limits), neural
