"""Settings of FedUCB, which all agents of a study share, and when they synchronise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import (
    check_fields,
    choice,
    instance,
    number,
    ruled,
)
from flwr_fbo._common.validation import (
    is_number,
    require,
    require_int,
)
from flwr_fbo.bandits.linear.exploration import (
    Exploration,
    Optimism,
    exploration_kind,
)
from flwr_fbo.bandits.linear.feature_encoder import FeatureEncoder
from flwr_fbo.privacy.continual_settings import ContinualSettings

Width = Literal["exact", "observed", "paper", "authors"]
LocalData = Literal["released", "raw", "own"]

# What `LinearUCBSettings.local_data` says, for the error where it was not chosen.
_PROMISES = {
    "own": "own clean data and, as far as they help, the others' sums. Protected: one "
    "trial, replaced by another while all other rows stay as they are; not what it "
    "changes in later trials. Costs little: about as good as alone, or better",
    "released": "released sums only. Protected: one trial, and all that the site does "
    "later because of it. Costs most: in general worse than each site alone",
    "raw": "released sums, and own trials since the last one, as published. Protected: "
    "as 'own'. Costs about as much as 'released'",
}
# LinUCB's alpha with local_data="own", in reward deviations: .3 for rewards in [0, 1].
_OWN_WIDTH = 0.6


def geometric_schedule(num_trials: int, num_releases: int, first: int) -> list[int]:
    """Return n synchronisations from ``first`` on, the gaps growing towards T.

    After round(first (T / first)^(k / n)) trials, k = 0, .., n - 1, or one trial later
    than the one before where two would fall together: so with n = T - first they are
    after every trial. The next one would be after the last trial, where nobody acts on
    it any more.

    Raises
    ------
    ValueError
        If there are more of them than trials.
    """
    require_int("num_releases", num_releases, 1)
    require_int("first", first, 1)
    most = num_trials - first
    expected = f"so many in the {most} trials after the first one"
    require(num_releases <= most, "num_releases", num_releases, expected)
    ratio = (num_trials / first) ** (1 / num_releases)
    times = [first]
    for k in range(1, num_releases):
        times.append(max(round(first * ratio**k), times[-1] + 1))
    return times


@dataclass(frozen=True)
class DeterminantTrigger:
    """Synchronise once an agent has learned much by itself (Wang et al., ICLR 2020).

    As soon as, for any agent, what it has learned (`Confidence.growth`) times the
    trials since the last synchronisation exceeds D: Dubey & Pentland (2020), Algorithm
    1, line 12. It needs ``local_data="raw"``.

    Formal guarantees
    -----------------
    None, whatever the noise: when to synchronise depends on raw data, and everybody
    sees it (Zhou & Chowdhury, ICLR 2024). For reproduction only.

    Attributes
    ----------
    threshold : float
        D, from 1e-12 to 1e12.
    """

    threshold: float = field(metadata=number(1e-12, 1e12))

    def __post_init__(self) -> None:
        check_fields(self)

    def fires(self, growth: FloatArray, num_since: int) -> bool:
        """Return whether it is time, for growths of log det V of any shape.

        ``num_since`` are the trials since the last synchronisation, this one included.
        """
        return bool(np.max(growth) * num_since > self.threshold)

    def fires_among_peers(
        self, growth: FloatArray, num_since: int, max_action_norm: float
    ) -> bool:
        """Return the same without a centre: Algorithm 3, line 6.

        What an agent has learned by an estimator is multiplied with the estimator's
        trials since it was synchronised last, and one more for the delay of a
        broadcast. The threshold is D / (1 + L^2). Never before the first trial.
        """
        threshold = self.threshold / (1 + max_action_norm**2)
        return bool(num_since > 0 and np.max(growth) * (num_since + 1) > threshold)


@dataclass(frozen=True)
class RewardTimeout:
    """Waiting time for a reward, and the reward that counts after that.

    Some events are reported only if they happen: a visit that was booked, a patient who
    came back. A site waits for a time, and then takes them not to have happened.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, RewardTimeout
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> no_visit = RewardTimeout(seconds=30 * 24 * 3600, reward=0.0)
    >>> settings = LinearUCBSettings(
    ...     releases, local_data="own", reward_timeout=no_visit
    ... )

    Attributes
    ----------
    seconds : float
        From 1e-9 to 1e10, from the choice on, by the clock of the site. If that is set
        back to before the choice, from then on.
    reward : float
        Reward that is recorded then, in the range of rewards; a later reward is
        refused.

    Notes
    -----
    Rewards that come early differ from those that come late: if bad news comes at once,
    and silence counts as good news, early releases make an arm look worse than it is.

    *Formal guarantees.* Each decision still adds one reward to the sums, once, so that
    the guarantee is that of `ContinualSettings`. When a reward comes is private, too:
    one that is in a later release, or taken as known there, moves releases no more than
    another reward does (tested for the factorisations `toeplitz` and `tree`).
    """

    seconds: float = field(metadata=number(1e-9, 1e10))
    reward: float = field(default=0.0, metadata=number(-1e6, 1e6))

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class LinearUCBSettings:
    """Settings that all agents of a study share.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> settings = LinearUCBSettings(releases, local_data="own", noise_scale=0.5)
    >>> settings.fixed_width
    0.3

    Attributes
    ----------
    releases : ContinualSettings
        Settings of an agent's releases, with d, L and the rewards' range. Without noise
        (``epsilon=inf``) the agent plays non-private FedUCB, or plain linear UCB.
    local_data : {"own", "released", "raw"}
        Data that an agent acts on; *to be chosen*, as they protect and cost different
        things: see below. ``"own"``: all its own clean trials, and what the others'
        released sums are worth to it (`flwr_fbo.bandits.linear.own_data`).
        ``"released"``: released sums only. ``"raw"``: released sums, and its own raw
        trials since the last synchronisation, as in the paper.
    noise_scale : float
        Scale sigma of the reward noise, from 1e-12 to 1e12: rewards are
        sigma-subgaussian around x'theta. Rewards in [0, 1] have sigma = 1/2 (Hoeffding,
        1963).
    parameter_norm : float, optional
        Bound S on ||theta||, from 1e-15 to 1e15. Unless given it follows from the
        encoder (`FeatureEncoder.parameter_norm`), and is 1 without one. A summary
        prints it: intervals hold only if it does.
    alpha : float
        From 1e-15 to below 1: how likely any agent's ellipsoid may ever miss theta.
    ridge : float
        Regularisation lambda of data without noise, from 1e-15 to 1e15: of all that is
        believed with an infinite epsilon; with ``local_data="own"`` of a summary's
        intervals only, as choices average over ridges. Else noise and shift take its
        place. For the intervals a site raises it to what rounding may take from its
        sums, 2e-9 of their trace and more where rewards are larger than actions.
    width : {"observed", "exact", "paper", "authors"} or float, optional
        Width of the ellipsoid that an agent chooses within. A formula: see
        `Confidence.width_at`; the observed width, the default, is never above the exact
        one. Or a number from 1e-15 to 1e6, LinUCB's alpha, in units of the reward; with
        ``local_data="own"`` it must be one, and is 0.6 ``noise_scale`` unless given:
        0.3 for rewards in [0, 1]. There it is for rewards that vary by ``noise_scale``,
        and a site explores as much less as its rewards vary less. Intervals of a
        summary are by the formula, or by the observed width.
    exploration : Exploration
        Choice of an agent within its ellipsoid: `Optimism`, as in the paper,
        `EllipsoidSampling` or `InverseGapWeighting`.
    encoder : FeatureEncoder, optional
        Encoder that makes actions of a context and named arms, at all sites alike.
        Without one sites give actions as vectors.
    reward_timeout : RewardTimeout, optional
        Waiting time after which a reward that has not come is taken as known. Unless
        given a decision without a reward is never part of a release.

    Notes
    -----
    *Formal guarantees.* All releases of an agent together are (epsilon, delta)-DP for
    one trial that is replaced by another within the bounds; what else may change then
    depends on ``local_data``.

    ``"released"``: anything that the agent does later. Its actions are a function of
    released sums, its action sets and chance, so that `ContinualRelease`'s guarantee,
    which is adaptive, covers a trial's action and reward whatever the agent does next.

    ``"own"`` and ``"raw"``: nothing. The guarantee is for streams that differ in one
    trial while all other rows are as they were, as in the paper's Definition 1. It is
    the promise of a release of a data set that is already there: of rows whose choice
    did not depend on that trial. In a running agent it may: the trial steers later
    actions, which are in later releases. The bound is then that of all trials from t
    on, T - t + 1 of them for ``"own"`` and those up to the next release for ``"raw"``:
    so many times ``releases.mu``. It is nearly attained where two arms always pay the
    same and one reward is flipped, as the agent then may play the other arm ever after.
    `flwr_fbo.lab.audit.bandit_audit` shows it: with ten trials a release, a promised
    epsilon of 2 is 7 at least with ``"raw"`` or ``"own"``; with a hundred, the paper's
    own noise, which is larger, does not keep an epsilon of 1 either.
    """

    releases: ContinualSettings = field(
        metadata=instance(ContinualSettings, part=ContinualSettings)
    )
    local_data: LocalData = field(
        default=None,  # type: ignore[arg-type]  # to name what there is
        metadata=choice(LocalData, optional=True),
    )
    noise_scale: float = field(default=0.5, metadata=number(1e-12, 1e12))
    parameter_norm: float | None = field(
        default=None, metadata=number(1e-15, 1e15, optional=True)
    )
    alpha: float = field(default=0.01, metadata=number(1e-15, below=1))
    ridge: float = field(default=1.0, metadata=number(1e-15, 1e15))
    width: Width | float | None = field(
        default=None, metadata=ruled(lambda name, value: _check_width(name, value))
    )
    exploration: Exploration = field(
        default_factory=Optimism,
        metadata=instance(Exploration, allowed="an Exploration", part=exploration_kind),
    )
    encoder: FeatureEncoder | None = field(
        default=None,
        metadata=instance(FeatureEncoder, optional=True, part=FeatureEncoder),
    )
    reward_timeout: RewardTimeout | None = field(
        default=None,
        metadata=instance(RewardTimeout, optional=True, part=RewardTimeout),
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.local_data is None:
            lines = "".join(
                f"\n  {name!r}: {text}." for name, text in _PROMISES.items()
            )
            raise ValueError(
                f"local_data=None is not allowed: choose what sites act on.{lines}"
            )
        self._check_width()
        if self.encoder is not None:
            d, encoded = self.releases.dimension, self.encoder.dimension
            require(d == encoded, "releases.dimension", d, f"{encoded}, the encoder's")
        if self.reward_timeout is not None:
            low, high = self.releases.reward_range
            reward, expected = (
                self.reward_timeout.reward,
                f"a number from {low} to {high}",
            )
            require(low <= reward <= high, "reward_timeout.reward", reward, expected)

    @property
    def uses_own_data(self) -> bool:
        """Whether a site acts on its own data without noise, and weighs the others'."""
        return self.local_data == "own"

    @property
    def uses_raw_sums(self) -> bool:
        """Whether a site adds its raw trials to the sum that was released."""
        return self.local_data == "raw"

    @property
    def fixed_rows(self) -> bool:
        """True if epsilon is for one trial while all other trials are as they were.

        That is so where a site acts on trials of its own that were not released.
        """
        return self.uses_own_data or self.uses_raw_sums

    def _check_width(self) -> None:
        if self.uses_own_data:
            fixed = not isinstance(self.width, str)
            require(fixed, "width", self.width, "a number, with local_data='own'")
        if self.formula in ("observed", "exact"):
            return
        reasons = {
            "without a horizon": self.releases.num_releases is None,
            "with a sliding window": self.releases.sliding_window is not None,
        }
        for reason, holds in reasons.items():
            require(not holds, "width", self.width, f"'observed' or 'exact', {reason}")

    @property
    def formula(self) -> Width:
        """The width's formula: of intervals, where choices have a fixed width."""
        return self.width if isinstance(self.width, str) else "observed"

    @property
    def fixed_width(self) -> float | None:
        """The fixed width that an agent chooses with, unless it is by the formula."""
        if isinstance(self.width, str):
            return None
        if self.width is None and self.uses_own_data:
            return _OWN_WIDTH * self.noise_scale
        return self.width

    @property
    def norm_bound(self) -> float:
        """S: ``parameter_norm``, or what follows from the encoder, or 1."""
        if self.parameter_norm is not None:
            return self.parameter_norm
        releases = self.releases
        if self.encoder is None:
            return 1.0
        bounds = releases.max_reward, releases.max_action_norm
        return self.encoder.parameter_norm(*bounds)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The d names of an action's coordinates: those of the encoder, or numbers."""
        if self.encoder is None:
            return tuple(f"theta_{i}" for i in range(self.releases.dimension))
        return self.encoder.feature_names


def _check_width(name: str, value: object) -> None:
    if value is None or value in get_args(Width):
        return
    is_valid = is_number(value) and 1e-15 <= value <= 1e6
    expected = f"a number from 1e-15 to 1e6, None, or one of {get_args(Width)}"
    require(is_valid, name, value, expected)
