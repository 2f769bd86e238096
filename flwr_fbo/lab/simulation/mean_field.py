"""FedUCB at horizons that no machine can play: the mean-field limit of the simulator.

`linear_bandits` plays every trial of every agent. Here trials are taken together, by up
to 2 % of those before. Over such a step the policy is fixed, and sums of contexts are
what they are on average (law of large numbers): an agent's Gram matrix grows by

    (number of trials) E[x x'],    x the action that the policy plays,

with the expectation over decision sets that are drawn anew at each step. As E[y | x] =
x'theta, sums of x y are the Gram matrix times theta, and a Gaussian of the covariance
that the rewards' noise has (central limit theorem). The noise of releases has the law
of the mechanism's, for the sum of all agents at once.

What it neglects: how much the agents' own Gram matrices differ, and what they see in
single trials. `tests/lab/simulation/test_mean_field.py` compares it to the simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, first_best, one_blas_thread
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import Optimism
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation
from flwr_fbo.lab.tasks.linear_bandit import IntArray, LinearBandits
from flwr_fbo.models.ellipsoid import Ellipsoid

# By what share of the trials so far a step is longer than the one before.
_GROWTH = 0.02
# How many decision sets an expectation is the mean over.
_NUM_SETS = 128
# Schedules of more times than this have a synchronisation at every step.
_SPARSE = 1000


@one_blas_thread
def mean_field_regret(
    simulation: BanditSimulation,
    seed: int,
    noise_seed: int,
    trials: NDArray[np.integer],
) -> FloatArray:
    """Return an agent's regret, added up, after each of ``trials``.

    Parameters
    ----------
    simulation : BanditSimulation
        With a centre, and a schedule that is fixed in advance.
    seed : int
        Seed of the bandits: theta is that of `play_together`.
    noise_seed : int
        Seed of the releases' noise and that of rewards.
    trials : ndarray of int
        Increasing, from 1 to T.

    Raises
    ------
    ValueError
        If agents are peers along a graph, or explore otherwise than by `Optimism`, or
        releases have no horizon, or a sliding window, or sites of the task differ.
    """
    schedule = simulation.schedule
    require(simulation.graph is None, "graph", simulation.graph, "None")
    releases = simulation.settings.releases
    known = releases.num_releases is not None and releases.sliding_window is None
    expected = "with a horizon, and without a window"
    require(known, "settings.releases", releases, expected)
    exploration = simulation.settings.exploration
    require(isinstance(exploration, Optimism), "exploration", exploration, "Optimism")
    bandits = LinearBandits(simulation.task, seed, range(_NUM_SETS))
    agents = _AverageAgent(simulation, bandits.theta, noise_seed)
    ends = _ends_of_steps(simulation, trials)
    regret, done, total = np.empty(len(ends)), 0, 0.0
    for i, end in enumerate(ends):
        total += agents.play(bandits, i, end - done)
        due = bisect_right(schedule, end)
        if due > agents.num_synchronised and simulation.control != "random":
            agents.synchronise(due)
        regret[i], done = total, end
    return regret[np.searchsorted(ends, trials)]


def _ends_of_steps(
    simulation: BanditSimulation, trials: NDArray[np.integer]
) -> list[int]:
    """Return after how many trials each step ends."""
    last, schedule = simulation.num_trials, simulation.schedule
    count = 2 + math.ceil(math.log(last) / math.log1p(_GROWTH))
    even = np.rint(np.geomspace(1, last, count)).astype(np.int64)
    exact = schedule if len(schedule) <= _SPARSE else ()
    return [int(t) for t in np.unique([*even, *trials, *exact])]


class _AverageAgent:
    """Observations of an average agent, and releases of all of them."""

    def __init__(
        self, simulation: BanditSimulation, theta: FloatArray, noise_seed: int
    ) -> None:
        self._simulation, self._theta = simulation, theta
        self._confidence = Confidence.of(simulation.settings, simulation.num_agents)
        self._noise_seed = noise_seed
        self._rng = generator(noise_seed, Purpose.OBSERVATION)
        d = len(theta)
        self._gram = np.zeros((d, d))
        # Sums of x times a reward's noise: of all agents, and the agent's own since
        # the last synchronisation.
        self._luck, self._own_luck = np.zeros(d), np.zeros(d)
        self._draws: dict[int, FloatArray] = {}
        self.num_synchronised = 0
        self._believe(np.zeros((d + 1, d + 1)))

    def _believe(self, total: FloatArray) -> None:
        self._synchronised = self._confidence.ellipsoid(total)
        self._gram_before = self._gram
        self._own_luck = np.zeros(len(self._theta))

    @property
    def _ellipsoid(self) -> Ellipsoid:
        synchronised = self._synchronised
        if self._simulation.settings.local_data == "released":
            return synchronised
        unreleased = self._gram - self._gram_before
        matrix = synchronised.factor @ synchronised.factor.T + unreleased
        target = synchronised.target + unreleased @ self._theta + self._own_luck
        return Ellipsoid(matrix, target, watched=True)

    def play(self, bandits: LinearBandits, i: int, num_trials: int) -> float:
        """Play step i; return the regret of its trials."""
        contexts = bandits.peek(i)
        chosen = self._choose(contexts)
        x = contexts[np.arange(len(chosen)), chosen]
        mean = x @ self._theta
        self._gram = self._gram + num_trials * (x.T @ x) / len(x)
        # A Beta law of mean m and concentration c has variance m (1 - m) / (c + 1).
        spread = np.sqrt(mean * (1 - mean) / (1 + self._simulation.task.concentration))
        scaled = math.sqrt(num_trials / len(x)) * spread[:, None] * x
        own_luck, others = self._rng.standard_normal((2, len(x))) @ scaled
        self._own_luck += own_luck
        self._luck += math.sqrt(self._simulation.num_agents) * others
        return num_trials * float(bandits.regrets(i, chosen).mean())

    def _choose(self, contexts: FloatArray) -> IntArray:
        if self._simulation.control == "random":
            return self._rng.integers(contexts.shape[1], size=len(contexts))
        return first_best(
            self._confidence.belief(self._ellipsoid).upper_bounds(contexts)
        )

    def synchronise(self, k: int) -> None:
        """Believe the sum of all agents' releases k."""
        d = len(self._theta)
        total = self._noise(k)
        if self._simulation.control != "noise-only":
            gram = self._simulation.num_agents * self._gram
            cross = gram @ self._theta + self._luck
            total[:d, :d] += gram
            total[:d, d] += cross
            total[d, :d] += cross
        self.num_synchronised = k
        self._believe(total)

    def _noise(self, k: int) -> FloatArray:
        """Return the noise of all agents' releases k: that of one times sqrt(M)."""
        releases, size = self._simulation.settings.releases, len(self._theta) + 1
        noise = np.zeros((size, size))
        if releases.noise_std == 0:
            return noise
        row = releases.factorisation.row(k)
        for j in np.flatnonzero(row).tolist():
            noise += row[j] * self._draw(j + 1)
        scale = releases.noise_std * math.sqrt(self._simulation.num_agents)
        return scale * noise

    def _draw(self, j: int) -> FloatArray:
        """Return draw j: of variance 1 on the diagonal, and 1/2 off it."""
        if j not in self._draws:
            size = len(self._theta) + 1
            rng = generator(self._noise_seed, j, Purpose.RELEASE_NOISE)
            z = rng.standard_normal((size, size))
            self._draws[j] = (z + z.T) / 2
            self._draws[j][np.diag_indices(size)] = np.diag(z)
        return self._draws[j]
