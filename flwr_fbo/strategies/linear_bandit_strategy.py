"""What FedUCB with a centre and without one have in common, as Flower strategies."""

from __future__ import annotations

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from flwr.app import Message

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.text import counted
from flwr_fbo._common.validation import (
    require,
    require_bool,
    require_instance,
    require_int,
)
from flwr_fbo.bandits.decentralized_fed_ucb.server import DecentralizedFedUCBServer
from flwr_fbo.bandits.fed_ucb.block_server import BlockServer
from flwr_fbo.bandits.fed_ucb.server import FedUCBServer, spent_by_agent
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    LinearUCBSettings,
)
from flwr_fbo.bandits.linear.sharing_plan import SharingPlan
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.guarantee import require_small_delta
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.strategies.bandit_result import BanditResult
from flwr_fbo.strategies.base import StudyStrategy, num_asked_for
from flwr_fbo.strategies.intervals import check_interval, wait_until_due
from flwr_fbo.study.server import Step

_log = logging.getLogger("flwr.fbo")

# Numbers of trials after which agents synchronise, or what decides it.
TrialSchedule = Sequence[int] | DeterminantTrigger


def check_delta_of(promise: Promise, *, allow_large_delta: bool) -> None:
    """Raise ValueError for a private study with a delta of 0.01 and more."""
    require_bool("allow_large_delta", allow_large_delta)
    if promise.private and promise.delta is not None:
        require_small_delta(promise.delta, allow_large_delta=allow_large_delta)


class LinearBanditStrategy(StudyStrategy[BanditResult]):
    """Decides when agents synchronise, and counts what they have spent.

    Parameters
    ----------
    server : FedUCBServer, BlockServer or DecentralizedFedUCBServer
        The server half.
    study : LinearBanditStudy
        The study's settings, which all agents are told.
    interval : float, optional
        Seconds, from 0 to ten years, between two synchronisations; see `FedUCB`.
    schedule : sequence of int, or DeterminantTrigger, optional
        Numbers of trials after which agents synchronise; see `FedUCB`.
    num_trials : int, optional
        Number T >= 1 of trials of an agent, with a schedule only.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    server: FedUCBServer | BlockServer | DecentralizedFedUCBServer
    study: LinearBanditStudy
    result_type = BanditResult

    def __init__(
        self,
        server: FedUCBServer | BlockServer | DecentralizedFedUCBServer,
        study: LinearBanditStudy,
        *,
        interval: float | None,
        schedule: TrialSchedule | None,
        num_trials: int | None,
        allow_large_delta: bool,
    ) -> None:
        super().__init__(server, study)
        check_delta_of(study.promise, allow_large_delta=allow_large_delta)
        either = "a number of seconds without schedule=, and None with it"
        require((interval is None) != (schedule is None), "interval", interval, either)
        check_interval(interval)
        self._interval = interval
        # A message is under way for as many trials as it has hops to travel.
        num_hops = 0 if study.graph is None else study.graph.hops
        self._times: tuple[int, ...] = ()
        if schedule is not None and study.trigger is None:
            planned = study.settings.releases.max_releases
            self._times = _check_times(schedule, planned, max(num_hops, 1))
        last = self._times[-1] + num_hops if self._times else 0
        if num_trials is not None:
            is_planned = bool(self._times)
            require(is_planned, "num_trials", num_trials, "None without a schedule")
            require_int("num_trials", num_trials, last)
        self._num_trials = last if num_trials is None else num_trials
        self._last_round = 0.0  # Unix time

    def instruction(self, node: int, slot: int, step: Step) -> LinearBanditInstruction:
        """Return what the agent of ``slot`` is asked."""
        return LinearBanditInstruction(
            phase="round",
            study=self.study,
            slot=slot,
            journal=self._enrolment.journals.get(slot, 0),
            included=self.server.num_releases[slot],
            iteration=step.iteration,
            **self._fields_for(step),
        )

    @abstractmethod
    def _fields_for(self, step: Step) -> dict[str, Any]:
        """Return an instruction's fields that differ with and without a centre."""

    def _lines(self) -> list[str]:
        if self._interval is not None and self._folder is None:
            return [
                "WARNING: no folder: if this run ends early, its study cannot be "
                "resumed, and the sites have spent their epsilon",
                *self._sums.trust(),
            ]
        trust = self._sums.trust()
        # What the others will be worth to a site, where that can be planned.
        settings, times = self.study.settings, self._times
        planned = settings.releases.num_releases
        has_centre = self.study.graph is None
        # Such blocks are planned under one noise, and here each site adds its own.
        has_plan = self.study.secure is not None or not settings.uses_blocks
        has_plan = has_plan and has_centre and not settings.uses_raw_sums
        if not (times and planned and has_plan):
            return trust
        trials = max(self._num_trials or times[-1] + 1, planned + 1)
        plan = SharingPlan(
            settings.releases,
            self.study.num_agents,
            trials,
            settings.local_data,
            times,
        )
        return [*trust, *plan.lines()]

    def _resumed(self) -> None:
        ledger = self.server.ledger
        if self._rounds:  # else none is waited for
            self._last_round = ledger[-1].committed if ledger else time.time()

    def _before_round(self, step: Step) -> None:
        """Wait until it is time, where sites synchronise by the clock."""
        if self._interval is None or not step.release or self._is_again(step):
            return
        wait_until_due(self._last_round, self._interval)

    def _is_again(self, step: Step) -> bool:
        """Return whether a step only tries a postponed release again."""
        return False

    def _after_round(self, step: Step, answers: Mapping[int, Message]) -> None:
        self._last_round = time.time()
        spent = self.privacy_spent
        if spent.num_releases:
            epsilon = spent.epsilon if math.isfinite(spent.epsilon) else None
            self._rounds[-1] = replace(self._rounds[-1], epsilon=epsilon)
        self._take_wishes(step, answers)

    def _spent(self) -> PrivacySpent | None:
        return self.privacy_spent

    def _take_wishes(self, step: Step, answers: Mapping[int, Message]) -> None:
        """Note whether agents want to synchronise."""

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        identity = super()._identity(num_rounds)
        if self.study.settings.releases.num_releases is None:
            del identity["num_rounds"]  # once ended it may go on, with more rounds
        return {
            **identity,
            "interval": self._interval,
            "schedule": list(self._times),
            "num_trials": self._num_trials,
        }

    def _estimate(self) -> FloatArray | None:
        """Return the estimate of all agents together, where there is one."""
        return None

    def _end(self, result: BanditResult) -> None:
        result.estimate = self._estimate()
        result.num_synchronisations = max(self.server.num_releases)
        spent = result.privacy_spent = self.privacy_spent
        _log.info(
            "Each agent has spent in %s: %s%s",
            counted(spent.num_releases, "release"),
            spent.text(".3f"),
            "" if self.study.private else "; NOT PRIVATE, see the summary",
        )

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of all planned releases of an agent, in Flower's type.

        It is spent once the first one has been asked for: one that did not arrive in
        time has left its agent. The relation is that of `ContinualRelease`: one trial
        replaced by another. Infinite without noise, or with a trigger; with a
        ``noise_seed`` it is what real noise would have spent.
        """
        arrived = max(self.server.num_releases)
        return spent_by_agent(self.study, arrived or num_asked_for(self._rounds))


def check_trigger(
    settings: Any, schedule: TrialSchedule | None
) -> DeterminantTrigger | None:
    """Return the trigger, if there is one, once the settings are of their type."""
    require_instance("settings", settings, LinearUCBSettings)
    return schedule if isinstance(schedule, DeterminantTrigger) else None


def _check_times(schedule: Any, planned: int, gap: int) -> tuple[int, ...]:
    """Return the schedule, if it increases and there are releases for it."""
    times = tuple(schedule) if isinstance(schedule, Sequence) else ()
    are_whole = len(times) > 0 and all(isinstance(t, int) for t in times)
    do_increase = are_whole and all(a < b for a, b in pairwise((0, *times)))
    require(do_increase, "schedule", schedule, "a list of increasing integers >= 1")
    are_apart = all(b - a >= gap for a, b in pairwise(times))
    hops = f"at least {gap} trials, the hops of a message, from one to the next"
    require(are_apart, "schedule", schedule, hops)
    most = f"at most {planned} synchronisations, the releases planned"
    require(len(times) <= planned, "len(schedule)", len(times), most)
    return times
