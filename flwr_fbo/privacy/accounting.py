"""Privacy spent by a sequence of releases, in Flower's terms.

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
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    PrivacySpent,
    RdpAccountant,
    SamplingMethod,
)
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, xlog1py, xlogy

from flwr_fbo._validation import (
    is_number,
    require,
    require_fraction,
    require_int,
    require_positive,
)
from flwr_fbo.privacy.gaussian import gaussian_delta, gaussian_epsilon
from flwr_fbo.privacy.sampling import Subsampling

__all__ = [
    "Method",
    "MomentsAccountant",
    "PldAccountant",
    "PrivacySpent",
    "ReleaseAccountant",
    "calibrate_noise_multiplier",
    "check_delta",
    "check_epsilon",
    "large_delta",
    "smallest_noise_multiplier",
]

Method = Literal["pld", "rdp", "moments"]
FloatArray = NDArray[np.float64]
_Ledger = Mapping[GaussianPrivacyEvent, int]

# Noise below this protects nothing (epsilon beyond 10^5), and where it is smaller still
# the arithmetic of an accountant overflows: dp-accounting 0.6 then says epsilon = 0.
_LEAST_NOISE = 1e-3


class _LedgerAccountant(ABC):
    """Flower's ``PrivacyAccountant`` on a ledger of Poisson-subsampled Gaussian events.

    Epsilon is a function of the ledger alone: how often it was asked for in between, or
    whether the accountant was restored, does not show in its last digit.

    Parameters
    ----------
    config : PrivacyConfig
        ``WITHOUT_REPLACEMENT`` is refused: it is Flower's ``RdpAccountant`` that knows
        such events.
    """

    _method: ClassVar[Method]

    def __init__(self, config: PrivacyConfig) -> None:
        ok = config.sampling_method is not SamplingMethod.WITHOUT_REPLACEMENT
        allowed = f"poisson or no-amplification, where the method is {self._method!r}"
        require(ok, "sampling_method", config.sampling_method.value, allowed)
        self._config = config
        self._ledger: dict[GaussianPrivacyEvent, int] = {}

    @abstractmethod
    def _epsilon(self, ledger: _Ledger, delta: float) -> float:
        """Return epsilon at ``delta`` of a ledger that is not empty."""

    @abstractmethod
    def _delta(self, ledger: _Ledger, epsilon: float) -> float:
        """Return delta at ``epsilon`` of a ledger that is not empty."""

    @property
    def config(self) -> PrivacyConfig:
        """The privacy configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Releases composed so far."""
        return sum(self._ledger.values())

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add ``count`` releases like ``event``."""
        self._ledger = self._with(event, count)

    def get_epsilon(self, delta: float) -> float:
        """Return epsilon at ``delta`` of all releases so far."""
        check_delta(delta)
        return self._epsilon(self._ledger, delta) if self._ledger else 0.0

    def get_delta(self, epsilon: float) -> float:
        """Return delta at ``epsilon`` of all releases so far."""
        ok = is_number(epsilon) and 0 <= epsilon < math.inf
        require(ok, "epsilon", epsilon, "a finite number >= 0")
        return self._delta(self._ledger, epsilon) if self._ledger else 0.0

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return epsilon at ``delta``, or else at the configuration's."""
        delta = self._config.target_delta if delta is None else delta
        epsilon = self.get_epsilon(delta)
        return PrivacySpent(epsilon, delta, self.num_releases, self._method)

    def would_exceed(
        self,
        event: GaussianPrivacyEvent,
        max_epsilon: float | None = None,
        count: int = 1,
    ) -> bool:
        """Return whether ``count`` more releases like ``event`` exceed a limit."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        require_positive("max_epsilon", limit)
        assert limit is not None
        after = self._epsilon(self._with(event, count), self._config.target_delta)
        return after > limit

    def state_dict(self) -> dict[str, object]:
        """Return configuration and ledger, as JSON."""
        return {
            "backend": self._method,
            "config": _config_json(self._config),
            "ledger": [[asdict(event), count] for event, count in self._ledger.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If it is of another method or configuration.
        """
        for name, mine in (
            ("backend", self._method),
            ("config", _config_json(self._config)),
        ):
            require(state.get(name) == mine, name, state.get(name), f"only {mine}")
        restored = type(self)(self._config)
        for fields, count in state["ledger"]:
            restored.compose(GaussianPrivacyEvent(**fields), count)
        self._ledger = restored._ledger

    def _with(
        self, event: GaussianPrivacyEvent, count: int
    ) -> dict[GaussianPrivacyEvent, int]:
        """Return the ledger with an event more; equal ones are one entry."""
        require_int("count", count, 1)
        population, z = self._config.population_size, event.noise_multiplier
        ok = event.population_size == population
        require(ok, "population_size", event.population_size, f"only {population}")
        require(z >= _LEAST_NOISE, "noise_multiplier", z, f"at least {_LEAST_NOISE}")
        return {**self._ledger, event: self._ledger.get(event, 0) + count}

    def _probability(self, event: GaussianPrivacyEvent) -> float:
        """Return the sampling probability that the event is accounted with."""
        if self._config.sampling_method is SamplingMethod.NO_AMPLIFICATION:
            return 1.0
        return event.sample_size / event.population_size


class PldAccountant(_LedgerAccountant):
    """Composes privacy loss distributions, by dp-accounting's connect-the-dots.

    Without sampling all releases are one Gaussian mechanism, and epsilon is exact
    (Dong, Roth & Su, 2022, corollary 2). With it the losses are discretised to a grid
    that fits the releases; whatever its step, the result is an upper bound. Measured
    against a grid eight times as fine it is within 2e-3 of epsilon, or within 1e-3 of
    it relatively, from 1 to 1000 releases, q from 1e-5 to 1, z from 0.3 to 1000 and
    delta from 2e-2 to 1e-8.

    Parameters
    ----------
    config : PrivacyConfig
        With Poisson sampling, or no amplification.
    """

    _method = "pld"

    def __init__(self, config: PrivacyConfig) -> None:
        super().__init__(config)
        # All of the ledger but its last entry, which is the one that grows: a study
        # that asks for epsilon each round composes each round once.
        self._head: tuple[_Entries, float, Any] = ((), 0.0, None)

    def _epsilon(self, ledger: _Ledger, delta: float) -> float:
        if self._takes_all(ledger):
            return gaussian_epsilon(delta, _mu(ledger))
        return float(self._composed(ledger).get_epsilon_for_delta(delta))

    def _delta(self, ledger: _Ledger, epsilon: float) -> float:
        if self._takes_all(ledger):
            return gaussian_delta(epsilon, _mu(ledger))
        return float(self._composed(ledger).get_delta_for_epsilon(epsilon))

    def _takes_all(self, ledger: _Ledger) -> bool:
        """Return whether everybody is in every release."""
        return all(self._probability(event) == 1.0 for event in ledger)

    def _composed(self, ledger: _Ledger) -> Any:
        entries: _Entries = tuple(
            (self._probability(event), event.noise_multiplier, count)
            for event, count in ledger.items()
        )
        step = _grid_step(entries)
        *head, last = entries
        done, done_step, composed = self._head
        if done_step != step or tuple(head[: len(done)]) != done:
            done, composed = (), None
        for entry in head[len(done) :]:
            composed = _compose(composed, entry, step)
        self._head = (tuple(head), step, composed)
        return _compose(composed, last, step)


def _mu(ledger: _Ledger) -> float:
    """Return sensitivity over noise of all releases together."""
    items = ledger.items()
    squares = (count * (1.0 / event.noise_multiplier) ** 2 for event, count in items)
    return math.sqrt(sum(squares))


# Sampling probability, noise multiplier, number of releases.
_Entries = tuple[tuple[float, float, int], ...]


def _compose(composed: Any, entry: tuple[float, float, int], step: float) -> Any:
    loss = _self_composed(*entry, step)
    return loss if composed is None else composed.compose(loss)


@lru_cache(maxsize=128)
def _self_composed(q: float, z: float, count: int, step: float) -> Any:
    """Return the loss of ``count`` equal releases, from those of powers of two.

    A study that asks after every release composes two distributions each time; that of
    ``count`` is the same whatever was asked for before.
    """
    if count == 1:
        return _loss_distribution(q, z, step)
    low = count & -count
    rest = count - low or low // 2
    return _self_composed(q, z, rest, step).compose(
        _self_composed(q, z, count - rest, step)
    )


def _loss_distribution(q: float, z: float, step: float) -> Any:
    # Imported here: it takes long, as Flower's own accountant knows.
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=step
    )


def _grid_step(entries: _Entries) -> float:
    """Return the distance of the losses on the grid that all entries share.

    Interpolating between two dots spreads a loss by about their distance, so it should
    be small beside a typical loss; and the rarest loss of a release should be no more
    than some 10^4 dots away. Powers of two, so that few grids are ever made.
    """
    q, z, count = np.array(entries).T
    # A Gaussian loss has deviation 1/z; rare ones, q times the deviation of exp(loss).
    spread = np.minimum(1 / z, q * np.sqrt(np.expm1(np.minimum(z**-2, 500.0))))
    typical = np.sqrt(np.average(spread**2, weights=count))
    # The loss of a draw ten deviations out.
    with np.errstate(divide="ignore"):
        rarest = np.logaddexp(np.log1p(-q), np.log(q) + (10 * z + 0.5) / z**2).max()
    # Finer than 1e-6, rounding errors outweigh what the grid gains.
    step = max(0.01 * float(typical), 2.0**-14 * float(rarest), 1e-6)
    return float(2.0 ** math.floor(math.log2(step)))


class MomentsAccountant(_LedgerAccountant):
    """The moments accountant of the papers: integer orders 1 to 32, nothing between.

    epsilon = min over lambda of (sum of alpha(lambda) - ln delta) / lambda, where
    alpha(lambda) is the log moment of a release (Abadi et al., 2016, theorem 2). Kept
    for comparison: its bound is the loosest of the three.

    Parameters
    ----------
    config : PrivacyConfig
        With Poisson sampling, or no amplification.
    """

    _method = "moments"

    def _epsilon(self, ledger: _Ledger, delta: float) -> float:
        return float(np.min((self._sum(ledger) - math.log(delta)) / _ORDERS))

    def _delta(self, ledger: _Ledger, epsilon: float) -> float:
        return float(np.exp(min(0.0, np.min(self._sum(ledger) - _ORDERS * epsilon))))

    def _sum(self, ledger: _Ledger) -> FloatArray:
        total = np.zeros(len(_ORDERS))
        for event, count in ledger.items():
            q, z = self._probability(event), event.noise_multiplier
            total += count * _log_moments(q, z)
        return total


_ORDERS = np.arange(1.0, 33.0)


@lru_cache(maxsize=1024)
def _log_moments(q: float, z: float) -> FloatArray:
    """Return alpha(lambda), the log of the binomial sum over k out of lambda + 1."""
    n, k = _ORDERS[:, None] + 1, np.arange(34.0)[None, :]
    binomial = gammaln(n + 1) - gammaln(k + 1) - gammaln(np.maximum(n - k, 0) + 1)
    terms = binomial + xlogy(k, q) + xlog1py(np.maximum(n - k, 0), -q)
    terms += k * (k - 1) / (2 * z**2)
    return np.asarray(logsumexp(np.where(k <= n, terms, -np.inf), axis=1))


_ACCOUNTANTS: dict[Method, Callable[[PrivacyConfig], PrivacyAccountant]] = {
    "pld": PldAccountant,
    "rdp": RdpAccountant,
    "moments": MomentsAccountant,
}


class ReleaseAccountant:
    """Charges releases, one by one; reports what they have spent.

    Parameters
    ----------
    sampling : float or Subsampling
        `ReleaseSettings.subsampling`, which says all that the accountant must know of
        the sampler; or q in (0, 1], of Poisson sampling.
    delta : float
        In (0, 1): where epsilon is reported.
    method : {"pld", "rdp", "moments"}
        Of a fixed sample size only ``"rdp"`` can give account; epsilon is then under
        the replace-one relation, and is *not comparable* with the others.
    """

    def __init__(
        self, sampling: float | Subsampling, delta: float, method: Method = "pld"
    ) -> None:
        check_delta(delta)
        ok = method in get_args(Method)
        require(ok, "method", method, f"one of {get_args(Method)}")
        if not isinstance(sampling, Subsampling):
            sampling = Subsampling.poisson(sampling)
        ok = sampling.sampling == "poisson" or method == "rdp"
        require(ok, "method", method, "'rdp', where the sample size is fixed")
        self._sampling = sampling
        self._delta = float(delta)
        self._method = method
        self._accountant = _ACCOUNTANTS[method](_config(sampling, self._delta))
        self._charges: Counter[float] = Counter()
        # Not composed until epsilon is asked for, and equal releases at once.
        self._pending: Counter[float] = Counter()
        self._spent: PrivacySpent | None = None  # until there is another charge

    def charge(self, noise_multiplier: float, num_releases: int = 1) -> None:
        """Add releases with noise ``noise_multiplier`` times their sensitivity."""
        require_positive("noise_multiplier", noise_multiplier)
        require_int("num_releases", num_releases, 1)
        self._charges[float(noise_multiplier)] += num_releases
        self._pending[float(noise_multiplier)] += num_releases
        self._spent = None

    def spent(self) -> PrivacySpent:
        """Return epsilon at delta for all releases so far.

        Infinite where one of them had noise of less than 1e-3 times its sensitivity.
        """
        num_releases = self._charges.total()
        if not self._charges:
            return PrivacySpent(0.0, self._delta, 0, self._method)
        if min(self._charges) < _LEAST_NOISE:
            return PrivacySpent(math.inf, self._delta, num_releases, self._method)
        if self._spent is None:
            self._settle()
            with _quiet_absl():
                self._spent = self._accountant.get_privacy_spent()
        return self._spent

    def would_exceed(self, max_epsilon: float, noise_multiplier: float) -> bool:
        """Return whether one release more would spend more than ``max_epsilon``.

        Cheap with ``"pld"`` and ``"moments"``; Flower's Renyi accountant replays all.
        """
        require_positive("noise_multiplier", noise_multiplier)
        if min(noise_multiplier, *self._charges, math.inf) < _LEAST_NOISE:
            return True
        self._settle()
        event = self._event(noise_multiplier)
        with _quiet_absl():
            return self._accountant.would_exceed(event, max_epsilon)

    def _settle(self) -> None:
        """Hand what is pending to the accountant."""
        with _quiet_absl():
            for noise_multiplier, count in self._pending.items():
                self._accountant.compose(self._event(noise_multiplier), count)
        self._pending.clear()

    def _event(self, noise_multiplier: float) -> GaussianPrivacyEvent:
        return GaussianPrivacyEvent(
            noise_multiplier=noise_multiplier,
            sample_size=self._sampling.sample_size,
            population_size=self._sampling.population_size,
        )


def large_delta(num_agents: int) -> float:
    """Return above which delta a warning is due: 0.01, or a tenth of 1/N."""
    return min(1e-2, 0.1 / num_agents)


def check_delta(delta: Any) -> None:
    """Raise ValueError unless ``delta`` is a number in (0, 1)."""
    require_fraction("delta", delta)


def check_epsilon(epsilon: Any) -> None:
    """Raise ValueError unless ``epsilon`` is a number from 1e-3 to 1e3."""
    ok = is_number(epsilon) and 1e-3 <= epsilon <= 1e3
    require(ok, "epsilon", epsilon, "a number from 1e-3 to 1e3")


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
    delta : float
        In (0, 1).
    sampling : float or Subsampling
        As in `ReleaseAccountant`.
    num_releases : int
        Equal releases, >= 1.
    method : {"pld", "rdp", "moments"}
        The accountant to satisfy.

    Raises
    ------
    ValueError
        If an argument is not allowed, or no z up to 1e6 is enough.
    """
    require_int("num_releases", num_releases, 1)

    def spends(noise_multiplier: float) -> float:
        accountant = ReleaseAccountant(sampling, delta, method)
        accountant.charge(noise_multiplier, num_releases)
        return accountant.spent().epsilon

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

    low, high = math.log(0.25), 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(4.0)
        allowed = "larger, for so many releases at this delta: no z up to 1e6 is enough"
        require(high <= math.log(1e6), "epsilon", epsilon, allowed)
    while excess(low) <= 0:
        low, high = low - math.log(4.0), low
        if high < math.log(0.01):
            return 0.01
    # The root is known to 3e-4; one step of 5e-4 up is on its right side.
    z = math.exp(brentq(excess, low, high, xtol=3e-4))
    while spends(z) > epsilon:
        z *= 1.0005
    return z


def _config(sampling: Subsampling, delta: float) -> PrivacyConfig:
    """Return the sampling scheme in Flower's terms, with the relation it goes with."""
    poisson = sampling.sampling == "poisson"
    relation, method = (
        (NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
        if poisson
        else (NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)
    )
    return PrivacyConfig(delta, sampling.population_size, relation, method)


def _config_json(config: PrivacyConfig) -> dict[str, Any]:
    return {
        "target_delta": config.target_delta,
        "population_size": config.population_size,
        "neighboring_relation": config.neighboring_relation.value,
        "sampling_method": config.sampling_method.value,
        "max_epsilon": config.max_epsilon,
    }


@contextmanager
def _quiet_absl() -> Iterator[None]:
    """Silence dp-accounting on the Renyi orders it leaves out.

    Leaving an order out can only raise epsilon, and it says so for every order and
    every release. Without a root handler absl would install one, and every later line
    of Flower's log would be printed twice.
    """
    logger, handler = logging.getLogger("absl"), logging.NullHandler()
    level = logger.level
    logger.setLevel(logging.ERROR)
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
        logger.setLevel(level)
