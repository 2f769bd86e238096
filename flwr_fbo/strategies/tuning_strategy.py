"""The Flower side of every federated tuning method.

Round r of Flower is iteration t = r - 1 of the papers: round 1 evaluates the initial
points, every later round one point an agent.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from flwr.app import Message, MetricRecord, MetricRecordValues

from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import is_number
from flwr_fbo._compat import reply_metrics
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.strategies.base import StudyStrategy
from flwr_fbo.strategies.host import BEST_VALUE, METRICS
from flwr_fbo.strategies.presets import Preset
from flwr_fbo.strategies.release_plan import ReleasePlan
from flwr_fbo.strategies.seeds import Seeds
from flwr_fbo.strategies.tuning_result import TuningResult
from flwr_fbo.study.kinds import JournalKind
from flwr_fbo.study.server import Server, Step
from flwr_fbo.tuning.kind import SERVER
from flwr_fbo.tuning.search.recommendation import (
    NOTHING,
    Recommendation,
    released_function,
)
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy

_log = logging.getLogger("flwr.fbo")

# Values that are larger in size are left out.
_LARGEST_REPORTED = 1e100


class TuningStrategy(StudyStrategy[TuningResult]):
    """Asks every agent for a trial a round.

    Private releases are composed: they have a plan, which says when they are made, what
    they cost, what is left of the budget, and whether the server reads each message or
    their sum alone.

    Parameters
    ----------
    server : Server
        The algorithm's server half.
    study : TuningStudy
        The study's settings, which all agents are told.
    seeds : Seeds, optional
        Seeds that were given, for the record; by default none.
    releases : ReleasePlan, optional
        Plan of private releases; by default nothing private is released.

    Notes
    -----
    *Formal guarantees*, with ``releases``: those of `Release`, composed over rounds:
    ``privacy_spent`` is what a neighbouring study (one agent's messages zeroed) could
    be told apart by, from everything that all agents together receive. Each agent has
    one message in a release at most. Who answers, and so when a postponed release is
    made, is public. Reported metrics are not covered. With `SecureAggregation` it holds
    against the server together with ``colluding`` agents, from what these receive and
    know. More agents together know more of the noise.
    """

    study: TuningStudy
    result_type = TuningResult
    record_kind: JournalKind = SERVER
    metrics = METRICS

    presets: ClassVar[Mapping[str, Preset]] = {}
    # Whether a setting that is recommended is a start for new sites, not one to keep.
    recommends_start: ClassVar[bool] = False
    # From which round on an agent plays, where that is not the first.
    _from_when = ""

    # Messages of the release that is open, by slot.
    _collected: Mapping[int, Any] = MappingProxyType({})

    def __init__(
        self,
        server: Server,
        study: TuningStudy,
        seeds: Seeds | None = None,
        releases: ReleasePlan | None = None,
    ) -> None:
        super().__init__(server, study)
        self.releases = releases
        if releases is not None:
            self._sums = releases.sums
        self._given_seed = None if seeds is None else seeds.features
        self._horizon: int | None = None  # T, once it is planned

    def default_rounds(self) -> int:
        """Return 41: what comes first, and 40 queries of an agent."""
        return 41

    def plan(self, horizon: int) -> None:
        """Fix when releases are made, and their noise; see `StudyStrategy.plan`."""
        self._horizon = horizon
        if self.releases is not None:
            self.study = self.releases.plan(self.study, horizon)

    def _resumed(self) -> None:
        if self.releases is not None:
            self.releases.resume(self.study)

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        identity = super()._identity(num_rounds)
        planned = {} if self.releases is None else self.releases.identity()
        return {**identity, "feature_seed": self._given_seed, **planned}

    def _before_round(self, step: Step) -> None:
        if self.releases is not None:
            self.releases.check_budget(step)

    def instruction(self, node: int, slot: int, step: Step) -> TuningInstruction:
        """Return what the agent of ``slot`` is asked.

        Whose message for an open release is here is not asked for it again.
        """
        release = self.server.release_number(slot, step)
        return TuningInstruction(
            phase="round",
            study=self.study,
            slot=slot,
            iteration=step.iteration,
            release=0 if slot in self._collected else release,
            num_released=len(self.server.ledger),
            made_after=self.server.made_after,
            num_iterations=self._horizon or 0,
            report_best_value=BEST_VALUE in self._host.metrics,
        )

    def _take(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Collect the messages of the open release; release once enough are here."""
        releases = self.releases
        if releases is None:
            super()._take(step, answers)
            return
        if not step.release:
            return
        collected = dict(self._collected)
        for slot, reply in answers.items():
            if self.server.sends(slot, step) and slot not in collected:
                collected[slot] = releases.read(slot, reply)
        self._collected, answered = collected, len(collected)
        needed = releases.needed(step, len(self._enrolment.slots))
        if answered < needed:
            _log.warning(
                "Release %d is postponed, at no epsilon: %s came, and min_answers=%d.",
                step.release,
                counted(answered, "answer"),
                needed,
            )
            return
        self._warn_of_few(step, answered)
        # Charged before it leaves: after a crash it may have left.
        if releases.may_leave(self.study, step) and releases.release(
            self.study, step, collected, self._in_sums
        ):
            self._collected = {}

    def _warn_of_few(self, step: Step, num_answered: int) -> None:
        """Say what a release of fewer agents than planned costs, and can tell."""
        assert self.releases is not None
        server = self.releases.server
        planned = len(server.groups()[server.group_of(step.release)])
        share = num_answered / planned
        if share < self._enrolment.min_agents / server.num_agents:
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

    def _in_sums(self, slot: int) -> TuningInstruction:
        """Return what the site of a slot is told in the exchanges of a secure sum."""
        assert self.releases is not None
        server, step = self.releases.server, self._round.step
        return TuningInstruction(
            phase="sum",
            study=self.study,
            slot=slot,
            iteration=step.iteration,
            num_released=len(server.ledger),
            planned=server.iterations[step.release - 1],
        )

    def _after_round(self, step: Step, answers: Mapping[int, Message]) -> None:
        if self.releases is None:
            return
        if self._host.metrics:
            self._take_best_values(_metric(BEST_VALUE, answers))
        spent = self.privacy_spent
        epsilon = spent.epsilon if math.isfinite(spent.epsilon) else None
        self._rounds[-1] = replace(self._rounds[-1], epsilon=epsilon)
        _log.info(
            "Privacy spent so far in %s: %s",
            counted(spent.num_releases, "release"),
            spent.text(".3f"),
        )

    def _spent(self) -> PrivacySpent | None:
        return None if self.releases is None else self.privacy_spent

    def _take_best_values(self, values: Mapping[int, float]) -> None:
        """Take note of the best values that agents report, by slot; see `verdict`."""

    def _reported(self, answers: Mapping[int, Message]) -> MetricRecord | None:
        """Return the mean of the metrics that were asked for."""
        means: dict[str, MetricRecordValues] = {}
        for name in self._host.metrics:
            if found := _metric(name, answers):
                means[f"mean-{name}"] = float(np.mean(list(found.values())))
        return MetricRecord(means) if means else None

    def _end(self, result: TuningResult) -> None:
        if self.releases is None:
            return
        server, spent = self.releases.server, self.privacy_spent
        result.privacy_spent = spent
        result.recommendation, result.verdict = self.recommendation, self.verdict
        made, planned = len(server.ledger), server.num_allowed
        if made < planned:
            _log.warning(
                "%d of %d planned releases were made: too few agents answered, and "
                "nothing was spent on the others.",
                made,
                planned,
            )
        _log.info("%s", result.recommendation)
        if result.verdict:
            _log.info("%s", result.verdict)
        _log.info(
            "Privacy spent in %s: %s%s",
            counted(spent.num_releases, "release"),
            spent.text(".3f"),
            "" if server.release.private else "; NOT PRIVATE, see the summary",
        )

    def _lines(self) -> list[str]:
        lines = []
        if self._horizon is not None:
            first = self.study.agent.num_initial + len(self.study.portfolio)
            rounds = self._horizon + 1
            line = f"{rounds} rounds: an agent evaluates "
            if first == 1:
                line += f"one setting in each{self._from_when}"
            else:
                line += (
                    f"{first} initial settings in the first, and one in each other, "
                    f"{first + self._horizon} in all"
                )
            lines.append(line)
            lines += self.releases.lines() if self.releases is not None else ()
        if self._host.metrics:
            named = ", ".join(self._host.metrics)
            lines.append(f"metrics reported without any privacy guarantee: {named}")
        if self.releases is None:
            return lines
        lines += self.releases.trust()
        if self._folder is None and self.releases.server.release.private:
            lines.append(
                "no folder: nothing of this study is on disk; started again, it is "
                "another study, and their epsilons and deltas add up"
            )
        return lines

    @property
    def recommendation(self) -> Recommendation:
        """One setting for the federation, or a start, by what was released so far.

        Post-processing of what the agents receive anyway.
        """
        released = released_function(self.study, self.server.ledger)
        if released is None:
            reason = "its releases recommend none" if self.server.ledger else NOTHING
            return Recommendation(reason=reason, is_start=self.recommends_start)
        return released.recommendation

    @property
    def verdict(self) -> str:
        """Whether the federation helped, where that can be told; see `TuningResult`."""
        return ""

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all releases so far, in Flower's type.

        With ``Seeds(noise=...)`` it is what the study would have spent with real noise.
        """
        assert self.releases is not None, "nothing private is released"
        return self.releases.server.privacy_spent


def _metric(name: str, answers: Mapping[int, Message]) -> dict[int, float]:
    """Return the numbers that agents report, by slot."""
    values = {s: reply_metrics(a.content).get(name) for s, a in answers.items()}
    return {
        slot: float(value)
        for slot, value in values.items()
        if is_number(value) and abs(value) < _LARGEST_REPORTED
    }
