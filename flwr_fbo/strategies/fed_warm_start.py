"""A head start from those who came before, as a Flower strategy: FedWarmStart.

Sites start one cohort after another; see `flwr_fbo.tuning.fed_warm_start.agent` for
what a site sends, once, and what those who start later make of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

from optuna.distributions import BaseDistribution

from flwr_fbo._common.conversion import takes_plain
from flwr_fbo._common.text import agents_text
from flwr_fbo._common.validation import require, require_instance, require_int
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.presets import Preset
from flwr_fbo.strategies.privacy_options import SCHEDULES, Privacy
from flwr_fbo.strategies.release_plan import private_study
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.strategies.study_record import read_ledger
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.study.kinds import SERVER_FILE
from flwr_fbo.tuning.fed_warm_start.knowledge import Knowledge, known_from
from flwr_fbo.tuning.fed_warm_start.server import (
    FedWarmStartServer,
    knowledge_of,
    verdict,
)
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
    default_cohorts,
)
from flwr_fbo.tuning.kind import SERVER
from flwr_fbo.tuning.search.portfolios import Listed
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.study import TuningStudy

_log = logging.getLogger("flwr.fbo")

# What the strategy fixes itself: all sites of a cohort send once, with norm 1, after
# `share_after` evaluations, and half of them are enough.
_FIXED = ("clip_norm", "sampling_probability", "budget", "min_answers", "weights")


class FedWarmStart(TuningStrategy):
    """Federated tuning in which sites that start later start from what others know.

    The first cohort of sites searches alone. Each of its sites sends one message, the
    server releases their sum with noise, and the sites after it start from that. Where
    settings are enqueued or listed they do so only if the sum says, with a posterior
    probability of 95 %, that it leads to a better place.

    Examples
    --------
    >>> from flwr_fbo import FedWarmStart, InProcessGrid, tuning_app
    >>> from optuna.distributions import FloatDistribution
    >>> app = tuning_app(lambda context: lambda trial: -abs(trial["C"] - 10.0))
    >>> strategy = FedWarmStart(
    ...     space={"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     direction="maximize",
    ...     num_agents=8,
    ...     epsilon=8.0,
    ...     delta=1e-3,
    ... )
    >>> strategy.cohort_sizes  # the other four follow
    (4,)
    >>> result = strategy.start(InProcessGrid(app, num_nodes=8), num_rounds=12)
    >>> round(result.privacy_spent.epsilon)
    8

    Parameters
    ----------
    space : mapping of str to Optuna distribution
        Search space of all agents: the tuned parameters, by name.
    direction : {"maximize", "minimize"}
        Whether the objective's largest or smallest value is sought.
    num_agents : int
        Number N >= 1 of agents, the slots of the study. The server issues slots in
        order of joining.
    epsilon : float, optional
        Epsilon that a site's one message may spend at ``delta``, from 1e-3 to 1e3. The
        noise is computed from it. ``privacy`` may give the noise in its place.
    delta : float, optional
        Delta of the guarantee, in (0, 1), and far below 1 / N. Must be given where
        ``epsilon`` is; else it is 1e-3, and 1 / (10 N) with more than 100 agents.
    agent : FedWarmStartSettings, optional
        The agents' settings; by default ``FedWarmStartSettings()``.
    privacy : Privacy, optional
        How releases are made, counted and limited. Only ``noise_multiplier``,
        ``accountant``, ``max_epsilon``, ``when_exhausted``, ``calibration`` and
        ``noise_only`` may be given.
    cohorts : sequence of int, optional
        Sizes >= 1 of the cohorts that send a message, in the order of slots; together
        fewer than N. By default max(4, ceil(6 z)) pioneers, then half of the other
        agents if these are more. If no followers are left, or with ``()``, no agent
        sends a message: every agent searches alone or starts from what is ``known``.
    known : Knowledge, str or Path, optional
        Releases of earlier studies, or their file. All agents start from them, at no
        epsilon. They are combined with this study's releases by precision. Their points
        inside ``space`` are the pool, and ``agent.num_features`` is the number of these
        points.
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
    *Formal guarantees*: those of `FedWarmStartServer`. Two studies are neighbours if
    one site's message is zeroed. Each site has a message in one release at most, so
    ``privacy_spent`` is that of one release. A site that enrols again under another
    slot, without its old folder, spends again. *Not covered*: the server itself, which
    reads how each site ranks the pool, unless ``aggregation`` is given (see
    `SecureRelease`); who answers and when; and reported metrics.

    Agents of a later cohort wait for the releases before theirs. Give
    ``Host(min_agents=...)`` if sites are to join while the study runs.
    """

    server: FedWarmStartServer
    # A release a cohort, each with one message of each of its sites.
    presets: ClassVar[Mapping[str, Preset]] = {
        "": Preset(
            FedWarmStartSettings(), Privacy(clip_norm=1.0, sampling_probability=1.0)
        )
    }

    recommends_start = True
    _from_when = ", once its cohort has begun"

    @takes_plain
    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        direction: Direction,
        num_agents: int,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        agent: FedWarmStartSettings | None = None,
        privacy: Privacy | None = None,
        cohorts: Sequence[int] | None = None,
        known: Knowledge | str | Path | None = None,
        portfolio: Listed = (),
        aggregation: SecureAggregation | None = None,
        seeds: Seeds | None = None,
    ) -> None:
        agent = FedWarmStartSettings() if agent is None else agent
        require_instance("agent", agent, FedWarmStartSettings)
        privacy = Privacy() if privacy is None else privacy
        require_instance("privacy", privacy, Privacy)
        if known is not None:
            known = known_from(known).onto(SearchSpace(space), direction)
            agent = replace(agent, num_features=len(known.points))
        for field in (*_FIXED, *SCHEDULES):
            value = getattr(privacy, field)
            require(value is None, field, value, "None, with FedWarmStart")
        sampling = privacy.sampling
        is_poisson = sampling == "poisson"
        require(is_poisson, "sampling", sampling, "'poisson', with FedWarmStart")
        z = privacy.noise_multiplier
        if epsilon is not None and z is None and delta is not None:
            # Of one release, however many there are: a site is in one of them.
            method = privacy.accountant
            z = calibrate_noise_multiplier(epsilon, delta, 1.0, 1, method)
            privacy, epsilon = replace(privacy, noise_multiplier=z), None
        require_int("num_agents", num_agents, 1)
        sizes = "a list of sizes, or None"
        require_instance("cohorts", cohorts, Sequence, optional=True, allowed=sizes)
        if cohorts is None:
            cohorts = default_cohorts(num_agents, 1.0 if z is None else z)
        self.cohort_sizes = Cohorts(num_agents, tuple(cohorts)).cohort_sizes
        due = accumulate(agent.share_after for _ in self.cohort_sizes)
        base = self.presets[""]
        study, releases = private_study(
            space,
            direction,
            num_agents,
            agent=agent,
            privacy=replace(privacy, release_after=tuple(due)).filled(base.privacy),
            epsilon=epsilon,
            delta=delta,
            portfolio=portfolio,
            aggregation=aggregation,
            seeds=seeds,
            server_type=partial(
                FedWarmStartServer,
                cohort_sizes=self.cohort_sizes,
                num_kept=agent.share_after,
            ),
            facts=WarmStartFacts(known=known),
        )
        super().__init__(releases.server, study, seeds, releases)

    def _take_best_values(self, values: Mapping[int, float]) -> None:
        self.server.note_best(values)

    @property
    def verdict(self) -> str:
        """Whether followers did better or worse than pioneers; see `TuningResult`."""
        return verdict(self.study, self.server.reported)

    def summary(self) -> None:
        """Log the settings, and who starts when."""
        super().summary()
        sizes = self.server.cohorts.cohort_sizes
        facts = self.study.facts
        known = facts.known if isinstance(facts, WarmStartFacts) else None
        if known is not None:
            _log.info(
                "\t├──> all start from %d releases of earlier studies, at no epsilon",
                len(known.releases),
            )
        if not sizes and known is not None:
            _log.info("\t├──> nobody sends a message, and nothing more is released")
            return
        if not sizes:
            _log.warning(
                "Nobody would be left to follow, or no release fits into these rounds: "
                "every agent searches alone, and nothing is shared."
            )
            return
        cohorts = [self.server.cohorts.slots(k) for k in range(len(sizes))]
        last = range(sum(sizes), self.server.num_agents)
        _log.info(
            "\t├──> pioneers: %s; then, without a message, %s",
            "; then ".join(map(agents_text, cohorts)),
            agents_text(last),
        )

    @property
    def knowledge(self) -> Knowledge:
        """All that has been released, and what was known, for another study.

        It can be saved as a file; see `Knowledge`.

        Raises
        ------
        ValueError
            If nothing has been released and nothing was known; or if the study is a
            control.
        """
        return knowledge_of(self.study, self.server.ledger, self.server.delta)


def recorded_knowledge(folder: Path) -> Knowledge:
    """Return the same of a study whose server has this ``folder``.

    Raises
    ------
    JournalError
        If the record cannot be read, is not a server's, or is in use.
    ValueError
        If it is of another strategy, or has nothing to give.
    """
    with Journal(None, folder / SERVER_FILE) as journal:
        journal.require_kind(SERVER.name)
        stored, ledger = read_ledger(journal)
        identity = journal.identity
    study = TuningStudy.from_dict(stored["study"])
    agent = study.agent
    is_warm_start = isinstance(agent, FedWarmStartSettings)
    expected = f"that of FedWarmStart (its agents: {agent})"
    require(is_warm_start, "folder", str(folder), expected)
    return knowledge_of(study, ledger, identity["delta"])
