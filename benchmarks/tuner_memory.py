"""Memory and time of tuners beside those of one plain training.

    OMP_NUM_THREADS=1 python -m benchmarks.tuner_memory [--clients 20] [MB ...]

A client's training returns the model that it gets, with noise; so what is measured is
what the server and the messages hold. All run in the in-process Grid, each in a process
of its own: *plain* is one `FedAvg` of 15 rounds, *race* a `FederationTuner` with
``OneTraining()`` around it, and *halving* one with ``Halving(16, (1, 3, 9))``. MB is
the size of the model, which has 4 arrays. A message is one trial's, to one client and
back.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution

from flwr_fbo import (
    FederationTuner,
    Halving,
    InProcessGrid,
    OneTraining,
    PrivateChoice,
    tuner_mod,
)
from flwr_fbo.tuner.schedules.schedule import Schedule

NUM_ARRAYS = 4
CONFIG: dict[str, Any] = {"rate": 0.1, "num-server-rounds": 15}
SCHEDULES: dict[str, Schedule] = {
    "race": OneTraining(),
    "halving": Halving(16, (1, 3, 9)),
}


def client_app(count: list[int]) -> ClientApp:
    """Return clients that add noise to a model; ``count`` gets their calls."""
    app = ClientApp(mods=[tuner_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        count[0] += 1
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        rate = np.float32(context.run_config["rate"])
        for array in arrays:
            array += rate
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        count[0] += 1
        metrics = MetricRecord({"score": float(str(context.run_config["rate"]))})
        metrics["num-examples"] = 1
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def measured(what: str, megabytes: float, num_clients: int) -> dict[str, float]:
    """Return the peak of this process, in MB, and milliseconds a message."""
    logging.disable(logging.WARNING)
    count = [0]
    grid = InProcessGrid(client_app(count), num_clients, run_config=CONFIG)
    context = Context(1, 1, {}, RecordDict(), dict(CONFIG))

    def main(grid: Grid, context: Context) -> None:
        size = int(megabytes * 1e6 / 4 / NUM_ARRAYS)
        rng = np.random.default_rng()  # each trial has weights of its own
        arrays = [rng.random(size, np.float32) for _ in range(NUM_ARRAYS)]
        num_rounds = int(context.run_config["num-server-rounds"])
        FedAvg().start(grid, ArrayRecord(arrays), num_rounds)

    began = time.process_time()
    if what == "plain":
        main(grid, context)
    else:
        FederationTuner(
            space={"rate": FloatDistribution(0.0, 1.0)},
            metric="score",
            direction="maximize",
            num_agents=num_clients,
            schedule=SCHEDULES[what],
            privacy=PrivateChoice(epsilon=2, delta=1e-3),
        ).start(main, grid, context)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"peak": peak, "milliseconds": 1e3 * seconds / count[0]}


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("megabytes", type=float, nargs="*", default=[1, 10, 100])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--only", choices=("plain", *SCHEDULES), help="in this process")
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(measured(asked.only, asked.megabytes[0], asked.clients)))
        return
    print("| model | plain | race | halving | ms a message, race | halving |")
    print("| --- | --- | --- | --- | --- | --- |")
    for megabytes in asked.megabytes:
        plain, *tuners = (
            json.loads(
                subprocess.run(
                    [
                        *(sys.executable, "-m", "benchmarks.tuner_memory"),
                        *(str(megabytes), "--clients", str(asked.clients)),
                        *("--only", what),
                    ],
                    check=True,
                    stdout=subprocess.PIPE,
                ).stdout
            )
            for what in ("plain", *SCHEDULES)
        )
        peaks = " | ".join(
            f"{one['peak']:.0f} MB ({one['peak'] / plain['peak']:.2f})"
            for one in tuners
        )
        times = " | ".join(
            f"{one['milliseconds'] / plain['milliseconds']:.2f}" for one in tuners
        )
        print(
            f"| {megabytes:g} MB | {plain['peak']:.0f} MB | {peaks} | {times} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
