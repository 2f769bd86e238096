"""The plan of a study's private releases: when, under which noise, at what cost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp.exception import PrivacyBudgetExhausted
from optuna.distributions import BaseDistribution

from flwr_fbo._common.validation import (
    check_folder,
    is_number,
    require,
    require_instance,
)
from flwr_fbo.privacy.accounting import smallest_noise_multiplier
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.gaussian import check_epsilon
from flwr_fbo.privacy.guarantee import CLIENT, default_delta, require_small_delta
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import PlannedRelease, Release, ReleaseSettings
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    Promise,
    SpendingLedger,
    StudyKey,
    charge_facts,
)
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.enrolment import one_array
from flwr_fbo.strategies.privacy_options import Privacy
from flwr_fbo.strategies.secure_rounds import Instruct, SecureRounds
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.study.codec import fresh_seed
from flwr_fbo.study.server import Step
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.tuning.search.portfolios import Listed, listed_settings
from flwr_fbo.tuning.search.settings import Direction, Facts, SearchSettings
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy

_log = logging.getLogger("flwr.fbo")

# Rounds that are named one by one.
_MOST_LISTED = 4

# Takes T, the last iteration; returns the iterations after which a release is due.
ReleaseSchedule = Callable[[int], tuple[int, ...]]


class ReleasePlan:
    """When releases are made, what they cost, and what is left of the budget.

    Parameters
    ----------
    server : DPFTSDEServer
        Makes the releases.
    aggregation : SecureAggregation, optional
        How the sites sum their messages, and add the noise: more of it than the plan
        needs. By default the server reads each message, and adds it.
    schedule : callable
        Takes the last iteration, returns those after which a release is due.
    privacy : Privacy
        How releases are counted and limited.
    epsilon : float or None
        Epsilon that the whole study may spend; None where the noise is given.
    seeds : Seeds
        Those that were given.
    """

    def __init__(
        self,
        server: DPFTSDEServer,
        aggregation: SecureAggregation | None,
        schedule: ReleaseSchedule,
        privacy: Privacy,
        epsilon: float | None,
        seeds: Seeds,
    ) -> None:
        self.server = server
        self.sums = SecureRounds(aggregation, server.groups())
        self.privacy = privacy
        self._schedule = schedule
        self._epsilon = epsilon
        self._seeds = seeds
        budget = check_folder("budget", privacy.budget)
        is_real = budget is None or seeds.noise is None
        require(is_real, "seeds.noise", seeds.noise, "None, where budget is given")
        self._budget = None if privacy.noise_only else budget  # it spends nothing
        self._said_exhausted = False

    def plan(self, study: TuningStudy, horizon: int) -> TuningStudy:
        """Fix releases and noise; return the study with what agents are told of them.

        Parameters
        ----------
        study : TuningStudy
            The study, before its releases are planned.
        horizon : int
            T, the last iteration.
        """
        server, release = self.server, self.server.release
        iterations = self._schedule(horizon)
        if self._epsilon is not None and iterations:
            spends = partial(self._spends, iterations)
            z = smallest_noise_multiplier(spends, self._epsilon)
            release = release.with_noise_multiplier(z)
        secure = None
        if self.sums.collector is not None:
            length = study.agent.message_length
            secure = self.sums.collector.sums(release.settings, length)
            release = secure.release
            self.sums.num_planned = len(iterations)
        server.plan(iterations, release)
        self.limit(study)
        charges = map(server.charge, server.charged)
        return replace(
            study,
            promise=Promise.of(charges, release.private, server.delta),
            facts=server.plan_facts(study.facts),
            secure=secure,
        )

    def _spends(self, iterations: tuple[int, ...], noise_multiplier: float) -> float:
        """Return what releases after ``iterations`` would spend at that z."""
        release = self.server.release.with_noise_multiplier(noise_multiplier)
        accountant = self.server.new_accountant()
        for iteration in iterations:
            accountant.charge(release.effective_noise_multiplier(iteration))
        return accountant.epsilon()

    def limit(self, study: TuningStudy) -> None:
        """Leave out the releases that the budget, less what others spent, forbids."""
        if self.privacy.max_epsilon is None:
            return
        if self._budget is None:
            self.server.limit(self.privacy.max_epsilon)
            return
        with SpendingLedger.held(self._budget) as ledger:
            before = ledger.facts()

        def together(charges: Sequence[Charge]) -> Spent:
            promise = Promise.of(charges, private=True, delta=self.server.delta)
            return Spent.of(CLIENT, before, _key(study), promise)

        self.server.limit(self.privacy.max_epsilon, together)

    def resume(self, study: TuningStudy) -> None:
        """Record what an earlier run of the study has released, once it is known."""
        if self._budget is None:
            return
        with SpendingLedger.held(self._budget) as ledger:
            # The budget may not have been given before.
            for k, row in enumerate(self.server.ledger, 1):
                charge = self.server.charge(row.iteration)
                about = _key(study), k, charge
                ledger.record(*about, promised=study.promise.charges, unit=CLIENT)
        self.limit(study)

    def may_leave(self, study: TuningStudy, step: Step) -> bool:
        """Record a release in the ledger that outlives the study, before it leaves.

        False if other studies have spent the budget since this one was planned.
        """
        if self._budget is None:
            return True
        # On disk before it leaves: after a crash nobody knows whether it has left. One
        # that was charged and has not left only costs too much.
        charge = self.server.charge(self.server.iterations[step.release - 1])
        # All that the budget allows: with sampling, a study is charged whole.
        charges = map(self.server.charge, self.server.charged)
        planned = Promise.of(charges, private=True, delta=self.server.delta)
        most = self.privacy.max_epsilon
        assert most is not None
        with SpendingLedger.held(self._budget) as ledger:
            if ledger.has(_key(study), step.release):
                return True  # of a run that was ended before the release left
            key, promised = _key(study), planned.charges
            about = key, step.release, charge
            facts = charge_facts(*about, promised=promised, unit=CLIENT)
            spent = Spent.of(CLIENT, [*ledger.facts(), facts])
            if not spent.exceeds(most, self.server.delta):
                ledger.add(facts)
                return True
        self.limit(study)
        self.check_budget(self.server.step(step.iteration))
        return False

    def needed(self, step: Step, num_enrolled: int) -> int:
        """Return how many agents must answer before a step's release."""
        if self.sums.collector is not None:
            return self.sums.needed(self.server.group_of(step.release))
        if self.privacy.min_answers is not None:
            return self.privacy.min_answers
        return self.server.fewest_answers(step.release, num_enrolled)

    def read(self, slot: int, reply: Message) -> Any:
        """Return the message in a reply; None where the sites sum them."""
        return one_array(slot, reply) if self.sums.collector is None else None

    def release(
        self,
        study: TuningStudy,
        step: Step,
        messages: Mapping[int, Any],
        instruct: Instruct,
    ) -> bool:
        """Make a step's release; return whether it was made.

        Parameters
        ----------
        study : TuningStudy
            The study, which sites are told.
        step : Step
            The step that asked for the release.
        messages : mapping
            What `read` gave, by slot.
        instruct : callable
            Returns what the site of a slot is told in each exchange of a secure sum.
        """
        server, sums = self.server, study.secure
        if sums is None:
            server.receive(step, dict(sorted(messages.items())))
            return True
        group = server.group_of(step.release)
        # As its sites number it: a cohort is in one release, which is its first.
        number = server.release_number(sums.groups[group].first_slot, step)
        about = study, sums, number, group
        summed = self.sums.sum_up(*about, instruct=instruct)
        if summed is None:
            return False
        planned = server.iterations[step.release - 1]
        server.receive_sum(step, sums.row(planned, group, *summed))
        return True

    def trust(self) -> list[str]:
        """Return what the server learns of a site, for the log."""
        if self.sums.collector is not None:
            return self.sums.trust()
        readable = self.server.readable
        return [f"the server is trusted: it reads in each agent's message {readable}"]

    def check_budget(self, step: Step) -> None:
        """Say once, or raise, that a release which is due would exceed the budget."""
        if self._said_exhausted or not step.is_exhausted:
            return
        self._said_exhausted = True
        others = f", more by others with budget={self._budget}" if self._budget else ""
        reason = (
            f"Round {step.iteration + 1}: a release would exceed the privacy budget "
            f"max_epsilon={self.privacy.max_epsilon:g} "
            f"({self.server.privacy_spent.text('.3f')} spent by this study{others})."
        )
        if self.privacy.when_exhausted == "raise":
            raise PrivacyBudgetExhausted(reason)
        _log.warning("%s No more releases: agents go on with what they have.", reason)

    @property
    def _rounds(self) -> list[int]:
        """After which rounds there are releases, as `Privacy.release_after` has it."""
        return [t + 1 for t in self.server.iterations]

    def lines(self) -> list[str]:
        """Return which releases are planned, for the log."""
        rounds = [*map(str, self._rounds)]
        if not rounds:
            return []
        if len(rounds) == 1:
            return [f"1 release, after round {rounds[0]}"]
        listed = f"{', '.join(rounds[:-1])} and {rounds[-1]}"
        if len(rounds) > _MOST_LISTED:
            listed = f"{rounds[0]} to {rounds[-1]}"
        return [f"{len(rounds)} releases, after rounds {listed}"]

    def identity(self) -> dict[str, Any]:
        """Return the settings that may not change while a study goes on, as JSON."""
        return {
            "noise_seed": self._seeds.noise,
            "delta": self.server.delta,
            "max_epsilon": self.privacy.max_epsilon,
            "accountant": self.server.accounting_method,
            "release_after": self._rounds,
            "parallel": self.server.is_parallel,
            **asdict(self.server.release.settings),
        }


def _key(study: TuningStudy) -> StudyKey:
    return TuningInstruction.kind, study.study_id


def private_study(
    space: Mapping[str, BaseDistribution],
    direction: Direction,
    num_agents: int,
    *,
    agent: SearchSettings,
    privacy: Privacy,
    epsilon: float | None,
    delta: float | None,
    aggregation: SecureAggregation | None,
    seeds: Seeds | None,
    server_type: Callable[..., DPFTSDEServer] = DPFTSDEServer,
    schedule: ReleaseSchedule | None = None,
    facts: Facts | None = None,
    portfolio: Listed = (),
) -> tuple[TuningStudy, ReleasePlan]:
    """Return a tuning study with private releases, and their plan.

    Parameters
    ----------
    space, direction, num_agents, epsilon, delta, aggregation, seeds, portfolio
        See `FedVote`.
    agent : SearchSettings
        The agents' settings.
    privacy : Privacy
        How releases are made, counted and limited. ``sampling_probability`` and
        ``clip_norm`` must be given.
    server_type : callable
        Class of the server half.
    schedule : callable, optional
        Takes the last iteration, returns those after which a release is due; by default
        as ``privacy`` says.
    facts : Facts, optional
        What agents are told whatever is planned.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    ImportError
        If real noise is wanted and OpenDP is missing; the message names the extra.
    """
    seeds = Seeds() if seeds is None else seeds
    z, q, norm = (
        privacy.noise_multiplier,
        privacy.sampling_probability,
        privacy.clip_norm,
    )
    assert q is not None
    assert norm is not None
    if epsilon is not None:
        undecided = "None where noise_multiplier is given, which decides it"
        require(z is None, "epsilon", epsilon, undecided)
        require(delta is not None, "delta", delta, "given, where epsilon is")
        check_epsilon(epsilon)
    if privacy.max_epsilon is not None:
        require(delta is not None, "delta", delta, "given, where max_epsilon is")
    study = tuning_study(space, direction, agent, seeds, portfolio, facts)
    settings = ReleaseSettings(
        num_agents=num_agents,
        num_sub_regions=agent.num_sub_regions,
        clip_norm=norm,
        noise_multiplier=1.0 if z is None else z,
        sampling_probability=q,
        sampling=privacy.sampling,
        calibration=privacy.calibration,
        noise_only=privacy.noise_only,
        weights=privacy.weights or WeightSchedule(peak=0.0),  # all the same
    )
    delta = default_delta(num_agents) if delta is None else delta
    if settings.noise_multiplier > 0:
        require_below(delta, q)
        require_small_delta(delta, allow_large_delta=privacy.allow_large_delta)
    least = privacy.min_answers
    is_small = least is None or least <= num_agents
    require(is_small, "min_answers", least, f"at most num_agents={num_agents}")
    if aggregation is not None:
        require_instance("aggregation", aggregation, SecureAggregation)
        unseeded = "None, where the sites draw the noise"
        require(seeds.noise is None, "seeds.noise", seeds.noise, unseeded)
    release: PlannedRelease = (
        Release(settings, _entropy(settings, seeds.noise))
        if aggregation is None
        else aggregation.mechanism(settings)
    )
    accountant = privacy.accountant
    server = server_type(release, agent.message_length, delta, accountant=accountant)
    if schedule is None:
        schedule = partial(
            privacy.iterations, follow_probability=agent.follow_probability
        )
    return study, ReleasePlan(server, aggregation, schedule, privacy, epsilon, seeds)


def tuning_study(
    space: Mapping[str, BaseDistribution],
    direction: Direction,
    agent: SearchSettings,
    seeds: Seeds,
    portfolio: Listed = (),
    facts: Facts | None = None,
) -> TuningStudy:
    """Return a study of the agents' settings, with seeds that are given or drawn."""
    require_instance("seeds", seeds, Seeds)
    features = fresh_seed() if seeds.features is None else seeds.features
    return TuningStudy(
        SearchSpace(space),
        direction,
        agent,
        seeds.study,
        features,
        facts=facts,
        portfolio=listed_settings(portfolio, space),
    )


def require_below(delta: float, sampling_probability: float) -> None:
    """Raise ValueError unless delta is below q.

    Above it "never sampled" explains everything: epsilon would be 0.
    """
    is_below = is_number(delta) and delta < sampling_probability
    bound = f"below sampling_probability={sampling_probability}"
    require(is_below, "delta", delta, bound)


def _entropy(settings: ReleaseSettings, noise_seed: int | None) -> Entropy | None:
    if noise_seed is not None:
        return SeededEntropy(noise_seed)
    needs_none = settings.noise_multiplier == 0 and settings.sampling_probability == 1
    return None if needs_none else OsEntropy()
