"""The kinds of tuning agents: what a study calls each, its settings, who plays by them.

Here is all that is to be said of an algorithm outside of its own files. The lab adds
its baselines where they are imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._validation import require_known
from flwr_fbo.protocol.fed_vote_settings import VotingSettings
from flwr_fbo.protocol.fed_warm_start_settings import WarmStartSettings
from flwr_fbo.protocol.tuning_settings import (
    AgentSettings,
    FTSSettings,
    ThompsonSettings,
)


@dataclass(frozen=True)
class AgentKind:
    """One kind of agent.

    Attributes
    ----------
    name : str
        In the study that is sent to sites.
    settings : type
        Of its settings.
    agent : str
        Its class, as ``module:name``: imported where there is one, as a deployment
        begins a process a message, which needs no more than one kind.
    facts : tuple of str
        Fields of the study, besides its settings, that an agent is made with.
    """

    name: str
    settings: type[AgentSettings]
    agent: str
    facts: tuple[str, ...] = ()


_KINDS: dict[str, AgentKind] = {}


def register(kind: AgentKind) -> None:
    """Let studies have a kind of agent."""
    _KINDS[kind.name] = kind


def kind_named(name: object) -> AgentKind:
    """Return a kind by its name.

    Raises
    ------
    ValueError
        If there is none; the message has the known names.
    """
    require_known("agent", name, _KINDS)
    return _KINDS[str(name)]


def kind_of(settings: AgentSettings) -> AgentKind:
    """Return the kind whose settings these are."""
    return next(k for k in _KINDS.values() if k.settings is type(settings))


_AGENTS = "flwr_fbo.agents.tuning."
register(AgentKind("thompson", ThompsonSettings, f"{_AGENTS}dp_fts_de:ThompsonAgent"))
register(AgentKind("fts", FTSSettings, f"{_AGENTS}fts:FTSAgent"))
register(
    AgentKind("voting", VotingSettings, f"{_AGENTS}fed_vote:VotingAgent", ("votes",))
)
register(
    AgentKind(
        "warm-start",
        WarmStartSettings,
        f"{_AGENTS}fed_warm_start:WarmStartAgent",
        ("cohorts", "known"),
    )
)
