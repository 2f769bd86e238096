"""Plain Optuna code asks a federated agent: a sampler around one `Agent`.

The history is the Optuna study's own. So a study on any Optuna storage can be stopped
and continued, and one that `export` wrote goes on where the federation stopped.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require_choice, require_seed
from flwr_fbo.journal.journal import Journal
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning.fed_warm_start.agent import FedWarmStartAgent, lone_agent
from flwr_fbo.tuning.fed_warm_start.knowledge import Knowledge, known_from
from flwr_fbo.tuning.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agent_journal import recorded_agent
from flwr_fbo.tuning.search.optuna_trials import ITERATION, POINT
from flwr_fbo.tuning.search.portfolios import Listed, listed_settings
from flwr_fbo.tuning.search.settings import Direction

# Where a trial was and when, for trials that use only some of the parameters.

# A trial that meets another process's is moved so many times at most.
_MOST_DRAWS = 100

# One trial of a process is placed after another, so that each knows of those before.
_ASKING = threading.Lock()

_log = logging.getLogger("flwr.fbo")


class FederatedSampler(BaseSampler):
    """Suggests what a federated agent would evaluate next.

    Examples
    --------
    >>> import optuna
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedWarmStart, InProcessGrid, tuning_app
    >>> from flwr_fbo.integrations import FederatedSampler
    >>> def objective(trial):
    ...     return -abs(trial.suggest_float("x", 0, 1) - 0.3)
    >>> strategy = FedWarmStart(
    ...     {"x": FloatDistribution(0, 1)}, "maximize", num_agents=8,
    ...     epsilon=8, delta=1e-3,
    ... )
    >>> grid = InProcessGrid(tuning_app(lambda context: objective), num_nodes=8)
    >>> result = strategy.start(grid, num_rounds=12)
    >>> sampler = FederatedSampler.from_knowledge(strategy.knowledge)
    >>> study = optuna.create_study(direction="maximize", sampler=sampler)
    >>> study.optimize(objective, n_trials=3)  # starts from what the sites released
    >>> len(study.trials)
    3

    Parameters
    ----------
    agent : Agent
        Its space and direction must be the Optuna study's. What it knows of the
        federation it keeps; its history is replaced by that of the Optuna study. Give
        it what the server releases by ``sampler.agent.receive(vectors, made_after)``,
        while no thread asks for a trial.

    Raises
    ------
    ValueError
        From ``study.optimize`` or ``study.ask``, if the Optuna study has another
        direction, or more than one.

    Notes
    -----
    Trial number k takes the agent's k-th initial point while there are any, and is
    iteration k - ``num_initial`` + 1 after that: on the same history it is given the
    same setting as the agent's client, by a sampler that has been there from the first
    trial on (one that is made later fits its model anew, at other trials). Where an
    initial point has failed it is not: the client leaves out initial points near it.
    Trials that the user enqueued or added take the place of initial points. Failed and
    pruned trials count as failed, and so do those that still run (``n_jobs``, or
    several processes on one storage), so that none goes where another one is: if two
    processes choose the same setting at the same moment, one or both draw another. A
    parameter that the agent's space lacks is sampled at random.
    """

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._independent = RandomSampler(seed=agent.entropy % 2**32)
        self._ignored: frozenset[int] = frozenset()
        # Of trials that have ended, so that a long history is read once.
        self._points: dict[tuple[int, datetime | None], FloatArray] = {}

    @classmethod
    def from_journal(cls, path: str | Path) -> FederatedSampler:
        """Return a sampler around the agent that a client's journal holds.

        The journal's trials are not in an Optuna study until `export_journal` puts
        them there.

        Raises
        ------
        JournalError
            If the journal cannot be read, or a client is using it.
        """
        with Journal(None, Path(path)) as journal:
            return cls(recorded_agent(journal))

    @classmethod
    def from_knowledge(
        cls,
        known: Knowledge | str | Path,
        space: Mapping[str, BaseDistribution] | None = None,
        seed: int | None = None,
        portfolio: Listed = (),
    ) -> FederatedSampler:
        """Return a sampler of one site alone, which starts from what others released.

        That costs nobody any epsilon.

        Parameters
        ----------
        known : Knowledge, str or Path
            Releases of `FedWarmStart`, or their file.
        space : mapping of str to Optuna distribution, optional
            Optuna distribution of each parameter, by name; that of ``known`` unless
            given.
        seed : int, optional
            Seed of its draws; from the operating system unless given.
        portfolio : sequence of dict, str, Path or StudyPortfolio
            See `from_space`; these settings come before what was released.

        Raises
        ------
        ValueError
            If the file cannot be used, or says nothing of the space.
        OSError
            If the file cannot be read.
        """
        known = known_from(known)
        of_study = known.space if space is None else SearchSpace(space)
        entropy = secrets.randbits(128) if seed is None else seed
        agent = lone_agent(known.onto(of_study, known.direction), entropy)
        agent.list_first(listed_settings(portfolio, of_study.distributions))
        return cls(agent)

    @classmethod
    def from_space(
        cls,
        space: Mapping[str, BaseDistribution],
        direction: Direction,
        portfolio: Listed = "auto",
        seed: int | None = None,
    ) -> FederatedSampler:
        """Return a sampler of one site alone, which starts from a public list.

        Parameters
        ----------
        space : mapping of str to Optuna distribution
            Optuna distribution of each parameter, by name.
        direction : {"maximize", "minimize"}
            Direction of the objective.
        portfolio : sequence of dict, str, Path or StudyPortfolio
            Settings that are evaluated first: a list of settings; a learner of
            `Portfolio.known`; ``"auto"``, the learner that the names in ``space``
            decide; or a list of earlier studies or its file, see `StudyPortfolio`.
        seed : int, optional
            Seed of its draws; from the operating system unless given.

        Raises
        ------
        ValueError
            If an argument is not allowed.
        """
        require_choice("direction", direction, Direction)
        of_study = SearchSpace(space)
        entropy = secrets.randbits(128) if seed is None else seed
        require_seed("seed", entropy)
        settings = FedWarmStartSettings()
        agent = FedWarmStartAgent(of_study, direction, settings, 0, entropy, entropy)
        agent.list_first(listed_settings(portfolio, of_study.distributions))
        return cls(agent)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the agent's space, whatever has been sampled so far."""
        return dict(self.agent.space.distributions)

    def sample_relative(
        self,
        study: Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Return the agent's next setting, as far as ``search_space`` asks for it."""
        self._check(study)
        with _ASKING:
            # Another thread may be reading the agent.
            agent = copy(self.agent)
            if trial.number == 0 and agent.values:
                _log.warning(
                    "The Optuna study is empty: the agent's %d trials are not used. "
                    "Export its journal into the study first.",
                    len(agent.values),
                )
            iteration, told = self._tell(agent, study, trial)
            if trial.number < agent.num_first:
                point = agent.first_points()[trial.number]
            else:
                iteration = max(iteration, trial.number - agent.num_first) + 1
                point = agent.suggest(iteration)
            self.agent = agent
            put, trial_id = study._storage.set_trial_system_attr, trial._trial_id
            put(trial_id, ITERATION, iteration)
            # Other processes may ask at the same moment, and know as little of this
            # trial as it knows of theirs. Each puts its point on record before it
            # looks, so of two that chose the same at least one sees that, and draws
            # another.
            told.add(trial.number)
            for attempt in range(_MOST_DRAWS):
                put(trial_id, POINT, point.tolist())
                others = [
                    np.array(other.system_attrs[POINT])
                    for other in study.get_trials(deepcopy=False)
                    if other.number not in told and POINT in other.system_attrs
                ]
                if not any(np.array_equal(point, other) for other in others):
                    break
                taken = np.array([*agent.points, *others])
                keys = trial.number, attempt, Purpose.REPEATED_QUERY
                rng = generator(agent.entropy, agent.slot, *keys)
                point = agent.space.new_point(rng, taken)
        params = agent.space.from_unit(point)
        return {name: params[name] for name in search_space if name in params}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a uniform draw, for a parameter that the agent does not know."""
        self._check(study)
        return self._independent.sample_independent(
            study, trial, param_name, param_distribution
        )

    def reseed_rng(self) -> None:
        """Reseed what is sampled at random; the agent's draws are keyed by trial."""
        self._independent.reseed_rng()

    def _check(self, study: Study) -> None:
        directions = [direction.name.lower() for direction in study.directions]
        if directions != [self.agent.direction]:
            raise ValueError(
                f"The Optuna study's directions={directions} are not allowed: the "
                f"federated agent's is {self.agent.direction!r}."
            )

    def _tell(
        self, agent: Agent, study: Study, trial: FrozenTrial
    ) -> tuple[int, set[int]]:
        """Replace the agent's history; return its last iteration, and its trials."""
        agent.iterations, agent.points, agent.values = [], agent.points[:0], []
        iterations, points, values, told = [], [], [], set()
        num_first = agent.num_first
        for old in study.get_trials(deepcopy=False):
            if old.number == trial.number or old.state == TrialState.WAITING:
                continue
            if old.state == TrialState.RUNNING and POINT not in old.system_attrs:
                continue  # it has not been told yet where to be
            point = self._point(agent, old)
            if point is None:
                continue
            iteration = old.system_attrs.get(ITERATION)
            if iteration is None:
                iteration = max(0, old.number - num_first + 1)
            value = old.value if old.state == TrialState.COMPLETE else None
            iterations.append(iteration)
            points.append(point)
            values.append(math.nan if value is None else value)
            told.add(old.number)
        agent.tell_all(iterations, points, values)
        return max(iterations, default=0), told

    def _point(self, agent: Agent, old: FrozenTrial) -> FloatArray | None:
        """Return where a trial was, or None where the agent cannot use it."""
        key = old._trial_id, old.datetime_start
        if key in self._points:
            return self._points[key]
        names = agent.space.distributions
        used = {name: value for name, value in old.params.items() if name in names}
        known: Mapping[str, Any] = {}
        try:
            if POINT in old.system_attrs:
                known = agent.space.from_unit(np.array(old.system_attrs[POINT]))
            point = agent.space.to_unit({**known, **used})
        except ValueError as error:
            if old.number not in self._ignored:
                self._ignored |= {old.number}
                _log.warning("trial %d is not used: %s", old.number, error)
            return None
        if old.state.is_finished():  # it stays where it was
            self._points[key] = point
        return point
