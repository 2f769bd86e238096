"""Experiments in which new agents learn from others that have finished: FTS, RGPE, TAF.

The setting of Dai, Low & Jaillet, Federated Bayesian Optimization via Thompson Sampling
(NeurIPS 2020), sections 5.1 and 5.2. Every agent has done Thompson sampling on its own
objective, and has sent one message. Then some of them, the *targets*, begin anew, with
a few initial points, and what the others have sent. Nothing of it is private.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from flwr_fbo._validation import require, require_int
from flwr_fbo.agents.tuning.base import Agent, play_round
from flwr_fbo.agents.tuning.registry import create_agent
from flwr_fbo.experiment_runner import looks
from flwr_fbo.experiment_runner.base import (
    FloatArray,
)
from flwr_fbo.experiment_runner.methods import Method, by_name
from flwr_fbo.experiment_runner.runs import (
    Run,
)
from flwr_fbo.experiment_runner.seeds import Seeds
from flwr_fbo.experiment_runner.tuning_table import (
    OptimisationExperiment,
    TuningRun,
    at_the_end,
)
from flwr_fbo.experiment_runner.wording import ONE_SEED, helped
from flwr_fbo.protocol.transfer_settings import (
    RGPESettings,
    TAFSettings,
    TransferSettings,
)
from flwr_fbo.protocol.tuning_settings import (
    Follow,
    FTSSettings,
    RandomSearchSettings,
    ThompsonSettings,
)
from flwr_fbo.protocol.tuning_study import AgentSettings, TuningStudy
from flwr_fbo.servers.fts import RelayServer
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.simulation.loop import run_loop
from flwr_fbo.simulation.progress import counted

_CONTROLS = ("alone", "random", "noise-only")
_OF_MESSAGES = ("num_features", "lengthscale", "regularization")


@dataclass(frozen=True)
class TransferMethod(Method):
    """One curve of an experiment in which targets learn from others.

    Attributes
    ----------
    settings : AgentSettings
        Of the targets and of those who send; those of the experiment are put in.
    informed : bool
        Whether targets receive messages.
    zeroed : bool
        Whether the messages are of agents that know nothing.
    """

    settings: AgentSettings
    informed: bool = True
    zeroed: bool = False

    @property
    def releases(self) -> bool:
        """Whether anything of the others' data is used."""
        return self.informed and not self.zeroed


_FTS, _SIMILAR = FTSSettings(), FTSSettings(weighting="similarity")
_LEARNER = partial(TransferMethod, controls=_CONTROLS)
_METHODS = by_name(
    TransferMethod("alone", "TS", _FTS, informed=False, look=looks.ALONE),
    TransferMethod(
        "random", "random", RandomSearchSettings(), informed=False, look=looks.RANDOM
    ),
    _LEARNER("fts", "FTS", _FTS, noise_only="noise-only", look=looks.OURS),
    TransferMethod(
        "fts-similar",
        "FTS, similarity",
        _SIMILAR,
        controls=(*_CONTROLS, "similar-noise-only"),
        noise_only="similar-noise-only",
        look=(looks.SKY, "--", "d"),
    ),
    _LEARNER("rgpe", "RGPE", RGPESettings(), look=looks.OPEN),
    _LEARNER("taf", "TAF (0.5)", TAFSettings(), look=(looks.PINK, "-.", "x")),
    _LEARNER(
        "taf-narrow",
        "TAF (0.1)",
        TAFSettings(bandwidth=0.1),
        look=(looks.ORANGE, ":", "P"),
    ),
    TransferMethod(
        "noise-only", "noise-only", _FTS, zeroed=True, look=looks.UNINFORMED
    ),
    TransferMethod("similar-noise-only", "similar, noise-only", _SIMILAR, zeroed=True),
)


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
    num_features : int
        M.
    follow : str
        1 - p_t of FTS: see `FTSSettings`.
    lengthscale, regularization : float
        l and lambda of the messages, as in the authors' code for real data: see
        `FTSSettings`.
    methods : tuple of str
        All unless given.
    """

    num_targets: int
    num_initial: int = 3
    num_observations: int = 50
    num_features: int = 100
    follow: Follow = "inverse-square"
    lengthscale: float = 0.01
    regularization: float = 1e-6
    privacy: None = None
    methods: tuple[str, ...] = tuple(_METHODS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_targets", "num_initial", "num_observations", "num_features"):
            require_int(name, getattr(self, name), 1)
        allowed = f"at most num_agents={self.num_agents}"
        ok = self.num_targets <= self.num_agents
        require(ok, "num_targets", self.num_targets, allowed)
        allowed = f"at least num_initial={self.num_initial}"
        for name in ("num_observations", "num_evaluations"):
            value = getattr(self, name)
            require(value >= self.num_initial, name, value, allowed)
        self.settings_of("fts")  # which names what it does not allow

    @property
    def known_methods(self) -> Mapping[str, TransferMethod]:
        """All methods that it could have, by name."""
        return _METHODS

    @property
    def num_compared(self) -> int:
        """How many agents a run is about: the targets."""
        return self.num_targets

    def settings_of(self, method: str) -> AgentSettings:
        """Return the agents' settings, with the experiment's own."""
        settings = _METHODS[method].settings
        if isinstance(settings, RandomSearchSettings):
            return replace(settings, num_sub_regions=1, num_initial=self.num_initial)
        assert isinstance(settings, FTSSettings | TransferSettings)
        settings = replace(
            settings,
            num_initial=self.num_initial,
            num_features=self.num_features,
            lengthscale=self.lengthscale,
            regularization=self.regularization,
        )
        if isinstance(settings, FTSSettings):
            return replace(settings, follow=self.follow, share_after=0)
        return settings

    def message_length(self, method: str) -> int:
        """Return how many numbers an agent sends that has finished; 0 if none."""
        settings = self.settings_of(method)
        if isinstance(settings, RandomSearchSettings) or method == "alone":
            return 0
        return settings.message_length

    def recipe(self, method: str) -> dict[str, Any]:
        """Return what decides a method's runs, whatever experiment they are part of."""
        values = super().recipe(method)
        settings = self.settings_of(method)
        unused = [] if isinstance(settings, FTSSettings) else ["follow"]
        if self.message_length(method) == 0:
            unused = ["follow", "num_observations", *_OF_MESSAGES]
        return {name: value for name, value in values.items() if name not in unused}

    def play(self, methods: Sequence[str], seed: int) -> list[TuningRun]:
        """Run some of the methods on one seed, after what all agents do first."""
        return [_run(self, method, seed) for method in counted(methods)]

    def spending(self, method: str) -> FloatArray:
        """Return epsilon after each evaluation: infinite, once messages are used."""
        spent = np.zeros(self.num_evaluations)
        spent[self.num_initial :] = np.inf if _METHODS[method].releases else 0.0
        return spent

    def sending(self, method: str, runs: Sequence[Run]) -> FloatArray:
        """Return how many numbers have been sent: once, and on to each target."""
        sent = np.zeros(self.num_evaluations)
        per_agent = self.message_length(method)
        sent[self.num_initial :] = self.num_agents * per_agent * (1 + self.num_targets)
        return sent

    def verdict(self, rows: Mapping[str, Any]) -> list[str]:
        """Say in words whether what others sent helped."""
        if any(row.final.num_runs < 2 for row in rows.values()):
            return [ONE_SEED]
        lines = []
        for row in rows.values():
            if _METHODS[row.method].controls:
                lines.append(f"{row.label} {helped(row.over_alone, self._alone)}")
                about = row.label, row.final_over_alone, self._alone
                lines += at_the_end(*about)
        return lines

    def notes(self, runs: Sequence[Run], until: int | None) -> tuple[str, list[str]]:
        """Return the table's title, and what is to be said below it."""
        title, lines = super().notes(runs, until)
        targets = (
            "the target" if self.num_targets == 1 else f"{self.num_targets} targets"
        )
        title = title.replace("over agents", f"over {targets}")
        return title, [*lines, "NOT PRIVATE: messages are passed on as they are."]


@lru_cache(maxsize=2)
def _finished_agents(experiment: TransferExperiment, seed: int) -> list[Agent]:
    """Return agents that have done Thompson sampling, each on its own objective."""
    alone = ThompsonSettings(
        num_sub_regions=1, num_initial=experiment.num_initial, follow="never"
    )
    seeds, num_agents = Seeds.of_run(seed), experiment.num_agents
    study = experiment.study(alone, seeds)
    # Another seed than the targets', whose initial points would be the same ones.
    entropy = seeds.noise
    agents = [create_agent(study, n, entropy) for n in range(num_agents)]
    objectives = [
        experiment.task.objective(n, num_agents, seed) for n in range(num_agents)
    ]
    num_queries = experiment.num_observations - experiment.num_initial
    run_loop(LocalServer(num_agents), agents, objectives, num_queries)
    return agents


def messages_of(
    study: TuningStudy, finished: Sequence[Agent], seed: int, zeroed: bool = False
) -> FloatArray | None:
    """Return what finished agents send in a study, as targets receive it.

    Parameters
    ----------
    study : TuningStudy
        Of an agent that sends messages.
    finished : sequence of Agent
    seed : int
        Of their draws.
    zeroed : bool
        Whether they know nothing.

    Returns
    -------
    ndarray of shape (N, L)
    """
    messages = {}
    for agent in finished:
        sender = create_agent(study, agent.slot, seed)
        if not zeroed:
            history = zip(agent.points, agent.values, strict=True)
            for x, value in history:
                sender.tell(0, x, value)
        messages[agent.slot] = sender.message(0)
    server = RelayServer(len(finished), len(messages[0]))
    server.receive(server.step(0), messages)
    return server.vectors


def _run(experiment: TransferExperiment, method: str, seed: int) -> TuningRun:
    """Run one method on one seed: each target alone with what the others sent."""
    chosen, seeds = _METHODS[method], Seeds.of_run(seed)
    study = experiment.study(experiment.settings_of(method), seeds)
    vectors = None
    if chosen.informed:
        finished = _finished_agents(experiment, seed)
        vectors = messages_of(study, finished, seeds.noise, chosen.zeroed)
    began = time.process_time()
    targets = [
        create_agent(study, n, seeds.study) for n in range(experiment.num_targets)
    ]
    num_agents = experiment.num_agents
    for target in targets:
        objective = experiment.task.objective(target.slot, num_agents, seed)
        num_queries = experiment.num_evaluations - experiment.num_initial
        for iteration in range(num_queries + 1):
            received = vectors if iteration == 1 else None
            play_round(target, objective, iteration, received, send_message=False)
    return experiment.run_of_agents(
        targets,
        seed,
        method=method,
        epsilon=np.inf if chosen.releases else 0.0,
        private=not chosen.releases,
        seconds=time.process_time() - began,
    )
