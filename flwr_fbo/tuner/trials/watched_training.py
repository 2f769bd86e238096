"""Metrics that the server knows while a `main` trains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
from flwr.app import Message

from flwr_fbo._compat import Training, running_training
from flwr_fbo.tuner.site.hidden_metrics import (
    MetricError,
    merged,
    numbers_of,
    weight_of,
)


class WatchedTraining:
    """The training that a `main` runs, and the metrics that the server knows of it.

    Parameters
    ----------
    note : callable
        Gets the metrics of each evaluation by the server, and of each round that
        Flower's strategies keep. Where `main` has a loop of its own, and has noted
        nothing since it trained: the clients' means of what they report for ``train``.
    wanted : collection of str
        Metrics without which a round is not noted.
    is_hidden : bool
        Whether the clients' metrics stay at the clients.

    Attributes
    ----------
    training : Training
        Flower's training that `main` runs, as far as it is known.
    """

    def __init__(
        self, note: Callable[[Any], None], wanted: Collection[str], is_hidden: bool
    ) -> None:
        self.training = Training()
        self._note = note
        self._wanted = set(wanted)
        self._is_hidden = is_hidden
        # The clients' means of the last training; None once anything was noted since.
        self._means: dict[str, float] | None = None
        # Rounds whose evaluation by the server was noted.
        self._noted: set[int] = set()

    def note(self, metrics: Any) -> None:
        """Note metrics, of the server or of a training."""
        self._means = None
        self._note(metrics)

    def note_replies(self, replies: Iterable[Message]) -> None:
        """Note what clients report of a round: a score, if nothing else gives one."""
        if self.training.strategy is None and not self._is_hidden:
            self._means = _means(replies) or None

    def look(self) -> None:
        """Note what the training that is running has come to, in its own thread."""
        found = running_training()
        if found.strategy is not None:
            self._note_server()  # what a training before it has ended with
            if found.kept is not self.training.kept:
                self._noted.clear()
            self.training = found
        self.finish()

    def finish(self) -> None:
        """Note what is known of the training, as when `main` has ended."""
        self._note_server()
        if self._means is not None and self._means.keys() >= self._wanted:
            self.note(self._means)

    def _note_server(self) -> None:
        for number, metrics in sorted(self.training.all_metrics().items()):
            # A round may not be complete yet.
            # Each round counts once, with all metrics that the score is made of.
            if number not in self._noted and metrics.keys() >= self._wanted:
                self._noted.add(number)
                self.note(metrics)

    def measured(self) -> dict[int, dict[str, float]]:
        """Return the numbers that the server knows, by round.

        Those of its own evaluation; and means over the clients unless they are hidden.
        """
        training = self.training
        known = training.metrics() if self._is_hidden else training.all_metrics()
        return {
            number: {
                key: float(value)
                for key, value in metrics.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            for number, metrics in sorted(known.items())
        }


def _means(replies: Iterable[Message]) -> dict[str, float]:
    """Return the weighted means of the numbers that all clients report for ``train``.

    None where their weights cannot be used.
    """
    contents = [reply.content for reply in replies if reply.has_content()]
    found = [
        merged([*content.config_records.values(), *content.metric_records.values()])
        for content in contents
    ]
    try:
        weights = [weight_of(metrics, "a reply to train") for metrics in found]
    except MetricError:
        return {}
    if not sum(weights) > 0:
        return {}
    numbers = [numbers_of(metrics) for metrics in found]
    names = set.intersection(*({*metrics} for metrics in numbers))
    return {
        name: float(np.average([metrics[name] for metrics in numbers], weights=weights))
        for name in names
    }
