"""Whole tuning studies with secure aggregation, drawn for an audit.

The adversary is the server together with all sites that are not counted on. It knows
their messages and their shares of the noise, so only those of the honest sites are left
in what it learns. The canary is one of the honest sites.

The sums are made without masks: these cancel, so that the server learns the same sum.
Sites with one mistake each, which an audit must catch, stand here too; for those of a
trusted server see `planted_faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.lab.audit.tuning_audit import Absence, Messages, TuningAuditPlan
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure import SecureAggregation, SecureSums

Share = NDArray[np.int64]


@dataclass
class SecureSites:
    """All sites of one study; some collude with the server.

    Attributes
    ----------
    settings : ReleaseSettings
        Settings of the releases.
    entropy : Entropy
        Source of the shares. If it can be predicted, a share is a rounded Gaussian draw
        in place of OpenDP's discrete one.
    num_features : int
        M, the length of a message.
    honest : tuple of int
        Slots that keep their shares secret. All others tell the server theirs.
    """

    settings: ReleaseSettings
    entropy: Entropy
    num_features: int
    honest: tuple[int, ...]

    @property
    def num_counted(self) -> int:
        """Number of sites that are counted on for the noise."""
        return len(self.honest)

    @cached_property
    def sums(self) -> SecureSums:
        """Sums that sites and server compute from messages."""
        num_sites = self.settings.num_agents
        option = SecureAggregation(threshold=num_sites, honest=self.num_counted)
        collector = option.collector([range(num_sites)])
        return collector.sums(self.settings, self.num_features)

    def share(self, slot: int) -> Share:
        """Return a site's share of the noise of the next release."""
        noise = self.sums.noise(0)
        if self.entropy.private:
            return noise.draw_share()
        still, std = np.zeros((1, noise.length)), np.array([noise.share_std])
        drawn = self.entropy.add_noise(0, still, std)[0]
        return np.asarray(np.rint(drawn), dtype=np.int64)

    def learnt(self, iteration: int, messages: Mapping[int, Any]) -> NDArray[np.uint64]:
        """Return a release's sum, less the shares that the server knows.

        Parameters
        ----------
        iteration : int
            Iteration after which the release was planned.
        messages : mapping of int to ndarray of shape (M,)
            A message of each site, by slot.
        """
        noise, release = self.sums.noise(0), self.sums.release
        learnt = np.zeros(noise.length, dtype=np.uint64)
        for slot, message in messages.items():
            integers = noise.encode(release.contribution(iteration, slot, message))
            share = self.share(slot)
            learnt += noise.wrapped(integers + share)
            if slot not in self.honest:
                learnt -= noise.wrapped(share)
        return learnt


class _Sharing(Protocol):
    """Sites that add shares of the noise."""

    def share(self, slot: int) -> Share:
        """Return a site's share of the noise of the next release."""


_AboutT = ParamSpec("_AboutT")
_SitesT = TypeVar("_SitesT", bound=_Sharing)


def reusing_shares(build: Callable[_AboutT, _SitesT]) -> Callable[_AboutT, _SitesT]:
    """Return what builds sites with a mistake: the first share is in every sum.

    A difference of two sums has none.
    """

    def made(*about: _AboutT.args, **more: _AboutT.kwargs) -> _SitesT:
        sites = build(*about, **more)
        vars(sites)["share"] = cache(sites.share)
        return sites

    return made


BuildSites = Callable[[ReleaseSettings, Entropy, int, tuple[int, ...]], SecureSites]


class _NoShare(SecureSites):
    """One honest site adds no share."""

    def share(self, slot: int) -> Share:
        drawn = super().share(slot)
        return np.zeros_like(drawn) if slot == self.honest[-1] else drawn


class _HalfShares(SecureSites):
    """Shares have half the standard deviation."""

    def share(self, slot: int) -> Share:
        return super().share(slot) // 2


class _HonestTooHigh(SecureSites):
    """All sites are counted on, also those that tell the server their shares."""

    @property
    def num_counted(self) -> int:
        return self.settings.num_agents


class _SharesDrawnAgain(SecureSites):
    """A site draws again when it is asked again; the server averages both sums."""

    def share(self, slot: int) -> Share:
        return (super().share(slot) + super().share(slot)) // 2


SECURE_FAULTS: dict[str, BuildSites] = {
    "no-share": _NoShare,
    "half-shares": _HalfShares,
    "honest-too-high": _HonestTooHigh,
    "reused-shares": reusing_shares(SecureSites),
    "shares-drawn-again": _SharesDrawnAgain,
}
"""Sites of a study with secure aggregation, with a mistake.

``no-share`` shows only with few honest sites, ``honest-too-high`` only where many
collude, and ``reused-shares`` only in a study of several releases.
"""


@dataclass(frozen=True)
class SecureAuditPlan(TuningAuditPlan):
    """Plan of an audit of studies with secure aggregation; see `TuningAuditPlan`.

    Attributes
    ----------
    absence : {"zeros"}
        What a zeroed message is: a site that is missing changes who is in the sum,
        which is public.
    honest : int
        Number H of sites, from 1 to N, whose shares alone give the planned noise.
    """

    absence: Absence = "zeros"
    honest: int = 2

    faults = SECURE_FAULTS
    trust = "sums"

    def __post_init__(self) -> None:
        super().__post_init__()
        # It names what sites cannot keep.
        SecureAggregation.mechanism(self.settings)
        zeros = self.absence == "zeros"
        require(zeros, "absence", self.absence, "'zeros', with secure aggregation")
        require_int("honest", self.honest, 1, self.settings.num_agents)

    @property
    def honest_slots(self) -> tuple[int, ...]:
        """The slots that keep their shares secret: the canary and those after it."""
        num_agents = self.settings.num_agents
        return tuple((self.canary + k) % num_agents for k in range(self.honest))

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        colluding = self.settings.num_agents - self.honest
        lines = super().describe()
        return {
            **lines,
            "Privacy": f"{lines['Privacy']}; secure sums, honest = {self.honest}, "
            f"colluding = {colluding}",
        }

    def _mechanism(self, entropy: Entropy, build: BuildSites | None) -> SecureSites:
        make = build or SecureSites
        return make(self.settings, entropy, self.num_features, self.honest_slots)

    def _study(self, sites: SecureSites, rounds: list[Messages]) -> FloatArray:
        """Return the releases of one study as the adversary learns them."""
        sums, slots = sites.sums, tuple(range(self.settings.num_agents))
        server = self.server(sums.release)
        for iteration, messages in zip(self.iterations, rounds, strict=True):
            learnt = sites.learnt(iteration, messages)
            row = sums.row(iteration, 0, slots, learnt)
            server.receive_sum(server.step(iteration), row)
        return np.array([row.vectors for row in server.ledger])
