"""What the server decides for all agents, and what it asks of one in a round.

Both travel in Flower's config as plain scalars: a client is told the whole study in
every message, because in a deployment each message starts a fresh process.
"""

from __future__ import annotations

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from flwr_fbo._validation import require, require_seed
from flwr_fbo.agents.tuning.base import Agent, Direction, check_direction
from flwr_fbo.agents.tuning.dp_fts_de import ThompsonAgent, ThompsonSettings
from flwr_fbo.agents.tuning.fed_vote import VotingAgent, VotingSettings
from flwr_fbo.agents.tuning.fts import FTSAgent, FTSSettings
from flwr_fbo.agents.tuning.own_search import SearchAgent, SearchSettings
from flwr_fbo.agents.tuning.random_search import RandomSearchAgent, RandomSearchSettings
from flwr_fbo.agents.tuning.transfer import (
    RGPEAgent,
    RGPESettings,
    TAFAgent,
    TAFSettings,
)
from flwr_fbo.space.search_space import SearchSpace

AgentSettings = (
    ThompsonSettings
    | VotingSettings
    | RGPESettings
    | TAFSettings
    | RandomSearchSettings
)

# Raised when a message of an older version would be misunderstood.
PROTOCOL_VERSION = 5

_SETTINGS: dict[str, type[AgentSettings]] = {
    "thompson": ThompsonSettings,
    "fts": FTSSettings,
    "rgpe": RGPESettings,
    "taf": TAFSettings,
    "voting": VotingSettings,
    "random": RandomSearchSettings,
}

_AGENTS: dict[type[SearchSettings], type[SearchAgent]] = {
    ThompsonSettings: ThompsonAgent,
    FTSSettings: FTSAgent,
    VotingSettings: VotingAgent,
    RGPESettings: RGPEAgent,
    TAFSettings: TAFAgent,
}


def fresh_seed() -> int:
    """Return a seed from the operating system's entropy, for Flower's 64-bit ints."""
    return secrets.randbits(63)


class SentAsText(ABC):
    """A study that travels as JSON."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON values."""

    @cached_property
    def text(self) -> str:
        """The study as JSON: made once, sent to every agent in every round."""
        return json.dumps(self.to_dict())


@dataclass(frozen=True)
class Study(SentAsText):
    """What all agents have in common.

    Attributes
    ----------
    space : SearchSpace
    direction : {"maximize", "minimize"}
    agent : AgentSettings
        Those of one kind of agent.
    study_seed : int, optional
        Makes the agents' draws repeat, and is known to all of them (the guarantee does
        not rest on it); without it each agent draws its own seed from the operating
        system.
    feature_seed : int, optional
        Public seed of the shared features, independent of all others; drawn from the
        operating system unless given.
    study_id : str
        Tells this study from any other at the same client.
    """

    space: SearchSpace
    direction: Direction
    agent: AgentSettings
    study_seed: int | None = None
    feature_seed: int = field(default_factory=fresh_seed)
    study_id: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        check_direction(self.direction)
        require_seed("study_seed", self.study_seed)
        # Clients name files after it.
        ok = re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.study_id) is not None
        require(ok, "study_id", self.study_id, "1 to 64 letters, digits, '-' or '_'")
        require_seed("feature_seed", self.feature_seed)
        self.space.sub_regions(self.agent.num_sub_regions)  # names P if it does not fit

    def create_agent(self, slot: int, entropy: int) -> Agent:
        """Return the agent of ``slot``; ``entropy`` is the seed of its draws."""
        if not isinstance(self.agent, RandomSearchSettings):
            return _AGENTS[type(self.agent)](
                self.space, self.direction, self.agent, slot, entropy, self.feature_seed
            )
        sub_regions = self.space.sub_regions(self.agent.num_sub_regions)
        return RandomSearchAgent(
            self.space,
            self.direction,
            sub_regions,
            self.agent.num_initial,
            slot,
            entropy,
        )

    # What tells it from another one with the same settings.
    own: ClassVar[tuple[str, ...]] = ("study_id", "feature_seed")

    def enrolment(self) -> dict[str, int | str | bool]:
        """Return the config that asks a client which slot it holds."""
        return Instruction(Phase.ENROL, self).to_config()

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON values."""
        kinds = {cls: kind for kind, cls in _SETTINGS.items()}
        return {
            "space": self.space.to_json(),
            "direction": self.direction,
            "agent": {"kind": kinds[type(self.agent)], **asdict(self.agent)},
            "study_seed": self.study_seed,
            "feature_seed": self.feature_seed,
            "study_id": self.study_id,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Study:
        """Return the study that ``to_dict`` gave."""
        agent = dict(fields["agent"])
        settings = _SETTINGS[agent.pop("kind")]
        return cls(
            space=SearchSpace.from_json(fields["space"]),
            direction=fields["direction"],
            agent=settings(**agent),
            study_seed=fields["study_seed"],
            feature_seed=fields["feature_seed"],
            study_id=fields["study_id"],
        )


@lru_cache(maxsize=8)  # a process may answer for many agents of one study
def _study_of(text: str) -> Study:
    return Study.from_dict(json.loads(text))


def is_instruction(config: Mapping[str, Any]) -> bool:
    """Return whether a config is of a flwr_fbo strategy, of whatever version."""
    return "fbo-protocol" in config


class Phase(Enum):
    """What a message asks for."""

    ENROL = "enrol"  # say which slot you hold, if you know
    ROUND = "round"  # evaluate, and answer with a message if it is wanted


@dataclass(frozen=True)
class Instruction:
    """What the server asks of one agent.

    Attributes
    ----------
    phase : Phase
    study : Study
    slot : int
        The agent's slot; -1 while enrolling.
    iteration : int
        t, from 0.
    send_message : bool
        Whether the answer should carry a message.
    report_best_value : bool
        Whether the answer should carry the metric ``best-value``; it is not covered by
        any privacy guarantee.
    """

    phase: Phase
    study: Study
    slot: int = -1
    iteration: int = 0
    send_message: bool = False
    report_best_value: bool = False

    def to_config(self) -> dict[str, int | str | bool]:
        """Return the instruction as entries of a Flower config."""
        return {
            "fbo-protocol": PROTOCOL_VERSION,
            "fbo-phase": self.phase.value,
            "fbo-study": self.study.text,
            "fbo-slot": self.slot,
            "fbo-iteration": self.iteration,
            "fbo-send-message": self.send_message,
            "fbo-report-best-value": self.report_best_value,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Instruction:
        """Return the instruction in a config.

        Raises
        ------
        ValueError
            If the config is not of a flwr_fbo strategy, or of another version.
        """
        version = config.get("fbo-protocol")
        if version != PROTOCOL_VERSION:
            raise ValueError(
                f"This client speaks version {PROTOCOL_VERSION} of flwr_fbo's "
                f"protocol, the server sent {version!r} (None: not a flwr_fbo "
                "strategy). Install the same version of flwr_fbo on both sides."
            )
        return cls(
            phase=Phase(config["fbo-phase"]),
            study=_study_of(str(config["fbo-study"])),
            slot=int(config["fbo-slot"]),
            iteration=int(config["fbo-iteration"]),
            send_message=bool(config["fbo-send-message"]),
            report_best_value=bool(config["fbo-report-best-value"]),
        )
