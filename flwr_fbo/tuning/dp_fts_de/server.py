"""The server of DP-FTS-DE, and of others: it releases weighted sums with noise.

FTS-DE is z = 0, q = 1, S = inf; DP-FTS is P = 1; DP-FTS-DE is the general case.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr_fbo._common.validation import require, require_int
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import Method, PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    Guarantee,
    Trust,
    delta_warning,
)
from flwr_fbo.privacy.release import PlannedRelease, Release
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.study.server import Server, Step
from flwr_fbo.tuning.search.settings import Facts

_EACH = range(sys.maxsize)  # a release after each iteration


class DPFTSDEServer(Server):
    """Releases one private vector per sub-region from the agents' messages.

    Releases are planned, and made in this order: one that could not be made when it was
    due is made later, under the noise and the weights that were planned for it.

    Parameters
    ----------
    release : PlannedRelease
        Mechanism of the releases.
    num_features : int
        M, the length of a message, >= 1.
    delta : float
        In (0, 1): where epsilon is reported.
    iterations : sequence of int, optional
        Increasing: after which iterations a release is due; after each unless given.
    accountant : {"pld", "rdp", "moments"}
        See `ReleaseAccountant`.

    Attributes
    ----------
    num_allowed : int
        Number of planned releases that the privacy budget allows; see `limit`.
    ledger : list of LedgerRow
        Releases so far; `privacy_spent` and `vectors` follow from it.
    is_parallel : bool
        Whether each site is in one release at most, so that all releases under equal
        noise cost together what one of them does.
    readable : str
        Text for sites: what this server reads in a message, unless the sites sum them.
    """

    is_parallel = False
    readable = (
        "what it believes of its objective, and so about where its best setting lies"
    )

    def __init__(
        self,
        release: PlannedRelease,
        num_features: int,
        delta: float,
        iterations: Sequence[int] = _EACH,
        accountant: Method = "pld",
    ) -> None:
        require_int("num_features", num_features, 1)
        self.release = release
        self.iterations = iterations
        self.num_allowed = len(iterations)
        self.delta = delta
        self.num_agents = release.settings.num_agents
        self.ledger: list[LedgerRow] = []
        self._num_features = num_features
        self.accounting_method: Method = accountant
        self._accountant = self.new_accountant()

    def plan(self, iterations: Sequence[int], release: PlannedRelease) -> None:
        """Fix when releases are due, and their noise."""
        self.iterations, self.num_allowed = iterations, len(iterations)
        self.release = release

    def plan_facts(self, before: Facts | None) -> Facts | None:
        """Fix what agents are told besides their settings, by the planned releases.

        Parameters
        ----------
        before : Facts, optional
            Facts that they are told whatever is planned.
        """
        return before

    @property
    def charged(self) -> Sequence[int]:
        """Iterations of the planned releases that one site's messages are in."""
        return self.iterations[: self.num_allowed][: 1 if self.is_parallel else None]

    def groups(self) -> list[range]:
        """Return the slots whose messages are released together, group by group."""
        return [range(self.num_agents)]

    def group_of(self, release: int) -> int:
        """Return the group whose messages are in a release, from 1."""
        return 0

    def fewest_answers(self, release: int, num_enrolled: int) -> int:
        """Return how many must answer before a release, unless it is given: half."""
        return -(-num_enrolled // 2)

    def limit(
        self,
        max_epsilon: float,
        together: Callable[[Sequence[Charge]], Spent] | None = None,
    ) -> None:
        """Allow as many of the planned releases as a budget is enough for.

        Parameters
        ----------
        max_epsilon : float
            At ``delta``, for all releases together.
        together : callable, optional
            Takes the charges of the first releases; returns what these and all studies
            that share the budget spend together. None: this study has its own, counted
            by its accountant.
        """
        self.num_allowed = len(self.iterations)
        if self.release.settings.noise_only:
            return
        # Parallel releases cost what one does: the budget allows all of them, or none.
        counted = self.iterations[:1] if self.is_parallel else self.iterations
        charges = [*map(self.charge, counted)]

        def exceeds(count: int) -> bool:
            if together is not None:
                return together(charges[:count]).exceeds(max_epsilon, self.delta)
            accountant = self.new_accountant()
            for charge in charges[:count]:
                if charge.noise_multiplier == 0:
                    return max_epsilon < math.inf
                accountant.charge(charge.noise_multiplier)
            return accountant.epsilon() > max_epsilon

        # Each release adds to epsilon.
        num_affordable = bisect_left(range(1, len(charges) + 1), True, key=exceeds)
        if num_affordable < len(charges):
            self.num_allowed = num_affordable

    def charge(self, iteration: int) -> Charge:
        """Return what a release planned after ``iteration`` costs.

        Where the sample has a fixed size it is counted as if all took part, which
        costs more.
        """
        settings = self.release.settings
        q = settings.sampling_probability if settings.sampling == "poisson" else 1.0
        return Charge(self.release.effective_noise_multiplier(iteration), q)

    def step(self, iteration: int) -> Step:
        """Decide: the first planned release that has not been made, if it is due."""
        k = len(self.ledger)
        if k == len(self.iterations) or self.iterations[k] > iteration:
            return Step(iteration)
        is_affordable = k < self.num_allowed
        return Step(
            iteration, k + 1 if is_affordable else 0, is_exhausted=not is_affordable
        )

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Release the messages of a step, if it is one with a release.

        Raises
        ------
        ValueError
            If that release has been made: a second draw of noise for it would break
            the guarantee.
        """
        if not step.release:
            return
        # Under the weights and the noise of its planned iteration, however late it is:
        # these were charged, and the sites were promised them.
        planned, release = self._next(step), self.release
        assert isinstance(release, Release)
        vectors = release.release(planned, messages, self._num_features)
        facts = {**release.facts(planned), "made_after": step.iteration}
        self._append(LedgerRow(planned, facts, vectors))

    def receive_sum(self, step: Step, row: LedgerRow) -> None:
        """Release what the sites have summed in a step, and added the noise to.

        Parameters
        ----------
        step : Step
            The step that asked for the release.
        row : LedgerRow
            The release, and what the ledger says of it.

        Raises
        ------
        ValueError
            If that release has been made, or the row is not of it.
        """
        planned = self._next(step)
        require(row.iteration == planned, "row.iteration", row.iteration, f"{planned}")
        facts = {**row.facts, "made_after": step.iteration}
        self._append(LedgerRow(planned, facts, row.vectors))

    def _next(self, step: Step) -> int:
        """Return the iteration that a step's release was planned for."""
        # A second draw of noise for the same messages would average the noise away.
        made = len(self.ledger)
        require(step.release == made + 1, "release", step.release, f"{made + 1}")
        return self.iterations[made]

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released, charged as it was then."""
        self.ledger = []
        self._accountant = self.new_accountant()
        for row in ledger:
            self._append(row)

    def _append(self, row: LedgerRow) -> None:
        self.ledger.append(row)
        # Parallel composition: later releases are about other sites.
        is_counted = len(self.ledger) == 1 or not self.is_parallel
        if is_counted and row.facts["noise_multiplier"] > 0:
            self._accountant.charge(row.facts["noise_multiplier"])

    def new_accountant(self) -> ReleaseAccountant:
        """Return an accountant that nothing has been charged to."""
        subsampling = self.release.settings.subsampling
        return ReleaseAccountant(subsampling, self.delta, self.accounting_method)

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all releases so far, in Flower's type.

        Infinite where the releases had no noise; 0 where they carried no agent's
        contribution.
        """
        settings, terms = self.release.settings, self.guarantee
        is_free = settings.noise_only or not self.ledger
        if is_free or settings.noise_multiplier == 0:
            epsilon = 0.0 if is_free else math.inf
            about = epsilon, self.delta, len(self.ledger), "none"
            return PrivacySpent(*about, guarantee=terms)
        return self._accountant.spent(terms)

    @property
    def guarantee(self) -> Guarantee:
        """Terms of the releases' epsilon."""
        trust: Trust = "server" if isinstance(self.release, Release) else "sums"
        return Guarantee(self.release.settings.subsampling.unit, trust)

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
        if self.num_allowed < len(self.iterations):
            lines.append(
                f"the privacy budget allows {self.num_allowed} of "
                f"{len(self.iterations)} planned releases"
            )
        if s.noise_only:
            lines.append("control: every contribution is replaced by zero")
        elif s.noise_multiplier == 0:
            lines.append("NOT PRIVATE: noise_multiplier is 0, nothing is protected")
        elif not self.release.private:
            lines.append("NOT PRIVATE: the noise is seeded, for an experiment only")
        elif too_large := delta_warning(self.delta, s.num_agents, CLIENT):
            lines.append(f"WARNING: {too_large}")
        return lines
