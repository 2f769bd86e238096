"""Training and choice under one epsilon per example, beside private defaults.

    OMP_NUM_THREADS=1 python -m benchmarks.private_training run ROWS.jsonl
    python -m benchmarks.private_training show ROWS.jsonl

It needs the data sets of `flwr_fbo.lab.datasets` (FLWR_FBO_DATA). A run that is ended
goes on with the rows that the file lacks.

20 sites train a network with one hidden layer by DP-SGD: Poisson batches, gradients
clipped per example, and Gaussian noise that each site adds itself. In a round all
examples of a site are drawn 5 times with probability 0.2. The server is Flower's
`FedAvgM`, for 27 rounds. Tables are MAGIC, Shuttle and HAR, 10,000 rows each, split by
class and size as in `benchmarks.trained_trials`: three fifths of a site's rows to train
on, a fifth to validate and a fifth to test with. Rows that no site has, which count as
public, scale the features; those of HAR are projected at random on 64 numbers.

All arms of a row have the same total epsilon per example (with or without it, delta
1e-5), composed as a site's ledger does it, by `flwr_fbo.privacy.plan_training`:

- *defaults*: learning rate 0.05 and clip norm 1, as in Opacus' README, and a server
  that takes the mean. All epsilon is for their training.
- *tuned*: the package's `FederationTuner` with `OneTraining`, 16 settings of learning
  rate, clip norm, and the server's learning rate and momentum; the defaults are the
  first. A site trains in 27 rounds in all. The choice has a quarter of the total as its
  own epsilon (one example replaced; the same noise counts "with or without it"), and
  the noise multiplier of the training follows.
- *tuned, noise-only*: the control, whose choice is noise alone. *Tuned, exact choice*
  is not private: the same training, whose rungs are decided by exact scores.
- *best of 16*: each setting trained for 27 rounds with all epsilon for its training,
  and the one chosen that is best on the sites' validation examples, exactly and for
  nothing. It is no private method, but what there is to gain.

Endpoints, written down before the run, at total epsilon 4 and 8: test accuracy of
*tuned* less that of the *defaults*, paired, ten seeds (of the settings, the first
weights and all noise): lower 95 % bound above 0 on each task. *Tuned* less *best of 16*
on the first three seeds: -0.02 or more on each task.

Later seeds of it, and the exact choice, were added after these had been seen. The rows
in ``benchmarks/private_training.jsonl`` before them were played without a seed of the
order in which Flower asks clients, and differ from those of another run by chance.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvgM, Result
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from scipy import stats

from benchmarks.rows import add_rows, read_rows, run_or_show
from benchmarks.trained_trials import Examples, Model, initial_model, num_correct
from benchmarks.trained_trials import skewed as skewed_part
from flwr_fbo import (
    FederationTuner,
    InProcessGrid,
    OneTraining,
    PrivateChoice,
    Seeds,
    tuner_mod,
)
from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.lab.datasets import har, magic, shuttle
from flwr_fbo.privacy import TrainingPlan, plan_training
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuner.candidates.candidates import candidate_settings

EPSILONS, DELTA = (4.0, 8.0), 1e-5
# The endpoint about the best of 16 has the first of the seeds.
NUM_SEEDS, NUM_FIRST = 10, 3
NUM_SITES, NUM_ROUNDS = 20, 27
SAMPLING, STEPS = 0.2, 5
CHOICE_SHARE = 0.25
MARGIN = 0.02
SPACE = {
    "learning-rate": FloatDistribution(0.01, 3.0, log=True),
    "clip-norm": FloatDistribution(0.1, 3.0, log=True),
    "server-learning-rate": FloatDistribution(0.3, 2.0, log=True),
    "server-momentum": FloatDistribution(0.0, 0.9),
}
DEFAULTS: Params = {
    "learning-rate": 0.05,
    "clip-norm": 1.0,
    "server-learning-rate": 1.0,
    "server-momentum": 0.0,
}
_NUM_ROWS, _MOST_PUBLIC, _MOST_FEATURES = 10_000, 1000, 64


@dataclass(frozen=True)
class Sites:
    """The sites of a task.

    Attributes
    ----------
    train, validation : list of (ndarray, ndarray)
        Of each site.
    test : (ndarray, ndarray)
        Of all sites.
    """

    train: list[Examples]
    validation: list[Examples]
    test: Examples

    @property
    def first_model(self) -> tuple[int, int]:
        """Number of features, and of classes."""
        classes = max(int(y.max()) for _, y in self.train)
        return self.test[0].shape[1], classes + 1


def _har() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    subjects = [har.partition(subject) for subject in range(har.NUM_SUBJECTS)]
    X = np.concatenate([np.r_[one.X_train, one.X_validation] for one in subjects])
    y = np.concatenate([np.r_[one.y_train, one.y_validation] for one in subjects])
    return X, y.astype(np.float64)


TABLES: dict[str, Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]]] = {
    "magic": magic.load,
    "shuttle": shuttle.load,
    "har": _har,
}


@cache
def load_sites(name: str) -> Sites:
    """Return the sites of a task."""
    X, y = TABLES[name]()
    rng = np.random.default_rng(1)
    rows = rng.permutation(len(y))
    owned, public = rows[:_NUM_ROWS], rows[_NUM_ROWS : _NUM_ROWS + _MOST_PUBLIC]
    # Scaled by no site's example: statistics of theirs would have to be private, too.
    mean, std = X[public].mean(axis=0), X[public].std(axis=0)
    X = np.clip((X - mean) / np.where(std > 0, std, 1.0), -4, 4)
    if X.shape[1] > _MOST_FEATURES:
        X = X @ rng.normal(0, X.shape[1] ** -0.5, (X.shape[1], _MOST_FEATURES))
    table = X[owned], y[owned]
    parts: list[list[Examples]] = []
    for site in range(NUM_SITES):
        part = skewed_part(table, _NUM_ROWS, NUM_SITES, site)
        own_X, own_y = part.X_train.astype(np.float32), part.y_train.astype(np.int64)
        order = np.random.default_rng([2, site]).permutation(len(own_y))
        ends = [3 * len(order) // 5, 4 * len(order) // 5]
        parts.append([(own_X[rows], own_y[rows]) for rows in np.split(order, ends)])
    train, validation, test = ([part[i] for part in parts] for i in range(3))
    X_test, y_test = (np.concatenate(column) for column in zip(*test, strict=True))
    return Sites(train, validation, (X_test, y_test))


def dp_sgd(
    model: Model, examples: Examples, settings: Mapping[str, Any], rng: Any
) -> Model:
    """Return the model after a round of DP-SGD (Abadi et al., 2016) at a site.

    Parameters
    ----------
    model : list of ndarray
        Weights and biases of two layers.
    examples : (ndarray, ndarray)
    settings : mapping
        ``learning-rate``, ``clip-norm`` and ``noise-multiplier``.
    rng : numpy.random.Generator
        Of batches and noise.
    """
    X, y = examples
    W_1, b_1, W_2, b_2 = (array.copy() for array in model)
    targets = np.eye(len(b_2), dtype=np.float32)[y]
    clip_norm = settings["clip-norm"]
    std = np.float32(settings["noise-multiplier"] * clip_norm)
    # The divisor is the expected size of a batch: the true one is not public.
    rate = np.float32(settings["learning-rate"] / (SAMPLING * len(y)))
    for _ in range(STEPS):
        batch = np.flatnonzero(rng.random(len(y)) < SAMPLING)
        inputs = X[batch]
        hidden = np.maximum(inputs @ W_1 + b_1, 0)
        outputs = hidden @ W_2 + b_2
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        error = powers / powers.sum(axis=1, keepdims=True) - targets[batch]
        back = (error @ W_2.T) * (hidden > 0)
        # An example's gradient of a layer is an outer product: so its norm is a product
        # of norms, and to scale one factor scales it.
        squares = (error**2).sum(1) * ((hidden**2).sum(1) + 1)
        squares += (back**2).sum(1) * ((inputs**2).sum(1) + 1)
        scale = np.minimum(1, clip_norm / np.sqrt(np.maximum(squares, 1e-18)))
        # A diverged example counts as nothing.
        scale = np.where(np.isfinite(squares), scale, 0)[:, None].astype(np.float32)
        error, back = np.nan_to_num(error) * scale, np.nan_to_num(back) * scale
        gradients = inputs.T @ back, back.sum(0), hidden.T @ error, error.sum(0)
        for array, gradient in zip((W_1, b_1, W_2, b_2), gradients, strict=True):
            noise = std * rng.standard_normal(gradient.shape, np.float32)
            array -= rate * (gradient + noise)
    return [W_1, b_1, W_2, b_2]


class App:
    """The Flower app of a task: its clients, and the `main` of its server.

    Parameters
    ----------
    sites : Sites
    seed : int
        Of batches, noise and the first weights.

    Attributes
    ----------
    client_app : ClientApp
    num_rounds : list of int
        Rounds that each site has trained in, whatever it trained.
    """

    def __init__(self, sites: Sites, seed: int) -> None:
        self.sites, self._seed = sites, seed
        self._rng = np.random.default_rng([seed, 1])
        self.num_rounds = [0] * NUM_SITES
        self.client_app = ClientApp(mods=[tuner_mod])
        self.client_app.train()(self._train)
        self.client_app.evaluate()(self._evaluate)

    def main(self, grid: Grid, context: Context) -> Result:
        """Train a model."""
        config: Any = context.run_config
        strategy = FedAvgM(
            server_learning_rate=config["server-learning-rate"],
            server_momentum=config["server-momentum"],
            fraction_evaluate=config["fraction-evaluate"],
        )
        model = initial_model(*self.sites.first_model, self._seed)
        rounds = config["num-server-rounds"]
        return strategy.start(grid, ArrayRecord(model), num_rounds=rounds)

    def _train(self, message: Message, context: Context) -> Message:
        site = int(context.node_config["partition-id"])
        self.num_rounds[site] += 1
        examples = self.sites.train[site]
        model = message.content.array_records["arrays"].to_numpy_ndarrays()
        trained = dp_sgd(model, examples, context.run_config, self._rng)
        metrics = MetricRecord({"num-examples": len(examples[1])})
        content = RecordDict({"arrays": ArrayRecord(trained), "metrics": metrics})
        return Message(content, reply_to=message)

    def _evaluate(self, message: Message, context: Context) -> Message:
        examples = self.sites.validation[int(context.node_config["partition-id"])]
        model = message.content.array_records["arrays"].to_numpy_ndarrays()
        num, right = len(examples[1]), num_correct(model, examples)
        metrics = MetricRecord({"accuracy": right / num, "num-examples": num})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def run(self, settings: Params, tuner: FederationTuner | None = None) -> Model:
        """Return the trained model; of the setting that a tuner chooses, if given."""
        config = {
            **settings,
            "num-server-rounds": NUM_ROUNDS,
            "fraction-evaluate": 0.0 if tuner is None else 1.0,
        }
        grid = InProcessGrid(self.client_app, NUM_SITES, run_config=config)
        context = Context(1, 1, {}, RecordDict(), config)
        random.seed(self._seed)  # Flower's order of the clients, who share a generator
        with np.errstate(all="ignore"):
            if tuner is None:
                result = self.main(grid, context)
            else:
                result = tuner.start(self.main, grid, context).returned
        return result.arrays.to_numpy_ndarrays()

    def test(self, model: Model) -> float:
        """Return the accuracy on examples that no site trains or validates with."""
        with np.errstate(all="ignore"):
            return num_correct(model, self.sites.test) / len(self.sites.test[1])

    def validated(self, model: Model) -> int:
        """Return how many validation examples of all sites the model gets right."""
        with np.errstate(all="ignore"):
            return sum(num_correct(model, own) for own in self.sites.validation)


@cache
def planned(epsilon: float, choice: PrivateChoice | None = None) -> TrainingPlan:
    """Return the training of each site that keeps to a total, beside a choice."""
    return plan_training(
        epsilon,
        DELTA,
        sampling_probability=SAMPLING,
        num_steps=NUM_ROUNDS * STEPS,
        choice=choice,
    )


def about_epsilon(plan: TrainingPlan) -> dict[str, Any]:
    """Return the noise of a training, and what it costs with the choice."""
    return {
        "noise_multiplier": plan.training.noise_multiplier,
        "together": plan.together.epsilon,
        "if_replaced": plan.together.epsilon_if_replaced,
    }


def settings_of(seed: int) -> list[Params]:
    """Return the 16 settings that a tuner of this seed tries; the defaults first."""
    num = OneTraining().trials
    return candidate_settings(SearchSpace(SPACE), num, DEFAULTS, [], seed=seed)


def play_defaults(app: App, epsilon: float, seed: int) -> dict[str, Any]:
    """Return a row about the defaults."""
    plan = planned(epsilon)
    noise = plan.training.noise_multiplier
    model = app.run({**DEFAULTS, "noise-multiplier": noise})
    return {"test": app.test(model), **about_epsilon(plan)}


def play_tuned(
    app: App,
    epsilon: float,
    seed: int,
    noise_only: bool = False,
    is_exact: bool = False,
) -> dict[str, Any]:
    """Return a row about the tuner; its choice is not private if it is exact."""
    of_choice = CHOICE_SHARE * epsilon
    choice = PrivateChoice(of_choice, DELTA, protects="example", noise_only=noise_only)
    plan = planned(epsilon, choice)
    tuner = FederationTuner(
        SPACE,
        "accuracy",
        "maximize",
        NUM_SITES,
        privacy=None if is_exact else choice,
        seeds=Seeds(study=seed, noise=None if is_exact else seed),
    )
    noise = plan.training.noise_multiplier
    model = app.run({**DEFAULTS, "noise-multiplier": noise}, tuner)
    return {"test": app.test(model), **about_epsilon(plan)}


def play_best(app: App, epsilon: float, seed: int) -> dict[str, Any]:
    """Return a row about the best of all settings, chosen exactly and for nothing."""
    plan = planned(epsilon)
    found = []
    for settings in settings_of(seed):
        noise = plan.training.noise_multiplier
        model = app.run({**settings, "noise-multiplier": noise})
        found.append((app.validated(model), app.test(model)))
    tests = [round(test, 4) for _, test in found]
    return {"test": max(found)[1], "tests": tests, **about_epsilon(plan)}


ARMS: dict[str, Callable[[App, float, int], dict[str, Any]]] = {
    "defaults": play_defaults,
    "tuned": play_tuned,
    "tuned, noise-only": partial(play_tuned, noise_only=True),
    "tuned, exact choice": partial(play_tuned, is_exact=True),
    "best of 16": play_best,
}


@one_blas_thread
def run(path: Path) -> None:
    """Play what the file lacks, and write each row as it comes."""
    logging.disable(logging.WARNING)
    done = {_key(row) for row in read_rows(path)}
    for arm, play in ARMS.items():
        for seed in range(NUM_SEEDS):
            for task in TABLES:
                for epsilon in EPSILONS:
                    about = {"task": task, "epsilon": epsilon, "arm": arm, "seed": seed}
                    if _key(about) in done:
                        continue
                    app, began = App(load_sites(task), seed), time.process_time()
                    row: dict[str, Any] = about | play(app, epsilon, seed)
                    row["test"] = round(row["test"], 5)
                    num_trainings = len(row.get("tests", [row["test"]]))
                    row["rounds"] = max(app.num_rounds) // num_trainings
                    row["seconds"] = round(time.process_time() - began, 1)
                    add_rows(path, [row])


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["epsilon"], row["arm"], row["seed"]


def lower_bound(differences: NDArray[np.float64]) -> float:
    """Return the lower end of the 95 % confidence interval of a mean (Student's t)."""
    error = stats.sem(differences)
    return float(differences.mean() - stats.t.ppf(0.975, len(differences) - 1) * error)


def show(path: Path) -> None:
    """Print the accuracies, and what the endpoints are about."""
    tests: dict[tuple[str, float, str], dict[int, float]] = {}
    for row in read_rows(path):
        of_arm = tests.setdefault((row["task"], row["epsilon"], row["arm"]), {})
        of_arm[row["seed"]] = row["test"]
    cases = [(task, epsilon) for epsilon in EPSILONS for task in TABLES]
    names = [f"{task}, epsilon {epsilon:g}" for task, epsilon in cases]

    def seeds_of(arm: str) -> range:
        """Return the seeds that an arm has in all cases."""
        return range(min(len(tests[*case, arm]) for case in cases))

    def cell(task: str, epsilon: float, arm: str) -> str:
        of_arm = tests[task, epsilon, arm]
        values = np.array([of_arm[seed] for seed in seeds_of(arm)])
        return f"{values.mean():.4f} ± {stats.sem(values):.4f}"

    def differences(case: tuple[str, float], other: str) -> NDArray[np.float64]:
        ours, theirs = tests[*case, "tuned"], tests[*case, other]
        return np.array([ours[seed] - theirs[seed] for seed in seeds_of(other)])

    print(f"| test accuracy | seeds | {' | '.join(names)} |")
    print("| --- | --- |" + " --- |" * len(cases))
    for arm in ARMS:
        cells = [str(len(seeds_of(arm))), *(cell(*case, arm) for case in cases)]
        print(f"| {arm} | {' | '.join(cells)} |")
    for arm in ("defaults", "best of 16", "tuned, exact choice"):
        found = [differences(case, arm) for case in cases]
        cells = [f"{one.mean():.4f} (at least {lower_bound(one):.4f})" for one in found]
        cells.insert(0, str(len(seeds_of(arm))))
        print(f"| tuned less {arm} | {' | '.join(cells)} |")
    first = [differences(case, "best of 16")[:NUM_FIRST].mean() for case in cases]
    cells = [f"{loss:.4f}" for loss in first]
    print(f"| tuned less best of 16 | {NUM_FIRST} | {' | '.join(cells)} |")
    print("\nEndpoints: better than the defaults, and near the best of 16")
    for name, case, loss in zip(names, cases, first, strict=True):
        is_better = lower_bound(differences(case, "defaults")) > 0
        met = ["yes" if each else "NO" for each in (is_better, loss >= -MARGIN)]
        print(f"- {name}: {', '.join(met)}")


def main() -> None:
    """Run or show."""
    run_or_show(__doc__, run, show)


if __name__ == "__main__":
    main()
