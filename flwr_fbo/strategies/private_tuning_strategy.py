"""What FedVote and DP-FTS-DE have in common: private releases of a tuning study.

The messages of a release come to the server each, or as their sum alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from flwr.app import Message
from flwr.serverapp.exception import PrivacyBudgetExhausted
from optuna.distributions import BaseDistribution

from flwr_fbo._common.validation import is_number, require
from flwr_fbo.algorithms.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.algorithms.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.algorithms.search.settings import AgentSettings, Direction, SearchSettings
from flwr_fbo.algorithms.search.study import TuningInstruction, TuningStudy
from flwr_fbo.privacy.accounting import PrivacySpent, smallest_noise_multiplier
from flwr_fbo.privacy.budget import check_epsilon
from flwr_fbo.privacy.noise import Entropy, OsEntropy, SeededEntropy
from flwr_fbo.privacy.release import PlannedRelease, Release, ReleaseSettings
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal
from flwr_fbo.privacy.spending import Charge, Promise, SpendingLedger, StudyKey
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.secure_sum.roster import digest_of
from flwr_fbo.secure_sum.terms import SumFailedError
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.options import (
    Privacy,
    Seeds,
    StudyOptions,
    check_folder,
)
from flwr_fbo.strategies.recommendation import Recommendation, released_function
from flwr_fbo.strategies.result import TuningResult
from flwr_fbo.strategies.secure_aggregation import (
    NO_ROSTER,
    SecureAggregation,
    check_pinned,
)
from flwr_fbo.strategies.secure_exchanges import SecureExchanges
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.study.codec import Phase, fresh_seed
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.study.server import Step

_log = logging.getLogger("flwr.fbo")

# Rounds that are named one by one.
_MOST_LISTED = 4


class PrivateTuningStrategy(TuningStrategy):
    """Base of the tuning strategies whose releases are differentially private.

    Parameters
    ----------
    space : mapping of str to Optuna distribution
        The search space of all agents.
    direction : {"maximize", "minimize"}
    num_agents : int
        Number N of agents, the slots of the study.
    agent : DPFTSDESettings or FedVoteSettings
        The agents' settings.
    weights : WeightSchedule
        Weights of the agents in each sub-region, by iteration.
    privacy : Privacy
        How releases are made, counted and limited. All fields without a default must be
        given.
    epsilon : float, optional
        Epsilon that the whole study may spend at ``delta``, from 1e-3 to 1e3; ``delta``
        must be given. `start` computes the smallest noise multiplier for the planned
        releases.
    delta : float, optional
        Delta in (0, 1) at which epsilon is reported. The default is the published 1 /
        N^1.1, which is too large for a small federation: 0.17 for five agents.
    aggregation : SecureAggregation, optional
        How the sites sum their messages, so that the server learns the noisy sum alone.
        Without it the server is trusted: it reads each message and adds the noise.
    seeds : Seeds, optional
    metrics, options
        See `TuningStrategy`.

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
    be told apart by, from everything that all agents together receive. Each agent has
    one message in a release at most. Who answers, and so when a postponed release is
    made, is public. Reported metrics are not covered. With ``aggregation`` it holds
    against the server together with ``colluding`` agents, from what these receive and
    know. More agents together know more of the noise.
    """

    server: DPFTSDEServer
    server_type: type[DPFTSDEServer] = DPFTSDEServer

    # What the server reads in a message.
    _readable = (
        "what it believes of its objective, and so about where its best setting lies"
    )

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        direction: Direction,
        num_agents: int,
        *,
        agent: AgentSettings,
        weights: WeightSchedule,
        privacy: Privacy,
        epsilon: float | None,
        delta: float | None,
        aggregation: SecureAggregation | None,
        seeds: Seeds | None,
        metrics: Collection[str],
        options: StudyOptions,
    ) -> None:
        seeds = Seeds() if seeds is None else seeds
        require(isinstance(seeds, Seeds), "seeds", seeds, "a Seeds")
        z, q, norm = (
            privacy.noise_multiplier,
            privacy.sampling_probability,
            privacy.clip_norm,
        )
        assert q is not None
        assert norm is not None
        if epsilon is not None:
            allowed = "None where noise_multiplier is given, which decides it"
            require(z is None, "epsilon", epsilon, allowed)
            require(delta is not None, "delta", delta, "given, where epsilon is")
            check_epsilon(epsilon)
        if privacy.max_epsilon is not None:
            require(delta is not None, "delta", delta, "given, where max_epsilon is")
        study = TuningStudy(
            SearchSpace(space),
            direction,
            agent,
            study_seed=seeds.study,
            feature_seed=fresh_seed() if seeds.features is None else seeds.features,
        )
        settings = ReleaseSettings(
            num_agents=num_agents,
            num_sub_regions=agent.num_sub_regions,
            clip_norm=norm,
            noise_multiplier=1.0 if z is None else z,
            sampling_probability=q,
            sampling=privacy.sampling,
            calibration=privacy.calibration,
            noise_only=privacy.noise_only,
            weights=weights,
        )
        if delta is None:
            delta = published_delta(num_agents)
        if settings.noise_multiplier > 0:
            # Above q, "never sampled" explains everything: epsilon would be 0.
            ok = is_number(delta) and delta < q
            require(ok, "delta", delta, f"below sampling_probability={q}")
        least = privacy.min_answers
        ok = least is None or least <= num_agents
        require(ok, "min_answers", least, f"at most num_agents={num_agents}")
        assert isinstance(agent, SearchSettings)
        if aggregation is not None:
            ok = isinstance(aggregation, SecureAggregation)
            require(ok, "aggregation", aggregation, "a SecureAggregation")
            allowed = "None, where the sites draw the noise"
            require(seeds.noise is None, "seeds.noise", seeds.noise, allowed)
        release: PlannedRelease = (
            Release(settings, _entropy(settings, seeds.noise))
            if aggregation is None
            else SecureRelease(settings)
        )
        server = self.server_type(
            release, agent.num_features, delta, accountant=privacy.accountant
        )
        super().__init__(server, study, metrics, options)
        self._aggregation = aggregation
        self._exchanges: SecureExchanges | None = None
        if aggregation is not None:
            roster = aggregation.load_roster()
            for slots in self._groups():  # so that what does not fit is said at once
                aggregation.group(slots)
                check_pinned(roster, slots)
            self._exchanges = SecureExchanges(server, roster, self._ask_in_sum)
        self._privacy = privacy
        budget = check_folder("budget", privacy.budget)
        self._budget = None if privacy.noise_only else budget  # it spends nothing
        real = budget is None or seeds.noise is None
        require(real, "seeds.noise", seeds.noise, "None, where budget is given")
        self._epsilon = epsilon
        self._seeds = seeds
        self._said_exhausted = False

    def _plan(self, horizon: int) -> None:
        """Fix the releases, their noise, and what agents are told about it."""
        server, release = self.server, self.server.release
        iterations = self._iterations(horizon)
        if self._epsilon is not None and iterations:
            spends = partial(self._spends, iterations)
            z = smallest_noise_multiplier(spends, self._epsilon)
            release = release.with_noise_multiplier(z)
        release = self._plan_sums(release)
        server.plan(iterations, release)
        self._limit()
        charges = map(server.charge, self._charged_to_a_site())
        promise = Promise.of(charges, release.private, server.delta)
        self.study = replace(self.study, promise=promise, **self._told_to_sites())

    def _iterations(self, horizon: int) -> tuple[int, ...]:
        """Return the iterations after which a release is due."""
        return self._privacy.iterations(horizon, self._agent.follow_probability)

    def _charged_to_a_site(self) -> Sequence[int]:
        """Return the iterations of the releases that one site's messages are in."""
        return self.server.iterations[: self.server.num_allowed]

    def _told_to_sites(self) -> dict[str, Any]:
        """Return fields of the study that depend on the planned releases."""
        return {}

    def _limit(self) -> None:
        """Leave out the releases that the budget, less what others spent, forbids."""
        if self._privacy.max_epsilon is None:
            return
        others: list[Charge] = []
        if self._budget is not None:
            with SpendingLedger.held(self._budget) as ledger:
                others = ledger.charges(without=self._key)
        self.server.limit(self._privacy.max_epsilon, others)

    @property
    def _key(self) -> StudyKey:
        return TuningInstruction.kind, self.study.study_id

    def _resume(self, num_rounds: int) -> None:
        super()._resume(num_rounds)
        if self._budget is None:
            return
        with SpendingLedger.held(self._budget) as ledger:
            # It may not have been given before.
            for k, row in enumerate(self.server.ledger, 1):
                ledger.record(self._key, k, self.server.charge(row.iteration))
        self._limit()  # now that it is known which study is this one

    def _spends(self, iterations: Iterable[int], noise_multiplier: float) -> float:
        """Return what releases after ``iterations`` would spend at that z."""
        release = self.server.release.with_noise_multiplier(noise_multiplier)
        accountant = self.server.new_accountant()
        for iteration in iterations:
            accountant.charge(release.effective_noise_multiplier(iteration))
        return accountant.spent().epsilon

    def _planned_releases(self) -> list[str]:
        iterations = self.server.iterations
        if not iterations:
            return []
        rounds = [str(t + 1) for t in iterations]
        many = len(rounds) > _MOST_LISTED
        one = len(rounds) == 1
        several = f"{', '.join(rounds[:-1])} and {rounds[-1]}"
        listed = f"{rounds[0]} to {rounds[-1]}" if many else several
        when = f"round {rounds[0]}" if one else f"rounds {listed}"
        return [f"{len(rounds)} release{'' if one else 's'}, after {when}"]

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        return {
            **super()._identity(num_rounds),
            "feature_seed": self._seeds.features,
            "noise_seed": self._seeds.noise,
            "delta": self.server.delta,
            "max_epsilon": self._privacy.max_epsilon,
            "accountant": self.server.accounting_method,
            "releases": list(self.server.iterations),
            **asdict(self.server.release.settings),
        }

    def _before_round(self, step: Step) -> None:
        if self._said_exhausted or not step.is_exhausted:
            return
        self._said_exhausted = True
        reason = (
            f"Round {step.iteration + 1}: a release would exceed the privacy budget "
            f"max_epsilon={self._privacy.max_epsilon:g} "
            f"({self.privacy_spent.epsilon:.3f} spent by this study"
            + (
                f", more by others with budget={self._budget})."
                if self._budget
                else ")."
            )
        )
        if self._privacy.when_exhausted == "raise":
            raise PrivacyBudgetExhausted(reason)
        _log.warning("%s No more releases: agents go on with what they have.", reason)

    def _is_charged(self, step: Step) -> bool:
        """Record a release in the ledger that outlives the study, before it leaves.

        False if other studies have spent the budget since this one was planned.
        """
        if self._budget is None:
            return True
        charge = self.server.charge(self.server.iterations[step.release - 1])
        most = self._privacy.max_epsilon
        assert most is not None
        with SpendingLedger.held(self._budget) as ledger:
            if ledger.has(self._key, step.release):
                return True  # of a run that was ended before the release left
            if ledger.epsilon(self.server.delta, [charge]) <= most:
                ledger.record(self._key, step.release, charge)
                return True
        self._limit()
        self._before_round(self.server.step(step.iteration))
        return False

    @property
    def _agent(self) -> SearchSettings:
        agent = self.study.agent
        assert isinstance(agent, SearchSettings)
        return agent

    def _groups(self) -> list[range]:
        """Return the slots whose messages are summed together, group by group."""
        return [range(self.server.num_agents)]

    def _plan_sums(self, release: PlannedRelease) -> PlannedRelease:
        """Tell the sites how their messages are summed; return the mechanism."""
        if self._aggregation is None:
            return release
        assert isinstance(release, SecureRelease)
        assert self._exchanges is not None
        groups = tuple(map(self._aggregation.group, self._groups()))
        secure = SecureSums(
            release.settings,
            self._agent.num_features,
            groups,
            digest_of(self._exchanges.roster),
        )
        for group in range(len(groups)):
            secure.noise(group)  # which names what does not fit
        self.study = replace(self.study, secure=secure)
        return release.with_excess(max((g.excess for g in groups), default=1.0))

    def _trust(self) -> list[str]:
        if self._exchanges is None:
            readable = self._readable
            lines = [
                f"the server is trusted: it reads in each agent's message {readable}"
            ]
        else:
            assert self._aggregation is not None
            lines = [
                "secure aggregation: the server learns the noisy sum, and who answered",
                # A site knows its own noise.
                "epsilon holds against the server with at most "
                f"{self._aggregation.colluding} colluding agents",
            ]
            if self._exchanges.roster is None:
                lines.append(f"WARNING: {NO_ROSTER}")
        if self._folder is None and self.server.release.private:
            lines.append(
                "no folder: nothing of this study is on disk; started again, it is "
                "another study, and their epsilons and deltas add up"
            )
        return lines

    def _contributions(
        self, step: Step, answers: Mapping[int, Message]
    ) -> Mapping[int, Any] | SecureTotal | None:
        """Return all messages of the open release, once enough agents have answered.

        Or their sum, where the agents sum them.
        """
        if not step.release:
            return None
        for slot, reply in answers.items():
            if self.server.sends(slot, step) and slot not in self._collected:
                self._collected[slot] = self._read(slot, reply, step)
        needed, answered = self._min_answers, len(self._collected)
        if answered < needed:
            _log.warning(
                "Release %d is postponed, at no epsilon: %d agents have answered, and "
                "min_answers=%d are needed.",
                step.release,
                answered,
                needed,
            )
            return None
        self._warn_of_few(step, answered)
        if not self._is_charged(step):
            return None
        if self._exchanges is not None:
            sums, about = self.study.secure, self.study.text
            assert sums is not None
            try:
                summed = self._exchanges.sum_of(sums, about, *self._named_sum(step))
            except SumFailedError as error:
                _log.warning("The release is postponed, at no epsilon: %s", error)
                return None
            self._collected = {}
            return summed
        collected, self._collected = self._collected, {}
        return dict(sorted(collected.items()))

    def _warn_of_few(self, step: Step, num_answered: int) -> None:
        """Say what a release of fewer agents than planned costs, and can tell."""
        planned = self._num_senders
        share = num_answered / planned
        if share < self._min_agents / self.server.num_agents:
            _log.warning(
                "Release %d is of %d of the %d agents that it was planned for: it "
                "costs as much epsilon as planned, and what it says stands out of the "
                "noise %.2g times as much. Privacy(min_answers=...) postpones such a "
                "release, at no epsilon.",
                step.release,
                num_answered,
                planned,
                share,
            )

    @property
    def _num_senders(self) -> int:
        """Number of agents that the open release is planned for."""
        return self.server.num_agents

    def _read(self, slot: int, reply: Message, step: Step) -> Any:
        """Return the message in a reply; there is none where the sites sum them."""
        return None if self._exchanges is not None else super()._read(slot, reply, step)

    def _receive(self, step: Step, contributions: Any) -> None:
        if not isinstance(contributions, SecureTotal):
            super()._receive(step, contributions)
            return
        assert self.study.secure is not None
        _, group = self._named_sum(step)
        noise = self.study.secure.noise(group)
        self.server.receive_sum(step, noise, contributions)

    def _named_sum(self, step: Step) -> tuple[int, int]:
        """Return the number of a step's release at its sites, and their group."""
        return step.release, 0

    def _ask_in_sum(
        self, release: int, exchange: int, attempt: int, requests: Mapping[int, Any]
    ) -> dict[int, Any]:
        """Send one exchange of a secure sum; return the replies by slot.

        What could be unmasked is on disk first.
        """
        if self.server.open_sum:
            self._commit(is_round_done=False)
        step = self._step
        planned = self.server.iterations[step.release - 1]
        configs = {
            slot: TuningInstruction(
                phase=Phase.SUM,
                study=self.study,
                slot=slot,
                iteration=step.iteration,
                release=release,
                num_released=len(self.server.ledger),
                exchange=exchange,
                attempt=attempt,
                planned=planned,
            ).to_config()
            for slot in requests
        }
        return self._exchange(requests, configs)

    @property
    def _min_answers(self) -> int:
        if self.study.secure is not None:
            _, group = self._named_sum(self._step)
            return self.study.secure.groups[group].min_summed
        least = self._privacy.min_answers
        return -(-len(self._enrolment.slots) // 2) if least is None else least

    def _after_round(self, step: Step, answers: Mapping[int, Message]) -> None:
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
        result.recommendation = self.recommendation
        made, planned = len(self.server.ledger), self.server.num_allowed
        if made < planned:
            _log.warning(
                "%d of %d planned releases were made: too few agents answered, and "
                "nothing was spent on the others.",
                made,
                planned,
            )
        _log.info("%s", result.recommendation)
        _log.info(
            "Privacy spent: epsilon = %.3f at delta = %.3g (%s), %d releases%s",
            spent.epsilon,
            spent.delta,
            spent.accounting_method,
            spent.num_releases,
            "" if self.server.release.private else "; NOT PRIVATE, see the summary",
        )

    @property
    def recommendation(self) -> Recommendation:
        """One setting for the federation, or a start, by what was released so far.

        Post-processing of what the agents receive anyway.
        """
        released = released_function(self.study, self.server.ledger)
        if released is None:
            is_start = isinstance(self._agent, FedWarmStartSettings)
            return Recommendation(is_start=is_start)
        return released.recommendation

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all releases so far, in Flower's type.

        With ``Seeds(noise=...)`` it is what the study would have spent with real noise.
        """
        return self.server.privacy_spent


def published_delta(num_agents: int) -> float:
    """Return 1 / N^1.1, at most 1/2 (DP-FTS-DE, section 5)."""
    return float(min(0.5, num_agents**-1.1))


def _entropy(settings: ReleaseSettings, noise_seed: int | None) -> Entropy | None:
    if noise_seed is not None:
        return SeededEntropy(noise_seed)
    needs_none = settings.noise_multiplier == 0 and settings.sampling_probability == 1
    return None if needs_none else OsEntropy()
