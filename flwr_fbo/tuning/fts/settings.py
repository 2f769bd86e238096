"""Settings of the agents of FTS, which the server sends to all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flwr_fbo._common.fields import FREE, choice, integer
from flwr_fbo._common.validation import require
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings, Follow

Weighting = Literal["uniform", "similarity"]


@dataclass(frozen=True)
class FTSSettings(DPFTSDESettings):
    """The agent's settings; the defaults are those published for real data.

    See `DPFTSDESettings` for the others.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS
    >>> from flwr_fbo.tuning import FTSSettings
    >>> agent = FTSSettings(share_after=10, weighting="similarity")
    >>> space = {"C": FloatDistribution(1e-3, 1e3, log=True)}
    >>> strategy = FTS(space, "maximize", num_agents=20, agent=agent)

    Attributes
    ----------
    num_sub_regions : int
        1.
    follow : {"inverse-square", "inverse-sqrt", "inverse", "never"}
        1 - p_t is 1/t^2 (published for real data), 1/sqrt(t) (for synthetic
        functions), 1/t, or 0; t is at least 2.
    share_after : int, optional
        None: all agents send a message after every round, and follow the newest.
        K >= 1: they search alone for K rounds, send one message, and follow each
        other's once; t counts from there.
    share_every : int
        k >= 1: all agents send a message after every k rounds, the first one included.
        1 where ``share_after`` is given.
    weighting : {"uniform", "similarity"}
        P_N. ``"uniform"``, as published: all agents alike whose message is there.
        ``"similarity"``: by how well a message ranks the agent's own observations,
        Kendall's tau where it is positive; agents that rank no better than chance are
        not followed.
    """

    num_sub_regions: int = field(default=1, metadata=integer(1, cap="max_dimension"))
    num_initial: int = field(default=3, metadata=integer(1))
    follow: Follow = field(default="inverse-square", metadata=choice(Follow))
    share_after: int | None = field(
        default=None, metadata=integer(1, optional=True, cap=FREE)
    )
    share_every: int = field(default=1, metadata=integer(1, cap=FREE))
    weighting: Weighting = field(default="uniform", metadata=choice(Weighting))

    def __post_init__(self) -> None:
        super().__post_init__()
        P = self.num_sub_regions
        require(P == 1, "num_sub_regions", P, "1, where agents follow each other")
        is_valid = self.share_every == 1 or self.share_after is None
        expected = "1, where share_after is given"
        require(is_valid, "share_every", self.share_every, expected)

    def steps(self, dim: int, num_rows: int) -> dict[str, float]:
        """Return what a message takes: see `SearchSettings`."""
        compared = num_rows if self.weighting == "similarity" else 0
        rows = {f"{num_rows} agents' messages": 50_000 * compared}
        return {**super().steps(dim, num_rows), **rows}

    def follow_probability(self, iteration: int) -> float:
        """Return 1 - p_t for t >= 1."""
        since = iteration + 1 - (self.share_after or 1)
        return super().follow_probability(max(since, 2))
