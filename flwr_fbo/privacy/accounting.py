"""Privacy spent by a sequence of releases, and the noise that keeps to a budget.

Three accountants answer for the same releases, each with an upper bound on epsilon:

- ``pld``: the privacy loss distribution; the tightest, and the default. Where all take
  part (q = 1) it is the Gaussian mechanism's own, else it is composed numerically
  (Doroshenko et al., 2022: connect the dots);
- ``rdp``: Renyi differential privacy, Flower's own;
- ``moments``: the moments of integer order up to 32 (Abadi et al., 2016), as the papers
  counted; for comparison with their figures.

Flower's accountants take integer sample and population sizes, so the sampling
probability q is handed over as a ratio of integers. Under Poisson sampling the relation
is add-or-remove-one: an agent whose messages are zeroed adds nothing, as if it were not
sampled.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

import numpy as np
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp import PrivacySpent as FlowerPrivacySpent

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import (
    require,
    require_choice,
    require_int,
    require_positive,
)
from flwr_fbo.privacy.gaussian import (
    LEAST_NOISE,
    check_delta,
    check_epsilon,
    poisson_epsilon,
)
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee, replaced_epsilon
from flwr_fbo.privacy.sampling import Subsampling

Method = Literal["pld", "rdp", "moments"]

# The moments that the papers take: integer orders, nothing between.
_ORDERS = np.arange(1.0, 33.0)


@dataclass(frozen=True)
class PrivacySpent(FlowerPrivacySpent):
    """Epsilon that was spent, with its terms: Flower's type, and whom it protects.

    Examples
    --------
    >>> from flwr_fbo.privacy.accounting import ReleaseAccountant
    >>> from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
    >>> accountant = ReleaseAccountant(1.0, 1e-3)
    >>> accountant.charge(noise_multiplier=1.4453)
    >>> print(accountant.spent(Guarantee(CLIENT, "server")))
    epsilon 2 per client (message or zeros, delta 0.001; 4.714 if replaced by another)

    Attributes
    ----------
    guarantee : Guarantee
        Unit of privacy, adjacency, trust and conditions.
    epsilon_if_replaced : float, optional
        The same at ``delta`` for a client's messages, or an example, replaced by
        another. None where that is the adjacency, or there is no such bound: see
        `flwr_fbo.privacy.guarantee`.
    """

    guarantee: Guarantee = field(kw_only=True)
    epsilon_if_replaced: float | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        """Return epsilon with unit, adjacency, delta and conditions."""
        return self.text()

    def text(self, form: str = ".4g") -> str:
        """Return epsilon in a format, with unit, adjacency, delta and conditions."""
        return f"epsilon {_number(self.epsilon, form)} {self.after(form)}"

    def after(self, form: str = ".4g") -> str:
        """Return the terms that follow the number."""
        other, more = self.epsilon_if_replaced, ""
        # Of an example both are told: one who reads of it may mean either.
        is_of_example = self.guarantee.unit.protects == "example"
        if other is not None and (is_of_example or other != self.epsilon):
            more = f"{_number(other, form)} if replaced by another"
        return self.guarantee.after(self.delta, more)

    def to_json(self) -> dict[str, Any]:
        """Return epsilon and its terms as JSON values."""
        return {
            "epsilon": self.epsilon,
            "epsilon_if_replaced": self.epsilon_if_replaced,
            **self.guarantee.facts(self.delta),
        }


def terms_of(spent: PrivacySpent | None) -> dict[str, Any]:
    """Return the terms of an epsilon as JSON values; empty where there is none."""
    return {} if spent is None else spent.guarantee.facts(spent.delta)


def _number(value: float, form: str) -> str:
    return "infinite" if math.isinf(value) else format(value, form)


class ReleaseAccountant:
    """Charges releases, one by one; reports what they have spent.

    Epsilon is a function of the charges alone: how often it was asked for in between
    does not show in its last digit.

    With ``"pld"`` all releases are one Gaussian mechanism where nobody is left out, and
    epsilon is exact (Dong, Roth & Su, 2022, corollary 2). With sampling the losses are
    discretised to a grid that fits the releases; whatever its step, the result is an
    upper bound. Measured against a grid eight times as fine it is within 2e-3 of
    epsilon, or within 1e-3 of it relatively, from 1 to 1000 releases, q from 1e-5 to 1,
    z from 0.3 to 1000 and delta from 2e-2 to 1e-8.

    With ``"moments"``, the papers' accountant,

        epsilon = min over lambda of (sum of alpha(lambda) - ln delta) / lambda,

    where alpha(lambda) is the log moment of a release (Abadi et al., 2016, theorem 2),
    and lambda is an integer from 1 to 32. It is there for comparison: its bound is the
    loosest of the three.

    Parameters
    ----------
    sampling : float or Subsampling
        Sampling scheme: `ReleaseSettings.subsampling`, or the probability q in (0, 1]
        of Poisson sampling.
    delta : float
        Delta in (0, 1) at which epsilon is reported.
    method : {"pld", "rdp", "moments"}
        Accountant. Only ``"rdp"``, Flower's, knows a fixed sample size; epsilon is then
        under the replace-one relation, and is *not comparable* with the others.
    """

    def __init__(
        self, sampling: float | Subsampling, delta: float, method: Method = "pld"
    ) -> None:
        check_delta(delta)
        require_choice("method", method, Method)
        if not isinstance(sampling, Subsampling):
            sampling = Subsampling.poisson(sampling)
        is_known = sampling.sampling == "poisson" or method == "rdp"
        require(is_known, "method", method, "'rdp', where the sample size is fixed")
        self._sampling = sampling
        self._delta = float(delta)
        self._method = method
        # By noise multiplier: the order of releases changes no digit of epsilon.
        self._charges: Counter[float] = Counter()
        self._spent: FlowerPrivacySpent | None = None  # until there is another charge

    def charge(self, noise_multiplier: float, num_releases: int = 1) -> None:
        """Add releases with noise ``noise_multiplier`` times their sensitivity."""
        require_positive("noise_multiplier", noise_multiplier)
        require_int("num_releases", num_releases, 1)
        self._charges[float(noise_multiplier)] += num_releases
        self._spent = None

    def epsilon(self) -> float:
        """Return epsilon at delta for all releases so far.

        Infinite where one of them had noise of less than 1e-3 times its sensitivity.
        """
        return self._flower_spent().epsilon

    def spent(self, guarantee: Guarantee) -> PrivacySpent:
        """Return `epsilon` with its terms, in Flower's type.

        Parameters
        ----------
        guarantee : Guarantee
            Whom the noise multipliers that were charged protect.
        """
        spent, other = self._flower_spent(), None
        if guarantee.unit == CLIENT and self._is_exact:
            other = self.epsilon_if_replaced()
        return PrivacySpent(
            **vars(spent), guarantee=guarantee, epsilon_if_replaced=other
        )

    def epsilon_if_replaced(self) -> float:
        """Return epsilon if messages are replaced, where noise is for zeroed ones.

        By the tightest accountant. Exact without sampling; else an upper bound.
        """
        if not self._charges:
            return 0.0
        if min(self._charges) < LEAST_NOISE:
            return math.inf
        q = self._sampling.sample_size / self._sampling.population_size
        entries = tuple((q, z, count) for z, count in self._charges.items())
        return replaced_epsilon(entries, self._delta)

    @property
    def _is_exact(self) -> bool:
        return self._sampling.sample_size == self._sampling.population_size

    def _flower_spent(self) -> FlowerPrivacySpent:
        if self._spent is None:
            self._spent = self._spent_by(self._charges)
        return self._spent

    def _spent_by(self, charges: Counter[float]) -> FlowerPrivacySpent:
        # The ratio that Flower's accountant gets too: it is rounded up, because a q
        # that is too small would make epsilon too small.
        q = self._sampling.sample_size / self._sampling.population_size
        if not charges:
            epsilon = 0.0
        elif min(charges) < LEAST_NOISE:
            epsilon = math.inf  # below that the accountants' arithmetic overflows
        elif self._method == "rdp":
            return _renyi_spent(self._sampling, charges, self._delta)
        elif self._method == "moments":
            # Moments add up, and Markov's inequality turns their sum into epsilon.
            moments = sum(count * _log_moments(q, z) for z, count in charges.items())
            epsilon = float(np.min((moments - math.log(self._delta)) / _ORDERS))
        else:
            entries = tuple((q, z, count) for z, count in charges.items())
            epsilon = poisson_epsilon(entries, self._delta)
        return FlowerPrivacySpent(epsilon, self._delta, charges.total(), self._method)


def _renyi_spent(
    sampling: Subsampling, charges: Mapping[float, int], delta: float
) -> FlowerPrivacySpent:
    """Return what Flower's Renyi accountant says, which knows both ways of sampling.

    Each way is amplified under a relation of its own.
    """
    # In a sample of fixed size somebody else takes the place of whoever is left out.
    scheme = (NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)
    if sampling.sampling == "poisson":
        scheme = (NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    size, population = sampling.sample_size, sampling.population_size
    accountant = RdpAccountant(PrivacyConfig(delta, population, *scheme))
    # dp-accounting says of every Renyi order that it leaves out that this raises
    # epsilon. Without a root handler absl would install one, and every later line of
    # Flower's log would be printed twice.
    logger, handler = logging.getLogger("absl"), logging.NullHandler()
    level = logger.level
    logger.setLevel(logging.ERROR)
    logging.root.addHandler(handler)
    try:
        for z, count in charges.items():
            accountant.compose(GaussianPrivacyEvent(z, size, population), count)
        return accountant.get_privacy_spent()
    finally:
        logging.root.removeHandler(handler)
        logger.setLevel(level)


@lru_cache(maxsize=1024)
def _log_moments(q: float, z: float) -> FloatArray:
    """Return alpha(lambda), the log of the binomial sum over k out of lambda + 1.

    dp-accounting has these sums too, but turns moments into epsilon by a tighter rule
    than the papers', whose figures are to be reproduced.
    """
    from scipy.special import gammaln, logsumexp, xlog1py, xlogy

    # In logarithms: k (k - 1) / (2 z^2) overflows exp where z is small.
    n, k = _ORDERS[:, None] + 1, np.arange(34.0)[None, :]
    binomial = gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1)
    terms = binomial + xlogy(k, q) + xlog1py(np.maximum(n - k, 0), -q)
    terms += k * (k - 1) / (2 * z**2)
    return np.asarray(logsumexp(np.where(k <= n, terms, -np.inf), axis=1))


def calibrate_noise_multiplier(
    epsilon: float,
    delta: float,
    sampling: float | Subsampling,
    num_releases: int,
    method: Method = "pld",
) -> float:
    """Return the smallest noise multiplier z, to 0.1 %, that keeps to a budget.

    Parameters
    ----------
    epsilon : float
        From 1e-3 to 1e3.
    delta, sampling, method
        See `ReleaseAccountant`.
    num_releases : int
        Equal releases, >= 1.

    Raises
    ------
    ValueError
        If an argument is not allowed, or no z up to 1e6 is enough.
    """
    require_int("num_releases", num_releases, 1)

    def spends(noise_multiplier: float) -> float:
        accountant = ReleaseAccountant(sampling, delta, method)
        accountant.charge(noise_multiplier, num_releases)
        return accountant.epsilon()

    return smallest_noise_multiplier(spends, epsilon)


def smallest_noise_multiplier(
    spends: Callable[[float], float], epsilon: float
) -> float:
    """Return the smallest z from 0.01 to 1e6, to 0.1 %, with ``spends(z) <= epsilon``.

    Parameters
    ----------
    spends : callable
        From z to the epsilon that the releases spend; it falls as z grows.
    epsilon : float
        From 1e-3 to 1e3.

    Raises
    ------
    ValueError
        If no z up to 1e6 is enough.
    """
    check_epsilon(epsilon)

    @cache  # brackets are asked for twice
    def excess(log_z: float) -> float:
        # Almost linear in log z, so that few steps are needed.
        return math.log(max(spends(math.exp(log_z)), 1e-9) / epsilon)

    # Epsilon falls as z grows: the bracket moves up, or down, until the root is in it.
    low, high = math.log(0.25), 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(4.0)
        expected = (
            "larger, for so many releases at this delta: no z up to 1e6 is enough"
        )
        require(high <= math.log(1e6), "epsilon", epsilon, expected)
    while excess(low) <= 0:
        low, high = low - math.log(4.0), low
        if high < math.log(0.01):
            return 0.01
    from scipy.optimize import brentq

    # The root is known to 3e-4; one step of 5e-4 up is on its right side.
    z = math.exp(brentq(excess, low, high, xtol=3e-4))
    while spends(z) > epsilon:
        z *= 1.0005
    return z
