"""A tuning client's answer to one instruction: enrol or play, with its journal.

Between messages the agent lives in its `Journal`: a file in the folder that
``fbo-folder`` of the node config (else of the run config) names, which survives
whatever ends the client; without a folder, bytes in ``context.state``, which live as
long as the run. Neither leaves the client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution

from flwr_fbo._validation import require, require_positive
from flwr_fbo.agents.durable.tuning_record import agent_identity, load_agent
from flwr_fbo.agents.tuning.base import play_round
from flwr_fbo.agents.tuning.timeout import time_limit
from flwr_fbo.agents.tuning.trial import Objective, SpaceMismatchError
from flwr_fbo.journal.journal import Journal
from flwr_fbo.protocol.codec import Phase
from flwr_fbo.protocol.tuning_settings import Direction, check_direction
from flwr_fbo.protocol.tuning_study import TuningInstruction, TuningStudy
from flwr_fbo.space.search_space import Params, SearchSpace

FloatArray = NDArray[np.float64]

_STATE = "flwr-fbo"

_log = logging.getLogger("flwr.fbo")


class ObjectiveFailedError(RuntimeError):
    """A site's ``make_objective`` gave no objective; the text quotes nothing of it."""


@dataclass(frozen=True)
class Answer:
    """What goes back: at most one array, and numbers."""

    arrays: list[FloatArray] = field(default_factory=list)
    metrics: dict[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tuner:
    """What a client brings to a study.

    Attributes
    ----------
    make_objective : callable
        Takes the client's context, returns the objective; not called while enrolling.
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    trial_timeout : float, optional
        Seconds after which an evaluation is ended and counts as failed.
    space : mapping of str to Optuna distribution, optional
        What the study's space must be, and in this order.
    direction : {"maximize", "minimize"}, optional
        What the study's direction must be.
    """

    make_objective: Callable[[Context], Objective]
    enqueue: Sequence[Params] = ()
    trial_timeout: float | None = None
    space: Mapping[str, BaseDistribution] | None = None
    direction: Direction | None = None

    def __post_init__(self) -> None:
        make = self.make_objective
        require(callable(make), "make_objective", make, "a function")
        ok = isinstance(self.enqueue, Sequence)
        ok = ok and all(isinstance(params, Mapping) for params in self.enqueue)
        require(ok, "enqueue", self.enqueue, "a list of settings, a dict each")
        if self.trial_timeout is not None:
            require_positive("trial_timeout", self.trial_timeout)
        if self.space is not None:
            SearchSpace(self.space)
        if self.direction is not None:
            check_direction(self.direction)

    def _check(self, study: TuningStudy) -> None:
        """Raise unless the study is the one that the client is made for."""
        if self.space is not None and SearchSpace(self.space) != study.space:
            raise SpaceMismatchError(
                f"This client declares the space {dict(self.space)}, the study has "
                f"{study.space.distributions}."
            )
        if self.direction is not None and self.direction != study.direction:
            raise SpaceMismatchError(
                f"This client declares direction={self.direction!r}, the study has "
                f"{study.direction!r}."
            )
        for i, params in enumerate(self.enqueue):
            try:
                study.space.to_unit(params)
            except ValueError as error:
                raise ValueError(f"enqueue[{i}]: {error}") from None

    def _objective(self, context: Context) -> Objective:
        """Return the site's objective; what goes wrong is said here, and not sent.

        Flower sends an exception's text to the server, and it may quote data.
        """
        try:
            objective = self.make_objective(context)
        except Exception as error:
            _log.exception("make_objective failed")
            raise ObjectiveFailedError(
                f"make_objective failed: {type(error).__name__} (the client's log has "
                "the details)"
            ) from None
        if not callable(objective):
            raise ObjectiveFailedError(
                f"make_objective returned a {type(objective).__name__}, which is no "
                "function of a trial"
            )
        return objective

    def answer(
        self,
        context: Context,
        arrays: Sequence[np.ndarray[Any, Any]],
        config: Mapping[str, Any],
    ) -> Answer:
        """Carry out one instruction.

        Parameters
        ----------
        context : flwr.app.Context
        arrays : sequence of ndarray
            Empty, or the server's vectors of shape (P, M).
        config : mapping
            What `TuningInstruction.to_config` wrote.

        Raises
        ------
        ValueError
            If the config or the arrays are not of a flwr_fbo strategy, or an enqueued
            setting does not fit its space.
        ObjectiveFailedError
            If ``make_objective`` raised.
        SpaceMismatchError
            If the study has another space or direction than the client declares.
        JournalError
            If the journal cannot be used.
        """
        instruction = TuningInstruction.from_config(config)
        study = instruction.study
        if instruction.phase is Phase.ENROL:
            self._check(study)
            return Answer(metrics={"agent-id": agent_id(context, study)})
        with (
            time_limit(self._objective(context), self.trial_timeout) as objective,
            open_journal(context, study, instruction.slot) as journal,
        ):
            agent = load_agent(journal, study, instruction.slot, self.enqueue)
            message = play_round(
                agent,
                objective,
                instruction.iteration,
                arrays[0] if len(arrays) else None,
                instruction.release > 0,
                journal,
            )
        metrics = {}
        if instruction.report_best_value and agent.best_value is not None:
            metrics["best-value"] = agent.best_value
        return Answer([] if message is None else [message], metrics)


def agent_id(context: Context, study: TuningStudy) -> int:
    """Return the slot this client knows it holds, or -1.

    That is ``agent-id`` of the node config, else ``partition-id``, else the slot that
    the server issued before in the same study.

    Raises
    ------
    ValueError
        If the node config holds something that is no integer >= 0.
    """
    configured = configured_slot(context)
    return taken_slot(context, study) if configured < 0 else configured


def configured_slot(context: Context) -> int:
    """Return the slot that the node config names, or -1."""
    for key in ("agent-id", "partition-id"):
        if key in context.node_config:
            value = context.node_config[key]
            # A SuperNode's --node-config may give it as text.
            if str(value).isdecimal():
                return int(value)
            allowed = "an integer from 0 to the number of agents - 1"
            require(False, f"node config {key}", value, allowed)
    return -1


def taken_slot(context: Context, study: TuningStudy) -> int:
    """Return the slot this client has played in ``study``, or -1.

    A client that was restarted finds it in its folder, if no other keeps a journal
    of the study there.
    """
    known = context.state.config_records.get(_STATE)
    if known and known["study-id"] == study.study_id:
        return int(str(known["slot"]))
    folder = client_folder(context)
    if folder is None:
        return -1
    prefix = f"study-{study.study_id}-agent-"
    names = [path.stem for path in folder.glob(f"{prefix}*.sqlite")]
    return int(names[0].removeprefix(prefix)) if len(names) == 1 else -1


@contextmanager
def open_journal(context: Context, study: TuningStudy, slot: int) -> Iterator[Journal]:
    """Hold this client's journal of ``study``: an existing one, or a new one."""
    records = context.state.config_records
    path = _journal_path(context, study, slot)
    content = None
    if path is None and taken_slot(context, study) == slot:
        content = records[_STATE].get("journal")
    assert content is None or isinstance(content, bytes)
    with Journal(agent_identity(study, slot), path, content) as journal:
        record = ConfigRecord({"study-id": study.study_id, "slot": slot})
        records[_STATE] = record
        try:
            yield journal
        finally:
            # What was evaluated is kept, whatever came after it.
            if path is None:
                record["journal"] = journal.to_bytes()


def _journal_path(context: Context, study: TuningStudy, slot: int) -> Path | None:
    folder = client_folder(context)
    if folder is None:
        return None
    return folder / f"study-{study.study_id}-agent-{slot}.sqlite"


def client_folder(context: Context) -> Path | None:
    """Return the folder that the node config, else the run config, names."""
    folder = context.node_config.get("fbo-folder", context.run_config.get("fbo-folder"))
    if not folder:
        return None
    path = Path(str(folder))
    require(path.is_absolute(), "fbo-folder", folder, "an absolute path")
    return path


def best_params(context: Context, default: Params) -> Params:
    """Return this client's best setting of its last study.

    The study may be over, or another run's if the client's journals are in a folder.

    Parameters
    ----------
    context : flwr.app.Context
    default : dict
        What to return where no trial has succeeded.

    Raises
    ------
    JournalError
        If the journal cannot be read.
    """
    journal = _last_journal(context)
    if journal is None:
        return dict(default)
    with journal:
        trials = [t for t in journal.trials() if t.state == "complete"]
        sign = 1.0 if journal.identity["direction"] == "maximize" else -1.0
    if not trials:
        return dict(default)
    return max(trials, key=lambda trial: sign * trial.value).params


def _last_journal(context: Context) -> Journal | None:
    """Open the journal that this client wrote last, if there is one."""
    folder = client_folder(context)
    known = context.state.config_records.get(_STATE)
    if folder is None:
        content = known.get("journal") if known else None
        return Journal(None, content=content) if isinstance(content, bytes) else None
    slot = configured_slot(context)
    if slot < 0 and known:
        slot = int(str(known["slot"]))
    paths = list(folder.glob(f"study-*-agent-{'*' if slot < 0 else slot}.sqlite"))
    if len({path.stem.rpartition("-")[2] for path in paths}) > 1:
        _log.warning(
            "%s has journals of several agents, and this client does not know which "
            "it is: give its node config an agent-id.",
            folder,
        )
        return None
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if newest is None else Journal(None, newest)
