"""Noise of a sum that no single party knows: integer messages and noise shares.

Secure aggregation shows a server only the sum of integer messages modulo 2**b. Each
site adds its share of discrete Gaussian noise before it masks its message, so that
the sum is differentially private towards the server too (distributed discrete
Gaussian mechanism: Kairouz, Liu & Steinke, 2021).

The proof that accountants may charge a sum of shares as a Gaussian mechanism is in
docs/privacy/mechanisms.md; its bound is `log_ratio_bound`.
"""

from __future__ import annotations

import math
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
_MOST_BITS = 56
_MOST_SITES = _LONGEST = 2**20


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
        How many shares are summed.
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


@dataclass(frozen=True)
class IntegerNoise:
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
    Adjacency: two rounds are neighbours if one site's message is replaced by zeros.
    Suppose that ``honest`` sites whose messages are in the sum keep their shares
    secret. The sum is then (epsilon + xi, e^xi delta)-DP wherever a Gaussian
    mechanism with ``noise_multiplier`` is (epsilon, delta)-DP, and xi
    (`log_ratio`) is at most 3e-28. All releases of a study compose like Gaussian
    mechanisms: their xi add up. Without sampling, and for delta up to 1/2, the noise
    also pays for xi: the sum is (epsilon, delta)-DP.

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
        Noise z of H shares over ``max_norm``, from 1e-6 to 1e6.
    """

    num_sites: int = field(metadata=integer(1, _MOST_SITES))
    honest: int = field(metadata=integer(1))
    length: int = field(metadata=integer(1, _LONGEST))
    max_norm: float = field(metadata=number(1e-100, 1e100))
    noise_multiplier: float = field(metadata=number(1e-6, 1e6))

    def __post_init__(self) -> None:
        check_fields(self)
        require_int("honest", self.honest, 1, self.num_sites)
        allowed = (
            f"at most {_MOST_BITS}; give fewer num_sites, a smaller length or a "
            "noise_multiplier nearer to 1"
        )
        require(self.num_bits <= _MOST_BITS, "num_bits", self.num_bits, allowed)

    @cached_property
    def largest_norm(self) -> int:
        """Largest L2 norm of an integer message, and so the sum's sensitivity.

        It is the smallest power of two at which rounding changes a message by at most
        ``max_norm`` / 1000, and at which a share is wide enough for the proof.
        """
        resolution = _UNITS_PER_ROOT_LENGTH * math.sqrt(self.length)
        width = _LEAST_SHARE_STD * math.sqrt(self.honest) / self.noise_multiplier
        return int(2 ** math.ceil(math.log2(max(resolution, width))))

    @property
    def scale(self) -> float:
        """Factor that a message is multiplied by before rounding."""
        return self.largest_norm / self.max_norm

    @cached_property
    def share_std(self) -> float:
        """Standard deviation of one share, in integer units.

        H shares have variance (z ``largest_norm``)^2, enlarged by what the proof
        spends: t^2 for the random rounding, and one part in 2**30 for xi.
        """
        planned = self.noise_multiplier * self.largest_norm * (1.0 + _MARGIN)
        return math.hypot(planned, _ROUNDING_STD) / math.sqrt(self.honest)

    @property
    def log_ratio(self) -> float:
        """Bound xi of the proof for H shares; it is added to epsilon."""
        return log_ratio_bound(self.share_std, self.honest, self.length, _ROUNDING_STD)

    @cached_property
    def num_bits(self) -> int:
        """Number b of bits of the sum: a multiple of 8.

        Any of the M sums of N messages and N shares wraps around with probability at
        most 2**-40. A discrete Gaussian is sub-Gaussian with its parameter s, so a sum
        of N exceeds u with probability at most 2 exp(-u^2 / (2 N s^2)); the union
        bound takes that M times.
        """
        log_events = math.log(2 * self.length) - _LOG2_WRAP_PROBABILITY * math.log(2)
        tail = self.share_std * math.sqrt(2 * self.num_sites * log_events)
        largest_sum = self.num_sites * self.largest_norm + tail
        return 8 * math.ceil((math.log2(largest_sum) + 1) / 8)

    def encode(self, message: FloatArray) -> NDArray[np.int64]:
        """Return the integer form of a message; it has at most ``largest_norm``.

        Numbers are rounded toward zero, which lengthens no message. The norm is checked
        in exact arithmetic.

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
        ok = bool(np.all(np.abs(message) <= 1e100))
        require(ok, "message", "...", "finite numbers of size 1e100 at most")
        norm = math.hypot(*message.tolist())
        # Clipped here, at the site: the server could not, it sees the sum only.
        factor = self.largest_norm / max(norm, self.max_norm)
        while True:
            integers = np.trunc(message * factor).astype(np.int64)
            if sum(n * n for n in integers.tolist()) <= self.largest_norm**2:
                return integers
            # The float norm was too short by its rounding, which is far less than this.
            factor *= 1.0 - 2.0**-40

    def draw_share(self) -> NDArray[np.int64]:
        """Draw a site's share of the noise, shape (M,), from OS entropy.

        The sampler is exact (Canonne, Kamath & Steinke, 2020): OpenDP's.
        """
        draw = opendp_gaussian(int, self.length, self.share_std)
        return np.array(draw([0] * self.length), dtype=np.int64)

    def wrapped(self, integers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return integers modulo 2**b."""
        # Two's complement: negative integers add up modulo 2**b like all others.
        return integers.astype(np.uint64) & np.uint64(2**self.num_bits - 1)

    def decode(self, total: NDArray[np.uint64]) -> FloatArray:
        """Return the sum of messages and noise, in message units.

        Parameters
        ----------
        total : ndarray of shape (M,)
            Sum of wrapped integers, modulo 2**b or not reduced.
        """
        # The upper bits fall off on the left; the sign bit fills them from the left.
        spare = 64 - self.num_bits
        signed = (total << np.uint64(spare)).view(np.int64) >> np.int64(spare)
        return signed / self.scale

    def std(self, num_answered: int) -> float:
        """Return the standard deviation of the noise in a sum, in message units.

        At most 1.001 sqrt(num_answered / H) times that of a trusted server.

        Parameters
        ----------
        num_answered : int
            Number of summed messages, from H to N.
        """
        require_int("num_answered", num_answered, self.honest, self.num_sites)
        return math.sqrt(num_answered) * self.share_std / self.scale
