"""Whole tuning studies, as private tuning strategies run them, drawn for an audit.

The canary is the agent that a study can give away most. It sends messages ten times as
long as the clip allows; the others send zeros. In the other world the canary sends
nothing (``"zeroed"``), or flips: each message is replaced by its negation, the farthest
one (``"replaced"``). That is twice as far, so that more is promised, and more is found.
The messages' sign changes, so that some rounds agree and some differ: where noise is
reused, or correlated between rounds, sums or differences of releases lay the canary
open.

The server half that the strategies use makes the releases, one server a study.

All choices of `FederationTuner` are drawn as its server makes them. In each rung the
clients' ballots are about two trials. The canary's are ten times as long as a ballot
is, for the one trial or the other; in the other world they do not come, or are for the
other trial. The others send zeros. `benchmarks/tuner_audit.py` draws whole runs, with
the clients' half: the same releases, at a hundred times the cost.

Where the choice protects an example, each client has one. The canary's is right in one
trial of the two, and in the other world, which has another example in its place, in the
other. Its ballots are ten times as long as those of one example, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import choice, fraction, integer, several
from flwr_fbo._common.validation import require, require_positive
from flwr_fbo.lab.audit.evidence import LOUDNESS, Evidence, alternating, joined
from flwr_fbo.lab.audit.planted_faults import COHORT_FAULTS, FAULTS
from flwr_fbo.lab.audit.study_audit import Progress, StreamEntropy, StudyPlan
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.guarantee import (
    CLIENT,
    REPLACED_CLIENT,
    Adjacency,
    Guarantee,
    PrivacyUnit,
    Trust,
)
from flwr_fbo.privacy.noise import Entropy
from flwr_fbo.privacy.release import PlannedRelease, Release, ReleaseSettings
from flwr_fbo.tuner.ballots.rank_ballots import ballot_entries
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.tuning.fed_warm_start.server import FedWarmStartServer
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts

Absence = Literal["missing", "zeros"]
Messages = Mapping[int, FloatArray]

_CHUNK = 500


@dataclass(frozen=True)
class TuningAuditPlan(StudyPlan):
    """Plan of an audit of tuning studies: their settings and their number.

    Attributes
    ----------
    settings : ReleaseSettings
        With a noise multiplier > 0, and Poisson sampling: a canary that is absent is
        no neighbour under the other's relation.
    delta : float
        In (0, 1): where epsilon is compared. The larger, the more so many draws show:
        who keeps a promise at one delta keeps that of the same noise at any other.
    release_after : tuple of int
        Rounds, from 1, after which there is a release: increasing. They decide the
        weights. One of them alone audits a single release.
    num_features : int
        M >= 1.
    adjacency : {"zeroed", "replaced"}
        The two worlds, and so the promise. With ``"replaced"`` the canary flips: its
        messages are replaced by their negations.
    absence : {"missing", "zeros"}
        What the other world has in place of a message that is zeroed. The release
        promises that a missing message counts as zero, so the guarantee covers both;
        ``"missing"`` also shows whether noise or divisor depend on who answered.
    """

    settings: ReleaseSettings
    delta: float = field(metadata=fraction())
    release_after: tuple[int, ...] = field(
        metadata=several(integer(1), least=1, allowed="one at least")
    )
    num_features: int = field(default=1, metadata=integer(1))
    adjacency: Adjacency = field(default="zeroed", metadata=choice(Adjacency))
    absence: Absence = field(default="missing", metadata=choice(Absence))

    faults: ClassVar[Mapping[str, Callable[..., Any]]] = FAULTS
    trust: ClassVar[Trust] = "server"
    # How much longer than the clip allows the canary's messages are.
    loudness: ClassVar[float] = LOUDNESS

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("noise_multiplier", self.settings.noise_multiplier)
        sampling = self.settings.sampling
        require(sampling == "poisson", "sampling", sampling, "'poisson'")
        rounds = self.release_after
        require(all(np.diff(rounds) > 0), "release_after", rounds, "increasing")

    @property
    def iterations(self) -> tuple[int, ...]:
        """After which there is a release, from 0."""
        return tuple(r - 1 for r in self.release_after)

    @cached_property
    def promised(self) -> PrivacySpent:
        """Epsilon of a whole study at ``delta``, by the tightest accountant."""
        correct = Release(self.settings, StreamEntropy(0))
        accountant = ReleaseAccountant(self.settings.subsampling, self.delta)
        for iteration in self.iterations:
            accountant.charge(correct.effective_noise_multiplier(iteration))
        return self._promise_of(accountant)

    def _promise_of(self, accountant: ReleaseAccountant) -> PrivacySpent:
        """Return what was charged, under the adjacency of the two worlds."""
        zeroed = accountant.spent(Guarantee(CLIENT, self.trust))
        if self.adjacency == "zeroed":
            return zeroed
        return replace(
            zeroed,
            epsilon=accountant.epsilon_if_replaced(),
            epsilon_if_replaced=None,
            guarantee=Guarantee(REPLACED_CLIENT, self.trust),
        )

    @cached_property
    def canary(self) -> int:
        """The slot of the agent that a study can give away most."""
        correct = Release(self.settings, StreamEntropy(0))
        reach = [
            np.square(correct.weights(t) / correct.noise_std(t)).sum(axis=1)
            for t in self.iterations
        ]
        return int(np.sum(reach, axis=0).argmax())

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        s = self.settings
        rounds = ", ".join(map(str, self.release_after))
        return {
            "Study": f"N = {s.num_agents} agents, P = {s.num_sub_regions} sub-regions, "
            f"M = {self.num_features} features; releases after rounds {rounds}",
            "Privacy": f"q = {s.sampling_probability:g}, z = {s.noise_multiplier:.4g}, "
            f"{s.calibration} calibration",
            "Canary": f"agent {self.canary}: 10 times the clip norm against "
            f"{self.instead}; the others send zeros",
        }

    @property
    def instead(self) -> str:
        """What the other world has in place of the canary's messages, in words."""
        return self.absence if self.adjacency == "zeroed" else "the opposite"

    def draw(
        self, entropy: Entropy, build: Callable[..., Any] | None, progress: Progress
    ) -> tuple[Evidence, Evidence]:
        """Return studies with the canary and without; see `StudyPlan`."""
        canary, worlds = _Canary(self), []
        for rounds in (canary.present, canary.absent):
            parts = []
            # In chunks that fit in memory.
            for start in range(0, self.num_draws, _CHUNK):
                size = min(_CHUNK, self.num_draws - start)
                mechanisms = (self._mechanism(entropy, build) for _ in range(size))
                released = [self._study(mechanism, rounds) for mechanism in mechanisms]
                parts.append(canary.evidence(np.array(released)))
                progress(size)
            worlds.append(joined(parts))
        return worlds[0], worlds[1]

    def _mechanism(self, entropy: Entropy, build: Callable[..., Any] | None) -> Any:
        """Return the mechanism of one study."""
        return (build or Release)(self.settings, entropy)

    @property
    def direction(self) -> FloatArray:
        """The direction of the canary's messages, shape (M,), of norm 1."""
        return np.full(self.num_features, 1.0 / math.sqrt(self.num_features))

    @property
    def reach(self) -> float:
        """Length of the canary's messages, as far as they count."""
        return self.settings.message_norm

    def is_in(self, release: int) -> bool:
        """Return whether a release, from 0, may tell of the canary."""
        return True

    def server(self, release: PlannedRelease) -> DPFTSDEServer:
        """Return the server of one study, before its first release."""
        return DPFTSDEServer(release, self.num_features, self.delta, self.iterations)

    def _study(self, mechanism: Any, rounds: list[Messages]) -> FloatArray:
        """Return the releases of one study, shape (K, P, M)."""
        server = self.server(mechanism)
        for iteration, messages in zip(self.iterations, rounds, strict=True):
            server.receive(server.step(iteration), messages)
        return np.array([row.vectors for row in server.ledger])


@dataclass(frozen=True)
class WarmStartAuditPlan(TuningAuditPlan):
    """Plan of an audit of `FedWarmStart` studies: all releases of all cohorts.

    The canary is in the second cohort. It sends in every release, though it is asked
    for one message only, and none that is too long: that would be refused.

    Attributes
    ----------
    cohort_sizes : tuple of int
        As many as ``release_after``, two at least, and fewer than N together; the last
        agents only follow.
    """

    cohort_sizes: tuple[int, ...] = (1, 1, 1, 1)

    faults = COHORT_FAULTS
    loudness = 1.0  # what is longer than allowed counts as zero

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes, releases = self.cohort_sizes, len(self.iterations)
        expected = f"as many as release_after, {releases}, and two at least"
        is_valid = len(sizes) == releases and releases >= 2
        require(is_valid, "cohort_sizes", sizes, expected)
        Cohorts(self.settings.num_agents, sizes)

    @cached_property
    def promised(self) -> PrivacySpent:
        """Epsilon of a whole study at ``delta``: that of one release."""
        accountant = ReleaseAccountant(self.settings.subsampling, self.delta)
        accountant.charge(self.settings.noise_multiplier)
        return self._promise_of(accountant)

    @cached_property
    def canary(self) -> int:
        """The first slot of the second cohort."""
        return self._cohorts.slots(1)[0]

    @property
    def _cohorts(self) -> Cohorts:
        return Cohorts(self.settings.num_agents, self.cohort_sizes)

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        sizes = ", ".join(map(str, self.cohort_sizes))
        return {
            **super().describe(),
            "Study": f"N = {self.settings.num_agents} agents, cohorts of {sizes}; "
            f"M = {self.num_features} points; a release a cohort",
            "Canary": f"agent {self.canary}, of cohort 2, sends in each release, "
            f"against {self.instead}; the others send zeros",
        }

    def is_in(self, release: int) -> bool:
        """Return whether a release, from 0, is that of the canary's cohort."""
        return release == 1

    def server(self, release: PlannedRelease) -> DPFTSDEServer:
        """Return the server of one study, before its first release."""
        server = FedWarmStartServer(
            release, self.num_features, self.delta, self.iterations
        )
        server.cohorts = self._cohorts
        return server


class _Canary:
    """Canary's message in each round, and by how much it shifts the releases."""

    def __init__(self, plan: TuningAuditPlan) -> None:
        s, slot = plan.settings, plan.canary
        correct = Release(s, StreamEntropy(0))
        silent = dict.fromkeys(range(s.num_agents), np.zeros(plan.num_features))
        absent = dict(silent)
        if plan.absence == "missing":
            del absent[slot]
        self._q = s.sampling_probability
        flips = plan.adjacency == "replaced"
        self.present: list[Messages] = []
        self.absent: list[Messages] = []
        noise_std, shifts = [], []
        signs = alternating(len(plan.iterations))
        for k, (sign, iteration) in enumerate(zip(signs, plan.iterations, strict=True)):
            message = sign * plan.reach * plan.direction
            self.present.append({**silent, slot: plan.loudness * message})
            opposite = {**silent, slot: -plan.loudness * message}
            self.absent.append(opposite if flips else absent)
            std = correct.noise_std(iteration)
            weights = correct.weights(iteration)[slot] * plan.is_in(k)
            shifts.append(np.outer(weights / std, message / self._q))
            noise_std.append(std)
        self._noise_std = np.array(noise_std)[..., None]
        # From what the absent world releases without noise; with sampling it is the
        # farthest that the worlds can be, and the test is only not the best one.
        self._centres = -np.array(shifts) * flips
        self._shifts = np.array(shifts) * (2 if flips else 1)

    def evidence(self, released: FloatArray) -> Evidence:
        """Return what an adversary keeps of releases of shape (R, K, P, M)."""
        flat = (*released.shape[:2], -1)
        noise = (released / self._noise_std - self._centres).reshape(flat)
        shifts = np.broadcast_to(self._shifts, released.shape).reshape(flat)
        q = self._q
        return Evidence.of(
            released.reshape(flat), noise, shifts, sampling_probability=q
        )


# Of more of them a ballot for the worst is no ballot: it would be capped.
_NUM_TRIALS = 2


@dataclass(frozen=True)
class TunerAuditPlan(TuningAuditPlan):
    """Plan of an audit of a tuner's choices: see `of`, and `TuningAuditPlan`.

    Where one example is protected, the adjacency is ``"replaced"``.

    Attributes
    ----------
    choice : PrivateChoice
        Private choice that is audited.
    """

    choice: PrivateChoice = field(kw_only=True)

    @classmethod
    def of(cls, choice: PrivateChoice, num_clients: int, num_rungs: int) -> Self:
        """Return the plan of a tuner, with the noise that the tuner plans."""
        chooser = PrivateChooser(choice, num_clients, num_rungs, noise_seed=0)
        settings, delta = chooser.planned(_NUM_TRIALS), choice.delta
        rungs = tuple(range(1, num_rungs + 1))
        adjacency = choice.ballots.unit.adjacency
        return cls(
            settings, delta, rungs, _NUM_TRIALS, adjacency=adjacency, choice=choice
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = self._unit.protects == "client" or self.adjacency == "replaced"
        expected = "'replaced', where one example is protected"
        require(is_valid, "adjacency", self.adjacency, expected)

    @property
    def _unit(self) -> PrivacyUnit:
        return self.choice.ballots.unit

    def _promise_of(self, accountant: ReleaseAccountant) -> PrivacySpent:
        if self._unit.protects == "client":
            return super()._promise_of(accountant)
        # The noise is for an example that is replaced, not for twice as much.
        return accountant.spent(Guarantee(self._unit, self.trust))

    @property
    def reach(self) -> float:
        """Length of the canary's ballots: flipped, they are as far as neighbours."""
        distance = self.settings.distance
        return super().reach if distance is None else distance / 2

    @cached_property
    def _chooser(self) -> PrivateChooser:
        num_clients, num_rungs = self.settings.num_agents, len(self.iterations)
        return PrivateChooser(self.choice, num_clients, num_rungs, noise_seed=0)

    @property
    def direction(self) -> FloatArray:
        """A ballot for the second trial."""
        return np.array(ballot_entries(_NUM_TRIALS))

    def describe(self) -> dict[str, str]:
        """Return what is drawn, in words."""
        return {
            **super().describe(),
            "Study": f"{self.settings.num_agents} clients"
            f"{'' if self._unit.protects == 'client' else ', one example each'}; "
            f"{len(self.iterations)} rungs with {_NUM_TRIALS} trials each",
            "Canary": f"client {self.canary}: ballots 10 times too long against "
            f"{self.instead}; the others send zeros",
        }

    def _study(self, mechanism: Any, rounds: list[Messages]) -> FloatArray:
        """Return the scores that one tuner releases, shape (K, 1, 2)."""
        chooser = copy(self._chooser)
        chooser.release = lambda _: mechanism
        # As many as clients, so that a released mean of ballots is not scaled.
        one_each = dict.fromkeys(range(self.settings.num_agents), 1)
        scores = [
            chooser.choose(rung, ballots, _NUM_TRIALS, one_each).vectors
            for rung, ballots in enumerate(rounds)
        ]
        return np.array(scores)[:, None]
