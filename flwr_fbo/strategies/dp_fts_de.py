"""DP-FTS-DE as a Flower strategy; FTS-DE and DP-FTS are settings of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from optuna.distributions import BaseDistribution

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import require, require_known
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.strategies.presets import Preset
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.strategies.release_plan import private_study
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.portfolios import Listed
from flwr_fbo.tuning.search.settings import Direction


class DPFTSDE(TuningStrategy):
    """Differentially private federated Thompson sampling, distributed exploration.

    Dai, Low & Jaillet, Differentially Private Federated Bayesian Optimization with
    Distributed Exploration (NeurIPS 2021).

    Examples
    --------
    >>> from flwr_fbo import DPFTSDE, InProcessGrid, tuning_app
    >>> from optuna.distributions import FloatDistribution
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["C"] - 10.0))
    >>> strategy = DPFTSDE(
    ...     space={"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     direction="maximize",
    ...     num_agents=20,
    ... )
    >>> result = strategy.start(InProcessGrid(app, num_nodes=20), num_rounds=3)
    >>> result.privacy_spent.num_releases
    2

    Parameters
    ----------
    space : mapping of str to Optuna distribution
        Search space of all agents: the tuned parameters, by name.
    direction : {"maximize", "minimize"}
        Whether the objective's largest or smallest value is sought.
    num_agents : int
        Number N >= 1 of agents, the slots of the study.
    epsilon : float, optional
        Epsilon that the whole study may spend at ``delta``, from 1e-3 to 1e3. The noise
        is computed from it: the smallest noise multiplier for the planned releases.
        ``privacy`` may give the noise in its place.
    delta : float, optional
        Delta of the guarantee, in (0, 1), and far below 1 / N. Must be given where
        ``epsilon`` is; else it is 1e-3, and 1 / (10 N) with more than 100 agents.
    preset : {"paper", "paper-synthetic"}
        Published settings: those for real data, or those for synthetic functions.
    agent : DPFTSDESettings, optional
        The agents' settings; by default the preset's.
        ``DPFTSDESettings(num_sub_regions=1)`` gives DP-FTS.
    privacy : Privacy, optional
        How releases are made, counted and limited. The default is the preset's: as
        published, until one agent in twenty would follow. FTS-DE is
        ``Privacy(noise_multiplier=0, sampling_probability=1, clip_norm=math.inf)``.
    portfolio : sequence of dict, str, Path or StudyPortfolio
        Settings that each site evaluates before its own search, which learns from them:
        after those that the site enqueued, and before the centre or the initial points.
        A list of settings; a learner of `Portfolio.known`; ``"auto"``, the learner that
        the names in ``space`` decide; or a list of earlier studies, see
        `StudyPortfolio`, or the path of its file, which ends in ``.json``. By default
        there are none.
    aggregation : SecureAggregation, optional
        How the sites sum their messages, so that the server learns the noisy sum alone.
        Without it the server is trusted: it reads each message and adds the noise.
    seeds : Seeds, optional
        Seeds of draws, features and noise; by default the operating system draws them.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.

    Notes
    -----
    *Formal guarantees*: those of `Release`, composed over the rounds; see
    `TuningStrategy`. *Not covered*: the server itself. It reads each agent's
    message: a sample of what the agent believes of its objective, and so about where
    its best setting lies. With ``aggregation`` it is covered: see `SecureRelease`.
    """

    server: DPFTSDEServer
    # Those of the paper: releases until one agent in twenty would follow.
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(
            DPFTSDESettings(),
            Privacy(
                clip_norm=22.0,
                sampling_probability=0.35,
                min_follow_probability=0.05,
                weights=WeightSchedule(),
            ),
        ),
        "paper-synthetic": Preset(
            DPFTSDESettings(
                num_features=50,
                num_sub_regions=2,
                lengthscale=0.03,
                regularization=0.01,
                follow="inverse-sqrt",
            ),
            Privacy(
                clip_norm=11.0,
                sampling_probability=0.25,
                min_follow_probability=0.05,
                weights=WeightSchedule(num_constant_rounds=5, num_decay_rounds=5),
            ),
        ),
    }

    @takes_plain
    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        direction: Direction,
        num_agents: int,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        preset: str = "paper",
        agent: DPFTSDESettings | None = None,
        privacy: Privacy | None = None,
        portfolio: Listed = (),
        aggregation: SecureAggregation | None = None,
        seeds: Seeds | None = None,
    ) -> None:
        require_known("preset", preset, self.presets)
        base = self.presets[preset]
        settings = base.agent if agent is None else agent
        is_own = type(settings) is DPFTSDESettings
        require(is_own, "agent", settings, "a DPFTSDESettings")
        study, releases = private_study(
            space,
            direction,
            num_agents,
            agent=settings,
            privacy=base.privacy_with(privacy),
            epsilon=epsilon,
            delta=delta,
            portfolio=portfolio,
            aggregation=aggregation,
            seeds=seeds,
        )
        super().__init__(releases.server, study, seeds, releases)
