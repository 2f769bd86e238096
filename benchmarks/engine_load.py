"""One run of many clients on Flower's engine, in a process of its own.

    python -m benchmarks.engine_load SIDE N ROUNDS

prints what its rounds took, in seconds. The engine starts Ray, which listens on every
interface: run it only where there is none but loopback. `read` starts it, and watches
the memory of all processes of the run, Ray's included.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from benchmarks.scale import make_objective
from benchmarks.study import ECHO, SPACE, echo
from flwr_fbo import FedVote, Privacy, tuning_app
from flwr_fbo.tuning import FedVoteSettings

# Seconds between two looks at the memory.
_PAUSE = 0.25


@dataclass(frozen=True)
class Load:
    """What a run took.

    Attributes
    ----------
    first, round : float
        Seconds that passed in the first round, and in the others on average.
    memory : int
        Bytes: the largest sum of the resident memory of all processes at one time.
        Pages that processes share count in each of them.
    """

    first: float
    round: float
    memory: int


def read(side: str, num_clients: int, num_rounds: int) -> Load:
    """Run one side in a process of its own, and watch it."""
    command = [sys.executable, "-m", "benchmarks.engine_load", side]
    process = subprocess.Popen(
        [*command, str(num_clients), str(num_rounds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    memory = 0
    while process.poll() is None:
        memory = max(memory, _resident(process.pid))
        time.sleep(_PAUSE)
    assert process.stdout is not None
    if process.returncode:
        raise RuntimeError(f"{side} on the engine ended with {process.returncode}.")
    last = process.stdout.read().splitlines()[-1]
    return Load(**json.loads(last), memory=memory)


def _resident(root: int) -> int:
    """Return the bytes of a process and all that descend from it."""
    children, pages = defaultdict(list), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            pages[int(folder.name)] = int((folder / "statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        children[int(parent)].append(int(folder.name))
    total, found = 0, [root]
    while found:
        process = found.pop()
        total += pages.get(process, 0)
        found += children[process]
    return total * os.sysconf("SC_PAGE_SIZE")


class _TimedVotes(FedVote):
    begins: list[float]

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        self.begins.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


class _TimedAverage(FedAvg):
    begins: list[float]

    def configure_train(self, *args: Any, **kwargs: Any) -> Any:
        self.begins.append(time.perf_counter())
        return super().configure_train(*args, **kwargs)


def _votes(num_clients: int) -> Strategy:
    agent = FedVoteSettings()
    privacy = Privacy(noise_multiplier=1.0, min_follow_probability=0.0)
    return _TimedVotes(
        SPACE, "maximize", num_clients, agent=agent, privacy=privacy, delta=1e-6
    )


def _average(num_clients: int) -> Strategy:
    return _TimedAverage(
        fraction_evaluate=0.0,
        min_train_nodes=num_clients,
        min_available_nodes=num_clients,
    )


def _echoes() -> ClientApp:
    app = ClientApp()
    app.train()(echo)
    return app


# Names of sides: the strategy, and the app of its clients.
SIDES: dict[str, tuple[Callable[[int], Any], Callable[[], ClientApp]]] = {
    "FedAvg": (_average, _echoes),
    "FedVote, echoes": (_votes, _echoes),
    "FedVote": (_votes, lambda: tuning_app(make_objective)),
}


def play(side: str, num_clients: int, num_rounds: int) -> dict[str, float]:
    """Return the seconds of the first round, and of the others on average."""
    from flwr.simulation import run_simulation

    make_strategy, make_app = SIDES[side]
    server, marks = ServerApp(), list[float]()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = make_strategy(num_clients)
        strategy.begins = marks
        # Ours releases its first vectors itself.
        arrays = ArrayRecord([ECHO]) if side == "FedAvg" else None
        strategy.start(grid, initial_arrays=arrays, num_rounds=num_rounds)
        marks.append(time.perf_counter())

    # As many actors as there are CPUs.
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, make_app(), num_clients, backend_config=backend)
    first, *others = np.diff(marks)
    return {"first": float(first), "round": float(np.mean(others))}


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(play(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
