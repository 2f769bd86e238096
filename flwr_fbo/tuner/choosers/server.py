"""The server's own scores: no client's are released."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_fbo._common.version import __version__
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.choosers.chooser import Chooser, Comparison
from flwr_fbo.tuner.choosers.score import Score
from flwr_fbo.tuner.site.hidden_metrics import score_of

_SOURCE = "the server's evaluation"


class ServerChooser(Chooser):
    """Compares trials by what the server measures: nothing of a client's is in it.

    Parameters
    ----------
    num_clients : int
        Number N >= 1 of clients that take part at most.
    score : Score
        Weighted sum of what the app's ``evaluate_fn``, or its `main`, returns.
    """

    trust = "the server scores the models itself: clients send no ballots"
    clients_score = False

    def __init__(self, num_clients: int, score: Score) -> None:
        super().__init__(num_clients)
        self._score = score

    def server_score(self, measured: Any) -> float | None:
        """Return the score, if it was metrics, or a number, that were measured."""
        if isinstance(measured, tuple) and len(measured) == 2:
            measured = measured[1]  # loss and metrics, in Flower's older API
        if isinstance(measured, Mapping):
            return score_of(measured, self._score.weights, _SOURCE)
        is_number = isinstance(measured, int | float) and not isinstance(measured, bool)
        return float(measured) if is_number else None

    def compare(self, rung: Comparison) -> LedgerRow:
        """Return the last score of each trial; -inf if it failed, or has none."""
        found = [math.nan if t.failure else t.server_score for t in rung.trials]
        scores = self._score.signed(found)
        values = np.where(np.isfinite(scores), scores, -np.inf)
        facts = {"mechanism": "server", "flwr_fbo": __version__}
        return LedgerRow(rung.asked.rung, facts, values)
