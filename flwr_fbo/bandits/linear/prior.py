"""What a site knows before its first trial, as a sum that is added to its belief.

Data that are public, or that need no protection, help a site from its first decision on
and cost no epsilon. They are added to what a site believes, and to nothing else:
releases are of the site's own trials only, so that a prior is never released again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import float_array, mappings
from flwr_fbo._common.validation import require, require_number
from flwr_fbo.bandits.linear.arm_table import ArmTable
from flwr_fbo.bandits.linear.settings import LinearUCBSettings
from flwr_fbo.models.noisy_sums import posterior_of_noisy_sum

# Most trials that a sum is as exact for as a site's own data need it: see `own_data`.
_MOST_TRIALS = 2**22
# What a release is read with: the prior precision of theta, in units of the longest
# action's square.
_RIDGE = 0.1
# Asymmetry, and negative eigenvalues, that rounding may cause: a share of the largest.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Prior:
    """Prior knowledge of a site: from a public log, coefficients, or a release.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, Prior
    >>> releases = ContinualSettings(2, 2, 4.0, 1e-5, reward_range=(0, 1))
    >>> settings = LinearUCBSettings(releases, "own")
    >>> log = Prior.of_log(settings, [[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0])
    >>> log.num_trials
    2

    A policy then starts with it: ``policy.set_prior(log)``.

    Attributes
    ----------
    total : ndarray of shape (d + 1, d + 1)
        Sum of [x; y][x; y]' over trials, or what is worth as much.
    num_trials : int
        Number of trials that tell how much rewards vary; 0 but for a log.

    Notes
    -----
    *Formal guarantees.* The site's releases are functions of its own trials; a prior is
    in none of them. It does steer which actions the site takes, and is not protected
    there: give what is public, or may become known.
    """

    total: FloatArray = field(repr=False)
    num_trials: int = 0

    def __post_init__(self) -> None:
        total = float_array("total", self.total)
        size = total.shape[0] if total.ndim else 0
        is_square = total.shape == (size, size) and size > 1
        require(is_square, "total", total.shape, "a shape (d + 1, d + 1)")
        is_finite = bool(np.isfinite(total).all())
        require(is_finite, "total", total, "finite numbers")
        _require_semidefinite("total", total)
        require(
            0 <= self.num_trials <= _MOST_TRIALS,
            "num_trials",
            self.num_trials,
            f"an integer from 0 to {_MOST_TRIALS}",
        )
        object.__setattr__(self, "total", (total + total.T) / 2)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Prior):
            return NotImplemented
        is_same = self.num_trials == other.num_trials
        return is_same and np.array_equal(self.total, other.total)

    @classmethod
    def none(cls, dimension: int) -> Self:
        """Return the prior that knows nothing."""
        return cls(np.zeros((dimension + 1, dimension + 1)))

    @classmethod
    def of_log(
        cls,
        settings: LinearUCBSettings,
        actions: Any,
        rewards: Any,
        contexts: Sequence[Mapping[str, Any]] | Any = None,
        *,
        arms: ArmTable | None = None,
    ) -> Self:
        """Return the prior of T logged trials: each counts as one of the site's own.

        Parameters
        ----------
        settings : LinearUCBSettings
            Settings of the study: `LinearBanditPolicy.settings`.
        actions : array of shape (T, d), or sequence of T str
            The action that each trial took: a vector of norm at most L or, where the
            study has an encoder, the name of an arm.
        rewards : array of shape (T,)
            Reward of each trial, in the study's range.
        contexts : sequence of T mappings or data frame, optional
            The contexts, where the study has an encoder.
        arms : ArmTable, optional
            The arms at that time, where the study has an encoder.

        Raises
        ------
        ValueError
            If a trial is not within the bounds; the message names it.

        Notes
        -----
        Actions that were chosen at random tell most. As for `add_history`, actions must
        not have been chosen by what is not in the context and influenced the reward.
        """
        releases = settings.releases
        y = releases.without_excess(float_array("rewards", rewards))
        is_log = y.ndim == 1 and 1 <= len(y) <= _MOST_TRIALS
        require(is_log, "rewards", y.shape, f"(T,), with T from 1 to {_MOST_TRIALS}")
        if settings.encoder is None:
            for name, value in (("contexts", contexts), ("arms", arms)):
                require(value is None, name, value, "None, without an encoder")
            x = float_array("actions", actions)
            shape = len(y), releases.dimension
            require(x.shape == shape, "actions", x.shape, f"an array of shape {shape}")
            return cls(releases.gram(releases.without_excess(x), y), len(y))
        require(isinstance(arms, ArmTable), "arms", arms, "an ArmTable")
        assert arms is not None
        chosen, rows = list(actions), mappings("contexts", contexts)
        for name, given in (("actions", chosen), ("contexts", rows)):
            require(len(given) == len(y), f"len({name})", len(given), f"{len(y)}")
        longest = releases.max_action_norm
        blocks = settings.encoder.encode_log(rows, chosen, arms.eligible(), longest)
        x = np.concatenate([features for features, _ in blocks])
        return cls(releases.gram(x, y), len(y))

    @classmethod
    def of_coefficients(
        cls, settings: LinearUCBSettings, mean: ArrayLike, covariance: ArrayLike
    ) -> Self:
        """Return the prior theta ~ N(mean, covariance), as of a published study.

        Parameters
        ----------
        settings : LinearUCBSettings
            Settings of the study.
        mean : array of shape (d,)
            Coefficients of the reward above the middle of its range, in the order of
            `LinearUCBSettings.feature_names`.
        covariance : array of shape (d, d)
            Their covariance, positive definite: how far they may be off at this site.

        Raises
        ------
        ValueError
            If a shape is another, or the covariance is not positive definite.

        Notes
        -----
        It counts as noise_scale^2 covariance^-1 trials. Where rewards vary less than
        that, the site takes the coefficients to be as much more certain.
        """
        d = settings.releases.dimension
        theta, spread = float_array("mean", mean), float_array("covariance", covariance)
        require(theta.shape == (d,), "mean", theta.shape, f"shape ({d},)")
        require(spread.shape == (d, d), "covariance", spread.shape, f"shape ({d}, {d})")
        expected = "a positive definite matrix of finite numbers"
        is_finite = bool(np.isfinite(spread).all() and np.isfinite(theta).all())
        require(is_finite, "mean, covariance", (theta, spread), "finite numbers")
        _require_semidefinite("covariance", spread)
        values = np.linalg.eigvalsh(spread)
        is_definite = bool(values[0] > _ROUNDING * values[-1])
        require(is_definite, "covariance", spread, expected)
        inverse = np.linalg.inv((spread + spread.T) / 2)
        precision = np.asarray(settings.noise_scale**2 * inverse, dtype=np.float64)
        return cls(_agreeing(precision, theta))

    @classmethod
    def of_release(
        cls, settings: LinearUCBSettings, total: ArrayLike, std: float
    ) -> Self:
        """Return the prior of another study's released total of the same actions.

        Parameters
        ----------
        settings : LinearUCBSettings
            Settings of this study.
        total : array of shape (d + 1, d + 1)
            Sum of that study's releases. Sites of this study must not be in it: their
            trials would count twice.
        std : float
            Standard deviation, >= 0, of the noise on its diagonal.

        Raises
        ------
        ValueError
            If the total has another shape, or the numbers are not finite.
        """
        d = settings.releases.dimension
        noisy, shape = float_array("total", total), (d + 1, d + 1)
        require(noisy.shape == shape, "total", noisy.shape, f"shape {shape}")
        require(bool(np.isfinite(noisy).all()), "total", noisy, "finite numbers")
        require_number("std", std, 0)
        variance = settings.noise_scale**2
        ridge = _RIDGE * settings.releases.max_action_norm**2
        believed = posterior_of_noisy_sum(
            (noisy + noisy.T) / 2, std, np.full(d, variance / ridge), variance
        )
        precision = variance * (believed.factor @ believed.factor.T)
        values, axes = np.linalg.eigh(precision)
        # What the release adds to the ridge.
        added = np.asarray((axes * np.maximum(values - ridge, 0.0)) @ axes.T)
        return cls(_agreeing(added, believed.estimate))

    def added_to(
        self, total: FloatArray, num_trials: NDArray[np.int64] | int
    ) -> tuple[FloatArray, NDArray[np.float64]]:
        """Return a sum of trials, or each of a batch, and their number, with these."""
        return total + self.total, np.asarray(num_trials + float(self.num_trials))


def _agreeing(precision: FloatArray, theta: FloatArray) -> FloatArray:
    """Return the sum of trials of this Gram matrix whose rewards are x'theta."""
    half = np.column_stack([np.eye(len(theta)), theta])
    total = half.T @ precision @ half
    return np.asarray((total + total.T) / 2)


def _require_semidefinite(name: str, matrix: FloatArray) -> None:
    largest = float(np.abs(matrix).max())
    is_good = bool(np.abs(matrix - matrix.T).max() <= _ROUNDING * largest)
    if is_good:
        values = np.linalg.eigvalsh((matrix + matrix.T) / 2)
        is_good = bool(values[0] >= -_ROUNDING * largest)
    require(is_good, name, matrix, "a symmetric matrix, positive semidefinite")
