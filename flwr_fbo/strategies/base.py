"""The base of every strategy: it starts a study, or goes on with a recorded one.

Round r of Flower is iteration t = r - 1 of the server half, in the run that begins a
study; in one that goes on with it iterations are counted on.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from flwr_fbo._compat import ClientApi
from flwr_fbo._validation import require, require_int, require_positive
from flwr_fbo.protocol.callbacks import Callback, Started
from flwr_fbo.protocol.codec import Study
from flwr_fbo.servers.base import Server
from flwr_fbo.strategies.options import Durability, check_folder
from flwr_fbo.strategies.result import StudyResult
from flwr_fbo.strategies.study_record import KIND, Progress, StudyRecord
from flwr_fbo.strategies.study_rounds import StudyRounds, vectors_record

_log = logging.getLogger("flwr.fbo")


ResultT = TypeVar("ResultT", bound=StudyResult)


class StudyStrategy(StudyRounds, Generic[ResultT]):
    """Runs one server half over Flower's Message API.

    Parameters
    ----------
    server : Server
    study : Study
        The study's settings, which all agents are told.
    folder : str or Path, optional
        Absolute path of the folder with the server's durable record, one folder a
        study. If the run is killed, a new run with the same folder and settings
        continues after the last completed round.
    durability : Durability, optional
        Which agents a study waits for, and when it gives up.
    client_api : {"both", "message", "numpy", "action"}
        Kind of client that reads the messages. `NumPyClient` and Message-API clients
        both read ``"both"``, but Flower's own client mods refuse it: with mods, name
        your kind of client. ``"action"`` is for apps with `add_tuning`.
    callbacks : list or tuple of Callback
        Objects that are told of each round and of the result. See `Callback`.
    """

    result_type: type[ResultT]
    record_kind: str = KIND

    def __init__(
        self,
        server: Server,
        study: Study,
        *,
        folder: str | Path | None = None,
        durability: Durability | None = None,
        client_api: ClientApi = "both",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        durability = Durability() if durability is None else durability
        ok = isinstance(durability, Durability)
        require(ok, "durability", durability, "a Durability")
        super().__init__(server, study, durability, client_api, callbacks)
        self._patience = durability.patience
        self._folder = check_folder("folder", folder)
        self._record = StudyRecord(None, {})
        self._started = False

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
            Must be empty: the server itself releases the first vectors.
        num_rounds : int, optional
            Number of Flower's rounds, >= 2: iterations 0 to ``num_rounds - 1``. See
            `default_rounds`.
        timeout : float
            Seconds to wait for the replies of a round. A missing reply counts as zero.
        train_config : ConfigRecord, optional
            Extra config that is sent to the clients.
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
            If ``max_empty_rounds`` rounds in a row have no result: no reply, or only
            errors.
        JournalError
            If the folder cannot be used, is used by another run, or holds a study of
            other settings; the message names the difference.

        Returns
        -------
        StudyResult
            Result of the whole study. If the folder holds a complete study, its result
            is returned again without any message.
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
        self._num_rounds = num_rounds
        self.plan(num_rounds - 1)
        identity = self._identity(num_rounds)
        with StudyRecord(self._folder, identity, self._patience) as self._record:
            self._resume(num_rounds)
            name = self.study.study_id
            _log.info("study %s, as the ledger of each site has it", name)
            self._callbacks.on_start(self._begun(identity))
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
                self._stop_waiting()
        self._end(result)
        self._callbacks.on_end(result)
        return result

    def _identity(self, num_rounds: int) -> dict[str, Any]:
        """Return the settings that may not change while a study goes on, as JSON."""
        fields = self.study.to_dict()
        for name in self.study.own:  # those of the study that goes on count
            del fields[name]
        return {
            "kind": self.record_kind,
            "num_rounds": num_rounds,
            "num_agents": self.server.num_agents,
            **fields,
        }

    def _begun(self, identity: dict[str, Any]) -> Started:
        """Return what callbacks are told of the study; seeds are not public."""
        settings = {
            name: value
            for name, value in identity.items()
            if name != "kind" and "seed" not in name
        }
        method, num_done = type(self).__name__, len(self._rounds)
        return Started(self.study.study_id, method, settings, num_done)

    def _resume(self, num_rounds: int) -> None:
        """Go on with what the folder holds, if it holds anything."""
        progress = self._record.load(self.study)
        if progress is None:
            # Before a client hears of the study: one that keeps its journal of it
            # would refuse a new run that had begun another.
            self._commit()
            return
        self.server.resume(progress.ledger)
        self.server.load_state_dict(progress.state)
        self.study = progress.study
        self._enrolment.resume(progress.slots, progress.journals)
        self._rounds = progress.rounds
        done = len(self._rounds)
        allowed = f"at least {done}, the rounds of the study in {self._folder}"
        require(num_rounds >= done, "num_rounds", num_rounds, allowed)
        if done == num_rounds:
            _log.warning(
                "The study in %s is complete: its result is returned without any "
                "message. A new study needs another folder.",
                self._folder,
            )
            return
        _log.warning(
            "Resuming the study in %s after round %d of %d. Flower counts rounds from "
            "1 again.",
            self._folder,
            done,
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
        remaining = num_rounds - len(self._rounds)
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

    def _commit(self, is_round_done: bool = True) -> None:
        """Put all that a new run would need on disk."""
        num_rounds = len(self._rounds) if is_round_done else len(self._rounds) - 1
        self._record.save(
            Progress(
                self.study,
                self.server.ledger,
                self._enrolment.slots,
                self._enrolment.journals,
                self._rounds[:num_rounds],
                self.server.state_dict(),
            )
        )

    def _commit_enrolment(self) -> None:
        """Commit before the first broadcast, and when an agent was given a slot."""
        if not self._record.has(self._enrolment.slots, self._enrolment.journals):
            self._commit()

    @abstractmethod
    def default_rounds(self) -> int:
        """Return how many rounds there are unless `start` is told."""

    def plan(self, horizon: int) -> None:
        """Fix what depends on T, the last iteration; `start` does it first."""

    def _has_asked(self) -> bool:
        """Return whether agents have been asked for a release, arrived or not."""
        return any(one.release for one in self._rounds)

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
