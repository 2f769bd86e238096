"""The same study in the in-process grid, in worker processes, and on Flower's engine.

And a thousand clients on the engine, beside FedAvg with as many numbers each way.

The engine starts Ray, which listens on every interface: this is measured only where
there is none but loopback.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from benchmarks.engine_load import SIDES, read
from benchmarks.measure import Section, compare
from benchmarks.scale import NUM_WORKERS, make_objective
from benchmarks.study import NUM_AGENTS, NUM_ROUNDS, SPACE
from flwr_fbo import FedVote, InProcessGrid, tuning_app
from flwr_fbo._common.arrays import FloatArray

ENGINE = "simulation engine"
MANY_CLIENTS, ROUNDS_OF_MANY = 1000, 3


class TimedStudy(FedVote):
    """Which notes when each of its rounds begins."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begins: list[float] = []

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        """Take the time, and go on."""
        self.begins.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    repeats, num_rounds = (1, 5) if quick else (3, NUM_ROUNDS)
    works: dict[str, Callable[[int], tuple[float, float]]] = {
        "in-process grid": partial(_in_process, 1),
        f"{NUM_WORKERS} worker processes": partial(_in_process, NUM_WORKERS),
    }
    text = (
        f"{NUM_AGENTS} agents, {num_rounds} rounds, passed time, no journals. *A "
        "round*: the mean of all but the first, in which agents enrol, workers start, "
        "and initial points are evaluated."
    )
    has_engine = {name for _, name in socket.if_nameindex()} == {"lo"}
    if has_engine:
        works[ENGINE] = _on_the_engine
    else:
        text += (
            " The engine was left out: it starts Ray, which must see no network "
            "interface but loopback."
        )
    readings = _alternate(works, repeats, num_rounds)
    slower = [name for name in works if name != "in-process grid"]
    rows = [
        compare(what, seconds, name, "in-process grid")
        for what, seconds in zip(("whole study", "a round"), readings, strict=True)
        for name in slower
    ]
    study = Section("A study, in process and on the engine", text, rows)
    many = 20 if quick else MANY_CLIENTS
    return [study, beside_fedavg(1, many)] if has_engine else [study]


def beside_fedavg(repeats: int, num_clients: int) -> Section:
    """Return what clients on the engine take, beside those of FedAvg."""
    loads = [
        {side: read(side, num_clients, ROUNDS_OF_MANY) for side in SIDES}
        for _ in range(repeats)
    ]
    usual, *ours = SIDES
    rows = []
    for what, unit in (("first", "s"), ("round", "s"), ("memory", "MB")):
        values = {
            side: np.array([getattr(load[side], what) for load in loads])
            for side in SIDES
        }
        if unit == "MB":
            values = {side: each / 1e6 for side, each in values.items()}
        rows += [compare(_NAMES[what], values, side, usual, unit=unit) for side in ours]
    text = (
        f"{num_clients:,} clients, {ROUNDS_OF_MANY} rounds, passed time, an actor a "
        "CPU, with a release in each round: 512 numbers to each client and back. "
        "*Echoes* answer at once, as FedAvg's clients do; FedVote's own search. The "
        "first round starts Ray, and enrols agents. *Memory*: the largest sum of the "
        "resident memory of all processes, Ray's included."
    )
    return Section("Many clients on the engine, beside FedAvg", text, rows)


_NAMES = {"first": "first round", "round": "a round", "memory": "memory"}


def _alternate(
    works: dict[str, Callable[[int], tuple[float, float]]],
    repeats: int,
    num_rounds: int,
) -> Sequence[dict[str, FloatArray]]:
    """Return the seconds of whole studies and of rounds, (repeats,) of each work."""
    seconds = np.array(
        [[work(num_rounds) for work in works.values()] for _ in range(repeats)]
    )
    return [dict(zip(works, seconds[:, :, i].T, strict=True)) for i in range(2)]


def _in_process(num_workers: int, num_rounds: int) -> tuple[float, float]:
    app = tuning_app(make_objective)
    grid = InProcessGrid(app, NUM_AGENTS, num_workers=num_workers)
    return _play(grid, num_rounds)


def _on_the_engine(num_rounds: int) -> tuple[float, float]:
    from flwr.simulation import run_simulation

    readings = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        readings.append(_play(grid, num_rounds))

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend: Any = {"client_resources": resources}
    began = time.perf_counter()
    app = tuning_app(make_objective)
    run_simulation(server, app, NUM_AGENTS, backend_config=backend)
    return time.perf_counter() - began, readings[0][1]


def _play(grid: Grid, num_rounds: int) -> tuple[float, float]:
    """Return the seconds of a whole study, and of its rounds but the first."""
    strategy = TimedStudy(SPACE, "maximize", NUM_AGENTS, epsilon=2, delta=1e-3)
    began = time.perf_counter()
    strategy.start(grid, num_rounds=num_rounds)
    ended = time.perf_counter()
    return ended - began, (ended - strategy.begins[1]) / (num_rounds - 1)
