"""The race inside one training, beside other ways to spend the clients' work.

    OMP_NUM_THREADS=1 python -m benchmarks.one_training play FILE [--seeds 10]
    python -m benchmarks.one_training show FILE
    OMP_NUM_THREADS=1 python -m benchmarks.one_training costs

``play`` needs the data sets of `flwr_fbo.lab.datasets` (FLWR_FBO_DATA). FILE gets a
line of JSON for each federation, number of rounds and seed. A run that is ended goes on
with those that it lacks, and a run with more seeds adds them. ``show`` prints the
tables, and ``costs`` counts the messages of the real tuner.

Federations are played in NumPy (`benchmarks.federations`), but each decision is the
package's: plan, groups and turns are those of `OneTraining`, ballots, noise and head
start those of the tuner. The constants of `OneTraining` and of the margin were
chosen on digits, HAR, digits by writer, MAGIC and Shuttle; nothing was chosen on
*cancer*, *landmine*, *mixture* and *cameras*. With 100 clients a fifth of them trains
in a round.

A seed draws 16 of 40 settings, the app's defaults among them, and all methods share
them. The *loss* of a method is the test accuracy of the model that it hands over, below
that of the best of the 16, each trained for all rounds. Delta is 1e-3. *Work* is the
number of models that clients train, in units of one training.

- *race*: `OneTraining` as shipped.
- *before*: ``Halving(16, (1, 3, 9))``, the best score, and then a training anew, as was
  customary before the race.
- *exact*: of exact mean scores, not private; *noise-only*: the control, in which each
  ballot is replaced by zero.
- TPE, *TPE, pruned* (SuccessiveHalvingPruner) and random loops: not private; 38 rounds
  in trainings of at most 9 and then a training anew; or 11 rounds in trainings of at
  most 3, and then the rest of one training.
- FedEx, FedPop, DP-Hype: see `benchmarks.rivals`.
- *random search*: three settings for a third of the rounds, the best handed over.
- *defaults*, and *defaults, 65 rounds*: nothing is tuned.

Endpoints, written down before the run. At epsilon 1, 2 and 8, and at 9, 27 and 60
rounds: the loss of *race* less that of *before*, paired by seed, in the mean over all
federations of ten and more clients and over those on which nothing was chosen; the bar
is at most .003. At epsilon 2 with 5 and 10 clients: the loss of the *setting* that is
chosen, at most .03 and .015 with the app's defaults, which are bad, and at most .002
where the defaults are the best of the 16. It is the test accuracy of the setting's own
training to the last round, so it is about the choice alone.

After five seeds had been seen, the part of the rounds that a race takes was changed, as
measured on the six federations, and all rows that this changes were played again.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.pruners import NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler

from benchmarks.federations import CHOSEN_ON, FEDERATIONS, Federation, Training
from benchmarks.rivals import dp_hype, fed_ex, fed_pop, optuna_loop, random_search
from benchmarks.rows import add_rows, read_rows
from benchmarks.trained_trials import DEFAULTS, SPACE
from benchmarks.tuner_costs import print_table
from flwr_fbo import Halving, OneTraining
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.space.search_space import Params
from flwr_fbo.tuner.ballots.rank_ballots import make_ballot
from flwr_fbo.tuner.candidates.candidates import candidate_settings
from flwr_fbo.tuner.choosers.exact import exact_scores
from flwr_fbo.tuner.decisions.survivors import decision_scores, survivors, survivors_of
from flwr_fbo.tuner.schedules.schedule import AppShape, Plan, PlannedRung

MANY = (
    "digits-20",
    "digits-100",
    "har",
    "writers",
    "magic",
    "shuttle",
    "cancer-10",
    "landmine-20",
    "mixture-50",
    "cameras-100",
)
FEW = tuple(name for name in FEDERATIONS if name.endswith(("-5", "-10")))
ROUNDS, EPSILONS, DELTA = (9, 27, 60), (1.0, 2.0, 8.0), 1e-3
BEFORE = Halving(16, (1, 3, 9))
# Rounds of a loop in all, and of each training at most: as many as *before*, and as the
# rungs of a race.
LONG_LOOP, SHORT_LOOP = (38, 9), (11, 3)
# Within one training of 27 rounds where all clients train each trial: not shipped.
WITHIN = (PlannedRung(1, 8, 2), PlannedRung(3, 2, 1))

_NUM_TRIALS, _NUM_SETTINGS = 16, 40
Defaults = Literal["app's", "best"]


@dataclass(frozen=True)
class Choice:
    """How the trials of a rung are compared.

    Attributes
    ----------
    epsilon : float or None
        Of all rungs together; None: by exact means, not private.
    noise_only : bool
        The control: every ballot is replaced by zero.
    """

    epsilon: float | None
    noise_only: bool = False

    def row(
        self,
        scores: FloatArray,
        weights: np.ndarray,
        rung: tuple[int, int],
        trials: Sequence[int],
        rng: np.random.Generator,
    ) -> LedgerRow:
        """Return what a rung releases, as the tuner does.

        Parameters
        ----------
        scores : ndarray of shape (N, K)
        weights : ndarray of shape (N,)
            Of the clients in an exact mean.
        rung : tuple of int
            Its number, from 0, and how many there are.
        trials : sequence of int
        rng : numpy.random.Generator
            Of the noise.
        """
        number, num_rungs = rung
        facts: dict[str, Any] = {"trials": list(trials)}
        if self.epsilon is None:
            tables = [
                np.stack([own, np.full(len(own), weight)])
                for own, weight in zip(scores, weights, strict=True)
            ]
            means = exact_scores(dict(enumerate(tables)), len(trials))
            return LedgerRow(number, {"mechanism": "exact", **facts}, means)
        everything = np.full(len(trials), True)
        ballots = [make_ballot(own, everything) for own in scores]
        std = noise_multiplier(self.epsilon, num_rungs)
        total = np.sum(ballots, axis=0) * (not self.noise_only)
        released = (total + std * rng.standard_normal(len(trials))) / len(scores)
        facts |= {"noise_std": [std / len(scores)], "num_ballots": len(scores)}
        return LedgerRow(number, {"mechanism": "gaussian", **facts}, released)


@lru_cache
def noise_multiplier(epsilon: float, num_releases: int) -> float:
    """Return the noise that the tuner adds to a sum of ballots."""
    return calibrate_noise_multiplier(epsilon, DELTA, 1.0, num_releases)


@dataclass(frozen=True)
class Handed:
    """What a method hands over.

    Attributes
    ----------
    test : float
        Test accuracy of the model.
    work : float
        Models that clients trained, in units of one training.
    trial : int or None
        The one that was chosen; None where the methods' settings are no trials.
    """

    test: float
    work: float
    trial: int | None = None


@dataclass
class Case:
    """A federation, its trials, and what each of them is worth.

    Attributes
    ----------
    federation : Federation
    settings : list of dict
        Of the trials, the defaults first.
    num_rounds : int
    scores : ndarray of shape (K, rounds, N)
        Of the trials' own trainings, by client.
    tests : ndarray of shape (K,)
        Test accuracy after all rounds.
    seed : int
    """

    federation: Federation
    settings: list[Params]
    num_rounds: int
    scores: FloatArray
    tests: FloatArray
    seed: int
    _again: dict[int, float] = field(default_factory=dict)

    def rng(self, purpose: int) -> np.random.Generator:
        """Return a method's generator."""
        return np.random.default_rng([self.seed, purpose])

    def shape(self) -> AppShape:
        """Return how the app trains."""
        num, asked = self.federation.num_clients, self.federation.num_asked
        return AppShape(num, asked, self.num_rounds, "num-server-rounds")

    def test_again(self, trial: int) -> float:
        """Return the test accuracy of a trial that is trained anew, to the end."""
        if trial not in self._again:
            training = Training(self.federation, self.settings[trial])
            training.run(self.num_rounds, self.rng(100 + trial))
            self._again[trial] = self.federation.test(training.model)
        return self._again[trial]

    def work(self, num_trained: int) -> float:
        """Return a number of trained models in units of one training."""
        return num_trained / (self.federation.num_asked * self.num_rounds)


def race(case: Case, choice: Choice, plan: Plan | None = None) -> Handed:
    """Tune inside one training, as `FederationTuner` does with `OneTraining`."""
    federation, rng = case.federation, case.rng(1)
    plan = plan or OneTraining().plan(len(case.settings), case.shape())
    began, everybody = federation.num_trained, range(federation.num_clients)
    trainings = [Training(federation, settings) for settings in case.settings]
    alive, rows = list(range(plan.rungs[0].num_trials)), list[LedgerRow]()
    for number, rung in enumerate(plan.rungs):
        for place, trial in enumerate(alive):
            training = trainings[trial]
            while training.round_number < rung.rounds:
                next_round = training.round_number + 1
                nodes = plan.share(everybody, number, place, next_round)
                training.advance(nodes, rng)
        found = np.array([federation.scores(trainings[one].model) for one in alive]).T
        about = (number, len(plan.rungs)), alive, rng
        rows.append(choice.row(found, federation.num_validation, *about))
        alive = [alive[place] for place in survivors_of(rows, rung.num_survivors)]
    told = case.num_rounds if plan.num_rounds is None else plan.num_rounds
    model = trainings[alive[0]].run(told, rng).model
    work = case.work(federation.num_trained - began)
    return Handed(federation.test(model), work, alive[0])


def before(case: Case, choice: Choice) -> Handed:
    """Choose by `Halving` and the best score, and train the chosen trial anew."""
    rng, rows = case.rng(2), list[LedgerRow]()
    alive, num_trained, start = list(range(len(case.settings))), 0, 0
    for number, rung in enumerate(BEFORE.rungs):
        num_trained += len(alive) * (rung.rounds - start)
        start = rung.rounds
        found = case.scores[alive, rung.rounds - 1].T
        about = (number, len(BEFORE.rungs)), alive, rng
        rows.append(choice.row(found, case.federation.num_validation, *about))
        order = survivors(decision_scores(rows), rung.num_survivors)
        alive = [alive[place] for place in order]
    work = 1 + num_trained / case.num_rounds
    return Handed(case.test_again(alive[0]), work, alive[0])


def _loop(
    case: Case, is_pruned: bool, is_long: bool, is_random: bool = False
) -> Handed:
    """Tune in a loop around short trainings, and train the best setting anew."""
    federation, began = case.federation, case.federation.num_trained
    sampler = (
        RandomSampler(seed=case.seed)
        if is_random
        else TPESampler(seed=case.seed, n_startup_trials=3, multivariate=True)
    )
    pruner = SuccessiveHalvingPruner(1, 3) if is_pruned else NopPruner()
    lengths = LONG_LOOP if is_long else SHORT_LOOP
    about = SPACE.distributions, case.settings[0], sampler, pruner
    best = optuna_loop(federation, *about, lengths, case.rng(3))
    left = case.num_rounds - (0 if is_long else lengths[0])
    training = Training(federation, best).run(left, case.rng(4))
    work = case.work(federation.num_trained - began)
    return Handed(federation.test(training.model), work)


def _of_training(
    case: Case,
    play: Callable[[Federation, list[Params], np.random.Generator], Training],
) -> Handed:
    federation, began = case.federation, case.federation.num_trained
    training = play(federation, case.settings, case.rng(5))
    work = case.work(federation.num_trained - began)
    return Handed(federation.test(training.model), work)


def _within(case: Case) -> Handed:
    """Race where all clients train each trial, within one training."""
    left = case.num_rounds - 8 - 2 * 2 + 3
    plan = Plan(WITHIN, 4, hands_over=True, num_rounds=left, rounds_key="rounds")
    return race(case, Choice(2.0), plan)


def _epsilon(epsilon: float) -> str:
    return f"epsilon {epsilon:g}"


Method = Callable[[Case], Handed]
OURS: dict[str, Method] = {
    **{f"race, {_epsilon(e)}": partial(race, choice=Choice(e)) for e in EPSILONS},
    "race, exact": partial(race, choice=Choice(None)),
    "race, noise-only": partial(race, choice=Choice(2.0, noise_only=True)),
    **{f"before, {_epsilon(e)}": partial(before, choice=Choice(e)) for e in EPSILONS},
    "before, exact": partial(before, choice=Choice(None)),
}
RIVALS: dict[str, Method] = {
    "TPE, pruned, 65 rounds": lambda case: _loop(case, True, True),
    "TPE, 65 rounds": lambda case: _loop(case, False, True),
    "random loop, 65 rounds": lambda case: _loop(case, False, True, is_random=True),
    "TPE, pruned": lambda case: _loop(case, True, False),
    "TPE": lambda case: _loop(case, False, False),
    "random search": lambda case: _of_training(
        case, lambda f, s, rng: random_search(f, s[:3], case.num_rounds // 3, rng)
    ),
    "FedEx": lambda case: _of_training(
        case, lambda f, s, rng: fed_ex(f, s, case.num_rounds, rng)
    ),
    "FedPop": lambda case: _of_training(
        case, lambda f, s, rng: fed_pop(f, s, case.num_rounds, rng)
    ),
    "DP-Hype, epsilon 2": lambda case: _of_training(
        case,
        lambda f, s, rng: dp_hype(
            f, s[:8], case.num_rounds - 8, noise_multiplier(2.0, 1), rng
        ),
    ),
    "defaults, 65 rounds": lambda case: _of_training(
        case, lambda f, s, rng: Training(f, s[0]).run(38 + case.num_rounds, rng)
    ),
    "defaults": lambda case: Handed(case.tests[0], 1.0, 0),
}
METHODS = {**OURS, **RIVALS}
NOT_PRIVATE = {
    "race, exact",
    "before, exact",
    *(name for name in RIVALS if not name.startswith(("DP-Hype", "defaults"))),
}
AT_OTHER_ROUNDS = ("race, epsilon 2", "before, epsilon 2", "TPE, pruned, 65 rounds")
OF_FEW = (
    *(f"race, {_epsilon(e)}" for e in EPSILONS),
    *(f"before, {_epsilon(e)}" for e in EPSILONS),
)


@cache
def trained(name: str, num_rounds: int) -> tuple[Federation, FloatArray, FloatArray]:
    """Return a federation, and scores and test accuracy of all settings by round."""
    federation, scores, tests = Federation(name), list[Any](), list[Any]()
    for number, settings in enumerate(all_settings()):
        training, rng = Training(federation, settings), np.random.default_rng([number])
        for round_number in range(num_rounds):
            training.run(round_number + 1, rng)
            scores.append(federation.scores(training.model))
            tests.append(federation.test(training.model))
    shape = len(all_settings()), num_rounds
    return (
        federation,
        np.reshape(scores, (*shape, federation.num_clients)),
        np.reshape(tests, shape),
    )


@cache
def all_settings() -> list[Params]:
    """Return the settings from which each seed draws; the app's defaults first."""
    return candidate_settings(SPACE, _NUM_SETTINGS, DEFAULTS, [], seed=0)


def drawn(name: str, num_rounds: int, defaults: Defaults, seed: int) -> Case:
    """Return the trials of a seed."""
    longest = max(ROUNDS) if name in MANY else 27
    federation, scores, tests = trained(name, longest)
    rng = np.random.default_rng([seed, 5])
    others = 1 + rng.permutation(_NUM_SETTINGS - 1)
    places = np.array([0, *others[: _NUM_TRIALS - 1]])
    if defaults == "best":
        places = others[:_NUM_TRIALS]
        best = int(tests[places, num_rounds - 1].argmax())
        places[[0, best]] = places[[best, 0]]
    settings = [all_settings()[place] for place in places]
    about = scores[places], tests[places, num_rounds - 1], seed
    return Case(federation, settings, num_rounds, *about)


def cases(seeds: Iterable[int]) -> Iterable[tuple[dict[str, Any], Sequence[str]]]:
    """Yield what each line is about, and the methods that it has."""
    for seed in seeds:
        for name in MANY:
            for num_rounds in ROUNDS:
                about = {"task": name, "rounds": num_rounds, "defaults": "app's"}
                methods = (
                    tuple(METHODS)
                    if num_rounds == 27
                    else (*AT_OTHER_ROUNDS, "defaults")
                )
                yield {**about, "seed": seed}, methods
        for name in FEW:
            for defaults in ("app's", "best"):
                about = {"task": name, "rounds": 27, "defaults": defaults}
                if name in MANY and defaults == "app's":
                    continue
                within = ("race within one training",) if name.endswith("-5") else ()
                yield {**about, "seed": seed}, (*OF_FEW, *within, "defaults")


def play(path: Path, num_seeds: int) -> None:
    """Add the lines that a file lacks."""
    known = {_key(row) for row in read_rows(path)}
    for about, names in cases(range(num_seeds)):
        if _key(about) in known:
            continue
        case = drawn(about["task"], about["rounds"], about["defaults"], about["seed"])
        found = {}
        for name in names:
            handed = (METHODS | {"race within one training": _within})[name](case)
            setting = None if handed.trial is None else case.tests[handed.trial]
            found[name] = [
                round(float(one), 4) if one is not None else None
                for one in (handed.test, setting, handed.work)
            ]
        best = round(float(case.tests.max()), 4)
        add_rows(path, [{**about, "best": best, "found": found}])


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["rounds"], row["defaults"], row["seed"]


# By federation, rounds and defaults: of each method, a number for each seed.
Found = dict[tuple[str, int, str], dict[str, FloatArray]]


def read_losses(path: Path, what: Literal["model", "setting", "work"]) -> Found:
    """Return the loss of the models or of the settings in a file, or the work."""
    rows = sorted(read_rows(path), key=lambda row: int(row["seed"]))
    found: dict[Any, dict[str, list[float]]] = {}
    for row in rows:
        of_case = found.setdefault((row["task"], row["rounds"], row["defaults"]), {})
        for name, (test, setting, work) in row["found"].items():
            value = {"model": test, "setting": setting, "work": work}[what]
            if value is not None:
                loss = value if what == "work" else row["best"] - value
                of_case.setdefault(name, []).append(loss)
    return {
        about: {name: np.array(losses) for name, losses in methods.items()}
        for about, methods in found.items()
    }


def is_new(task: str) -> bool:
    """Return whether nothing was chosen on a federation's data."""
    return task.partition("-")[0] not in CHOSEN_ON


def mean_of(parts: Sequence[FloatArray]) -> str:
    """Return the mean over federations with its standard error over seeds."""
    errors = [part.std(ddof=1) / len(part) ** 0.5 for part in parts]
    error = float(np.linalg.norm(errors)) / len(parts)
    return f"{np.mean([part.mean() for part in parts]):.4f} ± {error:.4f}"


def show(path: Path) -> None:
    """Print the tables of a file."""
    models, settings = read_losses(path, "model"), read_losses(path, "setting")
    works = read_losses(path, "work")
    groups = {
        "chosen on": [name for name in MANY if not is_new(name)],
        "new": [name for name in MANY if is_new(name)],
        "all": list(MANY),
    }

    def losses(found: Found, method: str, names: Sequence[str], rounds: int) -> str:
        return mean_of([found[name, rounds, "app's"][method] for name in names])

    def difference(ours: str, theirs: str, names: Sequence[str], rounds: int) -> str:
        of_names = [models[name, rounds, "app's"] for name in names]
        return mean_of([found[ours] - found[theirs] for found in of_names])

    seeds = len(models[MANY[0], 27, "app's"]["defaults"])
    sizes = [f"{title} ({len(names)})" for title, names in groups.items()]
    columns = " | ".join(sizes)
    print(f"| loss, 27 rounds, {seeds} seeds | private | work | {columns} |")
    print("| --- |" + " --- |" * (2 + len(groups)))
    for method in METHODS:
        work = np.mean([works[name, 27, "app's"][method].mean() for name in MANY])
        cells = [losses(models, method, names, 27) for names in groups.values()]
        private = "no" if method in NOT_PRIVATE else "yes"
        print(f"| {method} | {private} | {work:.2f} | {' | '.join(cells)} |")
    print(f"\n| race less before | {columns} |")
    print("| --- |" + " --- |" * len(groups))
    asked = [(27, _epsilon(epsilon)) for epsilon in EPSILONS]
    asked += [(rounds, _epsilon(2.0)) for rounds in ROUNDS if rounds != 27]
    for rounds, epsilon in asked:
        about = f"race, {epsilon}", f"before, {epsilon}"
        cells = [difference(*about, names, rounds) for names in groups.values()]
        print(f"| {rounds} rounds, {epsilon} | {' | '.join(cells)} |")
    print("\n| few clients | work | setting | setting, new | model | model, new |")
    print("| --- |" + " --- |" * 5)
    for num in (5, 10):
        names = [name for name in FEW if name.endswith(f"-{num}")]
        new = [name for name in names if is_new(name)]
        for defaults in ("app's", "best"):
            for method in (*OF_FEW, "race within one training", "defaults"):
                if any(method not in models[name, 27, defaults] for name in names):
                    continue
                work = np.mean([works[n, 27, defaults][method].mean() for n in names])
                cells = [
                    mean_of([found[name, 27, defaults][method] for name in group])
                    for found in (settings, models)
                    for group in (names, new)
                ]
                title = f"{num} clients, {defaults} defaults, {method}"
                print(f"| {title} | {work:.2f} | {' | '.join(cells)} |")


def main() -> None:
    """Play, show or count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    player = commands.add_parser("play", help="add the lines that a file lacks")
    player.add_argument("path", type=Path, metavar="FILE")
    player.add_argument("--seeds", type=int, default=10)
    shower = commands.add_parser("show", help="print the tables of a file")
    shower.add_argument("path", type=Path, metavar="FILE")
    commands.add_parser("costs", help="count the messages of the real tuner")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if asked.command == "play":
        play(asked.path, asked.seeds)
    elif asked.command == "show":
        show(asked.path)
    else:
        print_table()


if __name__ == "__main__":
    main()
