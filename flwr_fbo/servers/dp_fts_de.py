"""The server of FedVote and DP-FTS-DE: it releases weighted sums with noise.

FTS-DE is z = 0, q = 1, S = inf; DP-FTS is P = 1; DP-FTS-DE is the general case.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._validation import require, require_int, require_positive
from flwr_fbo.journal.ledger_table import LedgerRow
from flwr_fbo.privacy.accounting import Method, PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.budget import large_delta
from flwr_fbo.privacy.ledger import entry_of
from flwr_fbo.privacy.release import Release

FloatArray = NDArray[np.float64]


class DistributedExplorationServer:
    """Releases one private vector a sub-region from the agents' messages.

    Parameters
    ----------
    release : Release
    num_features : int
        M, the length of a message, >= 1.
    delta : float
        In (0, 1): where epsilon is reported.
    iterations : collection of int, optional
        After which iterations there is a release; after each unless given.
    max_epsilon : float, optional
        The budget. A release that would exceed it is not made, and none after it.
    accountant : {"pld", "rdp", "moments"}
        See `ReleaseAccountant`.

    Attributes
    ----------
    ledger : list of LedgerRow
        What was released; `privacy_spent` and `vectors` follow from it.
    """

    def __init__(
        self,
        release: Release,
        num_features: int,
        delta: float,
        iterations: Collection[int] | None = None,
        max_epsilon: float | None = None,
        accountant: Method = "pld",
    ) -> None:
        require_int("num_features", num_features, 1)
        if max_epsilon is not None:
            require_positive("max_epsilon", max_epsilon)
        self.release = release
        self.iterations = iterations
        self.max_epsilon = max_epsilon
        self.delta = delta
        self.ledger: list[LedgerRow] = []
        self._num_features = num_features
        self.accounting_method: Method = accountant
        self._accountant = self._new_accountant()
        # Of the next release, by its noise: looked up several times a round.
        self._exceeding: dict[float, bool] = {}

    @property
    def num_agents(self) -> int:
        """N, the slots of the study."""
        return self.release.settings.num_agents

    @property
    def vectors(self) -> FloatArray | None:
        """What was released last, shape (P, M)."""
        return self.ledger[-1].vectors if self.ledger else None

    def is_exhausted(self, iteration: int) -> bool:
        """Return whether the budget has stopped the releases by ``iteration``.

        The first planned release that would exceed it stops all that follow.
        """
        if self.max_epsilon is None:
            return False
        last = self.ledger[-1].iteration if self.ledger else -1
        since = range(last + 1, iteration + 1)
        planned = (t for t in since if self.iterations is None or t in self.iterations)
        return any(self._would_exceed(self.max_epsilon, t) for t in planned)

    def wants_messages(self, iteration: int) -> bool:
        """Return whether a release follows ``iteration``; changes nothing."""
        if self.iterations is not None and iteration not in self.iterations:
            return False
        return not self.is_exhausted(iteration)

    def _would_exceed(self, max_epsilon: float, iteration: int) -> bool:
        if self.release.settings.noise_only:
            return False
        z = self.release.effective_noise_multiplier(iteration)
        if z not in self._exceeding:
            exceeds = z == 0 or self._accountant.would_exceed(max_epsilon, z)
            self._exceeding[z] = exceeds
        return self._exceeding[z]

    def receive(self, iteration: int, messages: Mapping[int, Any]) -> None:
        """Release the messages of ``iteration``, if it is one that is released.

        Raises
        ------
        ValueError
            If ``iteration`` or a later one has been released: a second draw of noise
            for one round would break the guarantee.
        """
        if not self.wants_messages(iteration):
            return
        last = self.ledger[-1].iteration if self.ledger else -1
        allowed = f"above {last}, the last one that was released"
        require(iteration > last, "iteration", iteration, allowed)
        vectors = self.release.release(iteration, messages, self._num_features)
        self._append(entry_of(self.release, iteration, vectors))

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released, charged as it was then."""
        self.ledger.clear()
        self._exceeding.clear()
        self._accountant = self._new_accountant()
        for row in ledger:
            self._append(row)

    def _append(self, row: LedgerRow) -> None:
        self.ledger.append(row)
        self._exceeding.clear()
        if row.facts["noise_multiplier"] > 0:
            self._accountant.charge(row.facts["noise_multiplier"])

    def _new_accountant(self) -> ReleaseAccountant:
        subsampling = self.release.settings.subsampling
        return ReleaseAccountant(subsampling, self.delta, self.accounting_method)

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all releases so far, in Flower's type.

        Infinite where the releases had no noise; 0 where they carried no agent's
        contribution.
        """
        settings = self.release.settings
        if settings.noise_only or not self.ledger:
            return PrivacySpent(0.0, self.delta, len(self.ledger), "none")
        if settings.noise_multiplier == 0:
            return PrivacySpent(math.inf, self.delta, len(self.ledger), "none")
        return self._accountant.spent()

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        s = self.release.settings
        lines = [
            f"{s.num_agents} agents, {s.num_sub_regions} sub-regions, "
            f"{self._num_features} features",
            f"{s.sampling} sampling, probability {s.sampling_probability:g}, "
            f"clip norm {s.clip_norm:g}, "
            f"noise multiplier {s.noise_multiplier:g} ({s.calibration} calibration), "
            f"delta {self.delta:.3g}",
        ]
        if s.sampling == "fixed-size":
            lines.append(
                f"epsilon is under the relation replace-one, for samples of "
                f"{s.subsampling.sample_size} of {s.num_agents} agents: it does not "
                "compare with that of Poisson sampling"
            )
        if self.max_epsilon is not None:
            lines.append(f"releases stop before epsilon exceeds {self.max_epsilon:g}")
        if s.noise_only:
            lines.append("control: every contribution is replaced by zero")
        elif s.noise_multiplier == 0:
            lines.append("NOT PRIVATE: noise_multiplier is 0, nothing is protected")
        elif not self.release.private:
            lines.append("NOT PRIVATE: the noise is seeded, for an experiment only")
        elif self.delta > large_delta(s.num_agents):
            lines.append(
                f"WARNING: delta = {self.delta:.2g} lets the guarantee fail with that "
                f"probability; choose one far below 1/{s.num_agents}"
            )
        return lines
