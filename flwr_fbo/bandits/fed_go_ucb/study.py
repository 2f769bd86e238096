"""Study of Fed-GO-UCB, the same for all agents, and the instruction to one agent.

Both travel in Flower's config as plain scalars, as those of `FedUCB` do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from flwr_fbo._common.fields import (
    FREE,
    check_fields,
    instance,
    integer,
)
from flwr_fbo._common.fields import seed as seed_rule
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.kind import NEURAL
from flwr_fbo.models.network import Network, RewardModel
from flwr_fbo.privacy.gaussian import gaussian_mu
from flwr_fbo.privacy.guarantee import EXAMPLE
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.study.codec import (
    Config,
    Instruction,
    Study,
    StudyMismatchError,
    study_id_field,
)


@dataclass(frozen=True)
class FedGOUCBStudy(Study):
    """A Fed-GO-UCB study, the same for all agents.

    Attributes
    ----------
    settings : FedGOUCBSettings
        Settings of all agents.
    num_agents : int
        N >= 2.
    num_parameters : int
        d_w, of the reward model.
    network : Network, optional
        The reward model, unless every client brings another one.
    seed : int
        Seed of the initial parameters and of exploration; known to all.
    noise_seed : int, optional
        *Experiments only*: makes the agents' noise repeat, and is known to all.
    study_id : str
        Tells this study from any other at the same client.
    """

    settings: FedGOUCBSettings = field(
        metadata=instance(FedGOUCBSettings, part=FedGOUCBSettings)
    )
    num_agents: int = field(metadata=integer(2, cap="max_agents"))
    num_parameters: int = field(metadata=integer(1, cap="max_features"))
    network: Network | None = field(
        metadata=instance(Network, optional=True, part=Network)
    )
    seed: int = field(metadata=integer(0, cap=FREE))
    noise_seed: int | None = field(default=None, metadata=seed_rule())
    study_id: str = study_id_field()

    def __post_init__(self) -> None:
        check_fields(self)
        if self.settings.privacy is not None:
            _ = self.settings.privacy.releases  # which needs a number of features

    @property
    def strategy(self) -> str:
        """Name of the strategy that runs such a study."""
        return "FedGOUCB"

    @property
    def has_noise(self) -> bool:
        """True if agents add noise to their releases."""
        privacy = self.settings.privacy
        return privacy is not None and privacy.epsilon < math.inf

    @property
    def private(self) -> bool:
        """True if the agents' messages are private."""
        return self.has_noise and self.noise_seed is None

    @cached_property
    def promise(self) -> Promise:
        """One charge for all releases of an agent."""
        privacy = self.settings.privacy
        if privacy is None:
            return Promise(unit=EXAMPLE)
        mu = gaussian_mu(privacy.epsilon, privacy.delta)
        return Promise.of_one_mechanism(
            mu, private=self.private, delta=privacy.delta, fixed_rows=False
        )

    @cached_property
    def largest_uniform_share(self) -> float:
        """The largest share of decisions that is made without regard to rewards.

        All of them, where there is a phase I, as the server says when it is over, or
        where rewards drown: see `flwr_fbo.bandits.fed_go_ucb.regard_to_rewards`.
        """
        from flwr_fbo.bandits.fed_go_ucb.regard_to_rewards import has_regard

        is_regarded = has_regard(
            self.settings, self.network, self.seed, self.num_agents
        )
        return 0.0 if is_regarded else 1.0

    def model(self, own: RewardModel | None) -> RewardModel:
        """Return the reward model: the study's, or a client's own.

        Raises
        ------
        StudyMismatchError
            If the two do not fit each other.
        """
        if self.network is not None:
            if own is not None:
                raise StudyMismatchError.told(
                    "The study has a network, and this client has model=."
                )
            return self.network
        if own is None or own.num_parameters != self.num_parameters:
            found = "none" if own is None else f"one of {own.num_parameters}"
            raise StudyMismatchError(
                f"The study has a model of {self.num_parameters} parameters, which "
                f"every client has to bring as model=; this one has {found}.",
                public="The study has a model, which every client has to bring as "
                "model=.",
            )
        return own

    def steps(self, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `Study`."""
        network, privacy = self.network, self.settings.privacy
        w = self.num_parameters if network is None else network.num_parameters
        size, of_privacy = w, {}
        if privacy is not None:
            size = privacy.releases.dimension
            features = w * (1000 + 100 * size)
            of_privacy = {**privacy.releases.steps, f"features of {w}": features}
        refined = self.settings.num_refinements
        return {
            f"num_parameters={w}": size**2 * (20 + size / 50),
            f"num_refinements={refined}": 20 * refined * w**2,
            **of_privacy,
        }

    def enrolment(self) -> Config:
        """Return the config that asks a client which slot it holds."""
        return FedGOUCBInstruction("enrol", self).to_config()


@dataclass(frozen=True)
class FedGOUCBInstruction(Instruction):
    """The server's instruction to one agent; see `Instruction`.

    Attributes
    ----------
    journal : int
        With privacy, the number of the journal in which its releases must be.
    num_evaluations : int
        Number that it should have made then, in both phases together.
    regresses : bool
        Whether the one array that comes along is w, and its gradient is wanted.
    starts, totals : bool
        Otherwise: whether w0 comes along, and after it a total.
    included : int
        Number of the agent's evaluations of phase II in that total.
    send_sums : bool
        Whether the answer should carry its sums.
    release, heard : int
        With privacy: which release is wanted now, and how many of this agent's have
        come.
    """

    kind: ClassVar[str] = NEURAL.name
    study_type: ClassVar[type[Study]] = FedGOUCBStudy

    journal: int = 0
    num_evaluations: int = 0
    regresses: bool = False
    starts: bool = False
    totals: bool = False
    included: int = 0
    send_sums: bool = False
    release: int = 0
    heard: int = 0

    @property
    def release_charged(self) -> int | None:
        """1, the study's one charge, if the answer may carry a release.

        Without privacy any answer says whether the agent wants to synchronise.
        """
        wanted = self.regresses or self.send_sums
        return 1 if wanted or self.study.settings.privacy is None else None
