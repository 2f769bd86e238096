"""Experiments in which new agents learn from others that have finished: FTS, RGPE, TAF.

The setting of Dai, Low & Jaillet, Federated Bayesian Optimization via Thompson Sampling
(NeurIPS 2020), sections 5.1 and 5.2. Every agent has done Thompson sampling on its own
objective, and has sent one message. Then some of them, the *targets*, begin anew, with
a few initial points, and what the others have sent. Nothing of it is private.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Literal

import numpy as np

from flwr_fbo._common import pictures as palette
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, flag, integer
from flwr_fbo._common.validation import require
from flwr_fbo.lab.baselines.random_search import LocalServer, RandomSearchSettings
from flwr_fbo.lab.baselines.transfer import (
    RGPESettings,
    TAFSettings,
    TransferSettings,
)
from flwr_fbo.lab.experiment_runner import looks
from flwr_fbo.lab.experiment_runner.base import (
    Method,
    Run,
    by_name,
    methods_of_curve,
)
from flwr_fbo.lab.experiment_runner.curves import ONE_SEED, helped
from flwr_fbo.lab.experiment_runner.estimates import Row
from flwr_fbo.lab.experiment_runner.tuning_table import (
    OptimisationExperiment,
    Seeds,
    TuningRun,
    at_the_end,
)
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings, Follow
from flwr_fbo.tuning.fts.server import FTSServer
from flwr_fbo.tuning.fts.settings import FTSSettings
from flwr_fbo.tuning.search.agent import Agent, play_round
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

_CONTROLS = ("alone", "random", "noise-only")


_COUNT = integer(1, optional=True)


@dataclass(frozen=True)
class Messages:
    """Settings of the messages that finished agents send.

    Attributes
    ----------
    num_features : int
        M.
    lengthscale, regularization : float
        l and lambda, as in the authors' code for real data: see `FTSSettings`.
    """

    num_features: int = field(default=100, metadata=integer(1))
    lengthscale: float = 0.01
    regularization: float = 1e-6

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class TransferCurve:
    """A curve of a published figure: a method, and what it sets otherwise.

    What is None is as in the experiment.

    Attributes
    ----------
    label : str
        For tables and figures.
    method : {"fts", "rgpe", "taf"}
        The first one comes with a noise-only control of its own.
    num_agents : int, optional
        N: messages are of the first so many agents alone.
    num_features : int, optional
        M.
    num_observations : int, optional
        t_n of the agents that send, their initial points included.
    follow : str, optional
        1 - p_t of ``"fts"``: see `FTSSettings`.
    concurrent : bool
        Whether the agents that send go on, and send again before each query of a
        target, which follows their newest messages (FTS, sections 3.1 and 5). Of
        ``"fts"``. False: they have finished.
    """

    label: str
    method: Literal["fts", "rgpe", "taf"]
    num_agents: int | None = field(default=None, metadata=_COUNT)
    num_features: int | None = field(default=None, metadata=_COUNT)
    num_observations: int | None = field(default=None, metadata=_COUNT)
    follow: Follow | None = None
    concurrent: bool = field(default=False, metadata=flag())

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("follow", "concurrent"):
            value = getattr(self, name)
            unused = not value or self.method == "fts"
            require(unused, name, value, f"left out, with method={self.method!r}")


_AS_IT_IS = TransferCurve("", "fts")


@dataclass(frozen=True)
class TransferMethod(Method):
    """One curve of an experiment in which targets learn from others.

    Attributes
    ----------
    settings : AgentSettings
        Settings of the targets and of those who send; those of the experiment are put
        in.
    informed : bool
        Whether targets receive messages.
    zeroed : bool
        Whether the messages are of agents that know nothing.
    curve : TransferCurve
        Curve with its own settings.
    """

    settings: SearchSettings
    informed: bool = True
    zeroed: bool = False
    curve: TransferCurve = field(default=_AS_IT_IS, kw_only=True)

    @property
    def releases(self) -> bool:
        """True if anything of the others' data is used."""
        return self.informed and not self.zeroed


_FTS = FTSSettings()
_LEARNER = partial(TransferMethod, controls=_CONTROLS)
METHODS = by_name(
    TransferMethod("alone", "TS", _FTS, informed=False, look=looks.ALONE),
    TransferMethod(
        "random", "random", RandomSearchSettings(), informed=False, look=looks.RANDOM
    ),
    _LEARNER("fts", "FTS", _FTS, noise_only="noise-only", look=looks.OURS),
    _LEARNER("rgpe", "RGPE", RGPESettings(), look=looks.OPEN),
    _LEARNER("taf", "TAF (0.5)", TAFSettings(), look=(palette.PINK, "-.", "x")),
    TransferMethod(
        "noise-only", "noise-only", _FTS, zeroed=True, look=looks.UNINFORMED
    ),
)


def methods_of(curves: dict[str, TransferCurve]) -> dict[str, TransferMethod]:
    """Return the methods that draw curves, and noise-only controls of FTS, by name."""
    methods: list[TransferMethod] = []
    for name, curve in curves.items():
        control = f"{name}-noise-only"
        methods += methods_of_curve(name, curve, METHODS, _CONTROLS, control)
    return by_name(*methods)


@dataclass(frozen=True, kw_only=True)
class TransferExperiment(OptimisationExperiment):
    """Targets that learn from agents that have finished, over paired seeds.

    Attributes
    ----------
    num_targets : int
        The first so many agents begin anew, each with the messages of all others.
    num_initial : int
        Initial points of each target, counted among its ``num_evaluations``, and of the
        agents that have finished.
    num_observations : int
        t_n of those, their initial points included.
    follow : str
        1 - p_t of FTS: see `FTSSettings`.
    refit_every : int
        Evaluations between two fits of all agents' own models: see `SearchSettings`.
    messages : Messages
        Messages of finished agents, unless a curve says otherwise.
    methods : tuple of str
        All but curves unless given. All curves are added.
    curves : dict of TransferCurve
        Methods with settings of their own, by name; those of FTS bring their noise-only
        control with them, as ``NAME-noise-only``.
    form : {"convergence", "lengths", "times", "agents"}
        The figure: best value against evaluation or against CPU time, or in the end
        against the length of a message; or CPU time against the number of agents.
    """

    compared = "target"

    num_targets: int = field(metadata=integer(1))
    num_initial: int = field(default=3, metadata=integer(1))
    num_observations: int = field(default=50, metadata=integer(1))
    follow: Follow = "inverse-square"
    refit_every: int = field(default=5, metadata=integer(1))
    messages: Messages = field(default_factory=Messages)
    privacy: None = None
    methods: tuple[str, ...] = tuple(METHODS)
    # Experiments are keys of a cache.
    curves: dict[str, TransferCurve] = field(default_factory=dict, hash=False)
    form: Literal["convergence", "lengths", "times", "agents"] = "convergence"

    def __post_init__(self) -> None:
        added = [name for name in methods_of(self.curves) if name not in self.methods]
        object.__setattr__(self, "methods", (*self.methods, *added))
        super().__post_init__()
        expected = f"at most num_agents={self.num_agents}"
        is_valid = self.num_targets <= self.num_agents
        require(is_valid, "num_targets", self.num_targets, expected)
        expected = f"at least num_initial={self.num_initial}"
        for name in ("num_observations", "num_evaluations"):
            value = getattr(self, name)
            require(value >= self.num_initial, name, value, expected)
        for curve in self.curves.values():
            value = curve.num_observations
            is_valid = value is None or value >= self.num_initial
            require(is_valid, "num_observations", value, expected)
            value = curve.num_agents
            is_valid = value is None or self.num_targets <= value <= self.num_agents
            senders = f"{self.num_targets} (all targets) to {self.num_agents}"
            require(is_valid, "num_agents", value, senders)
        self.settings_of("fts")  # which names what it does not allow
        if self.form in ("lengths", "agents"):
            self._require_places()

    def _require_places(self) -> None:
        """Raise unless each curve has a place of its own on its method's line."""
        where = f"where form is {self.form!r}"
        for base, places in self.places.items():
            expected = f"{base}, too, beside its curves, {where}"
            require(base in places, "methods", self.methods, expected)
            is_valid = len(set(places.values())) == len(places)
            expected = f"curves of other {self.form} each, {where}"
            require(is_valid, "curves", sorted(places), expected)

    @property
    def first_counted(self) -> int:
        """The index of the first evaluation after the initial points."""
        return self.num_initial

    @property
    def known_methods(self) -> Mapping[str, TransferMethod]:
        """All methods that it could have, by name."""
        return {**METHODS, **methods_of(self.curves)}

    @property
    def num_compared(self) -> int:
        """Number of agents that a run is about: the targets."""
        return self.num_targets

    def settings_of(self, method: str) -> SearchSettings:
        """Return the agents' settings, with the experiment's own."""
        chosen = self.known_methods[method]
        settings, curve = chosen.settings, chosen.curve
        if isinstance(settings, RandomSearchSettings):
            return replace(settings, num_sub_regions=1, num_initial=self.num_initial)
        assert isinstance(settings, FTSSettings | TransferSettings)
        settings = replace(
            settings,
            num_initial=self.num_initial,
            refit_every=self.refit_every,
            num_features=curve.num_features or self.messages.num_features,
            lengthscale=self.messages.lengthscale,
            regularization=self.messages.regularization,
        )
        if isinstance(settings, FTSSettings):
            follow = curve.follow or self.follow
            share_after = None if curve.concurrent else 1
            return replace(settings, follow=follow, share_after=share_after)
        return settings

    def num_sent_observations(self, method: str, query: int = 1) -> int:
        """Return t_n of the agents that send, before a target's query, from 1."""
        curve = self.known_methods[method].curve
        first = curve.num_observations or self.num_observations
        return first + query - 1 if curve.concurrent else first

    def message_length(self, method: str) -> int:
        """Return how many numbers an agent sends that has finished; 0 if none."""
        settings = self.settings_of(method)
        if isinstance(settings, RandomSearchSettings) or method == "alone":
            return 0
        return settings.message_length

    def num_senders(self, method: str) -> int:
        """Return how many agents send; 0 if none."""
        if self.message_length(method) == 0:
            return 0
        return self.known_methods[method].curve.num_agents or self.num_agents

    @property
    def places(self) -> dict[str, dict[str, int]]:
        """Places of curves on the figure's x axis, by the method each is a variant of.

        Message lengths, or numbers of agents; 0 where no messages are used.
        """
        place = self.num_senders if self.form == "agents" else self.message_length
        places: dict[str, dict[str, int]] = {}
        for name in self.methods:
            base = self.known_methods[name].base
            places.setdefault(base, {})[name] = place(name)
        return places

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = super().recipe(method)
        for name in ("curves", "follow", "num_observations", "messages"):
            del values[name]
        chosen = self.known_methods[method]
        values["method"] = chosen.base
        if self.message_length(method) > 0:
            values["agent"] = asdict(self.settings_of(method))
            values["num_observations"] = self.num_sent_observations(method)
            values["num_senders"] = self.num_senders(method)
        return values

    def play_batch(self, batch: Sequence[str], seed: int) -> list[TuningRun]:
        """Run methods, one after another."""
        return [_run(self, method, seed) for method in batch]

    def num_sent(self, method: str, runs: Sequence[Run]) -> float:
        """Return how many numbers are sent: once, and on to each target.

        Where agents are concurrent, before each query.
        """
        per_query = self.num_senders(method) * self.message_length(method)
        concurrent = self.known_methods[method].curve.concurrent
        num_times = self.num_queries if concurrent else min(self.num_queries, 1)
        return num_times * per_query * (1 + self.num_targets)

    @property
    def num_queries(self) -> int:
        """Number of a target's evaluations after its initial ones."""
        return self.num_evaluations - self.num_initial

    def verdict(self, rows: Mapping[str, Row]) -> list[str]:
        """Say in words whether what others sent helped."""
        if any(row.estimates["final"].num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for row in rows.values():
            if self.known_methods[row.method].controls:
                gain = row.estimates["over_alone"]
                lines.append(f"{row.label} {helped(gain, self._alone)}")
                gain = row.estimates["final_over_alone"]
                lines += at_the_end(row.label, gain, self._alone)
        return lines

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title, lines = super().notes(runs, until)
        return title, [*lines, "NOT PRIVATE: messages are passed on as they are."]


@lru_cache(maxsize=2)
def _finished_agents(
    experiment: TransferExperiment, seed: int, num_observations: int
) -> list[Agent]:
    """Return agents that have done Thompson sampling, each on its own objective."""
    alone = DPFTSDESettings(
        num_sub_regions=1,
        num_initial=experiment.num_initial,
        refit_every=experiment.refit_every,
        follow="never",
    )
    seeds, num_agents = Seeds.of_run(seed), experiment.num_agents
    study = experiment.study(alone, seeds)
    # Another seed than the targets', whose initial points would be the same ones.
    entropy = seeds.noise
    agents = [create_agent(study, n, entropy) for n in range(num_agents)]
    objectives = [
        experiment.task.objective(n, num_agents, seed) for n in range(num_agents)
    ]
    num_queries = num_observations - experiment.num_initial
    run_loop(LocalServer(num_agents), agents, objectives, num_queries)
    return agents


def messages_of(
    study: TuningStudy,
    finished: Sequence[Agent],
    seed: int,
    zeroed: bool = False,
    num_observations: int | None = None,
    iteration: int = 0,
) -> FloatArray | None:
    """Return what finished agents send in a study, as targets receive it.

    Parameters
    ----------
    study : TuningStudy
        Study of an agent that sends messages.
    finished : sequence of Agent
        Agents that have made all their evaluations.
    seed : int
        Seed of their draws.
    zeroed : bool
        Whether they know nothing.
    num_observations : int, optional
        Number of observations that each uses, the first ones; all unless given.
    iteration : int
        Iteration after which they send.

    Returns
    -------
    ndarray of shape (N, L)
        One message per agent.
    """
    messages = {}
    for agent in finished:
        sender = create_agent(study, agent.slot, seed)
        if not zeroed:
            history = zip(agent.points, agent.values, strict=True)
            for x, value in islice(history, num_observations):
                sender.tell(0, x, value)
        messages[agent.slot] = sender.message(iteration)
    server = FTSServer(len(finished), len(messages[0]))
    server.receive(server.step(0), messages)
    return server.vectors


def _received(
    experiment: TransferExperiment, study: TuningStudy, method: str, seed: int
) -> dict[int, FloatArray | None]:
    """Return what targets receive, by the iteration before which they do."""
    chosen = experiment.known_methods[method]
    if not chosen.informed:
        return {}
    last = experiment.num_queries if chosen.curve.concurrent else 1
    num = {t: experiment.num_sent_observations(method, t) for t in range(1, last + 1)}
    finished = _finished_agents(experiment, seed, num[last])
    finished = finished[: experiment.num_senders(method)]
    entropy, zeroed = Seeds.of_run(seed).noise, chosen.zeroed
    return {
        t: messages_of(study, finished, entropy, zeroed, num_sent, t - 1)
        for t, num_sent in num.items()
    }


def _run(experiment: TransferExperiment, method: str, seed: int) -> TuningRun:
    """Run one method on one seed: each target alone with what the others sent."""
    chosen, seeds = experiment.known_methods[method], Seeds.of_run(seed)
    study = experiment.study(experiment.settings_of(method), seeds)
    received = _received(experiment, study, method, seed)
    began = time.process_time()
    targets = [
        create_agent(study, n, seeds.study) for n in range(experiment.num_targets)
    ]
    num_agents = experiment.num_agents
    for target in targets:
        objective = experiment.task.objective(target.slot, num_agents, seed)
        for iteration in range(experiment.num_queries + 1):
            vectors = received.get(iteration)
            play_round(target, objective, iteration, vectors, send_message=False)
    return experiment.run_of_agents(
        targets,
        seed,
        method=method,
        epsilon=np.inf if chosen.releases else 0.0,
        private=not chosen.releases,
        seconds=time.process_time() - began,
    )
