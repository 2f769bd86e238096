"""Federated Thompson sampling (Dai, Low & Jaillet, NeurIPS 2020), without privacy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from optuna.distributions import BaseDistribution

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import require_instance
from flwr_fbo._compat import ClientApi
from flwr_fbo.strategies.options import Durability, Seeds
from flwr_fbo.strategies.release_plan import tuning_study
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.study.callbacks import Callback
from flwr_fbo.tuning.fts.server import FTSServer
from flwr_fbo.tuning.fts.settings import FTSSettings
from flwr_fbo.tuning.kind import RELAY
from flwr_fbo.tuning.search.portfolios import Listed
from flwr_fbo.tuning.search.settings import Direction


class FTS(TuningStrategy):
    """Federated Thompson sampling: agents follow each other's sampled functions.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FTS, InProcessGrid, tuning_app
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["C"] - 10.0))
    >>> strategy = FTS(
    ...     space={"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     direction="maximize",
    ...     num_agents=4,
    ... )
    >>> result = strategy.start(InProcessGrid(app, num_nodes=4), num_rounds=3)
    >>> result.privacy_spent is None
    True

    Parameters
    ----------
    {space, direction, num_agents}
    agent : FTSSettings, optional
        The agents' settings: when they send, whom they follow, and how often.
    seeds : Seeds, optional
        Seeds of the agents' draws and features; there is no noise to seed.
    {portfolio, metrics, options}

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*: none. Each agent's message, a sample of M numbers from the
    posterior of its objective, reaches the server and all other agents as it is: they
    read about where its best setting lies. `DPFTSDE` is the method with differential
    privacy.
    """

    server: FTSServer
    record_kind = RELAY

    @takes_plain
    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        direction: Direction,
        num_agents: int,
        *,
        agent: FTSSettings | None = None,
        portfolio: Listed = (),
        seeds: Seeds | None = None,
        metrics: Collection[str] = (),
        folder: str | Path | None = None,
        durability: Durability | None = None,
        client_api: ClientApi = "both",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        agent = FTSSettings() if agent is None else agent
        require_instance("agent", agent, FTSSettings)
        seeds = Seeds() if seeds is None else seeds
        study = tuning_study(space, direction, agent, seeds, portfolio)
        server = FTSServer(num_agents, agent.message_length, agent.share_after)
        super().__init__(server, study, folder, durability, client_api, callbacks)
        self._compose(metrics, seeds)
