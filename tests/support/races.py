"""A federation whose Grid tells who trains and evaluates what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_fbo import FederationTuner, InProcessGrid, PrivateChoice, Seeds
from flwr_fbo.tuner.message_headers import (
    BallotHeader,
    SettingsHeader,
    TrialsHeader,
    read_header,
)
from tests.support.apps import RUN_CONFIG, message_app, server_context, tuner

NUM_NODES, NUM_ROUNDS = 20, 27

# What a message of the tuner, or of the app itself, is about.
FINAL = -1


class RaceGrid(InProcessGrid):
    """Notes each training and each evaluation: of which trial, by which node."""

    def __init__(
        self,
        app: ClientApp | None = None,
        num_nodes: int = NUM_NODES,
        run_config: dict[str, Any] | None = None,
    ) -> None:
        app = message_app() if app is None else app
        config = {**RUN_CONFIG, "num-server-rounds": NUM_ROUNDS, **(run_config or {})}
        super().__init__(app, num_nodes, run_config=config)
        # By send: of each trial, the nodes that train it.
        self.trained: list[dict[int, list[int]]] = []
        self.evaluated: list[dict[int, list[int]]] = []
        self.num_ballots = 0
        self.headers: list[Any] = []
        self.dies_at = -1
        self.num_sends = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver all messages and replies."""
        asked = list(messages)
        if self.num_sends == self.dies_at:
            raise KeyboardInterrupt
        self.num_sends += 1
        found: dict[int, list[int]] = {}
        for message in asked:
            node, header = message.metadata.dst_node_id, read_header(message.content)
            self.headers.append(header)
            if isinstance(header, BallotHeader):
                self.num_ballots += 1
                continue
            trials = header.trials if isinstance(header, TrialsHeader) else (FINAL,)
            for trial in trials:
                found.setdefault(trial, []).append(node)
        if found:
            is_train = asked[0].metadata.message_type == "train"
            (self.trained if is_train else self.evaluated).append(found)
        return super().send_and_receive(asked, timeout=timeout)

    @property
    def num_trainings(self) -> int:
        """How many models clients have trained."""
        return sum(len(nodes) for sent in self.trained for nodes in sent.values())

    @property
    def num_evaluations(self) -> int:
        """How many models clients have evaluated."""
        return sum(len(nodes) for sent in self.evaluated for nodes in sent.values())

    @property
    def in_trials(self) -> list[dict[int, list[int]]]:
        """The trainings before the choice, by send."""
        return [sent for sent in self.trained if FINAL not in sent]

    def of_training(self) -> list[SettingsHeader]:
        """Return the headers after the choice."""
        return [one for one in self.headers if isinstance(one, SettingsHeader)]


def race(num_nodes: int = NUM_NODES, **options: Any) -> FederationTuner:
    """Return a tuner that races in one training."""
    defaults: dict[str, Any] = {
        "num_agents": num_nodes,
        "schedule": None,
        "privacy": PrivateChoice(epsilon=20.0, delta=1e-3),
        "seeds": Seeds(study=1, noise=2),
    }
    return tuner(**{**defaults, **options})


def race_context(**run_config: Any) -> Context:
    """Return the context of a ServerApp of 27 rounds."""
    return server_context(**{"num-server-rounds": NUM_ROUNDS, **run_config})


def counts(sent: dict[int, list[int]]) -> Counter[int]:
    """Return how many trials each node trains in a send."""
    return Counter(node for nodes in sent.values() for node in nodes)
