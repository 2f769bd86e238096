"""Settings of FedUCB, which all agents of a study share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from flwr_fbo._common.conversion import take_plain
from flwr_fbo._common.validation import (
    require,
    require_fraction,
    require_positive,
)
from flwr_fbo.algorithms.linear_bandit.exploration import (
    Exploration,
    Optimism,
    exploration_of,
)
from flwr_fbo.algorithms.linear_bandit.feature_encoder import FeatureEncoder
from flwr_fbo.algorithms.linear_bandit.reward_timeout import RewardTimeout
from flwr_fbo.algorithms.linear_bandit.site_deviation import SiteDeviation
from flwr_fbo.privacy.continual_settings import ContinualSettings

Width = Literal["exact", "observed", "paper", "authors"]


LocalData = Literal["released", "raw"]


@dataclass(frozen=True)
class LinearUCBSettings:
    """Settings that all agents of a study share.

    Examples
    --------
    >>> from flwr_fbo import ContinualSettings, LinearUCBSettings
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, noise_scale=0.5, parameter_norm=1.0)
    >>> settings.local_data
    'released'

    Attributes
    ----------
    releases : ContinualSettings
        Settings of an agent's releases, with d, L and B. Without noise
        (``epsilon=inf``) the agent plays non-private FedUCB, or plain linear UCB.
    noise_scale : float
        Scale sigma > 0 of the reward noise: rewards are sigma-subgaussian around
        x'theta. Rewards in [0, 1] have sigma = 1/2 (Hoeffding, 1963).
    parameter_norm : float
        Bound S > 0 on ||theta||; where sites differ also on each site's own.
    alpha : float
        In (0, 1): how likely any agent's ellipsoid may ever miss theta.
    ridge : float
        Regularisation lambda > 0; used only without noise, instead of noise and shift.
    width : {"observed", "exact", "paper", "authors"}
        Formula of the ellipsoid's width; see `Confidence.width_at`. The observed width
        is never above the exact one.
    local_data : {"released", "raw"}
        Data that an agent acts on between synchronisations: releases only, or also its
        own raw trials, as in the paper.
    exploration : Exploration
        How an agent chooses within its ellipsoid: `Optimism`, as in the paper,
        `EllipsoidSampling` or `InverseGapWeighting`.
    encoder : FeatureEncoder, optional
        What makes actions of a context and named arms, at all sites alike. Without one
        sites give actions as vectors.
    reward_timeout : RewardTimeout, optional
        When a reward that has not come is taken as known. Unless given a decision
        without a reward is never part of a release.
    site_deviation : SiteDeviation, optional
        How much sites may differ. One theta holds at all of them unless given.

    Notes
    -----
    *Formal guarantees.* With ``"released"`` an agent's actions are a function of
    released sums, its action sets and chance, so that `ContinualRelease`'s guarantee,
    which is adaptive, covers a trial's action and reward whatever the agent does next.
    With ``"raw"`` one changed reward also changes the agent's later actions, and by
    them its later trials: the guarantee holds only as in the paper's Definition 1, for
    streams that differ in one trial while all others are as they were. In a running
    agent they are not: where two arms both pay B, always, one flipped reward can send
    all that follows before the next release to the other arm, and the sum moves by as
    many trials. `flwr_fbo.lab.audit.bandit_audit` shows it: with ten trials a release,
    a promised epsilon of 2 is 7 at least; with a hundred, the paper's own noise, which
    is larger, does not keep an epsilon of 1 either. The same holds with a
    ``site_deviation``: it is learned from what ``local_data`` says, and is not sent.
    """

    releases: ContinualSettings
    noise_scale: float = 0.5
    parameter_norm: float = 1.0
    alpha: float = 0.01
    ridge: float = 1.0
    width: Width = "observed"
    local_data: LocalData = "released"
    exploration: Exploration = field(default_factory=Optimism)
    encoder: FeatureEncoder | None = None
    reward_timeout: RewardTimeout | None = None
    site_deviation: SiteDeviation | None = None

    def __post_init__(self) -> None:
        take_plain(self)
        for name in ("noise_scale", "parameter_norm", "ridge"):
            require_positive(name, getattr(self, name))
        require_fraction("alpha", self.alpha)
        for name, choices in (("width", Width), ("local_data", LocalData)):
            value, allowed = getattr(self, name), f"one of {get_args(choices)}"
            require(value in get_args(choices), name, value, allowed)
        self._check_width()
        ok = isinstance(self.exploration, Exploration)
        require(ok, "exploration", self.exploration, "an Exploration")
        if self.encoder is not None:
            d, own = self.releases.dimension, self.encoder.dimension
            require(d == own, "releases.dimension", d, f"{own}, the encoder's")
        if self.reward_timeout is not None:
            most, given = self.releases.max_reward, self.reward_timeout.reward
            allowed = f"a number from {-most} to {most}"
            require(abs(given) <= most, "reward_timeout.reward", given, allowed)

        deviation = self.site_deviation
        if deviation is not None:
            ok = isinstance(deviation, SiteDeviation)
            require(ok, "site_deviation", deviation, "a SiteDeviation")
            deviation.coordinates(self.feature_names)

    @property
    def largest_uniform_share(self) -> float:
        """The largest share of decisions that is made without regard to rewards."""
        return self.exploration.largest_uniform_share

    def _check_width(self) -> None:
        releases = self.releases
        reasons = {
            "without a horizon": releases.num_releases is None,
            "with a sliding window": releases.sliding_window is not None,
            "where sites differ": self.site_deviation is not None,
        }
        ok = self.width in ("observed", "exact")
        for reason, holds in reasons.items():
            allowed = f"'observed' or 'exact', {reason}"
            require(ok or not holds, "width", self.width, allowed)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The d names of an action's coordinates: those of the encoder, or numbers."""
        if self.encoder is None:
            return tuple(f"theta_{i}" for i in range(self.releases.dimension))
        return self.encoder.feature_names

    @property
    def deviating_features(self) -> tuple[str, ...]:
        """The names of the z coordinates in which sites differ."""
        if self.site_deviation is None:
            return ()
        names = self.feature_names
        return tuple(names[i] for i in self.site_deviation.coordinates(names))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, as JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: value.to_dict() if hasattr(value, "to_dict") else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> LinearUCBSettings:
        """Return the settings that ``to_dict`` gave."""
        encoder, timeout = given["encoder"], given["reward_timeout"]
        deviation = given["site_deviation"]
        made = {
            "releases": ContinualSettings(**given["releases"]),
            "exploration": exploration_of(given["exploration"]),
            "encoder": None if encoder is None else FeatureEncoder.from_dict(encoder),
            "reward_timeout": None if timeout is None else RewardTimeout(**timeout),
            "site_deviation": None if deviation is None else SiteDeviation(**deviation),
        }
        return cls(**{**given, **made})
