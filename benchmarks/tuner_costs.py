"""What a tuner costs the clients, counted in the messages of its Grid.

`python -m benchmarks.one_training costs` prints the table. The app is that of
`benchmarks.trained_trials` with digits at 20 clients: `FedAvgM` for 27 rounds, which
evaluates at all clients after each round.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Result

from benchmarks.trained_trials import (
    DEFAULTS,
    SPACE,
    client_app,
    initial_model,
    load_clients,
)
from flwr_fbo import FederationTuner, Halving, InProcessGrid, PrivateChoice, Seeds
from flwr_fbo.tuner.message_headers import TrialsHeader, read_header

TASK, NUM_ROUNDS = "digits-20", 27
_RUN_CONFIG: dict[str, Any] = {**DEFAULTS, "num-server-rounds": NUM_ROUNDS}


@dataclass
class Cost:
    """What the clients did, and what was sent.

    Attributes
    ----------
    trainings, evaluations : int
        Models that clients trained, and that they evaluated.
    messages : int
        From the server to a client, each with a reply.
    num_bytes : int
        Of all messages and replies.
    """

    trainings: int = 0
    evaluations: int = 0
    messages: int = 0
    num_bytes: int = 0


class CountingGrid(InProcessGrid):
    """A Grid that counts what its clients do; a message may be about several models."""

    def __init__(self) -> None:
        app, num_clients = client_app(TASK), len(load_clients(TASK))
        super().__init__(app, num_clients, run_config=_RUN_CONFIG)
        self.cost = Cost()

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver all messages and replies."""
        asked = list(messages)
        for message in asked:
            header = read_header(message.content)
            num = len(header.trials) if isinstance(header, TrialsHeader) else 1
            has_model = any(r.keys() for r in message.content.array_records.values())
            if message.metadata.message_type == "train":
                self.cost.trainings += num
            elif has_model:  # else a ballot is asked for
                self.cost.evaluations += num
        self.cost.messages += len(asked)
        replies = list(super().send_and_receive(asked, timeout=timeout))
        for message in (*asked, *replies):
            if not message.has_error():
                records = message.content.values()
                self.cost.num_bytes += sum(one.count_bytes() for one in records)
        return replies


def main_of_app(grid: Grid, context: Context) -> Result:
    """Train for the rounds of the run config: the app's own `main`."""
    config = context.run_config
    strategy = FedAvgM(
        server_learning_rate=float(config["server-learning-rate"]),
        server_momentum=float(config["server-momentum"]),
    )
    num_features = load_clients(TASK)[0].train[0].shape[1]
    model = ArrayRecord(initial_model(num_features, 10, seed=0))
    return strategy.start(grid, model, int(config["num-server-rounds"]))


def _context() -> Context:
    return Context(1, 1, {}, RecordDict(), dict(_RUN_CONFIG))


def _tuner(schedule: Halving | None) -> FederationTuner:
    return FederationTuner(
        SPACE.distributions,
        "accuracy",
        "maximize",
        len(load_clients(TASK)),
        schedule=schedule,
        privacy=PrivateChoice(epsilon=2, delta=1e-3),
        seeds=Seeds(study=1, noise=1),
    )


def plain_training(grid: Grid) -> None:
    """Train with the app's defaults."""
    main_of_app(grid, _context())


def race(grid: Grid) -> None:
    """Tune inside one training."""
    _tuner(None).start(main_of_app, grid, _context())


def halving_and_training(grid: Grid) -> None:
    """Tune by the schedule that was customary, and then train."""
    tuner = _tuner(Halving(16, (1, 3, 9)))
    result = tuner.start(main_of_app, grid, _context())
    main_of_app(*result.apply(grid, _context()))


WAYS: dict[str, Callable[[Grid], None]] = {
    "a plain training": plain_training,
    "`OneTraining`: tuning and training": race,
    "`Halving(16, (1, 3, 9))` and a training": halving_and_training,
}


def cost_of(way: Callable[[Grid], None]) -> Cost:
    """Return what a way to train costs."""
    random.seed(0)
    grid = CountingGrid()
    way(grid)
    return grid.cost


def print_table() -> None:
    """Print the costs, and their ratio to those of a plain training."""
    plain = cost_of(plain_training)
    print("| 20 clients, 27 rounds | trainings | evaluations | messages | MB |")
    print("| --- | --- | --- | --- | --- |")
    for name, way in WAYS.items():
        found = plain if way is plain_training else cost_of(way)
        cells = [
            f"{ours:,} ({ours / theirs:.2f})"
            for ours, theirs in (
                (found.trainings, plain.trainings),
                (found.evaluations, plain.evaluations),
                (found.messages, plain.messages),
            )
        ]
        size = f"{found.num_bytes / 1e6:.1f} ({found.num_bytes / plain.num_bytes:.2f})"
        print(f"| {name} | {' | '.join(cells)} | {size} |", flush=True)
