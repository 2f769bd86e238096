r"""Noise of a sum that no single party knows: integer messages and noise shares.

Secure aggregation shows a server only the sum of integer messages modulo 2**b. Each
site adds its share of discrete Gaussian noise before it masks its message, so that
the sum is differentially private towards the server too (distributed discrete
Gaussian mechanism: Kairouz, Liu & Steinke, 2021).

A sum of discrete Gaussians is not a discrete Gaussian. This is the proof that
accountants may charge it as a Gaussian mechanism of noise multiplier :math:`z`.

**Mechanism.** A site clips its message of :math:`M` numbers to ``max_norm``, multiplies
it by :math:`R` / ``max_norm`` and rounds each number toward zero. That lengthens no
vector, so the sum has sensitivity :math:`R` (``largest_norm``). The site adds :math:`M`
independent draws of the discrete Gaussian of parameter :math:`s` (``share_std``), whose
mass at :math:`k` is proportional to :math:`\rho_s(k) = e^{-k^2 / (2 s^2)}`, with

.. math:: s = \sqrt{\frac{(z R e^{\kappa})^2 + t^2}{H}} \ge 64, \qquad
   \kappa = \ln(1 + 2^{-30}), \qquad t = 2.

:math:`H` (``honest``) sites keep their shares secret; let :math:`S = s \sqrt H`.

**Theorem.** Let :math:`P_x` be the law of :math:`x` plus :math:`H` shares, for a vector
:math:`x` of :math:`M` integers. Let :math:`x` and :math:`x'` differ by at most
:math:`R` in the L2 norm. If the Gaussian mechanism with standard deviation
:math:`\sqrt{S^2 - t^2}` and sensitivity :math:`R` is :math:`(\varepsilon, \delta)`-DP,
then for every set :math:`A` of outcomes

.. math:: P_x(A) \le e^{\varepsilon + \xi} P_{x'}(A) + e^{\xi} \delta, \qquad
   \xi = M \Bigl( \ln \frac{1 + \eta(t)}{1 - \eta(t)} + (H - 1) \ln
   \frac{1 + \eta(s / \sqrt 2)}{1 - \eta(s / \sqrt 2)} \Bigr),

with :math:`\eta(r) = 2 \sum_{m \ge 1} e^{-2 \pi^2 r^2 m^2}`. For all settings that are
allowed :math:`\xi \le 3 \cdot 10^{-28}` (`log_ratio_bound`); for :math:`M = 512` it is
:math:`10^{-31}`. Nearly all of it is the term of :math:`t`.

**Proof, step 1: a Gaussian summed over integers.** By Poisson summation, for every real
:math:`c` and :math:`r > 0`,

.. math:: \Theta_r(c) = \sum_{j \in \mathbb Z} \rho_r(j - c) = \sqrt{2 \pi}\, r \Bigl(1
   + 2 \sum_{m \ge 1} e^{-2 \pi^2 r^2 m^2} \cos(2 \pi m c)\Bigr).

So :math:`\Theta_r(c) / (\sqrt{2 \pi}\, r)` lies in :math:`[1 - \eta(r), 1 + \eta(r)]`,
and reaches the upper end at :math:`c = 0`.

**Step 2: a sum of shares.** Let :math:`g_r(k) = \rho_r(k) / (\sqrt{2 \pi}\, r)`. One
share has the mass :math:`p_1(k) = g_s(k) / (1 + \eta(s))`. Suppose that a sum of
:math:`n` shares has the mass :math:`p_n(k) = g_{s \sqrt n}(k) F_n(k)` with :math:`F_n`
between :math:`l_n` and :math:`u_n`. Completing the square, with
:math:`r_n = s \sqrt{n / (n + 1)}` and :math:`c = k n / (n + 1)`,

.. math:: \sum_j g_{s \sqrt n}(j)\, g_s(k - j) = g_{s \sqrt{n + 1}}(k)\,
   \frac{\Theta_{r_n}(c)}{\sqrt{2 \pi}\, r_n}.

By step 1 the last factor lies in :math:`[1 - \eta(r_n), 1 + \eta(r_n)]`. So
:math:`F_{n + 1}` lies between :math:`l_n (1 - \eta(r_n)) / (1 + \eta(s))` and
:math:`u_n (1 + \eta(r_n)) / (1 + \eta(s))`. By induction :math:`l_H \le F_H \le u_H`
with

.. math:: \frac{u_H}{l_H} = \prod_{n = 1}^{H - 1} \frac{1 + \eta(r_n)}{1 - \eta(r_n)}
   \le \Bigl(\frac{1 + \eta(s / \sqrt 2)}{1 - \eta(s / \sqrt 2)}\Bigr)^{H - 1},

as :math:`\eta` decreases and :math:`r_n \ge s / \sqrt 2`. The factor
:math:`1 / (1 + \eta(s))` is in both ends and cancels.

**Step 3: a rounded continuous Gaussian.** Let :math:`v^2 = S^2 - t^2`. Round a real
number :math:`u` at random: to the integer :math:`j` with probability
:math:`\rho_t(j - u) / \Theta_t(u)`. This rule does not depend on :math:`x`. Let
:math:`Q_x` be the law of :math:`x + N(0, v^2)` after this rounding. It is
post-processing of the Gaussian mechanism. For one number,

.. math:: Q_x(y) = \int g_v(u - x)\, \frac{\rho_t(y - u)}{\Theta_t(u)}\, du.

By step 1 :math:`\Theta_t(u) / (\sqrt{2 \pi}\, t)` lies in
:math:`[1 - \eta(t), 1 + \eta(t)]`, and
:math:`\int g_v(u - x)\, g_t(y - u)\, du = g_S(y - x)` exactly. So :math:`Q_x(y)` lies
between :math:`g_S(y - x) / (1 + \eta(t))` and :math:`g_S(y - x) / (1 - \eta(t))`.

**Step 4: both together.** For one number, :math:`L\, Q_x(y) \le P_x(y) \le U\, Q_x(y)`
with :math:`L = l_H (1 - \eta(t))` and :math:`U = u_H (1 + \eta(t))`. Shares and noise
of the :math:`M` numbers are independent, so for vectors the factors are :math:`L^M` and
:math:`U^M`. As both laws sum to one, :math:`L \le 1 \le U`. Then

.. math:: P_x(A) \le U^M Q_x(A) \le U^M \bigl(e^{\varepsilon} Q_{x'}(A) + \delta\bigr)
   \le U^M \bigl(e^{\varepsilon} L^{-M} P_{x'}(A) + \delta\bigr),

and :math:`\xi \ge M \ln(U / L) \ge M \ln U`. :math:`\square`

**One example of a site.** Where neighbours differ in one example of a site, their
messages are at most ``distance`` apart, and not ``max_norm``. Rounding toward zero
moves two numbers apart by less than one step, so the integer messages differ by less
than

.. math:: D = \frac{R \cdot \mathrm{distance}}{\mathrm{max\_norm}} + \sqrt{M},

which stands for :math:`R` in :math:`s` and in the theorem. R is chosen such that
:math:`\sqrt M` is at most a thousandth of the first term: it is paid for by noise.

**More shares.** Shares beyond :math:`H`, those of sites that collude with the server,
and the messages of all other sites are independent of the :math:`H` secret shares.
Adding them is post-processing. So are the sum modulo :math:`2^b` and decoding.

**Several releases.** Step 4 bounds the ratio of two laws at every outcome, for every
input. With :math:`T` releases, where later messages may depend on earlier releases, the
ratio at a transcript lies between :math:`L^{MT}` and :math:`U^{MT}`. A random choice of
sites mixes such laws, and keeps these bounds. So the theorem holds for the whole study
with :math:`T \xi` in place of :math:`\xi`, and for any accountant that is correct for
the Gaussian mechanism, with sampling or without.

**What is charged** is a Gaussian mechanism of multiplier :math:`z` per release, and
nothing else. The noise pays for the random rounding, as
:math:`\sqrt{S^2 - t^2} = z R e^{\kappa}`. Without sampling :math:`e^{\kappa}` pays for
:math:`\xi` exactly, by the lemma below. With sampling we have no such proof: the exact
statement is :math:`(\varepsilon + T \xi, e^{T \xi} \delta)`, where a million releases
have :math:`T \xi \le 3 \cdot 10^{-22}`, below the resolution of the floats that epsilon
is computed with.

**Lemma.** Without sampling all releases together are one Gaussian mechanism of some
:math:`\mu` (Dong, Roth & Su, 2022). Let :math:`\delta_\mu(\varepsilon)` be its curve
with multipliers :math:`z`; with :math:`z e^{\kappa}` it is that of
:math:`\mu e^{-\kappa}`. If :math:`\delta_\mu(\varepsilon) \le 1/2`,
:math:`\varepsilon \ge 0`, :math:`\kappa \le 0.01` and :math:`\xi \le \kappa \mu / 5`,
then :math:`e^{\xi} \delta_{\mu e^{-\kappa}}(\varepsilon - \xi) \le
\delta_\mu(\varepsilon)`.

*Proof.* For :math:`\lambda` from 0 to 1 let :math:`\mu_\lambda = \mu e^{-\kappa
\lambda}`, :math:`x_\lambda = (\varepsilon - \lambda \xi) / \mu_\lambda - \mu_\lambda /
2` and :math:`F(\lambda) = e^{\lambda \xi} \delta_{\mu_\lambda}(\varepsilon - \lambda
\xi)`. The curve is :math:`\delta_\mu(\varepsilon) = \Phi(-x) - e^{\varepsilon} \Phi(-x
- \mu)` with :math:`x = \varepsilon / \mu - \mu / 2`, and holds for negative
:math:`\varepsilon` too, like the theorem. Its derivatives are :math:`\varphi(x)` in
:math:`\mu` and :math:`-e^{\varepsilon} \Phi(-x - \mu)` in :math:`\varepsilon`. So

.. math:: F'(\lambda) = e^{\lambda \xi} \bigl(\xi\, \Phi(-x_\lambda) - \kappa
   \mu_\lambda\, \varphi(x_\lambda)\bigr),

which is at most 0 where the Mills ratio :math:`m(x) = \Phi(-x) / \varphi(x)` is at most
:math:`\kappa \mu_\lambda / \xi` at :math:`x_\lambda`. The right side is at least
:math:`5 e^{-0.01} > 4.9`. It is left to bound :math:`m(x_\lambda)`.

As :math:`e^{\varepsilon} \varphi(x_0 + \mu) = \varphi(x_0)`, we have :math:`\Phi(-x_0)
= \delta_\mu(\varepsilon) + \varphi(x_0)\, m(x_0 + \mu)`. Here :math:`x_0 + \mu =
\varepsilon / \mu + \mu / 2 > 0`, so :math:`m(x_0 + \mu) \le m(0) = \sqrt{\pi / 2}`, and
:math:`\Phi(-x_0) \le (1 + e^{-x_0^2 / 2}) / 2`. At :math:`x_0 = -1` the left side is
0.84 and the right side 0.80; further left the left side grows and the right side falls.
So :math:`x_0 > -1`. Moving to :math:`\lambda` lowers :math:`x` by at most
:math:`\lambda \xi / \mu_\lambda \le 0.0021`, as :math:`\mu_\lambda \le \mu`. So
:math:`x_\lambda > -1.01`, and :math:`m(x_\lambda) \le m(-1.01) < 3.6`. :math:`\square`

The conditions hold: :math:`\mu \ge \sqrt T / z \ge 10^{-6} \sqrt T`, and :math:`T \xi
\le 3 \cdot 10^{-28}\, T` is below :math:`\kappa \mu / 5` up to :math:`T = 10^{23}`
releases.

**Published bounds** are larger. The texts of Kairouz, Liu & Steinke could not be
obtained. Proposition 14 in their code (``google-research/federated``,
``distributed_dp/accounting_utils.py``) bounds the Rényi divergence. Converted by
Canonne, Kamath & Steinke (2020) at the best order, with the same noise, N = 30, H = 20,
M = 512 and one release:

========================= ===== =========== ==============
planned                   s     our epsilon by their bound
========================= ===== =========== ==============
epsilon 1, delta 1e-5     27335 1.000       1.092
epsilon 2, delta 1e-3     10589 2.000       2.271
epsilon 8, delta 1e-3     3517  8.000       8.873
========================= ===== =========== ==============
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import check_fields, integer, number
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.privacy.noise import opendp_gaussian

# What rounding may change of a message, in units of max_norm: sqrt(M) / 1000.
_UNITS_PER_ROOT_LENGTH = 1000
# Smallest deviation of a share. The rounding of the proof then costs at most 5e-4 of
# the noise, and a sum of shares is as good as a discrete Gaussian.
_LEAST_SHARE_STD = 64.0
# Deviation t of the proof's random rounding, which the noise pays for.
_ROUNDING_STD = 2.0
# By how much the noise is larger than planned. It pays for `log_ratio`, and for the
# rounding of floats here.
_MARGIN = 2.0**-30
_LOG2_WRAP_PROBABILITY = -40
MOST_BITS = 56
MOST_SITES = _LONGEST = 2**20


def log_ratio_bound(
    share_std: float, num_shares: int, length: int, rounding_std: float
) -> float:
    """Return xi, which bounds how far noise shares are from rounded Gaussian noise.

    Let P be the law of a message plus its noise shares. Let Q be that of the message
    plus continuous Gaussian noise, rounded at random. There are a <= 0 <= b with
    b - a <= xi such that exp(a) Q <= P <= exp(b) Q for every outcome and message.

    Parameters
    ----------
    share_std : float
        Parameter s of one share.
    num_shares : int
        Number of summed shares.
    length : int
        Numbers in a message.
    rounding_std : float
        Parameter t of the random rounding. The continuous noise has variance
        num_shares s^2 - t^2, which must be positive.
    """
    rounding = 2.0 * math.atanh(_ripple(rounding_std))
    # Adding share k + 1 has ripple s sqrt(k / (k + 1)), at least s / sqrt(2).
    adding = 2.0 * math.atanh(_ripple(share_std / math.sqrt(2.0)))
    return length * (rounding + (num_shares - 1) * adding)


def _ripple(std: float) -> float:
    """Return eta: how far a Gaussian's sum over shifted integers is from constant.

    It is 2 sum_m q^(m^2) with q = exp(-2 pi^2 std^2), at most 2 q / (1 - q).
    """
    q = math.exp(-2.0 * (math.pi * std) ** 2)
    return 2.0 * q / (1.0 - q)


class SumNoise(ABC):
    """Base class of a sum's noise: shares of it, and integers modulo 2**b.

    A child says what integers a site adds, how wide their noise is and how far it can
    move. Coordinates come in runs of one width each.

    Attributes
    ----------
    num_sites : int
        Largest number N of summed sites.
    honest : int
        Number H of summed sites, from 1 to N, whose shares alone give the noise.
    length : int
        Number M of integers of a site.
    """

    num_sites: int
    honest: int
    length: int

    @abstractmethod
    def planned_stds(self) -> tuple[tuple[int, float], ...]:
        """Return runs of coordinates: their number, and deviation of H shares."""

    @property
    @abstractmethod
    def largest_integer(self) -> int:
        """Largest size of an integer of one site, before its share."""

    @property
    @abstractmethod
    def unit(self) -> float:
        """Size of one integer step in a decoded sum."""

    @abstractmethod
    def encode(self, values: FloatArray) -> NDArray[np.int64]:
        """Return the integers of a site, shape (M,)."""

    @abstractmethod
    def decode(self, total: NDArray[np.uint64]) -> FloatArray:
        """Return a sum of wrapped integers, modulo 2**b or not reduced, in its unit."""

    @cached_property
    def share_stds(self) -> tuple[tuple[int, float], ...]:
        """How many coordinates each run has, and the deviation of one share in it.

        H shares have the planned variance, enlarged by what the proof spends: t^2 for
        the random rounding, and one part in 2**30 for xi.
        """
        return tuple(
            (
                count,
                math.hypot(std * (1.0 + _MARGIN), _ROUNDING_STD)
                / math.sqrt(self.honest),
            )
            for count, std in self.planned_stds()
        )

    @property
    def share_std(self) -> float:
        """Standard deviation of a share's first number, in integer units."""
        return self.share_stds[0][1]

    @property
    def log_ratio(self) -> float:
        """Bound xi of the proof for H shares; it is added to epsilon."""
        return math.fsum(
            log_ratio_bound(std, self.honest, count, _ROUNDING_STD)
            for count, std in self.share_stds
        )

    @cached_property
    def num_bits(self) -> int:
        """Number b of bits of the sum: a multiple of 8.

        Any of the M sums of N sites' integers and shares wraps around with probability
        at most 2**-40. A discrete Gaussian Z is sub-Gaussian with its parameter s: with
        the proof's Theta, E exp(a Z) = exp(a^2 s^2 / 2) Theta_s(a s^2) / Theta_s(0),
        at most exp(a^2 s^2 / 2). So a sum of N exceeds u with probability at most
        2 exp(-u^2 / (2 N s^2)); the union bound takes that M times.
        """
        log_events = math.log(2 * self.length) - _LOG2_WRAP_PROBABILITY * math.log(2)
        widest = max(std for _, std in self.share_stds)
        tail = widest * math.sqrt(2 * self.num_sites * log_events)
        largest_sum = self.num_sites * self.largest_integer + tail
        return 8 * math.ceil((math.log2(largest_sum) + 1) / 8)

    def draw_share(self) -> NDArray[np.int64]:
        """Draw a site's share of the noise, shape (M,), from OS entropy.

        The sampler is exact (Canonne, Kamath & Steinke, 2020): OpenDP's.
        """
        drawn: list[int] = []
        for count, std in self.share_stds:
            drawn += opendp_gaussian(int, count, std)([0] * count)
        return np.array(drawn, dtype=np.int64)

    def wrapped(self, integers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return integers modulo 2**b."""
        # Two's complement: negative integers add up modulo 2**b like all others.
        return integers.astype(np.uint64) & np.uint64(2**self.num_bits - 1)

    def signed(self, total: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the integers whose sum modulo 2**b this is, if none wrapped around."""
        # The upper bits fall off on the left; the sign bit fills them from the left.
        spare = 64 - self.num_bits
        return (total << np.uint64(spare)).view(np.int64) >> np.int64(spare)

    def std(self, num_answered: int) -> float:
        """Return the deviation of the noise in a decoded sum's first number.

        At most 1.001 sqrt(num_answered / H) times that of a trusted server.

        Parameters
        ----------
        num_answered : int
            Number of summed sites, from H to N.
        """
        require_int("num_answered", num_answered, self.honest, self.num_sites)
        return math.sqrt(num_answered) * self.share_std * self.unit


@dataclass(frozen=True)
class IntegerNoise(SumNoise):
    """Integer form of a message, and a site's share of the noise of the sum.

    Examples
    --------
    >>> import numpy as np
    >>> noise = IntegerNoise(
    ...     num_sites=3, honest=2, length=4, max_norm=1.0, noise_multiplier=1.5
    ... )
    >>> message = np.array([0.6, 0.0, -0.8, 0.0])
    >>> total = np.zeros(4, dtype=np.uint64)
    >>> for _ in range(3):  # each site masks what it adds here
    ...     total += noise.wrapped(noise.encode(message) + noise.draw_share())
    >>> noise.decode(total).shape  # about three times the message
    (4,)
    >>> round(noise.std(3), 2)  # of the noise; a trusted server adds 1.5
    1.84

    Formal guarantees
    -----------------
    Adjacency: two rounds are neighbours if one site's message is replaced by zeros;
    with ``distance``, if it is replaced by one that is so near. Suppose that ``honest``
    sites whose messages are in the sum keep their shares secret. The sum is then
    (epsilon + xi, e^xi delta)-DP wherever a Gaussian mechanism with
    ``noise_multiplier`` is (epsilon, delta)-DP, and xi (`log_ratio`) is at most 3e-28.
    All releases of a study compose like Gaussian mechanisms: their xi add up. Without
    sampling, and for delta up to 1/2, the noise also pays for xi: the sum is (epsilon,
    delta)-DP.

    The guarantee needs: `encode` and `draw_share` at the honest sites, one share a
    message, and secure aggregation that shows only the sum. A wrap-around of the sum
    costs accuracy, not privacy. Not covered: who answers, the time that sampling
    takes, and who among the other sites tells the server its share.

    Attributes
    ----------
    num_sites : int
        Largest number N of summed messages, from 1 to 2**20.
    honest : int
        Number H of summed sites, from 1 to N, whose shares alone give the noise.
    length : int
        Number M of numbers in a message, from 1 to 2**20.
    max_norm : float
        Largest L2 norm of a message, from 1e-100 to 1e100; longer ones are clipped.
    noise_multiplier : float
        Noise z of H shares over ``max_norm``, or over ``distance``, from 1e-6 to 1e6.
    distance : float, optional
        Largest distance, up to twice ``max_norm``, of the messages of a site that
        differ in one of its examples. None: neighbours differ in the whole message,
        which is zeroed.
    """

    num_sites: int = field(metadata=integer(1, MOST_SITES))
    honest: int = field(metadata=integer(1))
    length: int = field(metadata=integer(1, _LONGEST))
    max_norm: float = field(metadata=number(1e-100, 1e100))
    noise_multiplier: float = field(metadata=number(1e-6, 1e6))
    distance: float | None = field(
        default=None, metadata=number(1e-100, 1e101, optional=True)
    )

    def __post_init__(self) -> None:
        check_fields(self)
        require_int("honest", self.honest, 1, self.num_sites)
        expected = (
            f"at most {MOST_BITS}; give fewer num_sites, a smaller length or a "
            "noise_multiplier nearer to 1"
        )
        require(self.num_bits <= MOST_BITS, "num_bits", self.num_bits, expected)

    @cached_property
    def largest_norm(self) -> int:
        """Largest L2 norm of an integer message.

        It is the smallest power of two at which rounding changes a message by at most
        ``max_norm`` / 1000, or ``distance`` / 1000, and at which a share is wide enough
        for the proof.
        """
        resolution = _UNITS_PER_ROOT_LENGTH * math.sqrt(self.length)
        width = _LEAST_SHARE_STD * math.sqrt(self.honest) / self.noise_multiplier
        needed = max(resolution, width)
        if self.distance is not None:
            needed *= self.max_norm / self.distance
        return int(2 ** math.ceil(math.log2(needed)))

    @property
    def largest_distance(self) -> float:
        """Largest distance of neighbours' integer messages: the sum's sensitivity."""
        if self.distance is None:
            return self.largest_norm
        return self.distance * self.scale + math.sqrt(self.length)

    @property
    def scale(self) -> float:
        """Factor that a message is multiplied by before rounding."""
        return self.largest_norm / self.max_norm

    @property
    def unit(self) -> float:
        """Size of one integer step in message units."""
        return 1.0 / self.scale

    @property
    def largest_integer(self) -> int:
        """Largest size of an integer of one site: ``largest_norm``."""
        return self.largest_norm

    def planned_stds(self) -> tuple[tuple[int, float], ...]:
        """Return one run of M numbers: H shares have z ``largest_distance``."""
        return ((self.length, self.noise_multiplier * self.largest_distance),)

    def encode(self, message: FloatArray) -> NDArray[np.int64]:
        """Return the integer form of a message; it has at most ``largest_norm``.

        Numbers are rounded toward zero, which lengthens no message, and makes each
        number smaller by half a unit on average. The norm is checked in exact
        arithmetic.

        Parameters
        ----------
        message : ndarray of shape (M,)
            Numbers of size 1e100 at most. It is clipped to ``max_norm``.

        Raises
        ------
        ValueError
            If the shape is wrong or a number is not finite or too large.
        """
        # The error shows nothing of what the site wants to keep.
        shape = np.shape(message)
        require(shape == (self.length,), "message.shape", shape, f"({self.length},)")
        is_finite = bool(np.all(np.abs(message) <= 1e100))
        require(is_finite, "message", "...", "finite numbers of size 1e100 at most")
        norm = math.hypot(*message.tolist())
        # Clipped here, at the site: the server could not, it sees the sum only.
        factor = self.largest_norm / max(norm, self.max_norm)
        while True:
            integers = np.trunc(message * factor).astype(np.int64)
            if sum(n * n for n in integers.tolist()) <= self.largest_norm**2:
                return integers
            # The float norm was too short by its rounding, which is far less than this.
            factor *= 1.0 - 2.0**-40

    def decode(self, total: NDArray[np.uint64]) -> FloatArray:
        """Return the sum of messages and noise, in message units.

        Parameters
        ----------
        total : ndarray of shape (M,)
            Sum of wrapped integers, modulo 2**b or not reduced.
        """
        return self.signed(total) / self.scale
