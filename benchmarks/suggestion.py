"""What one suggestion costs, and how good a study of such suggestions is.

Ours is an agent on its own, by expected improvement, and by Thompson sampling as in the
papers. The peers are as their own documentation recommends. All see the same points.
"""

from __future__ import annotations

import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import optuna
from joblib import Parallel, delayed, parallel_config
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from threadpoolctl import threadpool_limits

from benchmarks.measure import Bar, Row, Section, alternate, compare, figure
from benchmarks.problems import Problem, branin, hartmann, landmine
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

SIZES, NUM_FIRST, BUDGET = (10, 30, 60), 10, 30
# Suggestions that are timed together: Thompson sampling fits its hyperparameters in one
# of five, an agent of FedVote in each.
CYCLE = 5
FIELDS = (0, 9, 19)
FACTOR = 10.0


class Suggester(ABC):
    """Says where to evaluate next, from what it has been told.

    Parameters
    ----------
    dim : int
        D, of the unit cube.
    seed : int
    """

    def __init__(self, dim: int, seed: int) -> None:
        self.axes = {f"x{i}": FloatDistribution(0.0, 1.0) for i in range(dim)}
        self.seed = seed
        self.x: list[FloatArray] = []
        self.y: list[float] = []

    def tell(self, point: FloatArray, value: float) -> None:
        """Take an observation."""
        self.x.append(point)
        self.y.append(value)

    @abstractmethod
    def ask(self) -> FloatArray:
        """Return the next point, shape (D,)."""


class Ours(Suggester):
    """An agent that has no server."""

    def __init__(self, dim: int, seed: int, *, settings: SearchSettings) -> None:
        super().__init__(dim, seed)
        space = SearchSpace(self.axes)
        study = TuningStudy(
            space, "maximize", settings, study_seed=seed, feature_seed=0
        )
        self._agent = create_agent(study, 0, seed)

    def tell(self, point: FloatArray, value: float) -> None:
        """Take an observation."""
        self._agent.tell(len(self._agent.values), point, value)

    def ask(self) -> FloatArray:
        """Return the next point, shape (D,)."""
        return self._agent.suggest(len(self._agent.values))


class OptunaSuggester(Suggester):
    """One of Optuna's samplers."""

    def __init__(
        self,
        dim: int,
        seed: int,
        *,
        sampler: Callable[[int], optuna.samplers.BaseSampler],
    ) -> None:
        super().__init__(dim, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(direction="maximize", sampler=sampler(seed))
        self._asked: optuna.Trial | None = None

    def tell(self, point: FloatArray, value: float) -> None:
        """Take an observation, which may not be where it was asked for."""
        if self._asked is not None:
            self._study.tell(self._asked, state=TrialState.FAIL)
            self._asked = None
        params = dict(zip(self.axes, point.tolist(), strict=True))
        self._study.add_trial(
            optuna.create_trial(
                params=params, distributions=dict(self.axes), value=value
            )
        )

    def ask(self) -> FloatArray:
        """Return the next point, shape (D,)."""
        self._asked = self._study.ask(dict(self.axes))
        return np.array(list(self._asked.params.values()))


def _gp_sampler(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.GPSampler(seed=seed, deterministic_objective=True)


def _tpe_sampler(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed)


class BoTorch(Suggester):
    """Log expected improvement, as BoTorch's README begins with."""

    def ask(self) -> FloatArray:
        """Return the next point, shape (D,)."""
        import torch
        from botorch.acquisition import LogExpectedImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.models.transforms import Normalize
        from botorch.optim import optimize_acqf
        from gpytorch.mlls import ExactMarginalLogLikelihood

        dim = len(self.axes)
        torch.manual_seed(self.seed + len(self.y))
        points = torch.tensor(np.array(self.x), dtype=torch.double)
        values = torch.tensor(self.y, dtype=torch.double).unsqueeze(-1)
        model = SingleTaskGP(points, values, input_transform=Normalize(d=dim))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        improvement = LogExpectedImprovement(model=model, best_f=values.max())
        bounds = torch.stack([torch.zeros(dim), torch.ones(dim)]).to(torch.double)
        found, _ = optimize_acqf(
            improvement, bounds=bounds, q=1, num_restarts=5, raw_samples=20
        )
        return np.asarray(found[0])


OURS = "flwr_fbo"
THOMPSON = DPFTSDESettings(num_sub_regions=1, follow="never")
SUGGESTERS: Mapping[str, Callable[[int, int], Suggester]] = {
    OURS: partial(Ours, settings=FedVoteSettings()),
    "flwr_fbo, Thompson": partial(Ours, settings=THOMPSON),
    "Optuna GPSampler": partial(OptunaSuggester, sampler=_gp_sampler),
    "BoTorch LogEI": BoTorch,
    "Optuna TPESampler": partial(OptunaSuggester, sampler=_tpe_sampler),
}
PEERS = [name for name in SUGGESTERS if name != OURS]
HELD_TO_BAR = ("Optuna GPSampler", "BoTorch LogEI")


def measure(quick: bool) -> list[Section]:
    """Return the sections."""
    return [suggestions(2 if quick else 7), studies(2 if quick else 20)]


def suggestions(repeats: int) -> Section:
    """Return single suggestions."""
    rows = []
    for problem in _functions():
        for size in SIZES:
            held = HELD_TO_BAR if size == 30 and problem.dim in (2, 3) else ()
            seconds = _seconds(problem, size, repeats)
            rows += [
                compare(
                    f"D = {problem.dim}, n = {size}",
                    seconds,
                    name,
                    OURS,
                    bar=_tenfold if name in held else None,
                )
                for name in PEERS
            ]
    text = (
        f"CPU time of a suggestion within a study in D dimensions: the mean of {CYCLE} "
        f"in a row, the last of them from n observations. Ours is an agent of FedVote "
        "on its own; *Thompson* is one of DP-FTS-DE, as in the papers, which fits its "
        f"hyperparameters after every {CYCLE} observations."
    )
    return Section("One suggestion", text, rows)


def _seconds(problem: Problem, size: int, repeats: int) -> dict[str, FloatArray]:
    """Return the seconds of a suggestion, shape (repeats,), of each method."""
    works = {
        name: partial(
            _call_next,
            iter([_cycle(make, problem, size, seed) for seed in range(repeats + 1)]),
        )
        for name, make in SUGGESTERS.items()
    }
    with _quiet():
        seconds = alternate(works, repeats)
    return {name: values / CYCLE for name, values in seconds.items()}


def _cycle(
    make: Callable[[int, int], Suggester], problem: Problem, size: int, seed: int
) -> Callable[[], None]:
    """Return five suggestions, after one that is not timed."""
    x = np.random.default_rng(seed).random((size, problem.dim))
    y, suggester = problem.function(x).tolist(), make(problem.dim, seed)
    begin = size - CYCLE
    for point, value in zip(x[:begin], y[:begin], strict=True):
        suggester.tell(point, value)
    with _quiet():
        suggester.ask()

    def work() -> None:
        for point, value in zip(x[begin:], y[begin:], strict=True):
            suggester.tell(point, value)
            suggester.ask()

    return work


def _call_next(calls: Iterator[Callable[[], object]]) -> object:
    return next(calls)()


def _tenfold(row: Row) -> Bar:
    return Bar.at_least(row.ratio, FACTOR)


@contextmanager
def _quiet() -> Iterator[None]:
    """One BLAS thread, and no warnings."""
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def studies(num_seeds: int) -> Section:
    """Return whole studies by all methods, on the same seeds and initial points."""
    rows = []
    for problem in _problems():
        cases = [(problem, seed) for seed in range(num_seeds)]
        rows += compare_studies(problem.name, cases, list(SUGGESTERS))
    text = (
        f"CPU time of all suggestions of a study of {BUDGET} evaluations, the first "
        f"{NUM_FIRST} at the same uniform points for all, over {num_seeds} seeds. "
        "Quality: simple regret, how far the best value is below the maximum; the mean "
        "over seeds of A, of B. *Not significantly worse*: B's is at most two standard "
        "errors of the paired differences above A's. The priors of ours were chosen on "
        "landmine fields of odd numbers, and on other seeds of the functions."
    )
    return Section(f"Studies of {BUDGET} evaluations", text, rows)


def compare_studies(
    label: str, cases: Sequence[tuple[Problem, int]], names: Sequence[str]
) -> list[Row]:
    """Return rows of all methods but ours, over studies (problem, seed)."""
    tasks = (delayed(_play_all)(problem, seed, names) for problem, seed in cases)
    with parallel_config("loky", inner_max_num_threads=1):
        found = np.array(Parallel(n_jobs=-1)(tasks))
    regrets = dict(zip(names, found[:, :, 0].T, strict=True))
    seconds = dict(zip(names, found[:, :, 1].T, strict=True))
    return [
        compare(label, seconds, name, OURS, **_quality(regrets, name))
        for name in names
        if name != OURS
    ]


def _play_all(problem: Problem, seed: int, names: Sequence[str]) -> FloatArray:
    """Return regret and seconds of these methods on one seed, shape (methods, 2)."""
    logging.getLogger("flwr.fbo").setLevel(logging.ERROR)
    with _quiet():
        _import_peers()
        return np.array([_play(name, problem, seed) for name in names])


@cache
def _import_peers() -> None:
    """Ask each peer once, untimed: its first model imports what it needs."""
    for name in PEERS:
        suggester = SUGGESTERS[name](1, 0)
        for value in np.linspace(0.0, 1.0, NUM_FIRST + 1):
            suggester.tell(np.array([value]), float(value))
        suggester.ask()


def _play(name: str, problem: Problem, seed: int) -> tuple[float, float]:
    """Return simple regret and CPU time of a study."""
    suggester, values = SUGGESTERS[name](problem.dim, seed), []
    points = iter(np.random.default_rng(seed).random((NUM_FIRST, problem.dim)))
    asking = 0.0
    for _ in range(BUDGET):
        began = time.process_time()
        point = next(points, None)
        point = suggester.ask() if point is None else point
        asking += time.process_time() - began
        values.append(float(problem.function(point[None])[0]))
        suggester.tell(point, values[-1])
    return problem.regret(np.array(values)), asking


def _quality(regrets: Mapping[str, FloatArray], name: str) -> dict[str, Any]:
    theirs, mine = regrets[name], regrets[OURS]
    difference = mine - theirs
    error = float(np.std(difference, ddof=1) / np.sqrt(len(difference)))
    ok = bool(np.mean(difference) <= 2.0 * error)
    bar = Bar("regret not significantly worse", ok)
    means = [figure(float(np.mean(values))) for values in (theirs, mine)]
    held = name in HELD_TO_BAR
    return {
        "quality": f"regret {means[0]}, {means[1]}",
        "bar": (lambda row: bar) if held else None,
    }


def _problems() -> list[Problem]:
    known = [*_functions(), *(landmine(field) for field in FIELDS)]
    return [problem for problem in known if problem is not None]


def _functions() -> list[Problem]:
    return [branin(), hartmann(3), hartmann(6)]
