"""FedUCB (Dubey & Pentland, NeurIPS 2020) as a Flower strategy."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from flwr.app import Message, MetricRecord

from flwr_fbo._compat import ClientApi, reply_metrics
from flwr_fbo._validation import is_number, require, require_int
from flwr_fbo.agents.bandit_study import BanditInstruction, BanditStudy
from flwr_fbo.agents.linear_ucb import DeterminantTrigger, LinearUCBSettings
from flwr_fbo.agents.study import Phase
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.servers.linear_bandit import LinearBanditServer
from flwr_fbo.strategies.base import StudyStrategy
from flwr_fbo.strategies.record import BANDIT_KIND
from flwr_fbo.strategies.result import BanditResult

_log = logging.getLogger("flwr.fbo")

_LONGEST_INTERVAL = 10 * 365 * 86400.0


class FedUCB(StudyStrategy[BanditResult]):
    """Federated linear bandits whose agents pool private sums.

    Sites that play whenever they have to, through `LinearBanditPolicy`, synchronise by
    the clock: give ``interval``. Agents with an environment, in experiments, play as
    many trials as ``schedule`` says. Exactly one of the two.

    Parameters
    ----------
    settings : LinearUCBSettings
        What all agents have in common; ``settings.releases`` has epsilon, delta and
        the number of synchronisations.
    interval : float, optional
        Seconds, 0 to ten years, before each synchronisation. The first round only
        enrols the sites; then a round with a release and one that hands out the total
        alternate, so that ``2 n + 1`` rounds have n synchronisations.
    schedule : sequence of int, or DeterminantTrigger, optional
        After how many trials there is a synchronisation, increasing: ``n + 1`` rounds
        for n of them, the last of which plays on up to ``num_trials``. Or the paper's
        trigger, with one trial a round: *not private*, whatever the noise.
    num_trials : int, optional
        T, trials of an agent; that of the last synchronisation unless given.
    noise_seed : int, optional
        *Experiments only*: makes the agents' noise repeat, which protects nobody.
    min_agents, patience, client_api, authenticated, max_empty_rounds, folder
        See `StudyStrategy`.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    *Formal guarantees*: those of `ContinualRelease`, at each agent: (epsilon,
    delta)-DP for one trial replaced by another, against all that ever leaves the site,
    the server and the other sites included; against a server that would lie about
    epsilon, too, where the site says what it takes part in (`LinearBanditSite`). With
    ``local_data="raw"`` only for a change of one trial that leaves all others as they
    were; with a trigger none. An agent whose journal is lost is refused: it could draw
    its noise again. So it could if an older copy of its journal were put back and the
    last release, which had been made, had not come here: never put a backup back.

    Examples
    --------
    >>> releases = ContinualSettings(
    ...     num_releases=30, dimension=10, epsilon=1.0, delta=1e-5
    ... )
    >>> strategy = FedUCB(LinearUCBSettings(releases, num_agents=20), interval=86400)
    >>> strategy.start(grid)  # doctest: +SKIP
    """

    server: LinearBanditServer
    study: BanditStudy
    result_type = BanditResult

    def __init__(
        self,
        settings: LinearUCBSettings,
        *,
        interval: float | None = None,
        schedule: Sequence[int] | DeterminantTrigger | None = None,
        num_trials: int | None = None,
        noise_seed: int | None = None,
        min_agents: int | None = None,
        patience: float = 300.0,
        client_api: ClientApi = "both",
        authenticated: bool = False,
        max_empty_rounds: int = 1,
        folder: str | Path | None = None,
    ) -> None:
        ok = isinstance(settings, LinearUCBSettings)
        require(ok, "settings", settings, "LinearUCBSettings")
        one = (interval is None) != (schedule is None)
        require(one, "interval", interval, f"given or not, with schedule={schedule!r}")
        trigger = schedule if isinstance(schedule, DeterminantTrigger) else None
        if interval is not None:
            ok = is_number(interval) and 0 <= interval <= _LONGEST_INTERVAL
            require(ok, "interval", interval, "a number of seconds, 0 to ten years")
        if trigger is not None:
            local = settings.local_data
            require(local == "raw", "local_data", local, "'raw', with a trigger")
        study = BanditStudy(settings, trigger, noise_seed)
        super().__init__(
            LinearBanditServer(study),
            study,
            min_agents=min_agents,
            patience=patience,
            client_api=client_api,
            authenticated=authenticated,
            max_empty_rounds=max_empty_rounds,
            folder=folder,
        )
        self._interval = interval
        self._times: tuple[int, ...] = ()
        if schedule is not None and trigger is None:
            self._times = _check_times(schedule, settings.releases.num_releases)
        self._num_trials = self._check_trials(num_trials)
        self._last_round = 0.0  # Unix time

    def _check_trials(self, num_trials: int | None) -> int:
        last = self._times[-1] if self._times else 0
        if num_trials is None:
            return last
        require(bool(self._times), "num_trials", num_trials, "None without a schedule")
        require_int("num_trials", num_trials, last)
        return num_trials

    def default_rounds(self) -> int:
        """Return as many as all planned synchronisations take.

        Raises
        ------
        ValueError
            If there is a trigger: nobody knows when it fires.
        """
        allowed = "given, with a trigger"
        require(self.study.trigger is None, "num_rounds", None, allowed)
        planned = self.study.settings.releases.num_releases
        return len(self._times) + 1 if self._times else 2 * planned + 1

    def plan(self, horizon: int) -> None:
        """Fix after which iterations agents are asked for a release."""
        planned = self.study.settings.releases.num_releases
        if self._times:
            wanted = len(self._times)
            require(horizon == wanted, "num_rounds", horizon + 1, f"{wanted + 1}")
            self.server.iterations = range(wanted)
        elif self.study.trigger is None:
            most = 2 * planned + 1
            allowed = f"at most {most}, for {planned} releases"
            require(horizon < most, "num_rounds", horizon + 1, allowed)
            odd = horizon % 2 == 0
            allowed = "odd, or the last release would be of use to nobody"
            require(odd, "num_rounds", horizon + 1, allowed)
            self.server.iterations = range(1, horizon + 1, 2)

    def _lines(self) -> list[str]:
        lines = super()._lines()
        if self._interval is not None and self._folder is None:
            lines.append(
                "WARNING: no folder: if this run ends early, nobody can go on with its "
                "study, and the sites have spent their epsilon"
            )
        return lines

    def instruction(self, slot: int, iteration: int) -> Mapping[str, Any]:
        """Return what the agent of ``slot`` is asked, as entries of a config."""
        return BanditInstruction(
            phase=Phase.ROUND,
            study=self.study,
            slot=slot,
            journal=self._enrolment.journals.get(slot, 0),
            included=self.server.num_releases[slot],
            send_release=self.server.wants_messages(iteration),
            num_trials=self._trials_after(iteration),
        ).to_config()

    def _trials_after(self, iteration: int) -> int:
        """Return how many trials agents have played after an iteration."""
        if self.study.trigger is not None:
            synchronised = sum(i <= iteration for i in self.server.iterations)
            return iteration + 1 - synchronised
        return (*self._times, self._num_trials)[iteration] if self._times else 0

    def _resume(self, num_rounds: int) -> None:
        super()._resume(num_rounds)
        ledger = self.server.ledger
        if self._rounds:  # else none is waited for
            self._last_round = ledger[-1].committed if ledger else time.time()
        if self.study.trigger is not None:
            self.server.iterations = [row.iteration for row in ledger]

    def _before_round(self, server_round: int) -> None:
        """Wait until it is time, where sites synchronise by the clock."""
        if self._interval is None or not self.server.wants_messages(server_round - 1):
            return
        # No longer than the interval, wherever the clock was set to.
        pause = min(self._last_round + self._interval - time.time(), self._interval)
        if pause > 0:
            _log.info("The next synchronisation is in %.0f s.", pause)
            time.sleep(pause)

    def _after_round(self, server_round: int) -> None:
        self._last_round = time.time()
        spent = self.privacy_spent
        if spent.num_releases:
            epsilon = spent.epsilon if math.isfinite(spent.epsilon) else None
            self._rounds[-1] = replace(self._rounds[-1], epsilon=epsilon)

    def _reported(self, answers: Mapping[int, Message]) -> MetricRecord | None:
        """Note whether an agent wants to synchronise, which it then does at once."""
        wanted = [
            reply_metrics(answer.content).get("wants-synchronisation") == 1
            for answer in answers.values()
        ]
        if not any(wanted):
            return None
        planned = self.study.settings.releases.num_releases
        if max(self.server.num_releases) < planned:
            now = len(self._rounds)
            self.server.iterations = [*self.server.iterations, now]
        else:
            _log.warning(
                "Agents want to synchronise again, and all %d releases that were "
                "planned are made: they go on without.",
                planned,
            )
        return None

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        return {
            **super()._identity(num_rounds),
            "kind": BANDIT_KIND,
            "interval": self._interval,
            "schedule": list(self._times),
            "num_trials": self._num_trials,
        }

    def _end(self, result: BanditResult) -> None:
        spent = result.privacy_spent = self.privacy_spent
        total = self.server.vectors
        if total is not None:
            result.estimate = self.study.settings.ellipsoid(total).estimate
        _log.info(
            "Each agent has spent epsilon = %.3f at delta = %.3g, %d releases%s",
            spent.epsilon,
            spent.delta,
            spent.num_releases,
            "" if self.server.private else "; NOT PRIVATE, see the summary",
        )

    @property
    def privacy_spent(self) -> PrivacySpent:
        """Epsilon at delta of an agent's releases, in Flower's type.

        With a ``noise_seed`` it is what real noise would have spent.
        """
        return self.server.privacy_spent


def _check_times(schedule: Any, planned: int) -> tuple[int, ...]:
    """Return the schedule, if it increases and there are releases for it."""
    times = tuple(schedule) if isinstance(schedule, Sequence) else ()
    ok = len(times) > 0 and all(isinstance(t, int) for t in times)
    ok = ok and all(a < b for a, b in pairwise((0, *times)))
    require(ok, "schedule", schedule, "a list of increasing integers >= 1")
    allowed = f"at most {planned} synchronisations, the releases planned"
    require(len(times) <= planned, "len(schedule)", len(times), allowed)
    return times
