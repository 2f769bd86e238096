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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyAccountant,
    PrivacyConfig,
    PrivacySpent,
    RdpAccountant,
    SamplingMethod,
)

from flwr_fbo._common.validation import (
    require,
    require_choice,
    require_int,
    require_positive,
)
from flwr_fbo.privacy.budget import LEAST_NOISE, check_delta
from flwr_fbo.privacy.sampling import Subsampling

__all__ = ["Method", "PrivacySpent", "ReleaseAccountant"]

Method = Literal["pld", "rdp", "moments"]


def _accountant(method: Method, config: PrivacyConfig) -> PrivacyAccountant:
    """Return the accountant of a method, each of which needs its own part of SciPy."""
    if method == "pld":
        from flwr_fbo.privacy.pld_accountant import PldAccountant

        return PldAccountant(config)
    if method == "moments":
        from flwr_fbo.privacy.moments_accountant import MomentsAccountant

        return MomentsAccountant(config)
    return RdpAccountant(config)


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
        require_choice("method", method, Method)
        if not isinstance(sampling, Subsampling):
            sampling = Subsampling.poisson(sampling)
        ok = sampling.sampling == "poisson" or method == "rdp"
        require(ok, "method", method, "'rdp', where the sample size is fixed")
        self._sampling = sampling
        self._delta = float(delta)
        self._method = method
        self._accountant = _accountant(method, _config(sampling, self._delta))
        # Flower's is the one that logs, and silence takes as long as a look at epsilon.
        self._quietly = _quiet_absl if method == "rdp" else nullcontext
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
        if min(self._charges) < LEAST_NOISE:
            return PrivacySpent(math.inf, self._delta, num_releases, self._method)
        if self._spent is None:
            with self._quietly():
                self._settle()
                self._spent = self._accountant.get_privacy_spent()
        return self._spent

    def would_exceed(self, max_epsilon: float, noise_multiplier: float) -> bool:
        """Return whether one release more would spend more than ``max_epsilon``.

        Cheap with ``"pld"`` and ``"moments"``; Flower's Renyi accountant replays all.
        """
        require_positive("noise_multiplier", noise_multiplier)
        if min(noise_multiplier, *self._charges, math.inf) < LEAST_NOISE:
            return True
        event = self._event(noise_multiplier)
        with self._quietly():
            self._settle()
            return self._accountant.would_exceed(event, max_epsilon)

    def _settle(self) -> None:
        """Hand what is pending to the accountant."""
        for noise_multiplier, count in self._pending.items():
            self._accountant.compose(self._event(noise_multiplier), count)
        self._pending.clear()

    def _event(self, noise_multiplier: float) -> GaussianPrivacyEvent:
        return GaussianPrivacyEvent(
            noise_multiplier=noise_multiplier,
            sample_size=self._sampling.sample_size,
            population_size=self._sampling.population_size,
        )


def _config(sampling: Subsampling, delta: float) -> PrivacyConfig:
    """Return the sampling scheme in Flower's terms, with the relation it goes with."""
    scheme = (NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)
    if sampling.sampling == "poisson":
        scheme = (NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    return PrivacyConfig(delta, sampling.population_size, *scheme)


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
