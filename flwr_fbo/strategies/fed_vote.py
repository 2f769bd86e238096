"""Private votes as a Flower strategy: FedVote.

A few times in a study each agent votes for where its best setting lies; see
`flwr_fbo.tuning.fed_vote.agent` for what a vote is and how agents read the sum.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import ClassVar

from optuna.distributions import BaseDistribution

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.strategies.presets import Preset
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.strategies.release_plan import private_study
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning.fed_vote.server import FedVoteServer
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings, VoteCount
from flwr_fbo.tuning.fed_vote.vote_schedule import GUIDING, votes_after
from flwr_fbo.tuning.fed_vote.votes_by_chance import votes_by_chance
from flwr_fbo.tuning.search.portfolios import Listed
from flwr_fbo.tuning.search.settings import Direction

_log = logging.getLogger("flwr.fbo")


class FedVote(TuningStrategy):
    """Federated tuning by differentially private votes.

    Each agent votes for where its best setting lies, the server releases the sum of the
    votes with noise, and agents try places with significantly more votes than chance
    and noise explain.

    Examples
    --------
    >>> from flwr_fbo import FedVote, InProcessGrid, tuning_app
    >>> from optuna.distributions import FloatDistribution
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["C"] - 10.0))
    >>> strategy = FedVote(
    ...     space={"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     direction="maximize",
    ...     num_agents=20,
    ...     epsilon=8.0,
    ...     delta=1e-3,
    ... )
    >>> result = strategy.start(InProcessGrid(app, num_nodes=20), num_rounds=3)
    >>> round(result.privacy_spent.epsilon)
    8

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
    agent : FedVoteSettings, optional
        The agents' settings; by default ``FedVoteSettings()``.
    privacy : Privacy, optional
        How releases are made, counted and limited. By default all agents take part in
        each release. Releases follow evaluations 6 and 10, or earlier in a study of
        fewer than 12 rounds. In a study of more than 20 rounds a third one, for what is
        recommended, comes one round before the last. Votes after at least 20
        evaluations have a kernel a third as wide. ``clip_norm`` is 1, the length of a
        vote.
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
    exact best setting: a vote is a function of nothing else. With ``aggregation`` it
    is covered: see `SecureRelease`.
    """

    server: FedVoteServer
    presets: ClassVar[Mapping[str, Preset]] = {
        "": Preset(
            FedVoteSettings(),
            Privacy(clip_norm=1.0, sampling_probability=1.0, release_after=GUIDING),
        )
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
        agent: FedVoteSettings | None = None,
        privacy: Privacy | None = None,
        portfolio: Listed = (),
        aggregation: SecureAggregation | None = None,
        seeds: Seeds | None = None,
    ) -> None:
        base = self.presets[""]
        agent = FedVoteSettings() if agent is None else agent
        require_instance("agent", agent, FedVoteSettings)
        filled = base.privacy_with(privacy)
        norm, least = filled.clip_norm, filled.min_follow_probability
        lengths = "1, the length of a vote, or inf without noise"
        require(norm in (1, math.inf), "clip_norm", norm, lengths)
        always = "None or 0: agents that vote look at each vector"
        require(least in (None, 0), "min_follow_probability", least, always)
        weights = filled.weights
        require(weights is None, "weights", weights, "None: all votes weigh the same")
        is_scheduled = privacy is not None and privacy.has_schedule
        study, releases = private_study(
            space,
            direction,
            num_agents,
            agent=agent,
            privacy=filled,
            epsilon=epsilon,
            delta=delta,
            portfolio=portfolio,
            aggregation=aggregation,
            seeds=seeds,
            server_type=FedVoteServer,
            schedule=None if is_scheduled else votes_after,
        )
        super().__init__(releases.server, study, seeds, releases)

    @property
    def smallest_crowd(self) -> int:
        """How many votes for one setting make the others try it, once planned.

        In the first vote, that is. It may be more than there are.
        """
        study = self.study
        agent, votes = study.agent, study.facts
        assert isinstance(agent, FedVoteSettings)
        assert isinstance(votes, VoteCount)
        first = next(iter(self.server.iterations), 0)
        agent = agent.after(first, study.space.dim)
        by_chance = votes_by_chance(agent, votes, study.space, study.feature_seed)
        return by_chance.smallest_crowd

    def summary(self) -> None:
        """Log the settings, and how many agents must agree to be heard."""
        super().summary()
        if not self.server.iterations:
            _log.warning("No release fits into these rounds: nothing will be shared.")
            return
        crowd, num_agents = self.smallest_crowd, self.server.num_agents
        if crowd <= num_agents:
            _log.info(
                "\t├──> if %d agents vote for one setting, the others try it", crowd
            )
            return
        _log.warning(
            "Under this noise %d agents would have to agree before their votes stand "
            "out, and there are %d: agents will search on their own, and epsilon buys "
            "them nothing. More agents, or a larger epsilon, would.",
            crowd,
            num_agents,
        )
