"""A site of tuning studies: its objective, the agent that tunes it, and its client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context

from flwr_fbo._common.conversion import mapping, mappings, plain
from flwr_fbo._common.errors import AppFailedError
from flwr_fbo._common.fields import check_fields, choice, ruled
from flwr_fbo._common.validation import require_function
from flwr_fbo.site.gate import Gate
from flwr_fbo.site.limits import Limits
from flwr_fbo.site.recorded_agent import of_another_slot
from flwr_fbo.site.site import (
    Answer,
    Arrays,
    Metrics,
    Site,
    sum_request,
)
from flwr_fbo.site.site_journal import held_journal, record_name
from flwr_fbo.site.study_journals import note_last_study
from flwr_fbo.site.time_limit import CheckTime
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.study.codec import StudyMismatchError
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agent_journal import agent_identity
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from flwr_fbo.tuning.search.trial import Objective, Trial
from flwr_fbo.tuning.site.recorded_tuner import RecordedTuner
from flwr_fbo.tuning.site.tuning_journals import agent_id, journal_path

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_log = logging.getLogger("flwr.fbo")

# Seconds to wait for the journal of an evaluation that is just ending.
_PATIENCE = 1.0


@dataclass(frozen=True)
class TuningSite(Site[TuningInstruction, RecordedTuner]):
    """A client's side of a tuning study.

    Attributes
    ----------
    make_objective : callable
        Takes the client's context, returns the objective; called before a trial.
    enqueue : sequence of dict
        Known-good settings, evaluated first.
    space : mapping of str to Optuna distribution, optional
        Search space that the study must have, in this order.
    direction : {"maximize", "minimize"}, optional
        Direction that the study must have.
    limits : Limits, optional
        See `Site`. Without any the site takes part in any study of a usual size.
    """

    make_objective: Callable[[Context], Objective] = field(
        metadata=ruled(require_function)
    )
    enqueue: Sequence[Params] = ()
    space: Mapping[str, BaseDistribution] | None = None
    direction: Direction | None = field(
        default=None, metadata=choice(Direction, optional=True)
    )
    limits: Limits | None = None

    instruction_type = TuningInstruction

    def __post_init__(self) -> None:
        check_fields(self)
        settings = [
            {name: plain(value) for name, value in mapping("enqueue", params).items()}
            for params in mappings("enqueue", self.enqueue)
        ]
        object.__setattr__(self, "enqueue", settings)
        if self.space is not None:
            space = SearchSpace(self.space)
            for params in self.enqueue:
                space.to_unit(params)
        self.check_limits()

    def check(self, context: Context, study: TuningStudy, gate: Gate) -> None:
        """Raise unless the study is the one that the client is made for."""
        if self.space is not None and SearchSpace(self.space) != study.space:
            raise StudyMismatchError(
                f"This client declares the space {dict(self.space)}, the study has "
                f"{study.space.distributions}.",
                public="This client declares another space than the study has.",
            )
        if self.direction is not None and self.direction != study.direction:
            raise StudyMismatchError(
                f"This client declares direction={self.direction!r}, the study has "
                f"{study.direction!r}.",
                public="This client declares another direction than the study has.",
            )
        for i, params in enumerate(self.enqueue):
            try:
                study.space.to_unit(params)
            except ValueError as error:
                raise StudyMismatchError(
                    f"enqueue[{i}]: {error}",
                    public=f"enqueue[{i}] does not fit the study's space.",
                ) from error

    def claim(
        self,
        context: Context,
        study: TuningStudy,
        folder: Path | None,
        gate: Gate,
    ) -> Metrics:
        """Return the slot that this client knows it holds, or -1."""
        known = agent_id(context, study)
        identity = gate.check_sums(study.secure, study.promise, known)
        return {"agent-id": identity.slot if known < 0 else known}

    @contextmanager
    def agent(
        self,
        context: Context,
        instruction: TuningInstruction,
        folder: Path | None,
        gate: Gate,
    ) -> Iterator[RecordedTuner]:
        """Hold the agent of the slot that the server names: the client's own."""
        study, slot = instruction.study, instruction.slot
        known, asked = agent_id(context, study), instruction.unprotected
        who = gate.check_sums(study.secure, study.promise, known, asked)
        if known not in (-1, slot):
            raise of_another_slot(known, slot)
        identity, path = agent_identity(study, slot), journal_path(folder, study, slot)
        with held_journal(
            context,
            identity,
            path,
            record=record_name(identity["kind"]),
            may_begin=True,
            patience=_PATIENCE,
        ) as journal:
            if folder is not None:
                note_last_study(folder, identity["kind"], study.study_id, slot)
            made = instruction.num_released
            yield RecordedTuner(journal, study, slot, self.enqueue, made, who)

    def num_trials(self, agent: RecordedTuner, instruction: TuningInstruction) -> int:
        """Return how many first points are missing, or 1, the query; 0 for neither."""
        if instruction.release in agent.made_after:
            return 0
        return max(agent.agent.num_first - len(agent.agent.values), 1)

    def play(
        self,
        context: Context,
        agent: RecordedTuner,
        instruction: TuningInstruction,
        arrays: Arrays,
        check_time: CheckTime,
    ) -> None:
        """Play a round, unless the message that is asked for is on record.

        Raises
        ------
        AppFailedError
            If ``make_objective`` raised, or gave no function; if the objective gives
            no numbers.
        StudyMismatchError
            If the objective asks for another space than the study has.
        """
        if instruction.phase == "sum":
            return
        release, made_after = instruction.release, instruction.made_after
        vectors = arrays[0] if len(arrays) else None
        if release in agent.made_after:
            agent.take(vectors, made_after)
            return
        try:
            objective = self.make_objective(context)
        except Exception as error:
            raise AppFailedError.told(
                f"make_objective failed: {type(error).__name__}."
            ) from error
        if not callable(objective):
            raise AppFailedError.told(
                f"make_objective returned a {type(objective).__name__}, not a function "
                "of a trial."
            )
        # Simulated sites share a log, and may be thousands.
        simulated = "partition-id" in context.node_config
        level = logging.DEBUG if simulated else logging.INFO
        last = instruction.num_iterations
        objective = _logged(objective, agent.agent, last, level)

        def in_time(trial: Trial) -> float:
            check_time()  # no trial begins too late
            return objective(trial)

        agent.play(in_time, instruction.iteration, vectors, release, made_after)

    def reply(
        self, agent: RecordedTuner, instruction: TuningInstruction, arrays: Arrays
    ) -> Answer:
        """Return the message that is asked for, if there is one.

        Or take part in a secure sum of messages: then no message leaves but masked.

        Raises
        ------
        RefusedError
            If the server of a secure sum deviates from its protocol.
        StudyMismatchError
            If a sum is asked for without an array, or before the message is on record.
        """
        secure, release = instruction.study.secure, instruction.release
        if instruction.phase != "sum":
            best = agent.agent.best_value if instruction.report_best_value else None
            metrics: Metrics = {} if best is None else {"best-value": best}
            sends = release > 0 and secure is None
            return Answer([agent.message(release)] if sends else [], metrics)
        if secure is None or release not in agent.made_after:
            raise StudyMismatchError.told(f"Release {release} cannot be summed now.")
        planned, slot = instruction.planned, instruction.slot
        reply = agent.identity.reply(
            agent.journal,
            secure,
            sum_request(instruction, arrays),
            lambda: secure.release.contribution(planned, slot, agent.message(release)),
        )
        return Answer([reply])


def _logged(
    objective: Objective, agent: Agent, num_iterations: int, level: int
) -> Objective:
    """Return the objective, which then logs each of its trials as it ends.

    Parameters
    ----------
    objective : callable
        Objective of the site.
    agent : Agent
        Agent of the trials.
    num_iterations : int
        T, the last iteration of the study.
    level : int
        Level of the log.
    """
    num_trials = agent.num_first + num_iterations

    def timed(trial: Trial) -> float:
        began = time.monotonic()
        returned = objective(trial)
        seconds = time.monotonic() - began
        with suppress(
            TypeError, ValueError, RuntimeError
        ):  # not a number: told elsewhere
            value = float(returned)
            better = max if agent.direction == "maximize" else min
            before = agent.best_value
            best = value if before is None else better(before, value)
            _log.log(
                level,
                "agent %d: trial %d of %d: %.6g in %.1f s, best so far %.6g",
                agent.slot,
                trial.number + 1,
                num_trials,
                value,
                seconds,
                best,
            )
        return returned

    return timed
