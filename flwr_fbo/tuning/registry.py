"""The tuning algorithms: what a study calls each, its settings, who plays by them.

A new algorithm is a line at the end of this file. The lab registers its baselines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr_fbo._common.validation import require_known
from flwr_fbo.study.kinds import load
from flwr_fbo.tuning.search.settings import Facts, SearchSettings


@dataclass(frozen=True)
class Algorithm:
    """Entry of a tuning algorithm, for the rest of the package.

    Attributes
    ----------
    name : str
        Name in the study that is sent to sites.
    settings : type
        Class of its agents' settings.
    agent : str or type
        Class of its agents, or its ``module:name``. Named, it is imported when an agent
        is made, because a client process needs no more than one algorithm.
    facts : type, optional
        Class of what its agents are told besides their settings: their constructors
        take it as ``facts``.
    released : str
        Function, as ``module:name``, of a study and its releases that returns what
        these say of the space; empty where they recommend no setting.
    strategy : str
        Flower strategy that commands and experiments know by its name, as
        ``module:name``; empty without one.
    """

    name: str
    settings: type[SearchSettings]
    agent: str | type[Any]
    facts: type[Facts] | None = None
    released: str = ""
    strategy: str = ""


ALGORITHMS: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> None:
    """Let studies have an algorithm; its settings and facts say so in JSON."""
    ALGORITHMS[algorithm.name] = algorithm
    algorithm.settings.kind = algorithm.name
    if algorithm.facts is not None:
        algorithm.facts.kind = algorithm.name


def algorithm_in(values: Any) -> Algorithm:
    """Return the algorithm that JSON values name as their ``kind``.

    Raises
    ------
    ValueError
        If there is none; the message has the known names.
    """
    kind = values.get("kind") if isinstance(values, Mapping) else values
    require_known("agent", kind, ALGORITHMS)
    return ALGORITHMS[str(kind)]


def algorithm_of(settings: SearchSettings) -> Algorithm:
    """Return the algorithm whose settings these are."""
    return next(a for a in ALGORITHMS.values() if a.settings is type(settings))


def _ours(name: str, stem: str, facts: str = "", *, recommends: bool = False) -> None:
    """Register one whose folder, classes and strategy are named as usual.

    Parameters
    ----------
    name : str
        Its folder is named alike, with underscores.
    stem : str
        Name of the strategy: of the settings and agents with ``Settings`` and
        ``Agent``.
    facts : str
        Class, beside the settings, of its `Facts`.
    recommends : bool
        Whether the folder has a ``recommendation.py`` with a ``released_function``.
    """
    folder = name.replace("-", "_")
    path = f"flwr_fbo.tuning.{folder}"
    algorithm = Algorithm(
        name,
        settings=load(f"{path}.settings:{stem}Settings"),
        agent=f"{path}.agent:{stem}Agent",
        facts=load(f"{path}.settings:{facts}") if facts else None,
        released=f"{path}.recommendation:released_function" if recommends else "",
        strategy=f"flwr_fbo.strategies.{folder}:{stem}",
    )
    register(algorithm)


_ours("fts", "FTS")
_ours("dp-fts-de", "DPFTSDE", recommends=True)
_ours("fed-vote", "FedVote", "VoteCount", recommends=True)
_ours("fed-warm-start", "FedWarmStart", "WarmStartFacts", recommends=True)
