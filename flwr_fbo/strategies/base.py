"""The base of every strategy: it starts a study, or goes on with a recorded one.

Round r of Flower is iteration t = r - 1 of the server half.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from flwr_fbo._compat import ClientApi
from flwr_fbo._validation import require, require_int, require_positive
from flwr_fbo.protocol.codec import Study
from flwr_fbo.servers.base import Server
from flwr_fbo.strategies.result import StudyResult
from flwr_fbo.strategies.study_record import Progress, StudyRecord, check_folder
from flwr_fbo.strategies.study_rounds import StudyRounds, vectors_record

_log = logging.getLogger("flwr.fbo")


ResultT = TypeVar("ResultT", bound=StudyResult)


class StudyStrategy(StudyRounds, Generic[ResultT]):
    """Runs one server half over Flower's Message API.

    Parameters
    ----------
    server : Server
    study : Study
        What all agents are told.
    min_agents : int, optional
        Agents that must be enrolled before the first round, from 1 to N; all N unless
        given. Later rounds go on with whoever is there, and so does a study that is
        gone on with, once it has waited for them.
    patience : float
        Seconds to wait for them, >= 0, and for a run that still holds the folder.
    client_api : {"both", "message", "numpy", "action"}
        Whom the messages are written for. ``"both"`` is read by `NumPyClient` and
        Message-API clients alike, but Flower's own client mods refuse it: name the
        one you use if you use mods. ``"action"`` is for apps with `add_tuning`.
    authenticated : bool
        Whether SuperNodes have to prove who they are (``flower-superlink
        --enable-supernode-auth``): an agent's slot then stays with the first node that
        names it as its ``agent-id``, and so with its key; where the SuperLink's
        database was lost, and the node ids with it, go on with False. Otherwise a node
        that claims the slot of an agent that is away takes its place, since a
        SuperNode that restarts has a new node id.
    max_empty_rounds : int
        Rounds in a row, >= 1, in which nobody gives a result; then the run ends with an
        error. After an earlier one there is no release. A round in which no node is
        connected is not begun: the run ends with an error once ``patience`` is over.
    folder : str or Path, optional
        An absolute path: where the server keeps its durable record, one folder a study.
        If the run is ended before the study is, a new run with the same folder and
        settings goes on after the last round that was completed.
    """

    def __init__(
        self,
        server: Server,
        study: Study,
        *,
        min_agents: int | None = None,
        patience: float = 300.0,
        client_api: ClientApi = "both",
        authenticated: bool = False,
        max_empty_rounds: int = 1,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(
            server,
            study,
            min_agents,
            patience,
            client_api,
            authenticated,
            max_empty_rounds,
        )
        self._patience = patience
        self._folder = check_folder(folder)
        self._record = StudyRecord(None, {})
        self._started = False

    result_type: type[ResultT]

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> ResultT:
        """Run the study.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            Not needed, and refused unless empty: the first vectors are released by the
            server itself.
        num_rounds : int, optional
            Rounds of Flower, >= 2: iterations 0 to ``num_rounds - 1``. See
            `default_rounds`.
        timeout : float
            Seconds to wait for the replies of a round. Who has not answered by then
            counts as zero.
        train_config : ConfigRecord, optional
            Sent to the clients besides what the strategy sends.
        evaluate_config : ConfigRecord, optional
            Not used: there is no model for clients to evaluate.
        evaluate_fn : callable, optional
            Called by Flower with the released vectors after each round.

        Raises
        ------
        ValueError
            If an argument is not allowed; before any client is asked.
        TooFewAgentsError
            If too few agents enrol.
        AggregationError
            If nobody gives a result in ``max_empty_rounds`` rounds in a row: no
            reply, or only errors.
        JournalError
            If the folder cannot be used, is used by another run, or holds a study of
            other settings; the message names the difference.

        Returns
        -------
        StudyResult
            That of the method, of the whole study. Where the folder holds one that is
            complete, nobody is asked anything and its result is returned again.
        """
        if num_rounds is None:
            num_rounds = self.default_rounds()
        require_int("num_rounds", num_rounds, 2)
        allowed = "empty (the server releases the first vectors itself)"
        require(not initial_arrays, "initial_arrays", initial_arrays, allowed)
        require_positive("timeout", timeout)
        if self._started:
            raise ValueError("This strategy has run already: make a new one.")
        self._started = True
        self._timeout = timeout
        self.plan(num_rounds - 1)
        identity = self._identity(num_rounds)
        with StudyRecord(self._folder, identity, self._patience) as self._record:
            self._resume(num_rounds)
            self._running = True
            try:
                result = self._run(
                    grid,
                    num_rounds,
                    timeout,
                    train_config,
                    evaluate_config,
                    evaluate_fn,
                )
            finally:
                self._running = False
        self._end(result)
        return result

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        """Return the settings that may not change while a study goes on, as JSON."""
        fields = self.study.to_dict()
        for name in self.study.own:  # those of the study that goes on count
            del fields[name]
        return {
            "num_rounds": num_rounds,
            "num_agents": self.server.num_agents,
            **fields,
        }

    def _resume(self, num_rounds: int) -> None:
        """Go on with what the folder holds, if it holds anything."""
        progress = self._record.load(self.study)
        if progress is None:
            # Before a client hears of the study: one that keeps its journal of it
            # would refuse a new run that had begun another.
            self._commit()
            return
        self.server.resume(progress.ledger)
        self._load_server_state(progress.state)
        self.study = progress.study
        self._enrolment.resume(progress.study, progress.slots, progress.journals)
        self._rounds = progress.rounds
        self._resumed_after = len(progress.rounds)
        if self._resumed_after == num_rounds:
            _log.warning(
                "The study in %s is complete: this is its result, and nobody is asked "
                "anything. A new study needs another folder.",
                self._folder,
            )
            return
        _log.warning(
            "Going on with the study in %s after round %d of %d; Flower counts its "
            "rounds from 1 again.",
            self._folder,
            self._resumed_after,
            num_rounds,
        )

    def _run(
        self,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> ResultT:
        """Run the rounds that are left."""
        remaining = num_rounds - self._resumed_after
        if remaining == 0:
            arrays = vectors_record(self.server.vectors) or ArrayRecord()
            return self.result_type(arrays=arrays, rounds=self._rounds)
        flower = super().start(
            grid,
            ArrayRecord(),
            num_rounds=remaining,
            timeout=timeout,
            train_config=train_config,
            evaluate_config=evaluate_config,
            evaluate_fn=evaluate_fn,
        )
        return self.result_type(**vars(flower), rounds=self._rounds)

    def _commit(self) -> None:
        """Put all that a new run would need on disk."""
        self._record.save(
            Progress(
                self.study,
                self.server.ledger,
                self._enrolment.slots,
                self._enrolment.journals,
                self._rounds,
                self._server_state(),
            )
        )

    def _commit_enrolment(self) -> None:
        """Commit before the first broadcast, and when an agent was given a slot."""
        if not self._record.has(self._enrolment.slots, self._enrolment.journals):
            self._commit()

    def _server_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return what the server half needs besides its ledger to go on."""
        return {}

    def _load_server_state(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Give it back."""

    @abstractmethod
    def default_rounds(self) -> int:
        """Return how many rounds there are unless `start` is told."""

    def plan(self, horizon: int) -> None:
        """Fix what depends on T, the last iteration; `start` does it first."""

    def _synchronises(self, iteration: int) -> bool:
        """Return whether agents are asked for a release after an iteration."""
        return self.server.wants_messages(iteration)

    def _has_asked(self) -> bool:
        """Return whether agents have been asked for a release, arrived or not."""
        return any(self._synchronises(one.server_round - 1) for one in self._rounds)

    def _end(self, result: ResultT) -> None:
        """Add what the method knows, after the last round."""

    def summary(self) -> None:
        """Log the settings, and what is not private about them."""
        for line in self._lines():
            is_warning = line.startswith(("WARNING", "NOT PRIVATE"))
            _log.log(logging.WARNING if is_warning else logging.INFO, "\t├──> %s", line)

    def _lines(self) -> list[str]:
        """Return what `summary` logs."""
        return self.server.summary()
