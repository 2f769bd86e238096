"""The methods an experiment that tunes compares: federated ones and their controls.

All share the agents' initial points and, given the same seed, the same noise and mask:
what differs between two curves is the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from flwr_fbo._validation import require, require_positive
from flwr_fbo.experiment_runner.base import Method, PrivacySetting
from flwr_fbo.privacy.budget import check_delta, check_epsilon
from flwr_fbo.privacy.release import Calibration
from flwr_fbo.privacy.sampling import Sampling, check_sampling_probability
from flwr_fbo.protocol.tuning_settings import RandomSearchSettings, ThompsonSettings
from flwr_fbo.protocol.tuning_study import AgentSettings, TuningStudy
from flwr_fbo.protocol.voting_settings import OwnSearch, VotingSettings
from flwr_fbo.servers.local import LocalServer
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.strategies.fed_vote import FedVote
from flwr_fbo.strategies.presets import Preset
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tasks.base import STRICT

if TYPE_CHECKING:
    from flwr_fbo.experiment_runner.config import TuningExperiment


@dataclass(frozen=True)
class Seeds:
    """The three seeds of a run, which must not be one and the same.

    Attributes
    ----------
    study : int
        Of the agents' draws.
    features : int
        Of the shared features; public.
    noise : int
        Of the releases' noise and masks, in place of real entropy.
    """

    study: int
    features: int
    noise: int

    @classmethod
    def of_run(cls, run: int) -> Seeds:
        """Return three seeds that no other run shares."""
        return cls(3 * run, 3 * run + 1, 3 * run + 2)


@dataclass(frozen=True)
class Privacy(PrivacySetting):
    """The privacy setting of an experiment that tunes.

    Attributes
    ----------
    delta : float
        Where epsilon is reported.
    noise_multiplier, epsilon : float
        One of the two, as for `DPFTSDE`.
    sampling_probability : float, optional
        q; the preset's unless given.
    sampling, calibration : str
        Of `ReleaseSettings`; a fixed size is accounted for by Renyi's divergence.
    """

    delta: float
    noise_multiplier: float | None = None
    epsilon: float | None = None
    sampling_probability: float | None = None
    sampling: Sampling = "poisson"
    calibration: Calibration = "joint"

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if self.epsilon is not None:
            allowed = "None where noise_multiplier is given, which decides it"
            require(self.noise_multiplier is None, "epsilon", self.epsilon, allowed)
            check_epsilon(self.epsilon)
        else:
            require_positive("noise_multiplier", self.noise_multiplier)
        if self.sampling_probability is not None:
            check_sampling_probability(self.sampling_probability)

    @property
    def accountant(self) -> Literal["pld", "rdp"]:
        """The tightest there is for the sampling."""
        return "pld" if self.sampling == "poisson" else "rdp"

    def at(self, epsilon: float) -> Privacy:
        """Return the same setting at another epsilon."""
        return replace(self, noise_multiplier=None, epsilon=epsilon)


# What a curve may set of the kernel that messages are drawn by.
_OF_MESSAGES = ("lengthscale", "regularization")
# What it may set of the agents besides P.
_OF_AGENTS = (*_OF_MESSAGES, "own_search")


@dataclass(frozen=True)
class Curve:
    """A curve of a published figure: a method, and what it sets otherwise.

    What is None is as in the preset, or in the experiment's privacy setting.

    Attributes
    ----------
    label : str
        For tables and figures.
    method : {"ts", "fts-de", "dp-fts-de"}
        The last one comes with a noise-only control of its own.
    num_sub_regions : int, optional
        P.
    lengthscale, regularization : float, optional
        Of the messages: l and lambda. Not of ``"ts"``, which sends none.
    own_search : str, optional
        Of `VotingSettings`, with `FedVote`.
    clip_norm : float, optional
        S, of ``"dp-fts-de"``.
    noise_multiplier : float, optional
        z, of ``"dp-fts-de"``.
    sampling_probability : float, optional
        q, of ``"dp-fts-de"``.
    series : tuple of str
        The lines that it is a point of, where utility is drawn against epsilon.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    label: str
    method: Literal["ts", "fts-de", "dp-fts-de"]
    num_sub_regions: int | None = None
    lengthscale: float | None = None
    regularization: float | None = None
    own_search: OwnSearch | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    sampling_probability: float | None = None
    series: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("clip_norm", "noise_multiplier", "sampling_probability"):
            value = getattr(self, name)
            ok = value is None or self.method == "dp-fts-de"
            require(ok, name, value, f"left out, with method={self.method!r}")
        for name in _OF_MESSAGES:
            value = getattr(self, name)
            ok = value is None or self.method != "ts"
            require(ok, name, value, "left out, with method='ts'")
        ok = not self.series or self.method == "dp-fts-de"
        require(ok, "series", self.series, f"left out, with method={self.method!r}")

    def privacy(self, shared: Privacy) -> Privacy:
        """Return the privacy setting of this curve."""
        if self.noise_multiplier is not None:
            z = self.noise_multiplier
            shared = replace(shared, epsilon=None, noise_multiplier=z)
        if self.sampling_probability is not None:
            q = self.sampling_probability
            shared = replace(shared, sampling_probability=q)
        return shared

    def agent(self, preset: AgentSettings) -> AgentSettings:
        """Return the agent's settings.

        Raises
        ------
        ValueError
            If the preset's agent has no such setting.
        """
        names = ("num_sub_regions", *_OF_AGENTS)
        given = {name: getattr(self, name) for name in names}
        own = {name: value for name, value in given.items() if value is not None}
        for name, value in own.items():
            known = hasattr(preset, name)
            require(known, name, value, "left out, with agents of this preset")
        return replace(preset, **own)


_AS_PRESET = Curve("", "dp-fts-de")


@dataclass(frozen=True)
class TuningMethod(Method):
    """One curve of an experiment that tunes.

    Attributes
    ----------
    build : callable
        Takes an experiment and seeds; returns the strategy.
    base : str
        The method that it is a variant of; itself unless given.
    curve : Curve
        What it sets otherwise.
    liars : float
        Share of the agents that praise a place drawn at random, in [0, 1].
    conspiring : bool
        Whether all liars praise the same place, or each another one each time.
    """

    build: Callable[[TuningExperiment, Seeds], TuningStrategy]
    base: str = ""
    curve: Curve = _AS_PRESET
    liars: float = 0.0
    conspiring: bool = True


def _local(
    agent: AgentSettings, experiment: TuningExperiment, seeds: Seeds
) -> TuningStrategy:
    task = experiment.task
    study = TuningStudy(
        SearchSpace(task.space),
        task.direction,
        agent,
        study_seed=seeds.study,
        feature_seed=seeds.features,
    )
    return TuningStrategy(LocalServer(experiment.num_agents), study, patience=0.0)


def _random(experiment: TuningExperiment, seeds: Seeds) -> TuningStrategy:
    agent = experiment.base.agent
    settings = RandomSearchSettings(agent.num_sub_regions, agent.num_initial)
    return _local(settings, experiment, seeds)


def _thompson(
    experiment: TuningExperiment, seeds: Seeds, curve: Curve = _AS_PRESET
) -> TuningStrategy:
    agent = experiment.base.agent
    return _local(curve.agent(agent), experiment, seeds)


def _federated(
    experiment: TuningExperiment,
    seeds: Seeds,
    *,
    private: bool,
    noise_only: bool = False,
    curve: Curve = _AS_PRESET,
) -> TuningStrategy:
    task, privacy = experiment.task, curve.privacy(experiment.privacy)
    agent = curve.agent(experiment.base.agent)
    assert isinstance(agent, ThompsonSettings | VotingSettings)
    base = experiment.base
    q, clip_norm = privacy.sampling_probability, curve.clip_norm
    q = base.sampling_probability if q is None else q
    clip_norm = base.clip_norm if clip_norm is None else clip_norm
    build: Callable[..., TuningStrategy] = FedVote
    if not base.votes:
        build = partial(DPFTSDE, preset=experiment.preset or "paper")
    return build(
        task.space,
        task.direction,
        experiment.num_agents,
        agent=agent,
        clip_norm=clip_norm if private else math.inf,
        noise_multiplier=privacy.noise_multiplier if private else 0.0,
        epsilon=privacy.epsilon if private else None,
        sampling_probability=q if private else 1.0,
        sampling=privacy.sampling if private else "poisson",
        accountant=privacy.accountant if private else "pld",
        calibration=privacy.calibration,
        delta=privacy.delta,
        releases=base.releases if base.votes else "all",  # as published
        noise_only=noise_only,
        study_seed=seeds.study,
        feature_seed=seeds.features,
        noise_seed=seeds.noise,
        patience=0.0,
    )


_private = partial(_federated, private=True)
_OPEN = ("ts", "random")
_CONTROLS = (*_OPEN, "noise-only")

_open = partial(_federated, private=False)
_ALL = (
    TuningMethod("ts", "TS", _thompson),
    TuningMethod("random", "random", _random),
    TuningMethod("fts-de", "FTS-DE", _open, controls=_OPEN),
    TuningMethod(
        "dp-fts-de",
        "DP-FTS-DE",
        _private,
        controls=_CONTROLS,
        noisy=True,
        noise_only="noise-only",
    ),
    TuningMethod(
        "noise-only", "noise-only", partial(_private, noise_only=True), noisy=True
    ),
    TuningMethod(
        "liars",
        "1/3 liars",
        _private,
        liars=1 / 3,
        controls=_CONTROLS,
        noisy=True,
        noise_only="noise-only",
    ),
    TuningMethod(
        "blind",
        "blind vote",
        _private,
        liars=1.0,
        conspiring=False,
        controls=_CONTROLS,
        noisy=True,
        noise_only="noise-only",
    ),
)
METHODS = {method.name: method for method in _ALL}
_BUILDERS: dict[str, Callable[..., TuningStrategy]] = {
    "ts": _thompson,
    "fts-de": _open,
    "dp-fts-de": _private,
}
# What an experiment compares unless it says otherwise.
USUAL_METHODS = tuple(method.name for method in _ALL if method.liars == 0)


def methods_of(curves: dict[str, Curve]) -> dict[str, TuningMethod]:
    """Return the methods that draw curves, and their noise-only controls, by name."""
    methods = [one for name, c in curves.items() for one in _methods_of(name, c)]
    return {method.name: method for method in methods}


def _methods_of(name: str, curve: Curve) -> list[TuningMethod]:
    build = partial(_BUILDERS[curve.method], curve=curve)
    method = TuningMethod(name, curve.label, build, base=curve.method, curve=curve)
    if curve.method == "ts":
        return [method]
    if curve.method == "fts-de":
        return [replace(method, controls=_OPEN)]
    control = f"{name}-noise-only"
    controls = (*_OPEN, control)
    method = replace(method, controls=controls, noisy=True, noise_only=control)
    zeroed = TuningMethod(
        control,
        f"{curve.label}, noise-only",
        partial(_private, curve=curve, noise_only=True),
        base="noise-only",
        curve=curve,
        noisy=True,
    )
    return [method, zeroed]


def recipe_of(method: TuningMethod, base: Preset, privacy: Privacy) -> dict[str, Any]:
    """Return what decides a method's runs on a task, whatever it is called."""
    curve = method.curve
    recipe: dict[str, Any] = {
        "method": method.base or method.name,
        "num_sub_regions": curve.agent(base.agent).num_sub_regions,
    }
    given = {name: getattr(curve, name) for name in _OF_AGENTS}
    # Left out where it is the preset's: runs from before there was a choice go on.
    recipe |= {name: value for name, value in given.items() if value is not None}
    if method.noisy:
        privacy = curve.privacy(privacy)
        q = privacy.sampling_probability or base.sampling_probability
        recipe["privacy"] = asdict(replace(privacy, sampling_probability=q))
        recipe["clip_norm"] = curve.clip_norm or base.clip_norm
    return recipe


_LABELS_OF_VOTES = {"fts-de": "open vote", "dp-fts-de": "private vote"}


def label_of(method: Method, base: Preset) -> str:
    """Return what tables and figures call a method whose federation is a preset's."""
    labels = _LABELS_OF_VOTES if base.votes else {}
    return labels.get(method.name, method.label)
