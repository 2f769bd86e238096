"""The settings of an experiment that tunes, but for the methods it compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict

from flwr_fbo._common.validation import require, require_positive
from flwr_fbo.algorithms.dp_fts_de.settings import Follow, InitialRegion
from flwr_fbo.algorithms.search.settings import SearchSettings
from flwr_fbo.lab.experiment_runner.base import PrivacySetting
from flwr_fbo.lab.experiment_runner.tuning_table import OptimisationExperiment
from flwr_fbo.lab.tasks.base import STRICT
from flwr_fbo.privacy.budget import check_delta, check_epsilon
from flwr_fbo.privacy.release import Calibration
from flwr_fbo.privacy.sampling import Sampling, check_sampling_probability
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.strategies.presets import Preset, preset_of


@dataclass(frozen=True)
class TuningPrivacy(PrivacySetting):
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

    def at(self, epsilon: float) -> TuningPrivacy:
        """Return the same setting at another epsilon."""
        return replace(self, noise_multiplier=None, epsilon=epsilon)


Settings = TypeVar("Settings", bound=SearchSettings)


@dataclass(frozen=True, kw_only=True)
class AgentChanges:
    """What agents set otherwise than in the preset: see `DPFTSDESettings`.

    What is None is as in the preset.

    Attributes
    ----------
    num_sub_regions : int, optional
        P.
    sub_region_axes : tuple of str, optional
    initial_region : {"sub-region", "whole"}, optional
    random_starts : bool, optional
    lengthscale, regularization : float, optional
        Of the messages: l and lambda.
    follow : str, optional
        1 - p_t.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    num_sub_regions: int | None = None
    sub_region_axes: tuple[str, ...] | None = None
    initial_region: InitialRegion | None = None
    random_starts: bool | None = None
    lengthscale: float | None = None
    regularization: float | None = None
    follow: Follow | None = None

    def agent(self, preset: Settings) -> Settings:
        """Return the agent's settings.

        Raises
        ------
        ValueError
            If the preset's agent has no such setting.
        """
        names = [one.name for one in fields(AgentChanges)]
        given = {name: getattr(self, name) for name in names}
        own = {name: value for name, value in given.items() if value is not None}
        for name, value in own.items():
            known = hasattr(preset, name)
            require(known, name, value, "left out, with agents of this preset")
        return replace(preset, **own)


# What only means something where the server's vectors are followed.
_OF_MESSAGES = ("lengthscale", "regularization", "follow", "weights")
_OF_PRIVACY = ("clip_norm", "noise_multiplier", "sampling_probability")


@dataclass(frozen=True)
class Curve(AgentChanges):
    """A curve of a published figure: a method, and what it sets otherwise.

    What is None is as in the experiment. ``"alone"`` sends no messages, and has none
    of their settings.

    Attributes
    ----------
    label : str
        For tables and figures.
    method : {"alone", "open", "private"}
        The last one comes with a noise-only control.
    weights : WeightSchedule, optional
        Of the agents in each sub-region.
    clip_norm : float, optional
        S, of ``"private"``.
    noise_multiplier : float, optional
        z, of ``"private"``.
    sampling_probability : float, optional
        q, of ``"private"``.
    series : tuple of str
        The lines that it is a point of, where utility is drawn against epsilon.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    label: str
    method: Literal["alone", "open", "private"]
    weights: WeightSchedule | None = None
    clip_norm: float | None = None
    noise_multiplier: float | None = None
    sampling_probability: float | None = None
    series: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in _OF_PRIVACY:
            value = getattr(self, name)
            ok = value is None or self.method == "private"
            require(ok, name, value, f"left out, with method={self.method!r}")
        for name in _OF_MESSAGES:
            value = getattr(self, name)
            ok = value is None or self.method != "alone"
            require(ok, name, value, "left out, with method='alone'")
        ok = not self.series or self.method == "private"
        require(ok, "series", self.series, f"left out, with method={self.method!r}")

    def privacy(self, shared: TuningPrivacy) -> TuningPrivacy:
        """Return the privacy setting of this curve."""
        if self.noise_multiplier is not None:
            z = self.noise_multiplier
            shared = replace(shared, epsilon=None, noise_multiplier=z)
        if self.sampling_probability is not None:
            q = self.sampling_probability
            shared = replace(shared, sampling_probability=q)
        return shared


AS_PRESET = Curve("", "private")


@dataclass(frozen=True, kw_only=True)
class TuningDesign(OptimisationExperiment):
    """The settings of an experiment that tunes, which its methods read.

    Attributes
    ----------
    privacy : TuningPrivacy
    strategy : {"FedVote", "FedWarmStart", "DPFTSDE"}
        The federated methods'; the controls share its agent.
    preset : str, optional
        Of `DPFTSDE`.
    agent : AgentChanges
        What the agents of all methods set otherwise.
    curves : dict of Curve
        Methods with settings of their own, by name. Private ones bring a noise-only
        control with them, ``NAME-noise-only``; those that differ in S, z or q alone
        share the first one's.
    """

    tables: ClassVar[Mapping[str, type[Any]]] = {
        "privacy": TuningPrivacy,
        "agent": AgentChanges,
        "curves": Curve,
        "weights": WeightSchedule,
    }

    privacy: TuningPrivacy
    strategy: str = "DPFTSDE"
    preset: str | None = None
    agent: AgentChanges = field(default_factory=AgentChanges)
    curves: dict[str, Curve] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """Strategy and preset, for a legend."""
        return f"{self.strategy} {self.preset or ''}".rstrip()

    @property
    def base(self) -> Preset:
        """What the federated methods and their controls set unless a curve does."""
        preset = preset_of(self.strategy, self.preset)
        return replace(preset, agent=self.agent.agent(preset.agent))
