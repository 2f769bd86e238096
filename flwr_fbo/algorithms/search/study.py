"""What the server of a tuning study decides for all agents, and asks of one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from flwr_fbo._common.validation import require, require_seed
from flwr_fbo.algorithms.fed_vote.settings import VoteCount
from flwr_fbo.algorithms.fed_warm_start.knowledge import Knowledge
from flwr_fbo.algorithms.fed_warm_start.settings import Cohorts, FedWarmStartSettings
from flwr_fbo.algorithms.registry import algorithm_named, algorithm_of
from flwr_fbo.algorithms.search.settings import (
    AgentSettings,
    Direction,
    check_direction,
)
from flwr_fbo.privacy.spending import Promise
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.codec import (
    Config,
    Instruction,
    Phase,
    Study,
    fresh_seed,
    from_json,
    require_study_id,
    to_json,
)

if TYPE_CHECKING:
    from flwr_fbo.algorithms.search.agent import Agent
    from flwr_fbo.study.secure_sums import SecureSums


@dataclass(frozen=True)
class TuningStudy(Study):
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
    promise : Promise
        What is released of a site at most, one charge a release; nothing is promised
        unless the strategy says so.
    votes : VoteCount, optional
        How votes are counted, where agents vote.
    cohorts : Cohorts, optional
        Who sends in which release, where agents start warm.
    known : Knowledge, optional
        Of earlier studies, where agents start warm; about this space. Its points are
        the pool.
    secure : SecureSums, optional
        How messages are summed, where the server is to learn their sums only.
    """

    space: SearchSpace
    direction: Direction
    agent: AgentSettings
    study_seed: int | None = None
    feature_seed: int = field(default_factory=fresh_seed)
    study_id: str = field(default_factory=lambda: secrets.token_hex(8))
    promise: Promise = field(default_factory=Promise)
    votes: VoteCount | None = None
    cohorts: Cohorts | None = None
    known: Knowledge | None = None
    secure: SecureSums | None = None

    def __post_init__(self) -> None:
        check_direction(self.direction)
        require_seed("study_seed", self.study_seed)
        require_study_id(self.study_id)
        require_seed("feature_seed", self.feature_seed)
        self.agent.sub_regions(self.space)  # names P if it does not fit
        if self.known is not None:
            self._check_known(self.known)

    def _check_known(self, known: Knowledge) -> None:
        require(known.space == self.space, "known.space", known.space, "the study's")
        allowed = f"{self.direction!r}, the study's"
        same = known.direction == self.direction
        require(same, "known.direction", known.direction, allowed)
        m, agent = len(known.points), self.agent
        ok = isinstance(agent, FedWarmStartSettings) and agent.num_features == m
        allowed = f"FedWarmStartSettings with num_features={m}, as many as known.points"
        require(ok, "agent", agent, allowed)

    own: ClassVar[tuple[str, ...]] = ("study_id", "feature_seed", "promise")

    def steps(self, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `Study`."""
        known = 0 if self.known is None else len(self.known.releases)
        return self.agent.steps(self.space.dim, num_rows + known)

    def enrolment(self) -> Config:
        """Return the config that asks a client which slot it holds."""
        return TuningInstruction(Phase.ENROL, self).to_config()

    def to_dict(self) -> dict[str, Any]:
        """Return the study as JSON values."""
        return {
            "space": self.space.to_json(),
            "direction": self.direction,
            "agent": {"kind": algorithm_of(self.agent).name, **asdict(self.agent)},
            "study_seed": self.study_seed,
            "feature_seed": self.feature_seed,
            "study_id": self.study_id,
            "promise": self.promise.to_dict(),
            "votes": None if self.votes is None else asdict(self.votes),
            "cohorts": None if self.cohorts is None else self.cohorts.to_dict(),
            "known": None if self.known is None else self.known.to_dict(),
            "secure": to_json(self.secure),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TuningStudy:
        """Return the study that ``to_dict`` gave."""
        agent, votes = dict(fields["agent"]), fields["votes"]
        cohorts, known = fields["cohorts"], fields["known"]
        settings: Any = algorithm_named(agent.pop("kind")).settings
        return cls(
            space=SearchSpace.from_json(fields["space"]),
            direction=fields["direction"],
            agent=settings(**agent),
            study_seed=fields["study_seed"],
            feature_seed=fields["feature_seed"],
            study_id=fields["study_id"],
            promise=Promise.from_dict(fields["promise"]),
            votes=None if votes is None else VoteCount(**votes),
            cohorts=None if cohorts is None else Cohorts(**cohorts),
            known=None if known is None else Knowledge.from_dict(known),
            secure=_secure(fields["secure"]),
        )


def create_agent(study: TuningStudy, slot: int, entropy: int) -> Agent:
    """Return the agent of ``slot``; ``entropy`` is the seed of its draws."""
    algorithm = algorithm_of(study.agent)
    module, _, name = algorithm.agent.partition(":")
    facts = {fact: getattr(study, fact) for fact in algorithm.facts}
    about = study.space, study.direction, study.agent, slot, entropy
    agent: Agent = getattr(import_module(module), name)(
        *about, study.feature_seed, **facts
    )
    return agent


def _secure(fields: Mapping[str, Any] | None) -> SecureSums | None:
    if fields is None:
        return None
    from flwr_fbo.study.secure_sums import SecureSums

    found: SecureSums = from_json(SecureSums, fields)
    return found


@dataclass(frozen=True)
class TuningInstruction(Instruction):
    """What the server of a tuning study asks of one agent; see `Instruction`.

    Attributes
    ----------
    iteration : int
        t, from 0.
    release : int
        For which of the promised releases, from 1, the answer should carry a message;
        0 for none.
    num_released : int
        How many releases the server has made.
    made_after : int
        Iteration whose messages are in the newest of them.
    num_iterations : int
        T, the last iteration: for what the site says of how far it is.
    report_best_value : bool
        Whether the answer should carry the metric ``best-value``; it is not covered by
        any privacy guarantee.
    exchange : int
        Exchange of a secure sum, from 1 to 5, in the phase ``SUM``.
    attempt : int
        Number that tells attempts at a secure sum apart.
    planned : int
        Iteration after which the release was planned, for its weights.
    """

    kind: ClassVar[str] = "tuning"
    study_type: ClassVar[type[Study]] = TuningStudy

    iteration: int = 0
    release: int = 0
    num_released: int = 0
    num_iterations: int = 0
    report_best_value: bool = False
    exchange: int = 0
    attempt: int = 0
    planned: int = 0
    made_after: int = 0
