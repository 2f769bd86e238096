"""Exact means of the clients' scores: *not private*."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.choosers.chooser import Chooser, Comparison

_log = logging.getLogger("flwr.fbo")


class ExactChooser(Chooser):
    """Compares trials by the weighted means of exact scores; see `exact_scores`."""

    trust = "the server reads each client's exact scores"

    def say(self) -> None:
        """Log that it is not private."""
        super().say()
        _log.warning("NOT PRIVATE: the server reads every client's exact scores")

    def compare(self, rung: Comparison) -> LedgerRow:
        """Return the means of the scores that the clients send."""
        asked = rung.asked
        return self.choose(asked.rung, rung.clients.ballots(asked), len(asked.trials))

    def choose(
        self, rung: int, messages: Mapping[int, Any], num_trials: int
    ) -> LedgerRow:
        """Return the means of exact scores.

        Parameters
        ----------
        rung : int
            Number of the rung, from 0.
        messages : mapping of slot to ndarray
            Replies of the clients, of any kind: a client may send anything.
        num_trials : int
            K >= 1, the candidates.
        """
        facts = {"mechanism": "exact", "private": False, "flwr_fbo": __version__}
        return LedgerRow(rung, facts, exact_scores(messages, num_trials))


def exact_scores(messages: Mapping[int, Any], num_trials: int) -> FloatArray:
    """Return the weighted means of exact scores: *not private*.

    A message is of shape (2, K): a client's scores, larger is better, and their
    weights, 0 where it was not asked. A weight that is negative, NaN or infinite counts
    as 0, and a message that is no such array as none.

    A score that is not finite is a failure. It counts as the worst finite score that
    any client gave to any trial of the rung, with the mean weight of the client's
    finite scores. So it is not better than any score of this client, as in a ballot,
    and failures of one client tie. With the client's own worst score instead, a
    failure would be neutral between two finalists. A client without a finite score
    says nothing. A trial to which no client gave a finite score has -inf.
    """
    shape = 2, num_trials
    rows = [messages[slot] for slot in sorted(messages)]
    rows = [row for row in rows if _is_table(row, shape)]
    table = np.asarray(rows, dtype=np.float64).reshape(-1, *shape)
    values, weights = table.swapaxes(0, 1)
    is_asked = (weights > 0) & np.isfinite(weights)
    is_scored = is_asked & np.isfinite(values)
    values, weights = np.where(is_scored[:, None], table, 0.0).swapaxes(0, 1)
    num_scores = is_scored.sum(axis=1, keepdims=True)
    is_failed = is_asked & ~is_scored & (num_scores > 0)
    if is_failed.any():
        own_weights = weights.sum(axis=1, keepdims=True) / np.maximum(num_scores, 1)
        # A raised error comes with the weight 1: the client's own mean weight stands
        # for it.
        weights = np.where(is_failed, own_weights, weights)
        values = np.where(is_failed, values[is_scored].min(), values)
    with np.errstate(invalid="ignore", over="ignore"):
        means = (weights * values).sum(axis=0) / weights.sum(axis=0)
    has_score = is_scored.any(axis=0) & np.isfinite(means)
    return np.where(has_score, means, -np.inf)


def _is_table(message: Any, shape: tuple[int, int]) -> bool:
    return (
        isinstance(message, np.ndarray)
        and message.shape == shape
        and message.dtype.kind in "fiu"
    )
