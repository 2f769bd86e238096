"""Settings of FedUCB's released sums: bounds of a trial, sensitivity, noise, grid."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.conversion import ROUNDING, within
from flwr_fbo._common.fields import check_fields, choice, integer, number, ruled
from flwr_fbo._common.validation import is_number, require
from flwr_fbo.privacy.factorisation import Factorisation, Mechanism, factorisation
from flwr_fbo.privacy.gaussian import DELTA, EPSILON, gaussian_delta, gaussian_mu

Calibration = Literal["exact", "paper"]

# Sums are kept on a grid of 2^-30 of a trial's size, or finer: whatever the order of
# addition they are exact, for four million of the longest trials.
_GRID_BITS = 30
# By how much the sensitivity is taken too large, which covers all that rounds a trial:
# (d + 1) grid steps, with d <= 1000, and norms that are checked to 1e-9.
_ROUNDING = 2.0**-20
# The same where blocks are summed as integers: a billion trials of all sites together
# fit into 56 bits, and each site's share of the noise is still far wider than a step.
_BLOCK_GRID_BITS, _BLOCK_ROUNDING = 24, 2.0**-14
LARGEST_DIMENSION = 1000
_NORM_TOLERANCE = 1e-9
_BLOCK_LENGTH = 1024


def replace_one_sensitivity(max_action_norm: float, max_reward: float) -> float:
    """Return how far, in the Frobenius norm, one replaced trial moves the sum.

    sqrt(2) (L^2 + B^2). *Proof.* Let z = [x; y] and w = [x'; y'] be the trial and what
    replaces it, with ||x|| and ||x'|| <= L, y and y' in [-B, B], so that ||z||^2 and
    ||w||^2 are at most L^2 + B^2. As <zz', ww'> = (z'w)^2 >= 0,

        ||zz' - ww'||_F^2 = ||z||^4 + ||w||^4 - 2 (z'w)^2 <= 2 (L^2 + B^2)^2.

    With z'w = 0 at full length it is an equality: y = B, y' = -B and x'x = B^2, which
    exists where B <= L and d >= 2. Every release from that trial on moves by this one
    matrix, whatever k.

    Parameters
    ----------
    max_action_norm : float
        L > 0.
    max_reward : float
        B > 0.
    """
    return math.sqrt(2.0) * (max_action_norm**2 + max_reward**2)


def _check_range(name: str, value: Any) -> None:
    is_range = (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(is_number(bound) and abs(bound) <= 1e6 for bound in value)
        and value[1] - value[0] >= 1e-6
    )
    require(is_range, name, value, "two numbers from -1e6 to 1e6, the lower one first")


# The rule of a field ``reward_range``.
REWARD_RANGE = ruled(_check_range)


@dataclass(frozen=True)
class ContinualSettings:
    """Settings of an agent's releases and their guarantee; public, fixed for a study.

    Examples
    --------
    >>> from flwr_fbo.bandits import ContinualSettings
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> round(releases.mu, 3)  # what all 30 releases spend together
    0.268

    Attributes
    ----------
    num_releases : int or None
        Number n of planned synchronisations, from 1 to 2**17, or 2**24 with
        ``mechanism="tree"``. One more is an error. With None their number is not known
        in advance, and up to 2**20 can be made, for more noise: see
        `flwr_fbo.privacy.factorisation.Stationary`; with ``mechanism="blocks"`` for
        no more noise.
    dimension : int
        Dimension d of an action, from 1 to 1000.
    epsilon : float
        Epsilon of all releases together, from 1e-3 to 1e3; with inf there is no noise.
    delta : float
        Delta, from 1e-15 to below 1.
    max_action_norm : float
        Largest norm L of an action, from 1e-6 to 1e6. A trial of an environment with a
        longer one is left out of all releases.
    reward_range : (float, float)
        Lowest and highest reward, from -1e6 to 1e6. Those of an environment are clipped
        to them. The middle of the range is subtracted from every reward, so that B =
        `max_reward` is half of its length: x'theta is how far the mean reward is above
        the middle. So rewards from 0 to 1 that are declared as such have 1.6 times less
        noise at the same epsilon, at L = 1, than with (-1, 1). Where the middle is not
        0 actions need a constant: the intercept of a `FeatureEncoder`, or features that
        add up to one, as one-hot ones do.
    mechanism : {"toeplitz", "tree", "tree-honaker", "blocks"}
        Factorisation of the running sum; see `flwr_fbo.privacy.factorisation`.
        ``"blocks"`` gives the trials between two releases a noise of their own. Secure
        sums need it, and it is as good where releases are at doubling times.
    calibration : {"exact", "paper"}
        Calibration of sigma. ``"exact"``: the smallest sigma that is (epsilon,
        delta)-DP. ``"paper"``: sigma of Dubey & Pentland (2020), for
        ``mechanism="tree"`` and B <= 1 only. It spends far less than allowed (``mu``).
        At delta = 0.1 it spends more than allowed from an epsilon of about 260 on;
        there it is refused.
    num_streams : int
        Number of running sums, from 1 to 1000, that are released together with
        independent noise. Every trial is in one of them.
    sliding_window : int, optional
        W >= 1, below n: a release is of the trials since the W-th release before it
        only, where rewards change over time. Its noise does not grow with their number;
        see `flwr_fbo.privacy.factorisation.Stationary`. Unless given, of all trials.
    """

    num_releases: int | None = field(
        metadata=integer(1, optional=True, cap="max_synchronisations")
    )
    dimension: int = field(metadata=integer(1, LARGEST_DIMENSION, cap="max_dimension"))
    epsilon: float = field(metadata=EPSILON)
    delta: float = field(metadata=DELTA)
    max_action_norm: float = field(default=1.0, metadata=number(1e-6, 1e6))
    reward_range: tuple[float, float] = field(
        default=(-1.0, 1.0), metadata=REWARD_RANGE
    )
    mechanism: Mechanism = field(default="toeplitz", metadata=choice(Mechanism))
    calibration: Calibration = field(default="exact", metadata=choice(Calibration))
    num_streams: int = field(default=1, metadata=integer(1, 1000, cap="max_dimension"))
    sliding_window: int | None = field(
        default=None, metadata=integer(1, optional=True, cap="max_synchronisations")
    )

    def __post_init__(self) -> None:
        check_fields(self)
        low, high = map(float, self.reward_range)
        object.__setattr__(self, "reward_range", (low, high))
        _ = self.factorisation  # which names what it does not allow
        if self.calibration == "paper":
            is_tree = self.mechanism == "tree"
            expected = "'tree', with the paper's noise"
            require(is_tree, "mechanism", self.mechanism, expected)
            # The paper's sigma has B = 1: a longer range would be protected less.
            expected = "of length 2 at most, with the paper's noise"
            require(self.max_reward <= 1, "reward_range", self.reward_range, expected)
            if self.epsilon != math.inf:
                # Dubey & Pentland's sigma is not proved for every epsilon: so delta is
                # computed, from the sigma that will be drawn with.
                keeps_promise = gaussian_delta(self.epsilon, self.mu) <= self.delta
                expected = "less, as the paper's noise does not keep what it promises"
                require(keeps_promise, "epsilon", self.epsilon, expected)

    @property
    def max_reward(self) -> float:
        """B > 0: half of the length of the rewards' range."""
        low, high = self.reward_range
        return (high - low) / 2

    @property
    def reward_middle(self) -> float:
        """The middle of the rewards' range, which is subtracted from every reward."""
        low, high = self.reward_range
        return (low + high) / 2

    @cached_property
    def sum_shape(self) -> tuple[int, ...]:
        """Shape of one release: (d + 1, d + 1), after (E,) for E > 1 streams."""
        size = self.dimension + 1
        return (size, size) if self.num_streams == 1 else (self.num_streams, size, size)

    @cached_property
    def factorisation(self) -> Factorisation:
        """The weights of the noise, and their figures."""
        return factorisation(self.mechanism, self.num_releases, self.sliding_window)

    @property
    def max_releases(self) -> int:
        """Largest number of releases, which is n or 2**20."""
        return self.factorisation.num_releases

    @cached_property
    def sensitivity(self) -> float:
        """`replace_one_sensitivity`, and a little of it for rounding.

        A millionth of it, or 2^-14 with ``mechanism="blocks"``.
        """
        # A trial is rounded to the grid, and its norm is checked to 1e-9: either moves
        # the sum by a little more than the proof says.
        exact = replace_one_sensitivity(self.max_action_norm, self.max_reward)
        return exact * (1 + self._rounding[1])

    @cached_property
    def noise_std(self) -> float:
        """Sigma: the standard deviation of a draw on the diagonal.

        ``"exact"``: the factorisation's sensitivity times that of a trial over mu.
        ``"paper"``: a node's matrix is (N + N')/sqrt(2) with N of independent entries
        of variance sigma_N^2 = 16 m (L^2 + 1)^2 log(2/delta)^2 / epsilon^2, where m =
        1 + ceil(log2 n), so that its diagonal has variance 2 sigma_N^2.
        """
        if self.calibration == "paper":
            size = self.max_action_norm**2 + 1
            factor = 4 * math.sqrt(self.paper_num_levels) / self.epsilon
            sigma_node = factor * size * math.log(2 / self.delta)
            return math.sqrt(2.0) * sigma_node
        # All releases are one Gaussian mechanism on C x: mu = sensitivity / sigma.
        mu = gaussian_mu(self.epsilon, self.delta)
        return self.factorisation.sensitivity * self.sensitivity / mu

    @property
    def paper_num_levels(self) -> int:
        """The levels m = 1 + ceil(log2 n) of the paper's tree."""
        assert self.num_releases is not None, "as the tree has"
        return 1 + (self.num_releases - 1).bit_length()

    @property
    def mu(self) -> float:
        """The mu of Gaussian differential privacy that all releases together spend."""
        if self.noise_std == 0:
            return math.inf
        return self.factorisation.sensitivity * self.sensitivity / self.noise_std

    @property
    def steps(self) -> dict[str, float]:
        """About how many steps of 10 ns a release takes, by what it takes them for.

        Where their number is not known, the first one: what later ones take grows with
        what was released, not with what a message says.
        """
        n, d = self.num_releases or 1, self.dimension
        numbers = self.num_streams * (d + 1) * (d + 2) // 2
        noise = 0 if self.epsilon == math.inf else 1000 * numbers
        return {
            f"num_releases={n}": n**2 / 20,
            f"noise of dimension={d}": noise,
            f"num_releases={n} of dimension={d}": 10 * n * numbers,
        }

    def release_std(self) -> FloatArray:
        """Return the standard deviation on the diagonal of each release, shape (n,).

        Off the diagonal it is 1/sqrt(2) of that.
        """
        return np.asarray(self.noise_std * np.sqrt(self.factorisation.variances()))

    def largest_std(self, num_made: int) -> float:
        """Return a bound on `release_std` of all releases up to ``num_made``, >= 1.

        Where n is known, of all n.
        """
        if self.num_releases is not None:
            return self.noise_std * math.sqrt(self.factorisation.largest_variance)
        # Without a horizon no release has less noise than the one before.
        return self.noise_std * math.sqrt(self.factorisation.variance(num_made))

    def union(self, k: int) -> float:
        """Return what a probability of failure is divided by at synchronisation k >= 1.

        n, or (pi k)^2 / 6 where n is unknown: so that all of them add up to it.
        """
        n = self.num_releases
        return (math.pi * k) ** 2 / 6 if n is None else n

    @cached_property
    def largest_entries(self) -> FloatArray:
        """Bounds on the entries of an honest release, shape (d + 1, d + 1).

        Those of 2^33 trials, and 100 deviations of the noise.
        """
        longest = np.full(self.dimension + 1, self.max_action_norm)
        longest[-1] = self.max_reward
        # An honest draw beyond 100 deviations never happens: only a forger sends one.
        noise = 100 * self.noise_std * math.sqrt(self.factorisation.largest_variance)
        return np.asarray(2.0**33 * np.outer(longest, longest) + noise)

    @cached_property
    def grid(self) -> float:
        """Rounding grid of a private sum's entries; 0 without noise."""
        if self.noise_std == 0:
            return 0.0
        largest = self.max_action_norm**2 + self.max_reward**2
        # A power of two: multiples of it add up exactly in floating point.
        return float(2.0 ** (math.floor(math.log2(largest)) - self._rounding[0]))

    @property
    def _rounding(self) -> tuple[int, float]:
        """Bits of the grid below a trial's size, and what that adds to sensitivity."""
        if self.mechanism == "blocks":
            return _BLOCK_GRID_BITS, _BLOCK_ROUNDING
        return _GRID_BITS, _ROUNDING

    def std_by(self, k: int) -> float:
        """Return the largest of the deviations of releases 1 to k, on the diagonal."""
        if self.num_releases is None:
            return self.largest_std(max(k, 1))
        # Not that of release k: in a tree the 4th has less noise than the 3rd.
        return float(self.release_std()[: max(k, 1)].max())

    def outer_products(self, actions: ArrayLike, rewards: ArrayLike) -> FloatArray:
        """Return what each trial adds to the running sum: [x; y][x; y]'.

        y is the reward less `reward_middle`. Rounded to the grid (an error of at most
        2^-31 (L^2 + B^2) an entry, or 2^-25 with ``mechanism="blocks"``), so that sums
        are exact, in whatever order. Without noise nothing is rounded.

        Parameters
        ----------
        actions : array of shape (T, d)
            Each of norm at most L.
        rewards : array of shape (T,)
            Each in ``reward_range``.

        Returns
        -------
        ndarray of shape (T, d + 1, d + 1)
            One matrix per trial, on the grid.

        Raises
        ------
        ValueError
            If a shape is another, or a trial is not within the bounds: it would not be
            protected as promised.
        """
        z = self._trials(actions, rewards)
        products = z[:, :, None] * z[:, None, :]
        # Each trial by itself: then sums are exact, and one replaced trial moves them
        # by two rounded matrices, which the sensitivity has in it.
        if self.grid:
            products = np.rint(products / self.grid) * self.grid
        return np.asarray(products)

    def gram(self, actions: ArrayLike, rewards: ArrayLike) -> FloatArray:
        """Return what trials add together: the sum of their `outer_products`."""
        z = self._trials(actions, rewards)
        if not self.grid:
            # Without noise there is no promise that low bits could break.
            return np.asarray(z.T @ z)
        total = np.zeros((self.dimension + 1, self.dimension + 1))
        # In blocks: the matrices of a long log would not fit in memory.
        for start in range(0, len(z), _BLOCK_LENGTH):
            rows = z[start : start + _BLOCK_LENGTH]
            steps = np.rint(rows[:, :, None] * rows[:, None, :] / self.grid)
            total += steps.sum(axis=0)
        return total * self.grid

    def check_norms(self, actions: FloatArray) -> None:
        """Raise ValueError unless all actions, shape (K, d), are of norm at most L."""
        sizes, longest = np.linalg.norm(actions, axis=1), self.max_action_norm
        expected = f"vectors of norm up to {longest}, and it has norm {{:.9g}}"
        _require_within("actions", actions, sizes, longest, expected)

    def check_rewards(self, rewards: FloatArray) -> None:
        """Raise ValueError unless all rewards, shape (T,), are in ``reward_range``."""
        low, high = self.reward_range
        sizes, expected = self._sizes(rewards), f"numbers from {low} to {high}"
        _require_within("rewards", rewards, sizes, self.max_reward, expected)

    def _sizes(self, rewards: FloatArray) -> FloatArray:
        """Return what B bounds of rewards: B, and how far they are outside their range.

        Not how far they are from its middle: where that is large beside B, rounding
        would put the ends of the range outside.
        """
        outside = np.abs(rewards - np.clip(rewards, *self.reward_range))
        return np.asarray(self.max_reward + outside)

    def centred(self, rewards: FloatArray) -> FloatArray:
        """Return how far rewards are above the middle of their range, at most B."""
        largest = self.max_reward
        # Clipped again: the subtraction rounds, and the sensitivity rests on B.
        return np.asarray(np.clip(rewards - self.reward_middle, -largest, largest))

    def without_excess(self, values: FloatArray) -> FloatArray:
        """Return actions, shape (T, d), or rewards, (T,), within the bounds.

        Those that exceed them by rounding, as in single precision, are scaled down to
        the bound; others stay as they are.
        """
        if values.ndim == 1:
            is_near = self._sizes(values) <= self.max_reward * (1 + ROUNDING)
            return np.where(is_near, np.clip(values, *self.reward_range), values)
        return within(values, np.linalg.norm(values, axis=1), self.max_action_norm)

    def _trials(self, actions: ArrayLike, rewards: ArrayLike) -> FloatArray:
        """Return the rows [x, y], shape (T, d + 1), if all are within the bounds."""
        x, y = np.asarray(actions, dtype=float), np.asarray(rewards, dtype=float)
        require(y.ndim == 1, "rewards", y.shape, "an array of shape (T,)")
        shape = (len(y), self.dimension)
        require(x.shape == shape, "actions", x.shape, f"an array of shape {shape}")
        self.check_norms(x)
        self.check_rewards(y)
        return np.column_stack([x, self.centred(y)])


def _require_within(
    field: str, values: FloatArray, sizes: FloatArray, largest: float, allowed: str
) -> None:
    """Raise ValueError unless all rows are short enough, naming the first that is not.

    ``allowed`` may have a place for its size.
    """
    # A NaN compares false, as it should: a trial of unknown size is not protected.
    is_valid = sizes <= largest * (1 + _NORM_TOLERANCE)
    if not np.all(is_valid):
        first: Any = int(np.argmin(is_valid))
        row = values[first].tolist()
        require(False, f"{field}[{first}]", row, allowed.format(sizes[first]))
