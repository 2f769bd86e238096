"""A tuner of a federated training beside a loop around that training.

    OMP_NUM_THREADS=1 python -m benchmarks.optuna_loop FILE [TASK ...] [--seeds 10]

The loop is what people write by hand: Optuna proposes settings, the app trains to its
last round with them, and the clients' mean accuracy is the trial's value, which is not
private. It begins with the app's defaults, as the tuner does. The tasks are those of
`benchmarks.trained_trials`, on its search space, trained to round 9. FILE gets a line a
run, of JSON; a run that is ended goes on with those that it lacks.

- *tuner, epsilon 2*: `FederationTuner` with `PrivateChoice(2, 1e-3)` and
  ``Halving(16, (1, 3, 9))``: 38 rounds of training over all trials.
- *tuner, TPE*, *tuner, GP*: not private, with that sampler for the first rung.
- *loop, TPE*, *loop, GP*, *loop, random*: at equal rounds, rounded up in their favour:
  5 trainings to round 9, which are 45 rounds.
- *defaults*: nothing is tuned.

Endpoint, written down before the run: test accuracy of a training to round 9 with the
chosen settings, on examples that no client trains on or validates with; mean over ten
seeds, and the paired difference to *loop, TPE* and *loop, GP*. Not worse: no difference
of *tuner, epsilon 2* below zero by more than two standard errors. At equal wall time
the loop has fewer trials: with ``--engine`` the seconds of one tuner and of one
training on the simulation engine are printed instead, with its start each, as in
``flwr run``.
"""

from __future__ import annotations

import argparse
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM, Result
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler

from benchmarks.rows import add_rows, read_rows
from benchmarks.trained_trials import (
    DEFAULTS,
    SPACE,
    TASKS,
    client_app,
    initial_model,
    load_clients,
    num_correct,
)
from benchmarks.tuned_examples import mean_and_error
from flwr_fbo import FederationTuner, Halving, InProcessGrid, PrivateChoice, Seeds
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.space.search_space import Params

SCHEDULE = Halving(16, (1, 3, 9))
LAST = SCHEDULE.rounds[-1]
# Trainings of the loop with as many rounds as all rungs together.
NUM_LOOPS = -(
    -sum(
        rung.num_trials * (rung.rounds - before)
        for rung, before in zip(SCHEDULE.rungs, (0, *SCHEDULE.rounds), strict=False)
    )
    // LAST
)


class App:
    """The app of a task: its `main`, its clients, and what its model is worth."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed, self.task = name, seed, TASKS[name]
        self.clients = load_clients(name)

    def main(self, grid: Grid, context: Context) -> Result:
        """Train to the last round."""
        config = context.run_config
        strategy = FedAvgM(
            server_learning_rate=float(config["server-learning-rate"]),
            server_momentum=float(config["server-momentum"]),
            fraction_train=self.task.fraction_train,
        )
        num_features = self.clients[0].train[0].shape[1]
        model = initial_model(num_features, self.task.num_classes, seed=0)
        with np.errstate(all="ignore"):
            return strategy.start(grid, ArrayRecord(model), LAST)

    def grid(self, settings: Params) -> InProcessGrid:
        """Return the clients, with settings in their run config."""
        app, num_clients = client_app(self.name), self.task.num_clients
        return InProcessGrid(app, num_clients, run_config=settings)

    def train(self, settings: Params) -> tuple[float, float]:
        """Return the clients' mean accuracy after the last round, and that on test."""
        random.seed(self.seed)
        result = self.main(self.grid(settings), _context(settings))
        found: MetricRecord = result.evaluate_metrics_clientapp[LAST]
        model = result.arrays.to_numpy_ndarrays()
        right = sum(num_correct(model, client.test) for client in self.clients)
        total = sum(len(client.test[1]) for client in self.clients)
        return float(str(found["accuracy"])), right / total


def _context(settings: Params) -> Context:
    return Context(1, 1, {}, RecordDict(), dict(settings))


def by_tuner(app: App, sampler: BaseSampler | None) -> Params:
    """Return what `FederationTuner` chooses: privately, unless a sampler proposes."""
    study = None
    if sampler is not None:
        study = optuna.create_study(direction="maximize", sampler=sampler)
    tuner = FederationTuner(
        space=SPACE.distributions,
        metric="accuracy",
        direction="maximize",
        num_agents=app.task.num_clients,
        schedule=SCHEDULE,
        privacy=None if study else PrivateChoice(epsilon=2, delta=1e-3),
        study=study,
        seeds=Seeds(study=app.seed, noise=None if study else app.seed),
    )
    random.seed(app.seed)
    return tuner.start(app.main, app.grid(DEFAULTS), _context(DEFAULTS)).best


def by_loop(app: App, sampler: BaseSampler) -> Params:
    """Return what a loop around the training finds."""
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial(DEFAULTS)
    for _ in range(NUM_LOOPS):
        trial = study.ask(SPACE.distributions)
        study.tell(trial, app.train(trial.params)[0])
    return study.best_params


METHODS: dict[str, Callable[[App], Params]] = {
    "tuner, epsilon 2": lambda app: by_tuner(app, None),
    "tuner, TPE": lambda app: by_tuner(app, TPESampler(seed=app.seed)),
    "tuner, GP": lambda app: by_tuner(app, GPSampler(seed=app.seed)),
    "loop, TPE": lambda app: by_loop(app, TPESampler(seed=app.seed)),
    "loop, GP": lambda app: by_loop(app, GPSampler(seed=app.seed)),
    "loop, random": lambda app: by_loop(app, RandomSampler(seed=app.seed)),
    "defaults": lambda app: DEFAULTS,
}
OURS, RIVALS = tuple(METHODS)[:3], tuple(METHODS)[3:]


@one_blas_thread
def line_of(name: str, method: str, seed: int) -> dict[str, Any]:
    """Return the line of a run."""
    app = App(name, seed)
    settings = METHODS[method](app)
    about = {"task": name, "method": method, "seed": seed, "settings": settings}
    return {**about, "test": round(app.train(settings)[1], 5)}


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Return the rows of the table: a method each, and then paired differences."""
    names = list(dict.fromkeys(line["task"] for line in lines))
    found = {
        (task, method): np.array(
            [
                line["test"]
                for line in sorted(lines, key=lambda line: int(line["seed"]))
                if (line["task"], line["method"]) == (task, method)
            ]
        )
        for task in names
        for method in METHODS
    }
    rows = {m: [mean_and_error(found[task, m]) for task in names] for m in METHODS}
    for ours in OURS:
        for rival in RIVALS:
            pairs = [found[task, ours] - found[task, rival] for task in names]
            rows[f"{ours}, minus {rival}"] = [mean_and_error(pair) for pair in pairs]
    heading = [f"| | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    return heading + [f"| {row} | {' | '.join(cells)} |" for row, cells in rows.items()]


def time_on_engine(name: str) -> None:
    """Print the seconds of a tuner and of a training on Flower's engine."""
    from flwr.simulation import run_simulation

    app = App(name, 0)

    def tune(grid: Grid, context: Context) -> None:
        tuner = FederationTuner(
            space=SPACE.distributions,
            metric="accuracy",
            direction="maximize",
            num_agents=app.task.num_clients,
            schedule=SCHEDULE,
            privacy=PrivateChoice(epsilon=2, delta=1e-3),
        )
        tuner.start(app.main, grid, context)

    seconds = {}
    for what, main in (("a tuner", tune), ("a training", app.main)):
        server = ServerApp()

        @server.main()
        def run(grid: Grid, context: Context, main: Any = main) -> None:
            context.run_config = dict(DEFAULTS)
            main(grid, context)

        began = time.monotonic()
        run_simulation(server, client_app(name), num_supernodes=app.task.num_clients)
        seconds[what] = time.monotonic() - began
        print(f"{name}: {what}: {seconds[what]:.0f} s", flush=True)
    ratio = seconds["a tuner"] / seconds["a training"]
    print(f"{name}: in the time of a tuner a loop has {ratio:.1f} trainings")


def main() -> None:
    """Run what a file lacks, and print the table."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("file", type=Path)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {list(TASKS)}")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--engine", action="store_true")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = asked.tasks or ["digits-20", "har"]
    if asked.engine:
        for name in names:
            time_on_engine(name)
        return
    lines = read_rows(asked.file)
    done = {(line["task"], line["method"], line["seed"]) for line in lines}
    for seed in range(asked.seeds):
        for about in ((name, method, seed) for name in names for method in METHODS):
            if about not in done:
                lines.append(line_of(*about))
                add_rows(asked.file, lines[-1:])
    print(*table(lines), sep="\n")


if __name__ == "__main__":
    main()
