r"""Noise of a sum of blocks: one Gaussian mechanism for a whole bandit study.

A block is what the trials between two releases add: the sum of [x; y][x; y]' over them
(see `flwr_fbo.privacy.continual`). Each trial of a site is in the sum of one release.

**Mechanism.** Each trial's matrix is rounded by itself to multiples of a public
``grid``. So a block is a matrix of integers times the grid, exactly, whatever its
trials. Its :math:`d + 1` numbers on the diagonal, and its :math:`d (d + 1) / 2` numbers
above it, are the integers that a site adds. They are not clipped. The site's share of
the noise is :math:`M` independent draws of discrete Gaussians, with parameter
:math:`s_i` for number :math:`i`:

.. math:: s_i^2 = \frac{(w_i \sigma e^{\kappa} / g)^2 + t^2}{H}, \qquad
   w_i = 1 \text{ on the diagonal}, \; 1 / \sqrt 2 \text{ off it},

where :math:`g` is the grid, and :math:`\sigma` (``noise_std`` of the
`ContinualSettings`) is :math:`\Delta / \mu` for the sensitivity :math:`\Delta` of one
replaced trial in the Frobenius norm. Constants are those of `integer_noise`.

**Theorem.** Let two studies differ in one trial of one site, replaced by another within
the bounds. Suppose that in each release at least :math:`H` summed sites keep their
shares secret, that the trial is in the sum of one release at most, and that all that
sites do later depends on their data through released totals only. Then all totals of
the study together are (epsilon, delta)-DP, with epsilon and delta those of the
`ContinualSettings`, for delta up to 1/2, however many releases there are.

**Proof, one release.** Theorem and proof of `integer_noise` are for integer vectors
:math:`x` and :math:`x'`. They use nothing of where these come from, and of how far they
are apart only that a Gaussian mechanism is :math:`(\varepsilon, \delta)`-DP for the
two. Steps 1 to 3 are for one number. So each number may have its own :math:`s_i`. Let
:math:`Q_x` be the law of :math:`x` plus independent :math:`N(0, v_i^2)` in number
:math:`i`, rounded at random, with :math:`v_i^2 = H s_i^2 - t^2 = (w_i \sigma e^{\kappa}
/ g)^2`. Step 4 multiplies the ratios of the :math:`M` numbers, and gives for every set
:math:`A`

.. math:: P_x(A) \le e^{\varepsilon + \xi} P_{x'}(A) + e^{\xi} \delta, \qquad
   \xi = \sum_i \Bigl( \ln \frac{1 + \eta(t)}{1 - \eta(t)} + (H - 1) \ln
   \frac{1 + \eta(s_i / \sqrt 2)}{1 - \eta(s_i / \sqrt 2)} \Bigr),

wherever the Gaussian mechanism behind :math:`Q` is :math:`(\varepsilon, \delta)`-DP for
:math:`x` and :math:`x'`. That one depends on the weighted distance of the two alone. It
is a Gaussian mechanism with

.. math:: \sum_i \frac{(x_i - x'_i)^2}{v_i^2} = \frac{g^2}{\sigma^2 e^{2 \kappa}}
   \Bigl( \sum_{i \text{ on}} (x_i - x'_i)^2 + 2 \sum_{i \text{ off}} (x_i - x'_i)^2
   \Bigr) = \frac{\lVert g X - g X' \rVert_F^2}{\sigma^2 e^{2 \kappa}},

where :math:`X` and :math:`X'` are the symmetric integer matrices: a number off the
diagonal stands twice in them. The integers of the site differ by two rounded trials,
those of all other sites are the same. So the norm is at most :math:`\Delta`, which has
the rounding in it (``sensitivity`` of `ContinualSettings`), and the mechanism is
:math:`\mu e^{-\kappa}`-GDP.

*The study.* Take a transcript of released totals, and the releases one after another.
Given the earlier totals, contexts and chance, both studies have the same integers in
every release but one: later trials are functions of what is the same. So the ratio of
the two laws at a transcript is that of one release, which the earlier totals choose.
All releases together are one use of the mechanism: :math:`\mu` and :math:`\xi` are paid
once. An adversary who sees one release more, or less, sees post-processing.
By the lemma of `integer_noise`, :math:`e^{\kappa}` pays for :math:`\xi`.
:math:`\square`

The lemma's conditions hold: :math:`\xi \le 3 \cdot 10^{-28}`, as all :math:`s_i \ge
64`, :math:`M \le 2^{19}` and :math:`H \le 2^{20}`; and :math:`\mu \ge 10^{-4}`.

**Sites that do not answer.** A sum that is unmasked has at least ``min_summed`` sites,
:math:`H` honest ones and all that may collude. With fewer the release fails: nothing is
unmasked, nothing is spent, and it is tried again. So the noise is never short, and
nothing has to be made up for. With correlated noise it would be different. Then release
:math:`k` would have the noise :math:`\sum_m D_m B Z_m`, where :math:`D_m` are the
releases that site :math:`m` is in. Its covariance is :math:`K \circ G`, with :math:`K =
B B'` and :math:`H G_{kl}` the number of sites in both release :math:`k` and
:math:`l`. That is less than :math:`K` in some direction unless :math:`G - 1 1'` is
positive semidefinite. Disjoint sets of sites have :math:`G = I`: the releases are
independent noisy copies of nearly the same running sum, and averaging them takes the
noise away. With :math:`B = A` and :math:`C = I` blocks are independent anyway.

**What is not covered**: two sums of one trial. The caller keeps each trial to the
release for which its site first sent it masked, whatever failed afterwards.
`SumIdentity` sees to it that one set of sites is summed a release. A wrap-around of the
sum costs accuracy, not privacy: it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, instance, integer
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.privacy.continual import is_on_grid
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.secure.integer_noise import MOST_BITS, MOST_SITES, SumNoise

MOST_TRIALS = 2**30
# By how much a trial's size may exceed its bound: norms are checked to 1e-9.
_ROUNDING = 2.0**-20


@dataclass(frozen=True)
class BlockNoise(SumNoise):
    """Integer form of a block, and a site's share of the noise of the sum.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fbo.bandits import ContinualSettings
    >>> releases = ContinualSettings(5, 1, 4.0, 1e-5, mechanism="blocks")
    >>> noise = BlockNoise(releases, num_sites=3, honest=2, most_trials=100)
    >>> block = releases.gram([[0.6], [0.8]], [1.0, -0.5])
    >>> total = np.zeros(noise.length, dtype=np.uint64)
    >>> for _ in range(3):  # each site masks what it adds here
    ...     total += noise.wrapped(noise.encode(block) + noise.draw_share())
    >>> noise.decode(total).shape  # about three times the block
    (2, 2)
    >>> round(noise.std(3) / releases.noise_std, 2)  # on the diagonal
    1.22

    Formal guarantees
    -----------------
    Adjacency: two studies are neighbours if they differ in *one trial* of one site,
    action and reward, replaced by others within the bounds. All totals of a study
    together, however many, are (epsilon, delta)-DP, with those of ``releases``, for
    delta up to 1/2. The module has theorem and proof.

    The guarantee needs: ``honest`` sites in each sum that keep their shares secret;
    each trial in the sum of one release at most; blocks that are sums of what
    `ContinualSettings.outer_products` returned; sites whose later trials depend on
    their data through released totals only; one share a release; and secure
    aggregation that shows only the sum. Not covered: a site as a whole, all its trials
    at once; who answers and when; how many trials a block has.

    Attributes
    ----------
    releases : ContinualSettings
        Bounds of a trial and privacy of all releases: with noise, one stream, and
        ``mechanism="blocks"``.
    num_sites : int
        Largest number N of summed sites, from 1 to 2**20.
    honest : int
        Number H of summed sites, from 1 to N, whose shares alone give the noise.
    most_trials : int
        Largest number of trials in a block of one site, from 1 to 2**30. With more of
        them the sum could wrap around.
    """

    releases: ContinualSettings = field(metadata=instance(ContinualSettings))
    num_sites: int = field(metadata=integer(1, MOST_SITES))
    honest: int = field(metadata=integer(1))
    most_trials: int = field(metadata=integer(1, MOST_TRIALS))
    length: int = field(init=False)

    def __post_init__(self) -> None:
        check_blocks(self.releases)
        size = self.releases.dimension + 1
        object.__setattr__(self, "length", size * (size + 1) // 2)
        check_fields(self)
        require_int("honest", self.honest, 1, self.num_sites)
        expected = (
            f"at most {MOST_BITS}; give fewer num_sites, fewer most_trials or a larger "
            "epsilon"
        )
        require(self.num_bits <= MOST_BITS, "num_bits", self.num_bits, expected)

    def planned_stds(self) -> tuple[tuple[int, float], ...]:
        """Return two runs: the diagonal, and what is above it."""
        size, std = self.releases.dimension + 1, self.unit_std
        # An entry off the diagonal stands twice in a matrix, so each has half of the
        # variance: then the noise is isotropic in the Frobenius norm.
        return (size, std), (self.length - size, std / math.sqrt(2.0))

    @property
    def unit_std(self) -> float:
        """Planned deviation of H shares on the diagonal, in integer units."""
        return self.releases.noise_std / self.unit

    @property
    def unit(self) -> float:
        """Grid that each trial is rounded to."""
        return self.releases.grid

    @cached_property
    def largest_integer(self) -> int:
        """Largest size of an integer of one block."""
        r = self.releases
        longest = (r.max_action_norm**2 + r.max_reward**2) / self.unit
        return self.most_trials * (math.ceil(longest * (1 + _ROUNDING)) + 1)

    @cached_property
    def _places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and columns of the integers: the diagonal, then what is above it."""
        size = self.releases.dimension + 1
        above, diagonal = np.triu_indices(size, 1), np.arange(size)
        return (
            np.concatenate([diagonal, above[0]]),
            np.concatenate([diagonal, above[1]]),
        )

    def encode(self, values: FloatArray) -> NDArray[np.int64]:
        """Return the integers of a block: exact, and not clipped.

        Parameters
        ----------
        values : ndarray of shape (d + 1, d + 1)
            Sum of what `ContinualSettings.outer_products` returned of its trials.

        Raises
        ------
        ValueError
            If it cannot be such a sum.
        """
        size, shape = self.releases.dimension + 1, np.shape(values)
        # The error shows nothing of what the site wants to keep.
        require(shape == (size, size), "block.shape", shape, f"({size}, {size})")
        is_sum = bool(np.all(np.isfinite(values))) and np.array_equal(values, values.T)
        require(is_sum, "block", "...", "a symmetric matrix of finite numbers")
        expected = "a sum of what gram returned, below 2**53 steps of the grid"
        require(is_on_grid(values, self.unit), "block", "...", expected)
        return np.asarray(values[self._places] / self.unit, dtype=np.int64)

    def decode(self, total: NDArray[np.uint64]) -> FloatArray:
        """Return the sum of blocks and noise, shape (d + 1, d + 1).

        Parameters
        ----------
        total : ndarray of shape (M,)
            Sum of wrapped integers, modulo 2**b or not reduced.
        """
        size = self.releases.dimension + 1
        rows, columns = self._places
        matrix = np.zeros((size, size))
        matrix[rows, columns] = matrix[columns, rows] = self.signed(total) * self.unit
        return matrix


def check_blocks(releases: ContinualSettings) -> None:
    """Raise ValueError unless sites can sum the blocks of some releases."""
    expected = "'blocks', with secure aggregation"
    is_blocks = releases.mechanism == "blocks"
    require(is_blocks, "mechanism", releases.mechanism, expected)
    is_one = releases.num_streams == 1
    require(is_one, "num_streams", releases.num_streams, "1, with secure aggregation")
    is_noisy = releases.noise_std > 0
    require(is_noisy, "epsilon", releases.epsilon, "finite, with secure aggregation")
