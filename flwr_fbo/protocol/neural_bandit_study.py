"""What the server of Fed-GO-UCB decides for all agents, and what it asks of one.

Both travel in Flower's config as plain scalars, as those of `FedUCB` do.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from flwr_fbo._validation import require_int, require_seed
from flwr_fbo.agents.bandits.fed_go_ucb import NeuralUCBSettings
from flwr_fbo.models.langevin import LangevinSettings
from flwr_fbo.models.network import Network, RewardModel
from flwr_fbo.privacy.neural_privacy import NeuralPrivacy
from flwr_fbo.protocol.tuning_study import Phase, SentAsText

# Raised when a message of an older version would be misunderstood.
PROTOCOL_VERSION = 2


@dataclass(frozen=True)
class NeuralBanditStudy(SentAsText):
    """What all agents have in common.

    Attributes
    ----------
    settings : NeuralUCBSettings
    num_parameters : int
        d_w, of the reward model.
    network : Network, optional
        The reward model, unless every client brings another one.
    seed : int
        Of the initial parameters and of exploration; known to all.
    noise_seed : int, optional
        *Experiments only*: makes the agents' noise repeat, and is known to all.
    study_id : str
        Tells this study from any other at the same client.
    """

    settings: NeuralUCBSettings
    num_parameters: int
    network: Network | None
    seed: int
    noise_seed: int | None = None
    study_id: str = field(default_factory=lambda: secrets.token_hex(8))

    # What tells it from another one with the same settings.
    own: ClassVar[tuple[str, ...]] = ("study_id",)

    def __post_init__(self) -> None:
        require_int("num_parameters", self.num_parameters, 1)
        require_int("seed", self.seed, 0)
        require_seed("noise_seed", self.noise_seed)

    @property
    def private(self) -> bool:
        """Whether what agents send is private at all."""
        privacy = self.settings.privacy
        noisy = privacy is not None and privacy.epsilon < math.inf
        return noisy and self.noise_seed is None

    def model(self, own: RewardModel | None) -> RewardModel:
        """Return the reward model: the study's, or a client's own.

        Raises
        ------
        ValueError
            If the two do not fit each other.
        """
        if self.network is not None:
            if own is not None:
                raise ValueError("The study has a network, and this client has model=.")
            return self.network
        if own is None or own.num_parameters != self.num_parameters:
            found = "none" if own is None else f"one of {own.num_parameters}"
            raise ValueError(
                f"The study has a model of {self.num_parameters} parameters, which "
                f"every client has to bring as model=; this one has {found}."
            )
        return own

    def enrolment(self) -> dict[str, int | str | bool]:
        """Return the config that asks a client which slot it holds."""
        return NeuralInstruction(Phase.ENROL, self).to_config()

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> NeuralBanditStudy:
        """Return the study that ``to_dict`` gave."""
        settings, network = dict(fields["settings"]), fields["network"]
        settings["regression"] = LangevinSettings(**settings["regression"])
        if settings["privacy"] is not None:
            settings["privacy"] = NeuralPrivacy(**settings["privacy"])
        return cls(
            settings=NeuralUCBSettings(**settings),
            num_parameters=fields["num_parameters"],
            network=None if network is None else Network(**network),
            seed=fields["seed"],
            noise_seed=fields["noise_seed"],
            study_id=fields["study_id"],
        )


def is_neural_instruction(config: Mapping[str, Any]) -> bool:
    """Return whether a config is of `FedGOUCB`, of whatever version."""
    return "fbo-neural-protocol" in config


@dataclass(frozen=True)
class NeuralInstruction:
    """What the server asks of one agent.

    Attributes
    ----------
    phase : Phase
    study : NeuralBanditStudy
    slot : int
        The agent's slot; -1 while enrolling.
    journal : int
        With privacy, the number of the journal in which its releases must be.
    num_evaluations : int
        How many it should have made then, of both phases together.
    regresses : bool
        Whether the one array that comes along is w, and its gradient is wanted.
    starts, totals : bool
        Otherwise: whether w0 comes along, and after it a total.
    included : int
        How many of the agent's evaluations of phase II are in that total.
    send_sums : bool
        Whether the answer should carry its sums.
    release, heard : int
        With privacy: the step of phase I, or which release of phase II, is wanted now;
        and how many of this agent's have come, of both phases together.
    """

    phase: Phase
    study: NeuralBanditStudy
    slot: int = -1
    journal: int = 0
    num_evaluations: int = 0
    regresses: bool = False
    starts: bool = False
    totals: bool = False
    included: int = 0
    send_sums: bool = False
    release: int = 0
    heard: int = 0

    def to_config(self) -> dict[str, int | str | bool]:
        """Return the instruction as entries of a Flower config."""
        return {
            "fbo-neural-protocol": PROTOCOL_VERSION,
            "fbo-phase": self.phase.value,
            "fbo-study": self.study.text,
            "fbo-slot": self.slot,
            "fbo-journal": self.journal,
            "fbo-num-evaluations": self.num_evaluations,
            "fbo-regresses": self.regresses,
            "fbo-starts": self.starts,
            "fbo-totals": self.totals,
            "fbo-included": self.included,
            "fbo-send-sums": self.send_sums,
            "fbo-release": self.release,
            "fbo-heard": self.heard,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> NeuralInstruction:
        """Return the instruction in a config.

        Raises
        ------
        ValueError
            If the config is not of `FedGOUCB`, or of another version.
        """
        version = config.get("fbo-neural-protocol")
        if version != PROTOCOL_VERSION:
            raise ValueError(
                f"This client plays neural bandits by version {PROTOCOL_VERSION} of "
                f"flwr_fbo's protocol, the server sent {version!r} (None: not "
                "FedGOUCB). Install the same version of flwr_fbo on both sides."
            )
        return cls(
            phase=Phase(config["fbo-phase"]),
            study=NeuralBanditStudy.from_dict(json.loads(str(config["fbo-study"]))),
            slot=int(config["fbo-slot"]),
            journal=int(config["fbo-journal"]),
            num_evaluations=int(config["fbo-num-evaluations"]),
            regresses=bool(config["fbo-regresses"]),
            starts=bool(config["fbo-starts"]),
            totals=bool(config["fbo-totals"]),
            included=int(config["fbo-included"]),
            send_sums=bool(config["fbo-send-sums"]),
            release=int(config["fbo-release"]),
            heard=int(config["fbo-heard"]),
        )
