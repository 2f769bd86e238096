"""What each difference from the papers does to results, where no figure shows it.

    python -m benchmarks.paper_differences benchmarks/paper_differences.jsonl --seeds 20

plays each row of `docs/research/differences-from-the-papers.md` that says so twice on
the same seeds: as printed in the paper, and as it is here. What the package has no
option for is put in for the run. It goes on from the rows in the file.

Written down before the runs: 20 seeds each. Bandits are measured by the regret of all
agents (of Fed-GO-UCB per evaluation, phase I included); what is printed over what is
here is one ratio per seed. Tuning is measured by the best value so far, the mean over
agents and evaluations, and the value as printed minus that here. *Changes results*: the
95 % t interval of the mean does not contain 1, or 0. The settings were fixed before, by
seeds 1000 and 1001. "Optimism in turn, for sampling at once" was added after the runs,
whose rows have both sides of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import ArrayLike, NDArray
from optuna.distributions import BaseDistribution, IntDistribution

from benchmarks.rows import add_rows, play_and_show, read_rows
from flwr_fbo import FTS, Privacy, Seeds
from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import (
    LinearUCBSettings,
    geometric_schedule,
)
from flwr_fbo.lab.baselines import transfer
from flwr_fbo.lab.baselines.transfer import ensemble_weights
from flwr_fbo.lab.experiment_runner.base import six_digits
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.transfer_experiment import (
    Messages,
    TransferExperiment,
)
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.lab.simulation.neural_bandits import NeuralBanditSimulation
from flwr_fbo.lab.tasks.base import Objective
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from flwr_fbo.lab.tasks.nonlinear_bandit import FunctionBanditTask
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.models import thompson_gp
from flwr_fbo.models.ellipsoid import Ellipsoid
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.models.network import Network
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.fts.settings import FTSSettings
from flwr_fbo.tuning.search.own_search import SearchAgent
from flwr_fbo.tuning.search.study import create_agent

Played = Callable[[int], float]
Patches = Any  # what `with` takes


@dataclass(frozen=True)
class Difference:
    """One row: what is played twice.

    Attributes
    ----------
    name : str
    printed, here : callable
        Take a seed; return what is measured.
    is_ratio : bool
        Whether the two are divided, or subtracted.
    """

    name: str
    printed: Played
    here: Played
    is_ratio: bool = True


# FedUCB: a small environment of section 4.4.
TASK = LinearBanditTask(dimension=5, num_actions=25)
NUM_AGENTS, NUM_TRIALS, NUM_SYNCHRONISATIONS = 10, 2000, 20
SCHEDULE = geometric_schedule(NUM_TRIALS, NUM_SYNCHRONISATIONS, 50)
OURS = ContinualSettings(
    num_releases=NUM_SYNCHRONISATIONS, dimension=5, epsilon=8.0, delta=0.1
)
RELEASED = LinearUCBSettings(OURS, local_data="released", width="observed")
RAW = replace(RELEASED, local_data="raw")
# The published method with the width of the authors' code and our noise: with its own
# it does not learn in so few trials.
PUBLISHED = LinearUCBSettings(
    replace(OURS, mechanism="tree"), local_data="raw", width="authors"
)
OPEN = replace(RAW, releases=replace(OURS, epsilon=math.inf, mechanism="tree"))


def linear_regret(
    settings: LinearUCBSettings, seed: int, patches: Patches = None
) -> float:
    """Return the regret of all agents of FedUCB."""
    simulation = BanditSimulation(settings, NUM_AGENTS, TASK, NUM_TRIALS, SCHEDULE)
    with patches or nullcontext():
        return float(simulation.run(seed, seed).regret.sum())


_ellipsoid, _width_at = Confidence.ellipsoid, Confidence.width_at


def _with_line_24(self: Confidence, total: FloatArray) -> Ellipsoid:
    """Begin U with rho_min I after a synchronisation."""
    found = _ellipsoid(self, total)
    if not np.any(total):
        return found
    d = self.settings.releases.dimension
    matrix = found.factor @ found.factor.T + self.bounds.rho_min * np.eye(d)
    return Ellipsoid(matrix, found.target, watched=True)


def _of_statement(
    self: Confidence, log_det: FloatArray, least_eigenvalue: FloatArray
) -> FloatArray:
    """Return the width with d log det V."""
    d = self.settings.releases.dimension
    return _width_at(self, d * log_det, least_eigenvalue)


def shifted_share(seed: int) -> float:
    """Return the share of synchronisations with an eigenvalue below rho_min."""
    shifted: list[bool] = []

    def counting(self: Confidence, total: FloatArray) -> Ellipsoid:
        d = self.settings.releases.dimension
        matrix = total[:d, :d] + self.bounds.shift * np.eye(d)
        shifted.append(np.linalg.eigvalsh(matrix)[0] < self.bounds.rho_min)
        return _ellipsoid(self, total)

    linear_regret(RELEASED, seed, mock.patch.object(Confidence, "ellipsoid", counting))
    return float(np.mean(shifted[1:]))  # the first one is before any release


@lru_cache(maxsize=1)  # both sides of a difference ask for it
@one_blas_thread
def triggered(seed: int) -> tuple[float, list[int]]:
    """Return the regret with the determinant's trigger, and when it fired.

    Without noise, as it has no guarantee; D is that of Theorem 1.
    """
    confidence = Confidence.of(OPEN, NUM_AGENTS)
    agents = [LinearUCBAgent(confidence) for _ in range(NUM_AGENTS)]
    bandits = LinearBandits(TASK, seed, range(NUM_AGENTS))
    trigger = confidence.published_trigger(NUM_TRIALS)
    regret, times = 0.0, list[int]()
    for t in range(NUM_TRIALS):
        contexts = bandits.peek(t)
        chosen = np.array(
            [a.choose(x)[0] for a, x in zip(agents, contexts, strict=True)]
        )
        rewards = bandits.rewards(t, chosen)
        regret += bandits.regrets(t, chosen).sum()
        for agent, x, index, y in zip(agents, contexts, chosen, rewards, strict=True):
            agent.tell(x[index], y)
        if any(agent.wants_synchronisation(trigger) for agent in agents):
            times.append(t + 1)
            total = np.sum([agent.running_sum for agent in agents], axis=0)
            for agent in agents:
                agent.receive(total, len(times))
    return float(regret), times


def by_clock(seed: int) -> float:
    """Return the regret with as many synchronisations as the trigger makes."""
    times = geometric_schedule(NUM_TRIALS, len(triggered(seed)[1]), 50)
    releases = replace(OPEN.releases, num_releases=len(times))
    settings = replace(OPEN, releases=releases)
    simulation = BanditSimulation(settings, NUM_AGENTS, TASK, NUM_TRIALS, times)
    return float(simulation.run(seed, seed).regret.sum())


def _with_variance(
    self: Ellipsoid, actions: FloatArray, width: FloatArray | float
) -> FloatArray:
    """Return bounds with x'V^-1 x in place of its root, as in the authors' code."""
    mean, directions = self.rewards(actions)
    variance = np.einsum("...i,...i->...", directions, directions)
    return np.asarray(mean + np.asarray(width)[..., None] * variance)


LINEAR = [
    Difference(
        "bonus: the variance, for its root",
        lambda seed: linear_regret(
            PUBLISHED,
            seed,
            mock.patch.object(Ellipsoid, "upper_bounds", _with_variance),
        ),
        partial(linear_regret, PUBLISHED),
    ),
    Difference(
        "line 24 of FedUCB: U = rho_min I",
        lambda seed: linear_regret(
            PUBLISHED, seed, mock.patch.object(Confidence, "ellipsoid", _with_line_24)
        ),
        partial(linear_regret, PUBLISHED),
    ),
    Difference(
        "width: d log det V",
        lambda seed: linear_regret(
            PUBLISHED, seed, mock.patch.object(Confidence, "width_at", _of_statement)
        ),
        partial(linear_regret, PUBLISHED),
    ),
    Difference(
        "shift and bounds, M times",
        partial(linear_regret, replace(RAW, width="paper")),
        partial(linear_regret, replace(RAW, width="exact")),
    ),
    Difference(
        "width: exact, for observed",
        partial(linear_regret, replace(RAW, width="exact")),
        partial(linear_regret, RAW),
    ),
    Difference(
        "raw trials, for released",
        partial(linear_regret, RAW),
        partial(linear_regret, RELEASED),
    ),
    Difference("trigger, for the clock", lambda seed: triggered(seed)[0], by_clock),
    Difference(
        "share of shifted sums", shifted_share, lambda seed: 0.0, is_ratio=False
    ),
]


# Fed-GO-UCB: figure 2, Hartmann-6, with the code's defaults, but for `exploration`.
OPTIMISM = FedGOUCBSettings(exploration="optimism")
NEURAL = NeuralBanditSimulation(
    OPTIMISM,
    FunctionBanditTask(function="hartmann", noise_std=0.3),
    20,
    100,
    model=Network(6, 25),
)


def neural_regret(
    simulation: NeuralBanditSimulation, seed: int, patches: Patches = None
) -> float:
    """Return the regret an evaluation of all agents of Fed-GO-UCB, phase I included."""
    with patches or nullcontext():
        run = simulation.run(seed)
    evaluations = simulation.num_agents * simulation.num_rounds
    evaluations += simulation.total_exploration or 0
    return float(run.regret.sum() + run.regret_before) / evaluations


def _without_parentheses(self: FedGOUCBAgent, action: ArrayLike, reward: float) -> None:
    """Add g g'w0 + y - f to b as printed: the residual to each coordinate."""
    x = np.asarray(action)
    if self.w0 is None:
        _tell(self, x, reward)
        return
    values, gradients = self.model.values_and_gradients(self.w0, x[None])
    g, residual = gradients[0], float(reward - values[0])
    target = np.full(len(g), residual)
    self._ellipsoid()[0].observe_sum(np.outer(g, g), target, 1)
    self._seen.append((g, residual))
    self._own = self._own + np.vstack([np.outer(g, g), target])
    self._num_seen += 1


_tell = FedGOUCBAgent.tell


def fails_without_parentheses(seed: int) -> float:
    """Return 1.0 if the estimate runs out of bounds, else 0.0."""
    patched = mock.patch.object(FedGOUCBAgent, "tell", _without_parentheses)
    try:
        neural_regret(NEURAL, seed, patched)
    except np.linalg.LinAlgError:
        return 1.0
    return 0.0


NONLINEAR = [
    Difference(
        "phase I: T0 in total, before the rounds",
        partial(neural_regret, replace(NEURAL, total_exploration=45)),
        partial(neural_regret, NEURAL),
    ),
    Difference(
        "phase I from w = 0",
        partial(
            neural_regret,
            replace(
                NEURAL,
                settings=replace(OPTIMISM, regression=LangevinSettings(start="zero")),
            ),
        ),
        partial(neural_regret, NEURAL),
    ),
    Difference(
        "b without parentheses: share of failed runs",
        fails_without_parentheses,
        lambda seed: 0.0,
        is_ratio=False,
    ),
    Difference(
        "agents in turn, for all at once",
        partial(neural_regret, NEURAL),
        partial(neural_regret, replace(NEURAL, at_once=True)),
    ),
    Difference(
        "optimism in turn, for sampling at once",
        partial(neural_regret, NEURAL),
        partial(
            neural_regret, replace(NEURAL, settings=FedGOUCBSettings(), at_once=True)
        ),
    ),
    Difference(
        "optimism at once, for sampling at once",
        partial(neural_regret, replace(NEURAL, at_once=True)),
        partial(
            neural_regret, replace(NEURAL, settings=FedGOUCBSettings(), at_once=True)
        ),
    ),
]


# FTS and DP-FTS-DE: the synthetic functions of both papers, and the digits.
FUNCTIONS = SyntheticTask(deviation=0.02, signs=True, first_function=100)
DIGITS = DigitsTask()
NUM_TUNING, NUM_EVALUATIONS = 20, 40


def best_so_far(
    task: SyntheticTask | DigitsTask,
    build: Callable[[Seeds], TuningStrategy],
    seed: int,
    patches: Patches = None,
) -> float:
    """Return the best value so far, the mean over agents and evaluations."""
    strategy = build(Seeds(3 * seed, 3 * seed + 1, 3 * seed + 2))
    agent = strategy.study.agent
    assert isinstance(agent, DPFTSDESettings)
    horizon = NUM_EVALUATIONS - agent.num_initial
    strategy.plan(horizon)
    agents = [create_agent(strategy.study, n, 3 * seed) for n in range(NUM_TUNING)]
    objectives = [task.objective(n, NUM_TUNING, seed) for n in range(NUM_TUNING)]
    with patches or nullcontext():
        run_loop(strategy.server, agents, objectives, horizon)
    for one in agents:
        truth = task.truth(one.slot, NUM_TUNING, seed)
        if truth is not None:
            one.values = [truth(one.space.from_unit(x)) for x in one.points]
    return float(np.mean([one.best_so_far for one in agents]))


def dp_fts_de(
    task: SyntheticTask | DigitsTask, seeds: Seeds, follow: float, **changes: Any
) -> DPFTSDE:
    """Return the published method at z = 1, with changes of its agents' settings."""
    preset = "paper-synthetic" if isinstance(task, SyntheticTask) else "paper"
    agent = DPFTSDE.presets[preset].agent
    assert isinstance(agent, DPFTSDESettings)
    privacy = Privacy(
        noise_multiplier=1.0, min_follow_probability=follow, allow_large_delta=True
    )
    return DPFTSDE(
        task.space,
        task.direction,
        NUM_TUNING,
        agent=replace(agent, **changes),
        privacy=privacy,
        delta=0.037,  # 1 / N^1.1
        preset=preset,
        seeds=seeds,
    )


def fts(seeds: Seeds, task: SyntheticTask | None = None, **changes: Any) -> FTS:
    """Return FTS on synthetic functions."""
    agent = FTSSettings(
        num_initial=5, follow="inverse-sqrt", lengthscale=0.03, regularization=0.01
    )
    agent = replace(agent, **changes)
    task = task or FUNCTIONS
    return FTS(task.space, task.direction, NUM_TUNING, agent=agent, seeds=seeds)


_sample_function = thompson_gp.sample_function


def _of_theory(x: FloatArray, y: FloatArray, fitted: Any, *others: Any) -> Any:
    """Draw from GP(mu, beta_t^2 sigma^2), with B = 1 and delta = .1 in beta_t.

    The information gain is that of the agent's own points.
    """
    features, weights = _sample_function(x, y, fitted, *others)
    phi = features(x)
    noise = fitted.noise
    gain = np.linalg.slogdet(np.eye(len(y)) + phi @ phi.T / noise)[1] / 2
    beta = 1 + math.sqrt(noise * 2 * (gain + 1 + math.log(4 / 0.1)))
    mean = thompson_gp.posterior_weights(phi, y, noise)[0]
    return features, mean + beta * (weights - mean)


@lru_cache(maxsize=1)  # several differences ask for it
def fts_here(seed: int) -> float:
    """Return the best value so far of FTS as it is here."""
    return best_so_far(FUNCTIONS, fts, seed)


class _OnGrid(SyntheticTask):
    """The functions on the papers' 1000 points, which agents choose among."""

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """Number of the point."""
        return {"x": IntDistribution(0, 999)}

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the client's noisy function."""
        return _by_number(super().objective(client, num_clients, seed))

    def truth(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the client's function without noise."""
        return _by_number(super().truth(client, num_clients, seed))


def _by_number(objective: Objective) -> Objective:
    return lambda params: objective({"x": params["x"] / 999})


GRID = _OnGrid(deviation=0.02, signs=True, first_function=100)


def _repeating(self: SearchAgent, iteration: int) -> FloatArray:
    """Return the method's choice, though it was evaluated before."""
    return self.space.snap(self._suggest(iteration))


# Fig. 1a of FTS, on other functions: a target that learns from 50 agents by RGPE.
TARGETS = TransferExperiment(
    name="ties",
    task=replace(FUNCTIONS, deviation=0.02, num_exact=1),
    num_agents=50,
    num_targets=1,
    num_initial=1,
    num_evaluations=31,
    num_observations=40,
    messages=Messages(num_features=50, lengthscale=0.03, regularization=0.01),
    methods=("alone", "random", "rgpe", "noise-only"),
)


def rgpe(seed: int, patches: Patches = None) -> float:
    """Return the best value so far of a target, the mean over its evaluations."""
    with patches or nullcontext():
        [run] = TARGETS.play(["rgpe"], seed)
    return float(run.curve.mean())


def _ties_to_the_target(losses: NDArray[np.int64]) -> FloatArray:
    """Return weights of RGPE; the target takes samples whose least loss it shares."""
    losses = losses.copy()
    losses[1:] += losses[1:] == losses[0]
    return ensemble_weights(losses)


TUNING = [
    Difference(
        "FTS: own sample of 200 features, for 100",
        partial(
            best_so_far,
            FUNCTIONS,
            lambda seeds: fts(seeds, num_surrogate_features=200),
        ),
        fts_here,
        is_ratio=False,
    ),
    Difference(
        "FTS: queries may be repeated",
        lambda seed: best_so_far(
            FUNCTIONS, fts, seed, mock.patch.object(SearchAgent, "suggest", _repeating)
        ),
        fts_here,
        is_ratio=False,
    ),
    Difference(
        "FTS: x on a grid of 1000, for continuous",
        partial(best_so_far, GRID, lambda seeds: fts(seeds, task=GRID)),
        fts_here,
        is_ratio=False,
    ),
    Difference(
        "RGPE: ties to the target, for split",
        lambda seed: rgpe(
            seed, mock.patch.object(transfer, "ensemble_weights", _ties_to_the_target)
        ),
        rgpe,
        is_ratio=False,
    ),
    Difference(
        "20 random starts, digits",
        partial(
            best_so_far,
            DIGITS,
            lambda seeds: dp_fts_de(DIGITS, seeds, 0.0, random_starts=True),
        ),
        partial(best_so_far, DIGITS, lambda seeds: dp_fts_de(DIGITS, seeds, 0.0)),
        is_ratio=False,
    ),
    Difference(
        "releases in every round, digits",
        partial(best_so_far, DIGITS, lambda seeds: dp_fts_de(DIGITS, seeds, 0.0)),
        partial(best_so_far, DIGITS, lambda seeds: dp_fts_de(DIGITS, seeds, 0.05)),
        is_ratio=False,
    ),
    Difference(
        "FTS sends once, for each iteration",
        partial(best_so_far, FUNCTIONS, lambda seeds: fts(seeds, share_after=1)),
        fts_here,
        is_ratio=False,
    ),
    Difference(
        "FTS sends every 5 iterations, for each",
        partial(best_so_far, FUNCTIONS, lambda seeds: fts(seeds, share_every=5)),
        fts_here,
        is_ratio=False,
    ),
    Difference(
        "P_N uniform, for similarity",
        fts_here,
        partial(
            best_so_far, FUNCTIONS, lambda seeds: fts(seeds, weighting="similarity")
        ),
        is_ratio=False,
    ),
    Difference(
        "beta_t of the theory, for 1",
        lambda seed: best_so_far(
            FUNCTIONS,
            fts,
            seed,
            mock.patch.object(thompson_gp, "sample_function", _of_theory),
        ),
        fts_here,
        is_ratio=False,
    ),
]
DIFFERENCES = [*TUNING, *LINEAR, *NONLINEAR]


def play(path: Path, num_seeds: int) -> None:
    """Add the rows that are missing: one a difference and seed."""
    known = {(row["name"], row["seed"]) for row in read_rows(path)}
    for seed in range(num_seeds):
        for one in DIFFERENCES:
            if (one.name, seed) not in known:
                printed, here = six_digits([one.printed(seed), one.here(seed)])
                row = {"name": one.name, "seed": seed}
                add_rows(path, [{**row, "printed": printed, "here": here}])


def show(path: Path) -> None:
    """Print each difference's mean, its standard error, and whether it is one."""
    rows = read_rows(path)
    for one in DIFFERENCES:
        of_name = [row for row in rows if row["name"] == one.name]
        digits = 3 if one.is_ratio else 4
        printed = np.array([row["printed"] for row in of_name])
        here = np.array([row["here"] for row in of_name])
        compared = printed / here if one.is_ratio else printed - here
        effect = Estimate.of(compared - one.is_ratio)
        mean = effect.mean + one.is_ratio
        verdict = "not shown" if effect.sign == "unclear" else "changes results"
        print(
            f"{one.name:45s} {len(of_name):3d} seeds {mean:8.{digits}f} ± "
            f"{effect.standard_error:.{digits}f}  {verdict}"
        )


if __name__ == "__main__":
    play_and_show(__doc__, "rows, one a difference and seed", play, show)
