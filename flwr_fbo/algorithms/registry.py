"""The tuning algorithms: what a study calls each, its settings, who plays by them.

A new algorithm is a line at the end of this file. The lab registers its baselines.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr_fbo._common.validation import require_known
from flwr_fbo.algorithms.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.algorithms.fed_vote.settings import FedVoteSettings
from flwr_fbo.algorithms.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.algorithms.fts.settings import FTSSettings
from flwr_fbo.algorithms.search.settings import AgentSettings


@dataclass(frozen=True)
class Algorithm:
    """What the rest of the package knows of a tuning algorithm.

    Attributes
    ----------
    name : str
        In the study that is sent to sites.
    settings : type
        Of its agents' settings.
    agent : str
        Its agents' class, as ``module:name``: imported when one is made, because a
        client process needs no more than one algorithm.
    facts : tuple of str
        Fields of the study, besides its settings, that an agent is made with.
    """

    name: str
    settings: type[AgentSettings]
    agent: str
    facts: tuple[str, ...] = ()


_ALGORITHMS: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> None:
    """Let studies have an algorithm."""
    _ALGORITHMS[algorithm.name] = algorithm


def algorithm_named(name: object) -> Algorithm:
    """Return an algorithm by its name.

    Raises
    ------
    ValueError
        If there is none; the message has the known names.
    """
    require_known("agent", name, _ALGORITHMS)
    return _ALGORITHMS[str(name)]


def algorithm_of(settings: AgentSettings) -> Algorithm:
    """Return the algorithm whose settings these are."""
    return next(a for a in _ALGORITHMS.values() if a.settings is type(settings))


_HERE = "flwr_fbo.algorithms"
for _algorithm in (
    Algorithm("fts", FTSSettings, f"{_HERE}.fts.agent:FTSAgent"),
    Algorithm("dp-fts-de", DPFTSDESettings, f"{_HERE}.dp_fts_de.agent:DPFTSDEAgent"),
    Algorithm(
        "fed-vote", FedVoteSettings, f"{_HERE}.fed_vote.agent:FedVoteAgent", ("votes",)
    ),
    Algorithm(
        "fed-warm-start",
        FedWarmStartSettings,
        f"{_HERE}.fed_warm_start.agent:FedWarmStartAgent",
        ("cohorts", "known"),
    ),
):
    register(_algorithm)
