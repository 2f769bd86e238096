"""A tuning study, the same for all agents, and the instruction to one agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from flwr_fbo._common.conversion import plain
from flwr_fbo._common.fields import (
    check_fields,
    choice,
    holds,
    instance,
    ruled,
    seed,
)
from flwr_fbo._common.validation import refuse, require, require_instance
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.study.codec import (
    Config,
    Study,
    SumInstruction,
    fresh_seed,
    study_id_field,
)
from flwr_fbo.study.kinds import load
from flwr_fbo.tuning.kind import TUNING
from flwr_fbo.tuning.registry import algorithm_in, algorithm_of
from flwr_fbo.tuning.search.settings import Direction, Facts, SearchSettings
from flwr_fbo.tuning.search.study_portfolio import MOST_LISTED

if TYPE_CHECKING:
    from flwr_fbo.secure import SecureSums
    from flwr_fbo.tuning.search.agent import Agent


def _facts_in(values: Any) -> type[Facts]:
    facts = algorithm_in(values).facts
    if facts is None:
        refuse("facts", values, "None, with this algorithm")
    return facts


def _check_portfolio(name: str, value: Any) -> None:
    is_valid = isinstance(value, Sequence) and not isinstance(value, str)
    is_valid = is_valid and all(isinstance(params, Mapping) for params in value)
    require(is_valid, name, value, "a list of settings, each a dict")
    expected = f"at most {MOST_LISTED} settings"
    require(len(value) <= MOST_LISTED, f"len({name})", len(value), expected)


def _plain(params: Params) -> Params:
    """Return a setting of Python's numbers, which JSON takes."""
    return {name: plain(value) for name, value in params.items()}


def _secure_sums(values: Any) -> type[SecureSums]:
    require_instance("secure", values, Mapping, allowed="an object, or None")
    # A client process loads what its message needs: most studies have no such sums.
    from flwr_fbo.secure import SecureSums

    return SecureSums


@dataclass(frozen=True)
class TuningStudy(Study):
    """A tuning study, the same for all agents.

    Attributes
    ----------
    space : SearchSpace
        Search space of all agents.
    direction : {"maximize", "minimize"}
        Direction of the objectives.
    agent : SearchSettings
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
        Releases of a site at most, one charge per release; nothing is promised unless
        the strategy says so.
    facts : Facts, optional
        Facts that the algorithm tells its agents besides their settings, once it is
        planned.
    secure : SecureSums, optional
        Settings of the secure sums, where the server is to learn their sums only.
    portfolio : sequence of dict
        Settings that each agent evaluates after those that its site enqueued, and
        before its own first points.
    """

    space: SearchSpace = field(metadata=instance(SearchSpace, part=SearchSpace))
    direction: Direction = field(metadata=choice(Direction))
    agent: SearchSettings = field(
        metadata=holds(lambda values: algorithm_in(values).settings)
    )
    study_seed: int | None = field(default=None, metadata=seed())
    feature_seed: int = field(default_factory=fresh_seed, metadata=seed())
    study_id: str = study_id_field()
    promise: Promise = field(default_factory=Promise, metadata=holds(Promise))
    facts: Facts | None = field(default=None, metadata=holds(_facts_in))
    secure: SecureSums | None = field(default=None, metadata=holds(_secure_sums))
    portfolio: Sequence[Params] = field(default=(), metadata=ruled(_check_portfolio))

    def __post_init__(self) -> None:
        check_fields(self)
        self.agent.sub_regions(self.space)  # names P if it does not fit
        object.__setattr__(self, "portfolio", tuple(map(_plain, self.portfolio)))
        for i, params in enumerate(self.portfolio):
            try:
                self.space.to_unit(params)
            except ValueError as error:
                refuse(f"portfolio[{i}]", params, str(error))
        if self.facts is None:
            return
        named = algorithm_of(self.agent).facts
        expected = "None" if named is None else f"a {named.__name__}, or None"
        require(type(self.facts) is named, "facts", self.facts, expected)
        self.facts.check(self.space, self.direction, self.agent)

    own: ClassVar[tuple[str, ...]] = ("study_id", "feature_seed", "promise")

    @property
    def strategy(self) -> str:
        """Name of the strategy that runs such a study."""
        algorithm = algorithm_of(self.agent)
        return algorithm.strategy.rpartition(":")[2] or algorithm.name

    def steps(self, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `Study`."""
        known = 0 if self.facts is None else self.facts.num_rows
        return self.agent.steps(self.space.dim, num_rows + known)

    def enrolment(self) -> Config:
        """Return the config that asks a client which slot it holds."""
        return TuningInstruction("enrol", self).to_config()


def create_agent(study: TuningStudy, slot: int, entropy: int) -> Agent:
    """Return the agent of ``slot``; ``entropy`` is the seed of its draws."""
    algorithm = algorithm_of(study.agent)
    facts = {} if algorithm.facts is None else {"facts": study.facts}
    agent: Agent = load(algorithm.agent)(
        study.space,
        study.direction,
        study.agent,
        slot,
        entropy,
        study.feature_seed,
        **facts,
    )
    agent.list_first(study.portfolio)
    return agent


@dataclass(frozen=True)
class TuningInstruction(SumInstruction):
    """The server's instruction to one agent of a tuning study; see `SumInstruction`.

    Attributes
    ----------
    iteration : int
        t, from 0.
    num_released : int
        Number of releases that the server has made.
    made_after : int
        Iteration whose messages are in the newest of them.
    num_iterations : int
        T, the last iteration: for what the site says of how far it is.
    report_best_value : bool
        Whether the answer should carry the metric ``best-value``; it is not covered by
        any privacy guarantee.
    planned : int
        Iteration after which the release was planned, for its weights.
    """

    kind: ClassVar[str] = TUNING.name
    study_type: ClassVar[type[Study]] = TuningStudy

    iteration: int = 0
    num_released: int = 0
    num_iterations: int = 0
    report_best_value: bool = False
    planned: int = 0
    made_after: int = 0

    @property
    def release_charged(self) -> int | None:
        """Number of the promised release that is asked for, or None."""
        return self.release or None

    @property
    def unprotected(self) -> str:
        """The metric that is asked for, if it is."""
        return "the metric best-value" if self.report_best_value else ""
