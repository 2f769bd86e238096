"""Federated Thompson sampling (Dai, Low & Jaillet, NeurIPS 2020), without privacy."""

from __future__ import annotations

from collections.abc import Mapping

from optuna.distributions import BaseDistribution

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import require_instance
from flwr_fbo.strategies.release_plan import tuning_study
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
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
    space : mapping of str to Optuna distribution
        Search space of all agents: the tuned parameters, by name.
    direction : {"maximize", "minimize"}
        Whether the objective's largest or smallest value is sought.
    num_agents : int
        Number N >= 1 of agents, the slots of the study.
    agent : FTSSettings, optional
        The agents' settings: when they send, whom they follow, and how often; by
        default ``FTSSettings()``.
    portfolio : sequence of dict, str, Path or StudyPortfolio
        Settings that each site evaluates before its own search, which learns from them:
        after those that the site enqueued, and before the centre or the initial points.
        A list of settings; a learner of `Portfolio.known`; ``"auto"``, the learner that
        the names in ``space`` decide; or a list of earlier studies, see
        `StudyPortfolio`, or the path of its file, which ends in ``.json``. By default
        there are none.
    seeds : Seeds, optional
        Seeds of the agents' draws and features; there is no noise to seed. By default
        the operating system draws them.

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
    ) -> None:
        agent = FTSSettings() if agent is None else agent
        require_instance("agent", agent, FTSSettings)
        seeds = Seeds() if seeds is None else seeds
        study = tuning_study(space, direction, agent, seeds, portfolio)
        length, after = agent.message_length, agent.share_after
        server = FTSServer(num_agents, length, after, agent.share_every)
        super().__init__(server, study, seeds)
