"""The Flower side of every federated tuning method.

Round r of Flower is iteration t = r - 1 of the papers: round 1 evaluates the initial
points, every later round one point an agent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, MetricRecordValues

from flwr_fbo._common.validation import is_number, require
from flwr_fbo._compat import reply_metrics
from flwr_fbo.algorithms.search.study import TuningInstruction, TuningStudy
from flwr_fbo.strategies.base import StudyStrategy
from flwr_fbo.strategies.options import StudyOptions
from flwr_fbo.strategies.result import TuningResult
from flwr_fbo.study.codec import Phase
from flwr_fbo.study.server import Server, Step

METRICS = ("best-value",)


class TuningStrategy(StudyStrategy[TuningResult]):
    """Asks every agent for a trial a round.

    Parameters
    ----------
    server : Server
    study : TuningStudy
    metrics : collection of str
        Metrics that clients report, averaged and logged: ``"best-value"`` or nothing.
        No privacy guarantee covers them.
    options : StudyOptions, optional
    """

    study: TuningStudy
    result_type = TuningResult

    def __init__(
        self,
        server: Server,
        study: TuningStudy,
        metrics: Collection[str] = (),
        options: StudyOptions | None = None,
    ) -> None:
        super().__init__(server, study, options)
        ok = isinstance(metrics, Collection) and not isinstance(metrics, str)
        ok = ok and all(name in METRICS for name in metrics)
        require(ok, "metrics", metrics, f"a collection of names out of {METRICS}")
        self._metrics = tuple(metrics)
        self._collected: dict[int, Any] = {}  # of the release that is open, by slot

    def default_rounds(self) -> int:
        """Return 41: what comes first, and 40 queries of an agent."""
        return 41

    def _plans(self) -> list[str]:
        if self._horizon is None:
            return []
        first, rounds = self.study.agent.num_initial, self._horizon + 1
        line = f"{rounds} rounds: an agent evaluates "
        if first == 1:
            line += f"one setting in each{self._from_when}"
        else:
            line += (
                f"{first} initial settings in the first, and one in each other, "
                f"{first + self._horizon} in all"
            )
        return [line, *self._planned_releases()]

    # From which round on an agent plays, where that is not the first.
    _from_when = ""

    def _planned_releases(self) -> list[str]:
        """Return which releases are planned, for the log."""
        return []

    def _notes(self) -> list[str]:
        if not self._metrics:
            return self._trust()
        named = ", ".join(self._metrics)
        line = f"metrics reported without any privacy guarantee: {named}"
        return [line, *self._trust()]

    def _trust(self) -> list[str]:
        """Return what the server learns of a site, for the log."""
        return []

    def instruction(self, node: int, slot: int, step: Step) -> Mapping[str, Any]:
        """Return what the agent of ``slot`` is asked, as entries of a config.

        Whose message for an open release is here is not asked for it again.
        """
        return TuningInstruction(
            phase=Phase.ROUND,
            study=self.study,
            slot=slot,
            iteration=step.iteration,
            release=0
            if slot in self._collected
            else self.server.release_number(slot, step),
            num_released=len(self.server.ledger),
            made_after=self.server.made_after,
            num_iterations=self._horizon or 0,
            report_best_value="best-value" in self._metrics,
        ).to_config()

    def _reported(self, answers: Mapping[int, Message]) -> MetricRecord | None:
        """Return the mean of the metrics that were asked for."""
        means: dict[str, MetricRecordValues] = {}
        for name in self._metrics:
            values = [reply_metrics(a.content).get(name) for a in answers.values()]
            numbers = [v for v in values if is_number(v) and abs(v) < 1e100]
            if numbers:
                means[f"mean-{name}"] = float(np.mean(numbers))
        return MetricRecord(means) if means else None
