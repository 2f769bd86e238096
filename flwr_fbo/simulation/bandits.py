"""Many linear bandits in lock step, without Flower: all agents in a few array calls.

The same algorithm as a loop over `LinearUCBAgent` objects, on the same draws: all
agents play trial 0, then trial 1, and after some trials, fixed in advance, their
releases are added and the sum is given to all. Between two synchronisations agents that
act on released data only believe the same: one matrix is factorised for all of them.
Several methods can play the same trials, which are then drawn once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._random import Purpose, generator
from flwr_fbo._validation import require, require_int
from flwr_fbo.agents.linear_ucb import (
    DeterminantTrigger,
    LinearUCBSettings,
    LocalData,
    Width,
)
from flwr_fbo.models.threads import one_blas_thread
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.factorisation import MAX_RELEASES
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.tasks.linear_bandit import IntArray, LinearBandits, LinearBanditTask

FloatArray = NDArray[np.float64]
Baseline = Literal["non-private", "dislinucb", "independent", "full"]
Control = Literal["noise-only", "random"]


def geometric_schedule(num_trials: int, num_releases: int, first: int) -> list[int]:
    """Return n synchronisations from ``first`` on, the gaps growing towards T.

    After round(first (T / first)^(k / n)) trials, k = 0, .., n - 1: the next one would
    be after the last trial, where nobody acts on it any more.

    Raises
    ------
    ValueError
        If two of them would fall together.
    """
    require_int("num_releases", num_releases, 1)
    require_int("first", first, 1)
    ratio = (num_trials / first) ** (1 / num_releases)
    times = [round(first * ratio**k) for k in range(num_releases)]
    ok = all(a < b for a, b in pairwise([*times, num_trials]))
    allowed = f"so many in the {num_trials - first} trials after the first one"
    require(ok, "num_releases", num_releases, allowed)
    return times


@dataclass(frozen=True)
class BanditRun:
    """What happened in one run.

    Attributes
    ----------
    actions : ndarray of int, shape (T, M)
        The index of the action that each agent played in each trial, in as few bytes
        as K needs.
    regret : ndarray of shape (T,)
        Of each trial, added over the agents: how much lower the mean rewards of what
        they played are than the best.
    synchronised : list of int
        After how many trials there was a synchronisation.
    running_sums : ndarray of shape (M, d + 1, d + 1)
        Each agent's, of all its trials.
    total : ndarray of shape (d + 1, d + 1)
        What the last synchronisation gave back; zero without one.
    """

    actions: NDArray[np.integer[Any]]
    regret: FloatArray
    synchronised: list[int]
    running_sums: FloatArray
    total: FloatArray


@dataclass(frozen=True)
class BanditSimulation:
    """Agents, their bandits, and when they synchronise.

    Attributes
    ----------
    settings : LinearUCBSettings
        Of all agents; ``settings.num_agents`` play.
    task : LinearBanditTask
        Of the dimension that the settings have.
    num_trials : int
        T >= 1, of each agent.
    schedule : sequence of int, or DeterminantTrigger
        After how many trials there is a synchronisation: increasing, from 1 to T, no
        more than ``settings.releases`` has planned. With none, agents never learn of
        each other. Or what decides that: not private.
    control : {"noise-only", "random"}, optional
        What shows whether a method is better for what its agents learned.
        ``"noise-only"``: every running sum is zero where it is released, under the same
        noise. ``"random"``: actions are uniform, and nobody synchronises.
    """

    settings: LinearUCBSettings
    task: LinearBanditTask
    num_trials: int
    schedule: Sequence[int] | DeterminantTrigger
    control: Control | None = None

    def __post_init__(self) -> None:
        require_int("num_trials", self.num_trials, 1)
        d, own = self.settings.releases.dimension, self.task.dimension
        require(own == d, "task.dimension", own, f"{d}, as in the settings")
        ok = self.control in (None, *get_args(Control))
        require(ok, "control", self.control, f"one of {get_args(Control)}, or None")
        if isinstance(self.schedule, DeterminantTrigger):
            local = self.settings.local_data
            require(local == "raw", "local_data", local, "'raw', with a trigger")
        else:
            self._check_times(self.schedule)

    def _check_times(self, schedule: Sequence[int]) -> None:
        edges = [0, *schedule, self.num_trials + 1]
        ok = all(isinstance(t, int) for t in edges)
        ok = ok and all(a < b for a, b in pairwise(edges))
        allowed = f"increasing integers from 1 to {self.num_trials}"
        require(ok, "schedule", schedule, allowed)
        count, planned = len(schedule), self.settings.releases.num_releases
        allowed = f"at most {planned} synchronisations, the releases planned"
        require(count <= planned, "len(schedule)", count, allowed)

    def baseline(self, name: Baseline) -> BanditSimulation:
        """Return the same simulation without noise, as one of the baselines.

        ``"non-private"``: the same schedule, acting on the same local data.
        ``"dislinucb"``: synchronised by determinants, with the threshold
        T log(M T) / (d M) of its analysis (Wang et al., ICLR 2020).
        ``"independent"``: linear UCB without communication; of the exact width in
        place of the paper's, which counts the ridges of all agents. ``"full"``: one
        linear UCB that all agents share, synchronised after every trial.
        """
        allowed = f"one of {get_args(Baseline)}"
        require(name in get_args(Baseline), "name", name, allowed)
        m, trials = self.settings.num_agents, self.num_trials
        threshold = trials * math.log(m * trials) / (self.task.dimension * m)
        schedules: dict[Baseline, Sequence[int] | DeterminantTrigger] = {
            "non-private": self.schedule,
            "dislinucb": DeterminantTrigger(threshold),
            "independent": (),
            "full": range(1, trials + 1),
        }
        # Without noise it costs nothing to plan one a trial.
        releases = replace(
            self.settings.releases,
            epsilon=math.inf,
            num_releases=min(trials, MAX_RELEASES),
            calibration="exact",
        )
        local_data: dict[Baseline, LocalData] = {
            "non-private": self.settings.local_data,
            "full": "released",  # all that there is, then
        }
        local = local_data.get(name, "raw")
        alone = name == "independent" and self.settings.width == "paper"
        width: Width = "exact" if alone else self.settings.width
        settings = replace(
            self.settings, releases=releases, local_data=local, width=width
        )
        return replace(self, settings=settings, schedule=schedules[name])

    def run(self, seed: int, noise_seed: int) -> BanditRun:
        """Play all trials: `play_together` of one simulation."""
        return play_together([self], seed, noise_seed)[0]


@one_blas_thread
def play_together(
    simulations: Sequence[BanditSimulation], seed: int, noise_seed: int
) -> list[BanditRun]:
    """Play the same trials with several methods, each as if it were alone.

    To draw the actions takes longer than to choose one of them.

    Parameters
    ----------
    simulations : sequence of BanditSimulation
        Of one task, number of trials and number of agents.
    seed : int
        Of the bandits.
    noise_seed : int
        Of the releases: agent i's are those of a `ContinualRelease` with
        ``SeededEntropy(noise_seed, i)``.

    Returns
    -------
    list of BanditRun
        One a simulation.

    Raises
    ------
    ValueError
        If they are not of one task, number of trials and number of agents.
    """
    require(len(simulations) > 0, "simulations", simulations, "at least one")
    first, *others = [
        (s.task, s.num_trials, s.settings.num_agents) for s in simulations
    ]
    for other in others:
        allowed = f"of one task, number of trials and number of agents: {first}"
        require(other == first, "simulations", other, allowed)
    task, num_trials, num_agents = first
    bandits = LinearBandits(task, seed, range(num_agents))
    everybody = [_Agents(simulation, noise_seed) for simulation in simulations]
    for t in range(num_trials):
        for agents in everybody:
            agents.play(bandits, t)
    return [agents.run for agents in everybody]


class _Agents:
    """All agents of one simulation, and what they have done so far."""

    def __init__(self, simulation: BanditSimulation, noise_seed: int) -> None:
        self._settings = settings = simulation.settings
        self._control = simulation.control
        self._schedule = () if self._control == "random" else simulation.schedule
        self._rng = generator(noise_seed, Purpose.SEARCH)
        m, size = settings.num_agents, settings.releases.dimension + 1
        self._releases = [
            ContinualRelease(settings.releases, SeededEntropy(noise_seed, agent))
            for agent in range(m)
        ]
        index = np.min_scalar_type(simulation.task.num_actions - 1)
        self._actions = np.empty((simulation.num_trials, m), dtype=index)
        self._regret = np.empty(simulation.num_trials)
        self._synchronised: list[int] = []
        self._running_sums = np.zeros((m, size, size))
        self._believe(np.zeros((size, size)))

    @property
    def run(self) -> BanditRun:
        """What happened."""
        return BanditRun(
            self._actions,
            self._regret,
            self._synchronised,
            self._running_sums,
            self._total,
        )

    def play(self, bandits: LinearBandits, t: int) -> None:
        """Play trial t, and synchronise after it, if it is time."""
        contexts = bandits.peek(t)
        chosen = self._choose(contexts)
        played = contexts[np.arange(len(chosen)), chosen]
        self._tell(played, bandits.rewards(t, chosen))
        if self._due(t + 1):
            self._synchronise(t + 1)
        self._actions[t], self._regret[t] = chosen, bandits.regrets(t, chosen).sum()

    def _choose(self, contexts: FloatArray) -> IntArray:
        """Return the index that each agent plays, shape (M,), of (M, K, d) actions."""
        if self._control == "random":
            return self._rng.integers(contexts.shape[1], size=len(contexts))
        bounds = self._settings.upper_bounds(self._ellipsoid, contexts)
        return np.asarray(bounds.argmax(axis=1))

    def _tell(self, actions: FloatArray, rewards: FloatArray) -> None:
        """Record one trial of each agent: shapes (M, d) and (M,)."""
        products = self._settings.releases.outer_products(actions, rewards)
        self._running_sums += products
        if self._settings.local_data == "raw":
            self._ellipsoid.observe(actions, rewards)

    def _due(self, t: int) -> bool:
        """Return whether to synchronise after t trials."""
        if isinstance(self._schedule, DeterminantTrigger):
            growth = self._ellipsoid.log_det - self._synchronised_log_det
            return self._schedule.fires(growth, self._ellipsoid.num_observed)
        return t in self._schedule[len(self._synchronised) :][:1]

    def _synchronise(self, t: int) -> None:
        """Add up the releases after t trials, and let all agents believe the sum."""
        k = len(self._synchronised) + 1
        planned = self._settings.releases.num_releases
        allowed = f"at most {planned} synchronisations, the releases planned"
        require(k <= planned, "k", k, allowed)
        self._believe(np.sum(self._released(k), axis=0))
        self._synchronised.append(t)

    def _released(self, k: int) -> FloatArray | list[FloatArray]:
        sums = self._running_sums
        if self._control == "noise-only":
            sums = np.zeros_like(sums)
        if self._settings.releases.noise_std == 0:
            return sums  # as released without noise, and not kept
        pairs = zip(self._releases, sums, strict=True)
        return [release.release(k, running_sum) for release, running_sum in pairs]

    def _believe(self, total: FloatArray) -> None:
        self._total = total
        self._ellipsoid = self._settings.ellipsoid(total)
        if self._settings.local_data == "raw":
            self._ellipsoid = self._ellipsoid.repeated(self._settings.num_agents)
        self._synchronised_log_det = self._ellipsoid.log_det
