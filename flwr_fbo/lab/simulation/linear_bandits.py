"""Many linear bandits in lock step, without Flower: all agents in a few array calls.

The same algorithm as a loop over `LinearUCBAgent` objects, on the same draws: all
agents play trial 0, then trial 1, and after some trials, fixed in advance, their
releases are added and the sum is given to all. Between two synchronisations agents that
act on released data only believe the same: one matrix is factorised for all of them.
Several methods can play the same trials, which are then drawn once.

Peers along a graph (`PeerGraph`) do the same, but for three things: each has its own
pool, and with it confidence and sums; what was released is believed gamma trials later,
when the messages have arrived; and its estimators are played in turn.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray, one_blas_thread
from flwr_fbo._common.fields import check_fields, choice, integer
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_choice
from flwr_fbo.bandits.linear.confidence import Belief, Confidence
from flwr_fbo.bandits.linear.exploration import exploration_rng
from flwr_fbo.bandits.linear.own_data import OwnBelief
from flwr_fbo.bandits.linear.peer_graph import PeerGraph
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.lab.tasks.linear_bandit import IntArray, LinearBandits, LinearBanditTask
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.factorisation import Tree
from flwr_fbo.privacy.noise import SeededEntropy


class AgentGroup:
    """Belief of some agents by one estimator, of the same confidence.

    Parameters
    ----------
    confidence : Confidence
        Settings and confidence set that the agents share.
    members : (ndarray of int, ndarray of int), optional
        Their slots, shape (A,), and whose sums each of them adds up, shape (A, P).
        Unless given all agents, who add up all sums, and so believe the same.
    """

    def __init__(
        self,
        confidence: Confidence,
        members: tuple[IntArray, IntArray] | None = None,
    ) -> None:
        self._confidence = confidence
        self._pools = None if members is None else members[1]
        self.agents: IntArray | slice = slice(None) if members is None else members[0]

    @property
    def belief(self) -> Belief:
        """Model that they choose by."""
        if self._own is not None:
            return self._own.belief
        return self._confidence.choosing(self._ellipsoid)

    def observe(
        self, actions: FloatArray, rewards: FloatArray, products: FloatArray
    ) -> None:
        """Add what each has seen itself, out of all agents' trials, and its products.

        Rewards are less the middle of their range.
        """
        if self._own is not None:
            self._own.observe_sum(products[self.agents], 1)
            return
        self._ellipsoid.observe(actions[self.agents], rewards[self.agents])

    def believe(
        self,
        sums: FloatArray,
        num_synchronisations: int = 0,
        clean: FloatArray | None = None,
        counts: IntArray | None = None,
    ) -> None:
        """Believe the sums of each pool, out of all agents', (M, d + 1, d + 1).

        ``clean``, of the same shape, is what the sums were made of, and ``counts``,
        shape (M,), of how many trials; the sums themselves, and none, unless given.
        """
        self._confidence = confidence = self._confidence.after(num_synchronisations)
        clean = sums if clean is None else clean
        local = confidence.settings.local_data
        self._own: OwnBelief | None = None
        if local == "own":
            counts = np.zeros(len(sums), dtype=int) if counts is None else counts
            self._own = OwnBelief(
                confidence,
                self._others(sums) if num_synchronisations else None,
                confidence.num_agents - 1,
                clean[self.agents],
                counts[self.agents],
                num_synchronisations,
            )
            return
        if self._pools is None:
            self._ellipsoid = confidence.ellipsoid(sums.sum(axis=0))
            if local == "raw":
                self._ellipsoid = self._ellipsoid.repeated(confidence.num_agents)
        else:
            self._ellipsoid = confidence.ellipsoid(sums[self._pools].sum(axis=1))

    def _others(self, sums: FloatArray) -> FloatArray:
        """Return the sum of each one's pool, without its own, (A, d + 1, d + 1)."""
        pools = sums.sum(axis=0) if self._pools is None else sums[self._pools].sum(1)
        return np.asarray(pools - sums[self.agents])


Baseline = Literal["non-private", "independent", "full"]
Control = Literal["noise-only", "random"]


@dataclass(frozen=True)
class BanditRun:
    """Record of one run.

    Attributes
    ----------
    actions : ndarray of int, shape (T, M)
        The index of the action that each agent played in each trial, in as few bytes
        as K needs.
    regret : ndarray of shape (T,)
        Regret of each trial, added over the agents: how much lower the mean rewards of
        what they played are than the best.
    synchronised : list of int
        Numbers of trials after which there was a synchronisation.
    running_sums : ndarray of shape (M, d + 1, d + 1)
        Each agent's, of all its trials.
    total : ndarray of shape ``ContinualSettings.sum_shape``
        The sum of the last synchronisation's releases; zero without one. In a graph
        agents believe only their pools' parts of it.
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
        Settings of all agents.
    num_agents : int
        M >= 1.
    task : LinearBanditTask
        Bandits of the dimension that the settings have.
    num_trials : int
        T >= 1, of each agent.
    schedule : sequence of int
        Numbers of trials after which there is a synchronisation: increasing, from 1 to
        T, no more than ``settings.releases`` has planned. With none, agents never learn
        of each other.
    graph : PeerGraph, optional
        Along which agents talk, in place of a centre. The settings have as many streams
        as an agent has estimators, see `among_peers`.
    control : {"noise-only", "random"}, optional
        Control that shows whether a method is better for what its agents learned.
        ``"noise-only"``: every running sum is zero where it is released, under the same
        noise. ``"random"``: actions are uniform, and nobody synchronises.
    """

    settings: LinearUCBSettings
    num_agents: int
    task: LinearBanditTask
    num_trials: int = field(metadata=integer(1))
    schedule: Sequence[int]
    control: Control | None = field(
        default=None, metadata=choice(Control, optional=True)
    )
    graph: PeerGraph | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        # Which names what does not go together.
        LinearBanditStudy(self.settings, self.num_agents, graph=self.graph)
        d, of_task = self.settings.releases.dimension, self.task.dimension
        require(of_task == d, "task.dimension", of_task, f"{d}, as in the settings")
        self._check_schedule()

    def _check_schedule(self) -> None:
        times = schedule = self.schedule
        if isinstance(schedule, range):  # its ends say all; it may be of millions
            times = schedule[:: max(1, len(schedule) - 1)]
        edges = [0, *times, self.num_trials + 1]
        is_valid = all(isinstance(t, int) for t in edges)
        is_valid = is_valid and all(a < b for a, b in pairwise(edges))
        expected = f"increasing integers from 1 to {self.num_trials}"
        require(is_valid, "schedule", schedule, expected)
        gap = 1 if self.graph is None else self.graph.hops
        is_valid = all(b - a >= gap for a, b in pairwise(times))
        require(
            is_valid, "schedule", schedule, f"{gap} trials, the hops, or more apart"
        )
        count, planned = len(schedule), self.settings.releases.max_releases
        expected = f"at most {planned} synchronisations, the releases planned"
        require(count <= planned, "len(schedule)", count, expected)

    def among_peers(self, graph: PeerGraph) -> BanditSimulation:
        """Return the simulation without a centre, of the graph's agents."""
        releases = replace(self.settings.releases, num_streams=graph.streams)
        settings = replace(self.settings, releases=releases)
        agents = graph.num_agents
        return replace(self, settings=settings, num_agents=agents, graph=graph)

    def baseline(self, name: Baseline) -> BanditSimulation:
        """Return the same simulation without noise, as one of the baselines.

        ``"non-private"``: the same schedule, and graph, acting on the same local data.
        ``"independent"``: linear UCB without communication; of the exact width in
        place of a published one, which counts the ridges of all agents. ``"full"``: one
        linear UCB that all agents share, synchronised after every trial.
        """
        require_choice("name", name, Baseline)
        graph, schedule = None, self.schedule
        window = None
        local, width = self.settings.local_data, self.settings.width
        if local == "own" and name != "non-private":
            width = self.settings.fixed_width  # LinUCB with the same alpha
        if name == "non-private":
            graph, window = self.graph, self.settings.releases.sliding_window
        elif name == "full":
            schedule, local = range(1, self.num_trials + 1), "released"  # all there is
        else:
            schedule, local = (), "raw"
            width = "exact" if width in ("paper", "authors") else width
        releases = replace(
            self.settings.releases,
            epsilon=math.inf,
            # Without noise it costs nothing to plan one a trial, of most in a tree.
            mechanism="tree" if window is None else "toeplitz",
            sliding_window=window,
            num_releases=min(self.num_trials, Tree.max_releases),
            calibration="exact",
            num_streams=1 if graph is None else graph.streams,
        )
        settings = replace(
            self.settings, releases=releases, local_data=local, width=width
        )
        return replace(self, settings=settings, schedule=schedule, graph=graph)

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
        Simulations of one task, number of trials and number of agents.
    seed : int
        Seed of the bandits.
    noise_seed : int
        Seed of the releases' noise: agent i's are those of a `ContinualRelease` with
        ``SeededEntropy(noise_seed, i)``.

    Returns
    -------
    list of BanditRun
        One per simulation.

    Raises
    ------
    ValueError
        If they are not of one task, number of trials and number of agents.
    """
    require(len(simulations) > 0, "simulations", simulations, "at least one")
    first, *others = [(s.task, s.num_trials, s.num_agents) for s in simulations]
    for other in others:
        expected = f"of one task, number of trials and number of agents: {first}"
        require(other == first, "simulations", other, expected)
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
        self._graph = graph = simulation.graph
        self._lag = 0 if graph is None else graph.hops
        self._noise_seed = noise_seed
        self._rng = generator(noise_seed, Purpose.SEARCH)
        m, shape = simulation.num_agents, settings.releases.sum_shape
        self._releases = [
            ContinualRelease(settings.releases, SeededEntropy(noise_seed, agent))
            for agent in range(m)
        ]
        index = np.min_scalar_type(simulation.task.num_actions - 1)
        self._actions = np.empty((simulation.num_trials, m), dtype=index)
        self._regret = np.empty(simulation.num_trials)
        self._synchronised: list[int] = []
        # By stream: (E, M, d + 1, d + 1).
        streams = settings.releases.num_streams
        self._running_sums = np.zeros((streams, m, *shape[-2:]))
        # As they were when agents released last, no more than a sliding window has.
        forget = settings.releases.sliding_window
        self._counts = np.zeros(streams, dtype=np.intp)  # of each agent's trials
        self._earlier = deque(
            [(self._running_sums.copy(), self._counts.copy())], maxlen=forget
        )
        self._total = np.zeros(shape)
        self._beliefs = [self._groups() for _ in range(streams)]
        # After how many trials what was released arrives, if it has not; what it was
        # made of, and of how many trials; and the trials since it was released.
        self._under_way: tuple[int, FloatArray, FloatArray, IntArray] | None = None
        self._since: list[tuple[int, FloatArray, FloatArray, FloatArray]] = []

    def _groups(self) -> list[AgentGroup]:
        """Return what agents believe by one estimator, those with like pools together.

        At a centre all agents are one group.
        """
        if self._graph is None:
            groups = [AgentGroup(Confidence.of(self._settings, len(self._releases)))]
        else:
            groups = self._pooled(self._graph)
        for group in groups:
            group.believe(np.zeros(self._running_sums.shape[1:]))
        return groups

    def _pooled(self, graph: PeerGraph) -> list[AgentGroup]:
        members: dict[Confidence, list[int]] = {}
        for slot in range(graph.num_agents):
            confidence = graph.confidence_of(slot, self._settings)
            members.setdefault(confidence, []).append(slot)
        return [
            AgentGroup(
                confidence, (np.array(slots), np.array([graph.pools[i] for i in slots]))
            )
            for confidence, slots in members.items()
        ]

    @property
    def run(self) -> BanditRun:
        """Record of the run."""
        return BanditRun(
            self._actions,
            self._regret,
            self._synchronised,
            self._running_sums.sum(axis=0),
            self._total,
        )

    def play(self, bandits: LinearBandits, t: int) -> None:
        """Play trial t, and then believe and synchronise, if it is time."""
        contexts = bandits.peek(t)
        groups = self._beliefs[t % len(self._beliefs)]
        chosen = self._choose(groups, contexts, t)
        played = contexts[np.arange(len(chosen)), chosen]
        self._tell(t, played, bandits.rewards(t, chosen))
        self._believe(t + 1)
        if t + 1 in self._schedule[len(self._synchronised) :][:1]:
            self._synchronise(t + 1)
            self._believe(t + 1)  # at once, where nothing is on its way
        self._actions[t], self._regret[t] = chosen, bandits.regrets(t, chosen).sum()

    def _choose(
        self, groups: list[AgentGroup], contexts: FloatArray, t: int
    ) -> IntArray:
        """Return the index that each agent plays, shape (M,), of (M, K, d) actions."""
        if self._control == "random":
            return self._rng.integers(contexts.shape[1], size=len(contexts))
        chosen = np.empty(len(contexts), dtype=np.intp)
        for group in groups:
            rngs = partial(self._rngs, group, t)
            offered = contexts[group.agents]
            chosen[group.agents], _ = group.belief.choose(offered, rngs)
        return chosen

    def _rngs(self, group: AgentGroup, t: int) -> list[np.random.Generator]:
        """Return what the group's agents explore with in trial t, as their own do."""
        slots = np.arange(len(self._releases))[group.agents]
        return [exploration_rng(self._noise_seed, int(slot), t) for slot in slots]

    def _tell(self, t: int, actions: FloatArray, rewards: FloatArray) -> None:
        """Record trial t of each agent: shapes (M, d) and (M,)."""
        stream = t % len(self._beliefs)
        products = self._settings.releases.outer_products(actions, rewards)
        self._running_sums[stream] += products
        self._counts[stream] += 1
        if self._settings.local_data != "released":
            seen = actions, self._settings.releases.centred(rewards), products
            for group in self._beliefs[stream]:
                group.observe(*seen)
            if self._under_way is not None:
                self._since.append((stream, *seen))

    def _synchronise(self, t: int) -> None:
        """Release after t trials what is believed once it has arrived."""
        k = len(self._synchronised) + 1
        clean, counts = self._windowed()
        released = self._released(k, clean)
        self._under_way = t + self._lag, released, clean, counts
        self._since = []
        self._synchronised.append(t)

    def _windowed(self) -> tuple[FloatArray, IntArray]:
        """Return a copy of the sums that are released, by stream, and their trials."""
        sums, counts = self._running_sums.copy(), self._counts.copy()
        if self._settings.releases.sliding_window is not None:
            earlier, before = self._earlier[0]
            self._earlier.append((sums.copy(), counts.copy()))
            return sums - earlier, counts - before
        return sums, counts

    def _released(self, k: int, sums: FloatArray) -> FloatArray:
        """Return the agents' releases k by stream, shape (E, M, d + 1, d + 1)."""
        if self._control == "noise-only":
            sums = np.zeros_like(sums)
        if self._settings.releases.noise_std == 0:
            return sums  # as released without noise, and not kept
        shape = self._settings.releases.sum_shape
        pairs = zip(self._releases, np.swapaxes(sums, 0, 1), strict=True)
        released = [
            mechanism.release(k, total.reshape(shape)) for mechanism, total in pairs
        ]
        by_agent = np.reshape(released, (len(released), *sums.shape[:1], *shape[-2:]))
        return np.swapaxes(by_agent, 0, 1)

    def _believe(self, t: int) -> None:
        """Believe what has arrived after t trials."""
        if self._under_way is None or self._under_way[0] > t:
            return
        (_, released, clean, counts), self._under_way = self._under_way, None
        self._total = released.sum(axis=1).reshape(self._total.shape)
        parts = zip(self._beliefs, released, clean, counts, strict=True)
        for groups, sums, own_sums, count in parts:
            trials = np.full(len(sums), count)
            for group in groups:
                group.believe(sums, len(self._synchronised), own_sums, trials)
        for stream, *seen in self._since:
            for group in self._beliefs[stream]:
                group.observe(*seen)
