"""What our own accountants share: Flower's interface, and a ledger of releases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from flwr.serverapp import (
    GaussianPrivacyEvent,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from flwr_fbo._common.validation import (
    is_number,
    require,
    require_int,
    require_positive,
)
from flwr_fbo.privacy.budget import LEAST_NOISE, check_delta

Ledger = Mapping[GaussianPrivacyEvent, int]


class LedgerAccountant(ABC):
    """Flower's ``PrivacyAccountant`` on a ledger of Poisson-subsampled Gaussian events.

    Epsilon is a function of the ledger alone: how often it was asked for in between, or
    whether the accountant was restored, does not show in its last digit.

    Parameters
    ----------
    config : PrivacyConfig
        With Poisson sampling, or no amplification: ``WITHOUT_REPLACEMENT`` is refused,
        as it is Flower's ``RdpAccountant`` that knows
        such events.
    """

    _method: ClassVar[str]

    def __init__(self, config: PrivacyConfig) -> None:
        ok = config.sampling_method is not SamplingMethod.WITHOUT_REPLACEMENT
        allowed = f"poisson or no-amplification, where the method is {self._method!r}"
        require(ok, "sampling_method", config.sampling_method.value, allowed)
        self._config = config
        self._ledger: dict[GaussianPrivacyEvent, int] = {}

    @abstractmethod
    def _epsilon(self, ledger: Ledger, delta: float) -> float:
        """Return epsilon at ``delta`` of a ledger that is not empty."""

    @abstractmethod
    def _delta(self, ledger: Ledger, epsilon: float) -> float:
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
            "config": asdict(self._config),
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
            ("config", asdict(self._config)),
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
        require(z >= LEAST_NOISE, "noise_multiplier", z, f"at least {LEAST_NOISE}")
        return {**self._ledger, event: self._ledger.get(event, 0) + count}

    def _probability(self, event: GaussianPrivacyEvent) -> float:
        """Return the sampling probability that the event is accounted with."""
        if self._config.sampling_method is SamplingMethod.NO_AMPLIFICATION:
            return 1.0
        return event.sample_size / event.population_size
