"""Base class of the agents: trial history plus ask, tell, message and receive."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import plain
from flwr_fbo._common.errors import AppFailedError, OutOfTimeError, log_fault
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import TrialSource
from flwr_fbo.models.failures import Trials, winsorised, with_failures
from flwr_fbo.space.search_space import Params, SearchSpace, SubRegions
from flwr_fbo.study.codec import StudyMismatchError
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.trial import Objective, Trial

_log = logging.getLogger("flwr.fbo")

# The square of a larger value would overflow in the model.
_LARGEST_VALUE = 1e100
# Errors that end an evaluation without a trial: a fault of the app, not of a setting.
_NOT_A_TRIAL = (StudyMismatchError, AppFailedError, OutOfTimeError)
# Evaluations that were cut off this many times count as failed: the trial itself may be
# what ends the client.
_MAX_CUTS = 5
# Where all first points failed, this many more are tried at once. Each is the best of
# this many uniform draws: one that is not near a failure, or the farthest from all.
_MORE_STARTS, _NUM_DRAWS = 5, 8
# After this many failures without a success the agent leaves its initial box.
_MOST_IN_BOX = 3


class Agent(ABC):
    """An agent that explores its sub-region first, then asks for one point a round.

    Parameters
    ----------
    space : SearchSpace
        Search space of the study.
    direction : {"maximize", "minimize"}
        Direction of the objective.
    sub_regions : SubRegions
        The agent's initial points lie in box ``slot mod P``.
    num_initial : int
        Initial points, >= 1.
    slot : int
        Number of this agent among the study's N, from 0.
    entropy : int
        Seed of all its draws, below 2**128.

    Attributes
    ----------
    iterations : list of int
        The iteration of each trial, in the order of evaluation.
    points : ndarray of shape (t, D)
        Points of the trials on the unit cube, failed ones too.
    values : list of float
        Values of the objective; NaN for a failed trial.
    sources : list of {"enqueued", "start", "own search", "federation"}
        Origins of the points that `ask` returned last.
    """

    def __init__(
        self,
        space: SearchSpace,
        direction: Direction,
        sub_regions: SubRegions,
        num_initial: int,
        slot: int,
        entropy: int,
    ) -> None:
        self.space = space
        self.direction = direction
        self.slot = slot
        self.iterations: list[int] = []
        self.points: FloatArray = np.empty((0, space.dim))
        self.values: list[float] = []
        self.sources: list[TrialSource] = []
        self._sub_regions = sub_regions
        self._num_initial = num_initial
        self._enqueued = self._listed = np.empty((0, space.dim))
        self.entropy = entropy

    def enqueue(self, settings: Sequence[Params]) -> None:
        """Have known-good settings evaluated first, before the initial points.

        Raises
        ------
        ValueError
            If a setting does not fit the space.
        """
        points = [*map(self.space.to_unit, settings)]
        self._enqueued = np.reshape(points, (-1, self.space.dim))

    def list_first(self, portfolio: Sequence[Params]) -> None:
        """Have a study's listed settings evaluated after the site's enqueued ones.

        The agent's journal does not keep them: whoever makes the agent lists them.

        Raises
        ------
        ValueError
            If a setting does not fit the space.
        """
        points = [*map(self.space.to_unit, portfolio)]
        self._listed = np.reshape(points, (-1, self.space.dim))

    @property
    def _given(self) -> FloatArray:
        """The enqueued and then the listed settings, shape (k, D), each once."""
        points = np.vstack([self._enqueued, self._listed])
        _, first = np.unique(points, axis=0, return_index=True)
        kept = np.isin(np.arange(len(points)), first)
        kept[: len(self._enqueued)] = True
        return np.asarray(points[kept])

    @abstractmethod
    def receive(self, vectors: FloatArray, made_after: int = 0) -> None:
        """Take what the server released, shape (P, M).

        Parameters
        ----------
        vectors : ndarray of shape (P, M)
            One released vector per sub-region.
        made_after : int
            Iteration whose messages were released; agents that vote read late votes
            otherwise.
        """

    def ask(self, iteration: int) -> FloatArray:
        """Return the points still to be evaluated in ``iteration``, shape (k, D).

        Enqueued, listed and initial points come first, in whatever iteration the agent
        joins; where they all failed, one more at a time until one has not, or five
        have.
        Points already told are not asked for again, so an iteration that was
        interrupted goes on where it stopped. After a failure other initial points may
        be asked for than before it.
        """
        done = len(self.values)
        if done < self.num_first:
            self.sources = self.first_sources()[done:]
            points = self.first_points()[done:]
            near = self._tried.near_failures(points)
            for k in range(max(len(self._given) - done, 0), len(points)):
                if near[k]:
                    points[k] = self._away_from_failures(iteration, done + k)
            return points
        if self.best_value is None and done < self.num_first + _MORE_STARTS:
            self.sources = ["start"]
            return self._away_from_failures(iteration, done)[None, :]
        if iteration in self.iterations:
            self.sources = []
            return np.empty((0, self.space.dim))
        self.sources = ["own search"]  # `suggest` may find out that it is not
        return self.suggest(iteration)[None, :]

    @property
    def num_first(self) -> int:
        """Evaluations before the first query."""
        return len(self._given) + self._num_initial

    def first_points(self) -> FloatArray:
        """Return where they are, shape (num_first, D).

        Enqueued ones come first, then listed ones, then initial ones.
        """
        lower, upper = self._initial_box()
        rng = generator(self.entropy, self.slot, 0, Purpose.INITIAL_POINTS)
        initial = rng.uniform(lower, upper, (self._num_initial, self.space.dim))
        points = np.vstack([self._given, [self.space.snap(x) for x in initial]])
        return self.space.each_once(points, len(self._given), rng)

    def _initial_box(self) -> tuple[FloatArray, FloatArray]:
        """Return the corners of the box of the initial points, each of shape (D,)."""
        box = self.slot % len(self._sub_regions)
        return self._sub_regions.lower[box], self._sub_regions.upper[box]

    def first_sources(self) -> list[TrialSource]:
        """Return where the first points come from."""
        num_enqueued = len(self._enqueued)
        sources: list[TrialSource] = ["enqueued"] * num_enqueued
        sources += ["start"] * (self.num_first - num_enqueued)
        return sources

    @abstractmethod
    def suggest(self, iteration: int) -> FloatArray:
        """Return where to evaluate next, shape (D,), for iteration >= 1."""

    def tell(self, iteration: int, x: FloatArray, value: float) -> None:
        """Record a trial; NaN, or a value beyond 1e100 in size, is a failed one."""
        self.tell_all([iteration], [x], [value])

    def tell_all(
        self,
        iterations: Sequence[int],
        points: Sequence[FloatArray],
        values: Sequence[float],
    ) -> None:
        """Record trials as `tell` does each, in time that does not grow with others."""
        self.iterations.extend(iterations)
        together = np.array([*self.points, *points], dtype=np.float64)
        self.points = together.reshape(-1, self.space.dim)
        self.values.extend(v if abs(v) <= _LARGEST_VALUE else math.nan for v in values)

    @abstractmethod
    def message(self, iteration: int) -> FloatArray:
        """Return what the agent sends after ``iteration``, shape (M,).

        A function of the trials up to ``iteration`` and of ``entropy`` alone: a message
        that is asked for again is made again, whatever has happened since.
        """

    @property
    def best_value(self) -> float | None:
        """The best value so far, or None while every trial failed."""
        values = [v for v in self.values if not math.isnan(v)]
        if not values:
            return None
        return max(values) if self.direction == "maximize" else min(values)

    @property
    def best_setting(self) -> Params | None:
        """The setting with the best value so far, or None while every trial failed."""
        best = self.best_value
        if best is None:
            return None
        return self.space.from_unit(self.points[self.values.index(best)])

    @property
    def best_so_far(self) -> FloatArray:
        """The best value after each evaluation, shape (t,), in their order.

        NaN where every trial so far failed.
        """
        better = np.fmax if self.direction == "maximize" else np.fmin
        return np.asarray(better.accumulate(np.array(self.values, dtype=np.float64)))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agent's memory, as arrays."""
        return {
            "points": self.points,
            "values": np.array(self.values),
            "iterations": np.array(self.iterations, dtype=np.int64),
            "enqueued": self._enqueued,
            "entropy": np.frombuffer(self.entropy.to_bytes(16), dtype=np.uint8),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._enqueued = state["enqueued"]
        self.entropy = int.from_bytes(state["entropy"].tobytes())
        self.points = state["points"]
        self.values = [float(v) for v in state["values"]]
        self.iterations = [int(t) for t in state["iterations"]]

    def _observations(self, iteration: int) -> tuple[FloatArray, FloatArray]:
        """Return the successful trials up to ``iteration``, larger is better.

        Later ones are left out, so that what was sent once can be sent again. Values
        that are out of all bounds are `winsorised`.

        Returns
        -------
        tuple of ndarray of shape (t, D) and ndarray of shape (t,)
            Points on the unit cube, and their values.
        """
        x, y = self._history(iteration)
        has_value = ~np.isnan(y)
        return x[has_value], winsorised(y[has_value])

    def _all_trials(self, iteration: int) -> Trials:
        """Return `_observations` and, as bad ones, the failed trials up to then.

        For the site's own search: nothing about failures leaves the site.
        """
        return with_failures(*self._history(iteration))

    def _history(self, iteration: int) -> tuple[FloatArray, FloatArray]:
        """Return points and values, larger is better, NaN where a trial failed."""
        sign = 1.0 if self.direction == "maximize" else -1.0
        known = np.array(self.iterations, dtype=np.int64) <= iteration
        return self.points[known], sign * np.array(self.values, dtype=np.float64)[known]

    @property
    def _tried(self) -> Trials:
        """All trials so far, also where every one of them has failed."""
        failed = np.isnan(self.values)
        if failed.all():
            return Trials(self.points, np.array(self.values), failed)
        return self._all_trials(max(self.iterations))

    def _away_from_failures(self, iteration: int, number: int) -> FloatArray:
        """Return where to be after failures, shape (D,), for a trial of that number.

        Of some uniform draws the first that is nearest to a trial that did not fail;
        else the one that is farthest from all that did. In the box of the initial
        points, until nothing but failures has been found there.
        """
        rng = generator(self.entropy, self.slot, iteration, number, Purpose.SEARCH)
        lower, upper = self._initial_box()
        if self.best_value is None and len(self.values) >= _MOST_IN_BOX:
            lower, upper = np.zeros(self.space.dim), np.ones(self.space.dim)
        draws = rng.uniform(lower, upper, (_NUM_DRAWS, self.space.dim))
        points = np.array([self.space.snap(x) for x in draws])
        tried = self._tried
        near = tried.near_failures(points)
        if not near.all():
            return np.asarray(points[np.argmin(near)])
        away = points[:, None, :] - tried.x[tried.failed]
        return np.asarray(points[np.argmax(np.sum(away**2, axis=-1).min(axis=1))])


def evaluate(objective: Objective, trial: Trial, who: str) -> float:
    """Return the objective's value, or NaN where it raises.

    Raises
    ------
    StudyMismatchError
        If the objective asks for another space: a fault of the app, not of a trial.
    AppFailedError
        If it returns something else than a number, such as a tuple: likewise.
    OutOfTimeError
        If no more trials may begin.
    """
    try:
        returned = objective(trial)
    except _NOT_A_TRIAL:
        raise
    except (Exception, SystemExit) as error:  # any fault of it is a failed trial
        log_fault(error, f"{who}: trial {dict(trial)} failed", logging.WARNING)
        return math.nan
    value = _number(returned)
    if not abs(value) <= _LARGEST_VALUE:
        _log.warning("%s: trial %s failed: returned %s", who, dict(trial), value)
    return value


def _number(returned: Any) -> float:
    try:
        if not isinstance(returned, str | bytes):
            return float(plain(returned))
    except OverflowError:  # an integer that no float holds
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # the last one is PyTorch's
        pass
    raise AppFailedError.told(
        f"The objective returned a {type(returned).__name__}, not a number."
    )


def play_round(
    agent: Agent,
    objective: Objective,
    iteration: int,
    vectors: FloatArray | None,
    send_message: bool,
    *,
    journal: Journal | None = None,
    made_after: int = 0,
) -> FloatArray | None:
    """Play an agent's part of one round, with or without Flower around it.

    The ``vectors`` are of messages that were ``made_after`` an iteration. Each
    evaluation is recorded in the ``journal``, if there is one, as it starts and as it
    ends. A query of an earlier round that was cut off is run again first.

    Returns
    -------
    ndarray of shape (M,), or None where no message is wanted
        Message of the agent.
    """
    if journal is not None:
        _finish_cut_off(agent, objective, iteration, journal)
    if vectors is not None:
        agent.receive(vectors, made_after)
    points = agent.ask(iteration)
    if journal is not None and len(points) == 0:
        journal.put(agent.state_dict())
    while len(points) > 0:  # more than once where initial points fail
        # With what asking taught it: asked again, it must give the same points. The
        # trials that follow are recorded one by one, and nothing else changes.
        state = {} if journal is None else agent.state_dict()
        for x, source in zip(points, agent.sources, strict=True):
            _evaluate_at(
                agent, objective, iteration, x, source, journal=journal, state=state
            )
            state = {}
            if math.isnan(agent.values[-1]):
                break  # what comes next may be asked for elsewhere
        points = agent.ask(iteration)
    if np.all(np.isnan(agent.values)):
        _log.error(
            "agent %d: all of its %d trials so far failed",
            agent.slot,
            len(agent.values),
        )
    return agent.message(iteration) if send_message else None


def _finish_cut_off(
    agent: Agent, objective: Objective, iteration: int, journal: Journal
) -> None:
    """Run the query of an earlier round again, if the client died in it.

    Initial points, and the query of ``iteration`` itself, are asked for again anyway.
    """
    running = journal.trials(running=True)
    if not running:
        return
    (cut_off,) = running
    cuts = cut_off.interruptions + 1
    if cuts >= _MAX_CUTS:
        _log.warning(
            "agent %d: trial %s was cut off %d times: it counts as failed",
            agent.slot,
            cut_off.params,
            cuts,
        )
        agent.tell(cut_off.iteration, cut_off.point, math.nan)
        journal.end_trial(cut_off.number, math.nan)
    elif cut_off.number >= agent.num_first and cut_off.iteration < iteration:
        assert cut_off.source is not None
        _evaluate_at(
            agent,
            objective,
            cut_off.iteration,
            cut_off.point,
            cut_off.source,
            journal=journal,
        )


def _evaluate_at(
    agent: Agent,
    objective: Objective,
    iteration: int,
    x: FloatArray,
    source: TrialSource,
    *,
    journal: Journal | None,
    state: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """Evaluate one point, and tell the agent and its journal, with its ``state``."""
    params, number = agent.space.from_unit(x), len(agent.values)
    trial = Trial(params, agent.space.distributions, number)
    if journal is not None:
        number = journal.begin_trial(iteration, trial, x, source, state)
    try:
        value = evaluate(objective, trial, f"agent {agent.slot}")
    except _NOT_A_TRIAL:
        if journal is not None:
            journal.drop_trial(number)  # to be played once the reason is mended
        raise
    agent.tell(iteration, x, value)
    if journal is not None:
        journal.end_trial(number, agent.values[-1])
