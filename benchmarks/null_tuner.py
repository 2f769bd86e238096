"""How often a tuner says that the defaults were beaten, where no setting is better.

    python -m benchmarks.null_tuner FILE [--cells NAME ...] [--tuners 200] [--real]

Training is real: logistic regression on scikit-learn's digits, by stochastic gradient
descent. Each client shuffles its examples anew in each
training, so that two trainings with the same settings give two models. The schedule is
the default, `OneTraining`, within 12 rounds of the app; delta is 1e-3. A tuner is
replayed: who trains what, ballots, noise, choice and claim are the package's own
functions. With ``--real`` it is `FederationTuner` itself in the in-process Grid, which
takes ten times as long. ``--unsteered``: each trial draws clients of its own, as trials
did once. FILE gets a line a tuner, of JSON; a run that is ended goes on.

Cells, each a federation and a space:

- ``key F E``: 20 clients whose classes differ, of which FedAvg asks the part F in each
  round, epsilon E; the space has one key that nothing reads.
- ``noisy F E``: the same with examples that are shared out at random, and a learning
  rate at which trainings differ much: clients agree on which model is better.
- ``identical E``: 100 such clients, all asked.
- ``app E``: clients as in ``key``; the space has learning rate and local epochs, and
  the defaults are bad.
- ``good E``: the same space, and defaults that are as good as the best.

Endpoints, written down before the run:

- ``key``, ``noisy``: *beaten* in at most 4 of 200 tuners in each cell.
- ``identical``: where a tuner says *beaten*, the test accuracy of the model that is
  handed over is better than that of another training with the defaults in at least 95 %
  of these tuners. The same is shown for what was said before settings were tested: that
  the model is ahead, with p at most .02.
- ``app``: how often *beaten* is said, which is true there; by model alone, and by model
  and settings.
- ``good``: how often it is said, which is hardly ever true there.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from joblib import Parallel, delayed
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from benchmarks.rows import add_rows, read_rows
from benchmarks.trained_trials import ClientData, Examples, load_clients
from flwr_fbo import (
    FederationTuner,
    InProcessGrid,
    OneTraining,
    PrivateChoice,
    Seeds,
    tuner_mod,
)
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuner.ballots.rank_ballots import make_ballot
from flwr_fbo.tuner.candidates.candidates import candidate_settings
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.lead_over_defaults import Lead, lead_over_defaults
from flwr_fbo.tuner.decisions.settings_effect import DrawnTrials
from flwr_fbo.tuner.decisions.survivors import survivors_of
from flwr_fbo.tuner.schedules.schedule import AppShape
from flwr_fbo.tuner.trial_context import current_trial

HOW = "replayed", "real", "unsteered"
NUM_ROUNDS, BATCH_SIZE, NUM_CLASSES, LEVEL = 12, 16, 10, 0.02
UNUSED: dict[str, BaseDistribution] = {"unused": FloatDistribution(0.0, 1.0)}
TUNED: dict[str, BaseDistribution] = {
    "learning-rate": FloatDistribution(1e-4, 1.0, log=True),
    "local-epochs": IntDistribution(1, 8),
}
GOOD = {"learning-rate": 0.1, "local-epochs": 2, "unused": 0.5}
BAD = {**GOOD, "learning-rate": 1e-3, "local-epochs": 1}
NOISY = {**GOOD, "learning-rate": 10.0, "local-epochs": 1}
BEST = {**GOOD, "learning-rate": 1.0, "local-epochs": 1}


@dataclass(frozen=True)
class Cell:
    """A federation, and what is tuned there.

    Attributes
    ----------
    epsilon : float
    space : dict of str to Optuna distribution
    defaults : dict
        Of the app's run config.
    is_alike : bool
        Whether clients have examples of all classes alike.
    fraction_train : float
        Part of the clients that trains in a round.
    num_clients : int
    """

    epsilon: float
    space: dict[str, BaseDistribution]
    defaults: dict[str, Any]
    is_alike: bool = False
    fraction_train: float = 1.0
    num_clients: int = 20

    @property
    def clients(self) -> list[ClientData]:
        """What the clients have."""
        if self.is_alike:
            return alike_clients(self.num_clients)
        return load_clients("digits-20")


CELLS = {
    f"{name} {fraction:g} {epsilon:g}": Cell(epsilon, UNUSED, *about, fraction, 20)
    for name, about in (("key", (GOOD, False)), ("noisy", (NOISY, True)))
    for fraction in (0.2, 0.5, 1.0)
    for epsilon in (2.0, 8.0)
}
for _epsilon in (2.0, 8.0):
    CELLS |= {
        f"identical {_epsilon:g}": Cell(_epsilon, UNUSED, NOISY, True, 1.0, 100),
        f"app {_epsilon:g}": Cell(_epsilon, TUNED, BAD),
        f"good {_epsilon:g}": Cell(_epsilon, TUNED, BEST),
    }


def _joined(parts: Sequence[Examples]) -> Examples:
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


@cache
def alike_clients(num: int) -> list[ClientData]:
    """Return clients with the examples of those of digits, shared out at random."""
    of_all, rng = load_clients("digits-20"), np.random.default_rng(0)

    def parts(name: str) -> list[Examples]:
        X, y = _joined([getattr(one, name) for one in of_all])
        shares = np.array_split(rng.permutation(len(y)), num)
        return [(X[rows], y[rows]) for rows in shares]

    return [
        ClientData(*three)
        for three in zip(
            parts("train"), parts("validation"), parts("test"), strict=True
        )
    ]


def train(
    model: NDArray[np.float32],
    examples: Examples,
    learning_rate: float,
    num_epochs: int,
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """Return the model, coefficients and a row of intercepts, after some epochs."""
    X, y = examples
    model, targets = model.copy(), np.eye(NUM_CLASSES, dtype=np.float32)[y]
    for _ in range(num_epochs):
        order = rng.permutation(len(y))
        for begin in range(0, len(y), BATCH_SIZE):
            batch = order[begin : begin + BATCH_SIZE]
            scores = X[batch] @ model[:-1] + model[-1]
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = powers / powers.sum(axis=1, keepdims=True) - targets[batch]
            error *= learning_rate / len(batch)
            model[:-1] -= X[batch].T @ error
            model[-1] -= error.sum(axis=0)
    return model


def accuracy(model: NDArray[np.float32], examples: Examples) -> float:
    """Return the share of examples that the model gets right."""
    X, y = examples
    return float(np.mean((X @ model[:-1] + model[-1]).argmax(axis=1) == y))


def client_app(clients: Sequence[ClientData], seed: int) -> ClientApp:
    """Return the app of clients whose trainings are all different."""
    app, numbers = ClientApp(mods=[tuner_mod]), itertools.count()

    def data_of(context: Context) -> Any:
        return clients[int(context.node_config["partition-id"])]

    def model_of(message: Message) -> Any:
        return message.content.array_records["arrays"]["model"].numpy()

    @app.train()
    def train_model(message: Message, context: Context) -> Message:
        data, config = data_of(context), context.run_config
        rate, epochs = float(config["learning-rate"]), int(config["local-epochs"])
        rng = np.random.default_rng([seed, next(numbers)])
        model = train(model_of(message), data.train, rate, epochs, rng)
        metrics = MetricRecord({"num-examples": len(data.train[1])})
        arrays = ArrayRecord({"model": Array(model)})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate_model(message: Message, context: Context) -> Message:
        found = data_of(context).validation
        metrics = MetricRecord(
            {
                "accuracy": accuracy(model_of(message), found),
                "num-examples": len(found[1]),
            }
        )
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def main_of(cell: Cell, measured: dict[int, list[float]]) -> Callable[..., None]:
    """Return the app's main; ``measured`` gets each trial's test accuracy by round."""
    clients = cell.clients
    X, y = _joined([one.test for one in clients])
    initial = np.zeros((X.shape[1] + 1, NUM_CLASSES), np.float32)

    def main(grid: Grid, context: Context) -> None:
        trial = current_trial(context)
        found = measured.setdefault(-1 if trial is None else trial.number, [])
        found.clear()  # begun a second time, where an earlier call looked only

        def test(_server_round: int, arrays: ArrayRecord) -> MetricRecord:
            found.append(accuracy(arrays["model"].numpy(), (X, y)))
            return MetricRecord()

        FedAvg(fraction_train=cell.fraction_train, min_train_nodes=1).start(
            grid=grid,
            initial_arrays=ArrayRecord({"model": Array(initial)}),
            num_rounds=int(context.run_config["num-server-rounds"]),
            evaluate_fn=test,
        )

    return main


def real_row(cell: Cell, own: int) -> dict[str, Any]:
    """Return what a `FederationTuner` said, and what is true."""
    for logger in ("flwr", "flwr.fbo"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    run_config = {"num-server-rounds": NUM_ROUNDS, **cell.defaults}
    random.seed(own)
    np.random.seed(own)  # noqa: NPY002 (the tuner draws there)
    app = client_app(cell.clients, own)
    grid = InProcessGrid(app, cell.num_clients, run_config=run_config)
    context = Context(1, 1, {}, RecordDict(), run_config)
    measured: dict[int, list[float]] = {}
    main = main_of(cell, measured)
    tuner = FederationTuner(
        cell.space,
        metric="accuracy",
        direction="maximize",
        num_agents=cell.num_clients,
        privacy=PrivateChoice(epsilon=cell.epsilon, delta=1e-3),
        seeds=Seeds(study=own, noise=own),
    )
    result = tuner.start(main, grid, context)
    best = result.best_trial
    shared = [r.rounds for r in result.rungs if {0, best} <= {*r.trials}]
    main(grid, context)  # another training with the defaults
    return _row(best, result.over_defaults, measured, shared)


def replayed_row(cell: Cell, own: int, is_steered: bool) -> dict[str, Any]:
    """Return what a tuner that is replayed says, and what is true."""
    clients, rng = cell.clients, np.random.default_rng(own)
    nodes, space = range(len(clients)), SearchSpace(cell.space)
    of_test = _joined([one.test for one in clients])
    schedule = OneTraining()
    num_asked = int(cell.fraction_train * len(nodes))
    shape = AppShape(len(nodes), num_asked, NUM_ROUNDS, "num-server-rounds")
    plan = schedule.plan(schedule.trials, shape)
    defaults = {key: cell.defaults[key] for key in cell.space}
    settings = candidate_settings(space, plan.rungs[0].num_trials, defaults, [], own)
    initial = np.zeros((of_test[0].shape[1] + 1, NUM_CLASSES), np.float32)

    def trained(model: Any, trial: int, share: Sequence[int], number: int) -> Any:
        config = {**cell.defaults, **settings[trial]}
        seed = f"{own} {number}" if is_steered else str(rng.random())
        size = max(1, int(len(share) * cell.fraction_train))
        asked = [clients[n] for n in random.Random(seed).sample(share, size)]
        rate, epochs = config["learning-rate"], config["local-epochs"]
        models = [train(model, one.train, rate, epochs, rng) for one in asked]
        weights = [len(one.train[1]) for one in asked]
        return np.average(models, axis=0, weights=weights).astype(np.float32)

    chooser = PrivateChooser(
        PrivateChoice(cell.epsilon, 1e-3), len(nodes), len(plan.rungs), noise_seed=own
    )
    alive, begin, rows = [*range(plan.rungs[0].num_trials)], 0, list[LedgerRow]()
    models = dict.fromkeys(alive, initial)
    measured: dict[int, list[float]] = {t: [math.nan] for t in alive}
    for rung, planned in enumerate(plan.rungs):
        for place, trial in enumerate(alive):
            for number in range(begin + 1, planned.rounds + 1):
                share = plan.share(nodes, rung, place, number)
                models[trial] = trained(models[trial], trial, share, number)
                measured[trial].append(accuracy(models[trial], of_test))
        scores = np.array(
            [[accuracy(models[t], one.validation) for t in alive] for one in clients]
        )
        is_scored = np.ones(len(alive), dtype=np.bool_)
        ballots = {n: make_ballot(one, is_scored) for n, one in enumerate(scores)}
        rows.append(chooser.choose(rung, ballots, len(alive)))
        rows[-1].facts["trials"] = alive
        alive = [alive[n] for n in survivors_of(rows, planned.num_survivors)]
        begin = planned.rounds
    (best,) = alive
    for number in range(begin + 1, (plan.num_rounds or NUM_ROUNDS) + 1):
        models[best] = trained(models[best], best, nodes, number)
        measured[best].append(accuracy(models[best], of_test))
    again = initial
    for number in range(1, NUM_ROUNDS + 1):
        again = trained(again, 0, nodes, -number)
    measured[-1] = [accuracy(again, of_test)]
    trials = DrawnTrials(settings, 1, space)
    lead = lead_over_defaults(rows, len(nodes), trials)
    ends = zip(plan.rungs, rows, strict=True)
    shared = [r.rounds for r, row in ends if {0, best} <= {*row.facts["trials"]}]
    return _row(best, lead, measured, shared)


def _row(
    best: int, lead: Lead | None, measured: dict[int, list[float]], shared: list[int]
) -> dict[str, Any]:
    """Return what was said, and what is true; -1 is a training with the defaults."""
    if lead is None:
        return {"chosen": best, "beaten": False}
    return {
        "chosen": best,
        "p": _rounded(lead.p_value),
        "settings_p": _rounded(lead.settings_p_value),
        "beaten": lead.is_of_settings,
        # Where both trials were compared last.
        "test": [_rounded(measured[n][shared[-1]]) for n in (0, best)],
        "final": [_rounded(measured[n][-1]) for n in (-1, best)],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


@one_blas_thread
def row_of(name: str, seed: int, how: str) -> dict[str, Any]:
    """Return what one tuner said, and what is true."""
    own = zlib.crc32(f"{name} {seed}".encode())
    if how == "real":
        found = real_row(CELLS[name], own)
    else:
        found = replayed_row(CELLS[name], own, how == "replayed")
    return {"cell": name, "seed": seed, "how": how, **found}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line a cell."""
    print("| cell | how | tuners | not the defaults | model ahead | beaten ", end="")
    print("| model is better, if ahead | what is handed over, if ahead; if beaten |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, how in itertools.product(CELLS, HOW):
        own = [row for row in rows if (row["cell"], row["how"]) == (name, how)]
        if not own:
            continue
        ahead = [row for row in own if row.get("p", 1.0) <= LEVEL]
        beaten = [row for row in own if row["beaten"]]
        cells = [
            len(own),
            sum(row["chosen"] != 0 for row in own),
            len(ahead),
            len(beaten),
            _better(ahead, "test"),
            f"{_better(ahead, 'final')}; {_better(beaten, 'final')}",
        ]
        print(f"| {name} | {how} |", " | ".join(map(str, cells)), "|")


def _better(rows: list[dict[str, Any]], key: str) -> str:
    pairs = [row[key] for row in rows]
    return f"{sum(other > defaults for defaults, other in pairs)} of {len(pairs)}"


def main() -> None:
    """Run the tuners that a file lacks, and print all."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=[*CELLS])
    parser.add_argument("--tuners", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--real", dest="how", action="store_const", const="real")
    kind.add_argument("--unsteered", dest="how", action="store_const", const=HOW[2])
    asked = parser.parse_args()
    how = asked.how or HOW[0]
    done = {(row["cell"], row["seed"], row["how"]) for row in read_rows(asked.file)}
    missing = [
        (name, seed, how)
        for seed in range(asked.tuners)
        for name in asked.cells
        if (name, seed, how) not in done
    ]
    work = (delayed(row_of)(*one) for one in missing)
    for row in Parallel(n_jobs=asked.jobs, return_as="generator_unordered")(work):
        add_rows(asked.file, [row])
    show(read_rows(asked.file))


if __name__ == "__main__":
    # By its name, so that other processes find what they are to do.
    from benchmarks.null_tuner import main as named_main

    named_main()
