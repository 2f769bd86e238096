"""Study of a linear bandit, the same for all agents, and the instruction to one.

Both travel in Flower's config as plain scalars, as those of a tuning study do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import (
    check_fields,
    holds,
    instance,
    integer,
    seed,
)
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.bandits.kind import LINEAR
from flwr_fbo.bandits.linear.peer_graph import PeerGraph
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    LinearUCBSettings,
)
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.study.codec import (
    Config,
    Study,
    SumInstruction,
    study_id_field,
)

if TYPE_CHECKING:
    from flwr_fbo.bandits.linear.leaving_the_sums import Misfit
    from flwr_fbo.secure import BlockSums


def _block_sums(values: Any) -> type[BlockSums]:
    require_instance("secure", values, Mapping, allowed="an object, or None")
    # A client process loads what its message needs: most studies have no such sums.
    from flwr_fbo.secure import BlockSums

    return BlockSums


@dataclass(frozen=True)
class LinearBanditStudy(Study):
    """A linear bandit study, the same for all agents.

    Attributes
    ----------
    settings : LinearUCBSettings
        Settings of all agents.
    num_agents : int
        M >= 1.
    trigger : DeterminantTrigger, optional
        Trigger by which an agent reports that it wants to synchronise; never unless
        given.
    noise_seed : int, optional
        *Experiments only*: makes the agents' noise repeat, and is known to all.
    graph : PeerGraph, optional
        Along which agents talk to each other; there is a centre unless given. Then
        ``settings.releases`` has as many streams as an agent has estimators.
    study_id : str
        Tells this study from any other at the same client.
    secure : BlockSums, optional
        Settings of the secure sums, where nobody is to see a site's sums, but their
        noisy total.
    """

    settings: LinearUCBSettings = field(
        metadata=instance(LinearUCBSettings, part=LinearUCBSettings)
    )
    num_agents: int = field(metadata=integer(1, cap="max_agents"))
    trigger: DeterminantTrigger | None = field(
        default=None,
        metadata=instance(DeterminantTrigger, optional=True, part=DeterminantTrigger),
    )
    noise_seed: int | None = field(default=None, metadata=seed())
    graph: PeerGraph | None = field(
        default=None, metadata=instance(PeerGraph, optional=True, part=PeerGraph)
    )
    study_id: str = study_id_field()
    secure: BlockSums | None = field(default=None, metadata=holds(_block_sums))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.secure is not None:
            self._check_secure(self.secure)
        local = self.settings.local_data
        is_valid = self.trigger is None or self.settings.uses_raw_sums
        require(is_valid, "local_data", local, "'raw', with a trigger")
        planned = self.settings.releases.num_releases
        is_valid = self.graph is None or planned is not None
        require(is_valid, "num_releases", planned, "a number, along a graph")
        streams = 1 if self.graph is None else self.graph.streams
        planned_streams = self.settings.releases.num_streams
        require(
            planned_streams == streams,
            "num_streams",
            planned_streams,
            f"{streams}, the estimators",
        )
        if self.graph is not None:
            agents = self.graph.num_agents
            is_valid = agents == self.num_agents
            require(
                is_valid, "num_agents", self.num_agents, f"{agents}, those of the graph"
            )

    def _check_secure(self, secure: BlockSums) -> None:
        """Raise ValueError unless sites can sum the blocks of this study."""
        # What a site does next must follow from totals alone: else a trial would be in
        # later blocks, too, by what it changed.
        allowed = "True, with secure sums: local_data='released', mechanism='blocks'"
        uses_blocks = self.settings.uses_blocks
        require(uses_blocks, "settings.uses_blocks", uses_blocks, allowed)
        allowed = "None, where the sites draw the noise"
        require(self.noise_seed is None, "noise_seed", self.noise_seed, allowed)
        is_central, allowed = self.graph is None, "None, with secure sums"
        require(is_central, "graph", self.graph, allowed)
        releases, of_sums = self.settings.releases, secure.releases
        is_same = replace(of_sums, epsilon=releases.epsilon) == releases
        allowed = "those of the study, but for epsilon"
        require(is_same, "secure.releases", of_sums, allowed)
        allowed = f"below {releases.epsilon:g}, the study's: a part is for misfits"
        is_less = of_sums.mu < releases.mu
        require(is_less, "secure.releases.epsilon", of_sums.epsilon, allowed)
        slots = [slot for group in secure.groups for slot in group.slots]
        allowed = f"one group of slots 0 to {self.num_agents - 1}"
        are_all = len(secure.groups) == 1 and slots == [*range(self.num_agents)]
        require(are_all, "secure.groups", secure.groups, allowed)

    @cached_property
    def released_by(self) -> LinearUCBSettings:
        """The settings with the noise of what is released: more, where sites sum.

        Confidence sets count with one such noise per agent, and so with more than is in
        a total of blocks.
        """
        if self.secure is None:
            return self.settings
        return replace(self.settings, releases=self.secure.releases)

    @property
    def misfit(self) -> Misfit:
        """The measure of how badly totals fit a site, which has the rest of mu^2."""
        from flwr_fbo.bandits.linear.leaving_the_sums import Misfit

        assert self.secure is not None, "no site leaves"
        mu, of_sums = self.settings.releases.mu, self.secure.releases.mu
        return Misfit(self.settings, math.sqrt(mu**2 - of_sums**2))

    def block_stds(self, summed: NDArray[np.uint8]) -> FloatArray:
        """Return the deviation of the noise on the diagonal of each total of blocks.

        Parameters
        ----------
        summed : ndarray of shape (k, M)
            Whether an agent's block is in a total: 0 or 1.
        """
        counts = summed.sum(axis=1, dtype=np.int64)
        if self.secure is None:
            return np.asarray(self.settings.releases.noise_std * np.sqrt(counts))
        noise = self.secure.noise(0)
        return np.array([noise.std(int(count)) for count in counts])

    @property
    def strategy(self) -> str:
        """Name of the strategy that runs such a study."""
        return "FedUCB" if self.graph is None else "DecentralizedFedUCB"

    @property
    def has_noise(self) -> bool:
        """True if agents add noise to their releases."""
        return self.settings.releases.noise_std > 0

    @property
    def private(self) -> bool:
        """True if the agents' releases are private."""
        return self.has_noise and self.noise_seed is None and self.trigger is None

    @cached_property
    def promise(self) -> Promise:
        """One charge for all releases of an agent: they are one mechanism."""
        return Promise.of_one_mechanism(
            self.settings.releases.mu,
            private=self.private,
            delta=self.settings.releases.delta,
            fixed_rows=self.settings.fixed_rows,
        )

    @cached_property
    def largest_uniform_share(self) -> float:
        """The largest share of decisions that is made without regard to rewards.

        That of the exploration; or all of them, where rewards drown: see
        `flwr_fbo.bandits.linear.regard_to_rewards`.
        """
        from flwr_fbo.bandits.linear.regard_to_rewards import has_regard

        summed, std = self.num_agents, None
        if self.graph is not None and not self.settings.uses_own_data:
            summed = min(map(len, self.graph.pools))
        if self.secure is not None:
            # Of all totals together, each with the shares of all sites.
            of_one = self.secure.noise(0).std(summed)
            releases = self.secure.releases
            std = of_one * releases.largest_std(1) / releases.noise_std
        share = self.settings.exploration.largest_uniform_share
        return share if has_regard(self.released_by, summed, std) else 1.0

    def epsilon_spent(self, num_releases: int) -> float:
        """Return the epsilon that an agent with so many releases has spent.

        The first release spends all of it, as all releases are one mechanism.
        """
        releases = self.settings.releases
        if num_releases == 0:
            return 0.0
        exposed = releases.noise_std == 0 or self.trigger is not None
        return math.inf if exposed else releases.epsilon

    @property
    def warning(self) -> str:
        """Reason why epsilon promises less than it says; empty if it does not."""
        if self.settings.releases.noise_std == 0:
            return "NOT PRIVATE: epsilon is infinite, sums are sent as they are"
        if self.trigger is not None:
            return (
                "NOT PRIVATE: agents synchronise when their raw data say so, and "
                "everybody sees when (Zhou & Chowdhury, ICLR 2024)"
            )
        if self.noise_seed is not None:
            return "NOT PRIVATE: the noise is seeded, for an experiment only"
        local = self.settings.local_data
        if self.settings.fixed_rows:
            return (
                f"WARNING: local_data={local!r} lets an agent act on its own raw "
                "trials: the guarantee holds for one trial with all other trials "
                "fixed, not for what it changes in later ones"
            )
        return ""

    def steps(self, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `Study`."""
        releases = self.settings.releases
        d, E = releases.dimension, releases.num_streams
        peers = 0 if self.graph is None else self.num_agents
        return {
            **releases.steps,
            f"dimension={d}": E * d**2 * (20 + d / 10),
            f"the sums of num_agents={peers}": 5 * peers * E * d**2,
        }

    def enrolment(self) -> Config:
        """Return the config that asks a client which slot it holds."""
        return LinearBanditInstruction("enrol", self).to_config()


@dataclass(frozen=True)
class LinearBanditInstruction(SumInstruction):
    """The server's instruction to one agent; see `SumInstruction`.

    Attributes
    ----------
    journal : int
        The number of the journal in which its releases must be.
    included : int
        Number of its releases that the server has, or, among peers, has heard of. The
        total that comes with the instruction, or came last, has the last of these in
        it; peers are sent no total.
    send_release : bool
        Whether the answer should carry the next one; or, where sites sum, whether one
        follows.
    num_trials : int
        Number of trials that the agent should have played then, if it has an
        environment.
    iteration : int
        From 0; one that is asked for again was cut off.
    agents_in_total : int
        Number of agents with a release in the server's total; 0 among peers.
    num_synchronisations : int
        Number of synchronisations that have made the server's total; 0 among peers.
    synchronisation, believed : int
        Among peers: which synchronisation the next release is for, 0 for none; and up
        to which one messages have arrived, so that their sum can be believed.
    """

    kind: ClassVar[str] = LINEAR.name
    study_type: ClassVar[type[Study]] = LinearBanditStudy

    journal: int = 0
    included: int = 0
    send_release: bool = False
    num_trials: int = 0
    iteration: int = 0
    agents_in_total: int = 0
    num_synchronisations: int = 0
    synchronisation: int = 0
    believed: int = 0

    @property
    def release_charged(self) -> int | None:
        """1, the study's one charge, if the answer may carry a release.

        With a trigger any answer says when the raw data want to synchronise.
        """
        wanted = self.send_release or self.synchronisation or self.phase == "sum"
        return 1 if wanted or self.study.trigger is not None else None
