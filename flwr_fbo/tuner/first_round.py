"""What an app reports in its first round: which metrics, and from where.

Two clients train and evaluate once, with the app's defaults. So the name of a metric is
known before any client trains a trial.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from flwr.app import Context, Message, MessageType
from flwr.serverapp import Grid

from flwr_fbo._compat import secure_aggregation_stage
from flwr_fbo.tuner.lone_trial import LoneTrial
from flwr_fbo.tuner.site.hidden_metrics import merged, numbers_of
from flwr_fbo.tuner.trials.trial_grid import Main
from flwr_fbo.tuner.trials.trial_thread import TrialThread
from flwr_fbo.tuner.trials.tuned_grid import TunedGrid

# Clients that answer: a strategy gets no replies of the others.
_NUM_CLIENTS = 2


@dataclass
class FirstRound:
    """Names of metrics that are numbers, by who has reported them.

    Attributes
    ----------
    evaluate, train, server : set of str
        In replies to ``evaluate`` and ``train``, and what the server knows: of its own
        evaluation, and means over clients.
    has_trained, has_evaluated : bool
        Whether `main` has asked a client to train, and to evaluate.
    error : str
        Why a client could not answer; empty if all could.
    failure : Exception or None
        What `main` has raised.
    answered, failed : set of int
        Places of the clients that could answer, and could not, from 0. The last client
        is asked to train, and if one cannot, all are.
    values : dict of str to float
        What the server knew last of its metrics.
    """

    evaluate: set[str] = field(default_factory=set)
    train: set[str] = field(default_factory=set)
    server: set[str] = field(default_factory=set)
    has_trained: bool = False
    has_evaluated: bool = False
    error: str = ""
    failure: BaseException | None = None
    answered: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        main: Main,
        grid: Grid,
        context: Context,
        num_clients: int | None = _NUM_CLIENTS,
    ) -> FirstRound:
        """Run the first round of an app, up to its second training.

        Parameters
        ----------
        main : callable
            The app's server.
        grid : Grid
            Of the app's clients as they are.
        context : Context
            Context of the ServerApp.
        num_clients : int, optional
            That answer. None: all; so it is tried, too, if `main` fails with a few.
        """
        found = cls()

        def note(metrics: Any) -> None:
            if isinstance(metrics, Mapping):
                found.server |= {*numbers_of(metrics)}
                found.values |= numbers_of(metrics)

        with tempfile.TemporaryDirectory() as folder:  # main may write files
            trial = LoneTrial(main, grid, context, Path(folder) / "0", note=note)
            try:
                found._go_through(trial, grid, num_clients)
                # What the server has evaluated since is known once `main` has gone on.
                for metrics in trial.grid.watched.training.all_metrics().values():
                    note(metrics)
            finally:  # else its thread would wait for ever
                trial.end()
        found.failure = trial.error
        was_asked = trial.num_sends > 0
        if found.failure is not None and was_asked and num_clients is not None:
            return cls.of(main, grid, context, None)
        return found

    @classmethod
    def hidden(cls, main: Main, grid: Grid, context: Context) -> FirstRound:
        """Run the first round of clients with `tuner_mod`, which hide their metrics."""
        return cls.of(main, cast(Grid, TunedGrid(grid, {}, is_hidden=True)), context)

    def _go_through(
        self, trial: TrialThread, grid: Grid, num_clients: int | None
    ) -> None:
        """Let some clients answer, until the second training begins."""
        places = {node: place for place, node in enumerate(grid.get_node_ids())}
        trial.begin()
        while trial.pending:
            is_train = trial.pending_type.startswith(MessageType.TRAIN)
            if is_train and not trial.goes_on and trial.num_train > 0:
                return
            pending = sorted(
                trial.pending, key=lambda one: places.get(one.metadata.dst_node_id, -1)
            )
            asked = pending
            is_secure = secure_aggregation_stage(pending[0].content)
            if num_clients is not None and not is_secure:
                asked = [pending[-1], *pending[:-1][: num_clients - 1]]
            replies = list(grid.send_and_receive(asked, timeout=trial.timeout))
            for reply in replies:
                place = places.get(reply.metadata.src_node_id, -1)
                (self.failed if reply.has_error() else self.answered).add(place)
            if not is_secure and not trial.num_sends:
                self._try_others(grid, pending[0], places)
            self._note(trial.pending_type, replies)
            trial.answer(replies)

    def _try_others(
        self, grid: Grid, message: Message, places: Mapping[int, int]
    ) -> None:
        """Ask the last client, too, and all others if it fails; replies are dropped.

        An app that has no data for so many clients fails at the last ones.
        """
        kind = message.metadata.message_type
        nodes = list(places)
        for some in (nodes[-1:], nodes):
            others = [
                Message(message.content, node, kind)
                for node in some
                if places[node] not in self.failed | self.answered
            ]
            for reply in grid.send_and_receive(others) if others else ():
                place = places.get(reply.metadata.src_node_id, -1)
                if reply.has_error():
                    self._note(kind, [reply])
                (self.failed if reply.has_error() else self.answered).add(place)
            if not self.failed:
                return

    def _note(self, kind: str, replies: Iterable[Message]) -> None:
        is_evaluate = kind.startswith(MessageType.EVALUATE)
        is_train = kind.startswith(MessageType.TRAIN)
        self.has_trained |= is_train
        self.has_evaluated |= is_evaluate
        for reply in replies:
            if reply.has_error():
                lines = str(reply.error.reason).strip().splitlines()
                self.error = self.error or f"{kind}: {''.join(lines[-1:])}"
                continue
            configs = reply.content.config_records.values()
            metrics = merged([*configs, *reply.content.metric_records.values()])
            if is_evaluate:
                self.evaluate |= {*numbers_of(metrics)}
            elif is_train:
                self.train |= {*numbers_of(metrics)}
