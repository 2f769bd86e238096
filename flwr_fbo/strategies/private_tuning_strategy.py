"""What FedVote and DP-FTS-DE have in common: private releases of a tuning study."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from flwr.serverapp.exception import PrivacyBudgetExhausted
from optuna.distributions import BaseDistribution

from flwr_fbo._random import Purpose, generator
from flwr_fbo._validation import is_number, require, require_bool, require_seed
from flwr_fbo.agents.tuning.acquisition import maximize
from flwr_fbo.privacy.accounting import Method, PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.budget import check_epsilon
from flwr_fbo.privacy.calibration import smallest_noise_multiplier
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import Calibration, Release, ReleaseSettings
from flwr_fbo.privacy.sampling import Sampling
from flwr_fbo.privacy.schedule import Schedule, check_schedule, release_iterations
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.protocol.codec import fresh_seed
from flwr_fbo.protocol.tuning_settings import Direction, SearchSettings
from flwr_fbo.protocol.tuning_study import AgentSettings, TuningStudy
from flwr_fbo.servers.dp_fts_de import DistributedExplorationServer
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.strategies.result import TuningResult
from flwr_fbo.strategies.tuning_strategy import TuningStrategy

_log = logging.getLogger("flwr.fbo")


class PrivateTuningStrategy(TuningStrategy):
    """Base of the tuning strategies whose releases are differentially private.

    Parameters
    ----------
    space : mapping of str to Optuna distribution
        The search space of all agents.
    direction : {"maximize", "minimize"}
    num_agents : int
        N, the slots of the study, whoever answers.
    agent : ThompsonSettings or VotingSettings
        The agents' settings.
    clip_norm : float
        Clipping norm S of an agent's message.
    sampling_probability : float
        q in (0, 1]: how likely an agent takes part in a release.
    releases : "all", int, float or collection of int
        After which iterations there is a release: all; the first K; while an agent
        follows it with at least this probability; or those listed. A round without a
        release costs no privacy, and agents keep the vectors that they have.
    weights : WeightSchedule
        Of the agents in each sub-region.
    noise_multiplier : float, optional
        z >= 0; 1 unless it or ``epsilon`` is given.
    epsilon : float, optional
        In place of z: what the whole study may spend at ``delta``, which must be given.
        `start` then takes the smallest z that keeps to it over the rounds' releases.
    sampling : {"poisson", "fixed-size"}
        See `ReleaseSettings`; a fixed size needs ``accountant="rdp"``, and its epsilon
        does not compare.
    accountant : {"pld", "rdp", "moments"}
        Counts epsilon: the tightest, Flower's Renyi accountant, or that of the papers.
    calibration : {"joint", "published", "published-per-region"}
        See `ReleaseSettings`; ``"joint"`` is the least noise for a given z.
    max_epsilon : float, optional
        The budget at ``delta``: a release that would exceed it is not made.
    when_exhausted : {"halt", "raise"}
        Then the releases end and the agents go on, or `start` raises
        ``PrivacyBudgetExhausted``.
    delta : float, optional
        In (0, 1): where epsilon is reported. The published 1 / N^1.1 unless given,
        which is too large for a small federation: 0.17 for five agents.
    noise_only : bool
        The control: every contribution is replaced by zero.
    study_seed : int, optional
        Makes the agents' draws repeat; the agents are told it.
    feature_seed : int, optional
        Public seed of the shared features; drawn from the operating system unless
        given.
    noise_seed : int, optional
        *Experiments only*: makes noise and mask repeat, which protects nobody.
    **options
        See `TuningStrategy` and `StudyStrategy`.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.

    Notes
    -----
    *Formal guarantees*: those of `Release`, composed over the rounds:
    ``privacy_spent`` is what a neighbouring study (one agent's messages zeroed) could
    be told apart by, from everything that all agents together receive. Reported
    metrics are not covered.
    """

    server: DistributedExplorationServer

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        direction: Direction,
        num_agents: int,
        *,
        agent: AgentSettings,
        clip_norm: float,
        sampling_probability: float,
        releases: Schedule,
        weights: WeightSchedule,
        noise_multiplier: float | None = None,
        epsilon: float | None = None,
        sampling: Sampling = "poisson",
        accountant: Method = "pld",
        calibration: Calibration = "joint",
        max_epsilon: float | None = None,
        when_exhausted: Literal["halt", "raise"] = "halt",
        delta: float | None = None,
        noise_only: bool = False,
        study_seed: int | None = None,
        feature_seed: int | None = None,
        noise_seed: int | None = None,
        **options: Any,
    ) -> None:
        require_bool("noise_only", noise_only)
        if epsilon is not None:
            allowed = "None where noise_multiplier is given, which decides it"
            require(noise_multiplier is None, "epsilon", epsilon, allowed)
            require(delta is not None, "delta", delta, "given, where epsilon is")
            check_epsilon(epsilon)
        if max_epsilon is not None:
            require(delta is not None, "delta", delta, "given, where max_epsilon is")
        check_schedule(releases)
        ok = when_exhausted in ("halt", "raise")
        require(ok, "when_exhausted", when_exhausted, "'halt' or 'raise'")
        study = TuningStudy(
            SearchSpace(space),
            direction,
            agent,
            study_seed=study_seed,
            feature_seed=fresh_seed() if feature_seed is None else feature_seed,
        )
        settings = ReleaseSettings(
            num_agents=num_agents,
            num_sub_regions=agent.num_sub_regions,
            clip_norm=clip_norm,
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            sampling_probability=sampling_probability,
            sampling=sampling,
            calibration=calibration,
            noise_only=noise_only,
            weights=weights,
        )
        if delta is None:
            delta = published_delta(num_agents)
        if settings.noise_multiplier > 0:
            # Above q, "never sampled" explains everything: epsilon would be 0.
            allowed = f"below sampling_probability={sampling_probability}"
            ok = is_number(delta) and delta < sampling_probability
            require(ok, "delta", delta, allowed)
        assert isinstance(agent, SearchSettings)
        server = DistributedExplorationServer(
            Release(settings, _entropy(settings, noise_seed)),
            agent.num_features,
            delta,
            max_epsilon=max_epsilon,
            accountant=accountant,
        )
        super().__init__(server, study, **options)
        self._epsilon = epsilon
        self._schedule = releases
        self._said_exhausted = False
        self._raises = when_exhausted == "raise"
        self._given_seeds = {"feature_seed": feature_seed, "noise_seed": noise_seed}

    def plan(self, horizon: int) -> None:
        """Fix the releases, their noise, and what agents are told about it."""
        agent = self._agent
        iterations = release_iterations(
            self._schedule, horizon, agent.follow_probability
        )
        self.server.iterations = iterations
        if self._epsilon is not None and iterations:
            spends = partial(self._spends, iterations)
            z = smallest_noise_multiplier(spends, self._epsilon)
            self.server.release = self.server.release.with_noise_multiplier(z)

    @property
    def _agent(self) -> SearchSettings:
        agent = self.study.agent
        assert isinstance(agent, SearchSettings)
        return agent

    def _spends(self, iterations: Iterable[int], noise_multiplier: float) -> float:
        """Return what releases after ``iterations`` would spend at that z."""
        release = self.server.release.with_noise_multiplier(noise_multiplier)
        accountant = ReleaseAccountant(
            release.settings.subsampling,
            self.server.delta,
            self.server.accounting_method,
        )
        for iteration in iterations:
            accountant.charge(release.effective_noise_multiplier(iteration))
        return accountant.spent().epsilon

    def summary(self) -> None:
        """Log the settings, and what is not private about them."""
        super().summary()
        if self._folder is None and self.server.release.private:
            _log.info(
                "\t├──> no folder: nothing of this study is on disk; started again, it "
                "is another study, and their epsilons and deltas add up"
            )

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        return {
            **super()._identity(num_rounds),
            **self._given_seeds,
            "delta": self.server.delta,
            "max_epsilon": self.server.max_epsilon,
            "accountant": self.server.accounting_method,
            "releases": list(self.server.iterations or ()),
            **asdict(self.server.release.settings),
        }

    def _before_round(self, server_round: int) -> None:
        if self._said_exhausted or not self.server.is_exhausted(server_round - 1):
            return
        self._said_exhausted = True
        reason = (
            f"Round {server_round}: a release would exceed the privacy budget "
            f"max_epsilon={self.server.max_epsilon:g} "
            f"({self.privacy_spent.epsilon:.3f} spent)."
        )
        if self._raises:
            raise PrivacyBudgetExhausted(reason)
        _log.warning("%s No more releases: agents go on with what they have.", reason)

    def _after_round(self, server_round: int) -> None:
        spent = self.privacy_spent
        epsilon = spent.epsilon if math.isfinite(spent.epsilon) else None
        self._rounds[-1] = replace(self._rounds[-1], epsilon=epsilon)
        _log.info(
            "Privacy spent so far: epsilon = %.3f at delta = %.3g, %d releases",
            spent.epsilon,
            spent.delta,
            spent.num_releases,
        )

    def _end(self, result: TuningResult) -> None:
        spent = result.privacy_spent = self.privacy_spent
        result.recommended = self.recommended
        _log.info("Recommended for all: %s", result.recommended)
        _log.info(
            "Privacy spent: epsilon = %.3f at delta = %.3g (%s), %d releases%s",
            spent.epsilon,
            spent.delta,
            spent.accounting_method,
            spent.num_releases,
            "" if self.server.release.private else "; NOT PRIVATE, see the summary",
        )

    @property
    def recommended(self) -> Params | None:
        """The maximiser of the function released last; None before a release.

        Post-processing of what the agents receive anyway.
        """
        vectors, agent = self.server.vectors, self._agent
        if vectors is None:
            return None
        space, seed = self.study.space, self.study.feature_seed
        point = maximize(
            agent.shared_features(space.dim, seed),
            vectors,
            space,
            space.sub_regions(agent.num_sub_regions),
            generator(seed, Purpose.SEARCH),
            agent.num_candidates,
            agent.num_starts,
        )
        return space.from_unit(space.snap(point))

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all releases so far, in Flower's type.

        With a ``noise_seed`` it is what the study would have spent with real noise.
        """
        return self.server.privacy_spent


def published_delta(num_agents: int) -> float:
    """Return 1 / N^1.1, at most 1/2 (DP-FTS-DE, section 5)."""
    return float(min(0.5, num_agents**-1.1))


def _entropy(settings: ReleaseSettings, noise_seed: int | None) -> Entropy | None:
    require_seed("noise_seed", noise_seed)
    if noise_seed is not None:
        return SeededEntropy(noise_seed)
    needs_none = settings.noise_multiplier == 0 and settings.sampling_probability == 1
    return None if needs_none else OsEntropy()
