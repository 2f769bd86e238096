"""Small federated apps, as users have them, whose best settings are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from flwr_fbo import FederationTuner, Halving, InProcessGrid, Seeds, tuner_mod
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.trials.trial_grid import Main
from flwr_fbo.tuning import FederationResult

NUM_CLIENTS, TARGET = 6, np.array([1.0, -2.0, 0.5])
RUN_CONFIG: dict[str, Any] = {
    "learning-rate": 0.001,
    "local-epochs": 1,
    "num-server-rounds": 4,
    "unused": 1.0,
}
SPACE: dict[str, BaseDistribution] = {
    "learning-rate": FloatDistribution(1e-3, 1.0, log=True),
    "local-epochs": IntDistribution(1, 5),
}
ONE_RUNG, TWO_RUNGS = Halving(6, (2,)), Halving(6, (1, 3), parallel=2)
SHORT = Halving(2, (1,))
# Of each client, what no message to the server may have.
EXACT_LOSS = 3.0


def num_examples(client: int) -> int:
    """Return how many examples a client has."""
    return 10 + client


def trained(weights: Any, context: Context, rate: float) -> Any:
    """Return the model after a client's local epochs of gradient descent."""
    goal = TARGET + 0.1 * int(context.node_config["partition-id"])
    for _ in range(int(context.run_config["local-epochs"])):
        weights = weights - rate * (weights - goal)
    return weights


def distance(weights: Any, context: Context) -> float:
    """Return a client's score: smaller is better."""
    goal = TARGET + 0.1 * int(context.node_config["partition-id"])
    return float(np.linalg.norm(weights - goal))


def _weights(message: Message) -> Any:
    return message.content.array_records["arrays"]["w"].numpy()


def message_app(
    *,
    train_mods: Sequence[Mod] = (),
    train_metrics: Callable[[int], dict[str, Any]] | None = None,
    first: Sequence[Mod] = (tuner_mod,),
    counts: bool = True,
) -> ClientApp:
    """Return an app on the Message API; the rate comes with the message.

    It counts its calls of ``train`` in ``context.state``, unless that is not wanted.
    """
    app = ClientApp(mods=[*first])

    @app.train(mods=[*train_mods])
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        weights = _weights(message)
        rate = float(str(message.content.config_records["config"]["learning-rate"]))
        if counts:
            state = context.state.config_records
            calls = state.setdefault("calls", ConfigRecord({"n": 0}))
            calls["n"] = int(str(calls["n"])) + 1
        metrics: dict[str, Any] = {
            "loss": EXACT_LOSS,
            "num-examples": num_examples(client),
        }
        if train_metrics is not None:
            metrics = train_metrics(client)
        arrays = ArrayRecord({"w": Array(trained(weights, context, rate))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        weights = _weights(message)
        # A client may evaluate what others have trained.
        calls = context.state.config_records.get("calls", ConfigRecord({"n": 0}))
        metrics = MetricRecord(
            {
                "distance": distance(weights, context),
                "num-examples": num_examples(client),
                "n": 1,
                # How often this client has trained in this trial.
                "calls": int(str(calls["n"])),
            }
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


MakeStrategy = Callable[[], Strategy]


def main_of(
    make_strategy: MakeStrategy = FedAvg, seen: list[dict[str, Any]] | None = None
) -> Main:
    """Return the `main` of such an app; ``seen`` gets what each call has come to."""

    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        result = make_strategy().start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=int(config["num-server-rounds"]),
            train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
        )
        if seen is not None:
            weights = result.arrays["w"].numpy()
            metrics = result.evaluate_metrics_clientapp
            seen.append({"config": dict(config), "w": weights, "metrics": metrics})

    return main


def server_context(**run_config: Any) -> Context:
    """Return the context of a ServerApp."""
    return Context(
        run_id=1,
        node_id=0,
        node_config={},
        state=RecordDict(),
        run_config={**RUN_CONFIG, **run_config},
    )


def in_process(app: ClientApp | None = None, **options: Any) -> InProcessGrid:
    """Return a Grid of the app's clients."""
    app = message_app() if app is None else app
    return InProcessGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG, **options)


# What a host decides: arguments of `FederationTuner.start`.
_OF_HOSTS = ("folder", "study", "callbacks")


class HostedTuner(FederationTuner):
    """A tuner that is started with the same host's arguments each time."""

    def __init__(self, host: dict[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self._host = host

    def start(
        self, main: Main, grid: Grid, context: Context, **options: Any
    ) -> FederationResult:
        """Start it for its host."""
        return super().start(main, grid, context, **{**self._host, **options})


def tuner(**options: Any) -> HostedTuner:
    """Return a tuner that repeats; ``options`` replace its defaults.

    Among them may be what `start` takes of a host.
    """
    host = {name: options.pop(name) for name in _OF_HOSTS if name in options}
    defaults: dict[str, Any] = {
        "space": SPACE,
        "metric": "distance",
        "direction": "minimize",
        "num_agents": NUM_CLIENTS,
        "schedule": ONE_RUNG,
        "privacy": PrivateChoice(epsilon=1000.0, delta=1e-3),
        "seeds": Seeds(study=1, noise=2),
    }
    return HostedTuner(host, **{**defaults, **options})


class RecordingGrid(InProcessGrid):
    """Which keeps every reply as it arrives, and counts sends by message type."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.replies: list[Message] = []
        self.sends: list[str] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver all messages and replies."""
        asked = list(messages)
        nodes = [message.metadata.dst_node_id for message in asked]
        assert len(set(nodes)) == len(nodes)  # else one would overwrite a node's state
        self.sends += [asked[0].metadata.message_type] if asked else []
        replies = list(super().send_and_receive(asked, timeout=timeout))
        self.replies += replies
        return replies


class Ended(Exception):  # noqa: N818
    """Stands for whatever ends a ServerApp."""


class DyingGrid(RecordingGrid):
    """Raises in place of delivering one of its sends."""

    dies_at = 0

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        if len(self.sends) == self.dies_at:
            raise Ended
        return super().send_and_receive(messages, timeout=timeout)


def recording(app: ClientApp | None = None) -> RecordingGrid:
    """Return such a Grid of the app's clients."""
    app = message_app() if app is None else app
    return RecordingGrid(app, NUM_CLIENTS, run_config=RUN_CONFIG)


EVALUATE = MessageType.EVALUATE


def assert_all_end(before: Iterable[Thread]) -> None:
    """Assert that threads which were not there before come to their end.

    A trial that has taken its last turn may not have left its thread yet.
    """
    others = set(enumerate_threads()) - set(before)
    for thread in others:
        thread.join(timeout=60)
    assert not [thread for thread in others if thread.is_alive()]
