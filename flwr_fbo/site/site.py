"""A site: what answers a server's instructions, whatever kind of study it is.

One answer, from the instruction to the reply, and one way to hand it to Flower for each
of its two client APIs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

from flwr_fbo._common.errors import PublicError, log_fault
from flwr_fbo._common.validation import require, require_instance
from flwr_fbo._compat import (
    CLIENT_APP_RAISED,
    NumPyClient,
    add_first_mod,
    decoded,
    to_array_record,
)
from flwr_fbo.secure import SumRequest
from flwr_fbo.site.gate import Gate, sent
from flwr_fbo.site.limits import Limits, require_private
from flwr_fbo.site.node_config_limits import limiting, site_limits, tell
from flwr_fbo.site.receipts import CHARGES, HEAD
from flwr_fbo.site.recorded_agent import RecordedAgent
from flwr_fbo.site.site_journal import configured_folder
from flwr_fbo.site.size_limits import (
    check_arrays,
    check_config,
    check_numbers,
    check_steps,
    size_limits,
)
from flwr_fbo.site.time_limit import CheckTime, time_limit
from flwr_fbo.study.codec import (
    RECEIPT_ENTRY,
    Instruction,
    StudyMismatchError,
    SumInstruction,
    is_instruction,
)

Arrays = Sequence[NDArray[Any]]
Metrics = dict[str, int | float]
AskedT = TypeVar("AskedT", bound=Instruction)
AgentT = TypeVar("AgentT", bound=RecordedAgent)
ResultT = TypeVar("ResultT")


# Metrics that say nothing of a site's data: the server has set them, or chance has.
_PUBLIC_METRICS = {"agent-id", "journal", "num-releases", "num-evaluations"}
_PUBLIC_METRICS |= {CHARGES, HEAD}


@dataclass(frozen=True)
class Answer:
    """Answer to one instruction.

    Attributes
    ----------
    arrays : list of ndarray
        About the site.
    metrics : dict of str to number
        Numbers about the site, by name.
    passed_on : list of ndarray
        Arrays of other sites, as they were received: before the arrays.
    """

    arrays: list[NDArray[Any]] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)
    passed_on: list[NDArray[Any]] = field(default_factory=list)

    @property
    def about_site(self) -> bool:
        """True if anything in it may depend on the site's data."""
        return bool(self.arrays or self.metrics.keys() - _PUBLIC_METRICS)


def sum_request(instruction: SumInstruction, arrays: Arrays) -> SumRequest:
    """Return what a site is asked of a secure sum.

    Raises
    ------
    StudyMismatchError
        If not just one array, the payload, came along.
    """
    if len(arrays) != 1:
        text = f"Release {instruction.release} cannot be summed without a payload."
        raise StudyMismatchError.told(text)
    return SumRequest(
        about=instruction.study.text,
        release=instruction.release,
        slot=instruction.slot,
        attempt=instruction.attempt,
        exchange=instruction.exchange,
        payload=arrays[0],
    )


class Site(ABC, Generic[AskedT, AgentT]):
    """A client's side of a study.

    Attributes
    ----------
    limits : Limits, optional
        Limits on all studies at this site together, and on the cost of a message; those
        of the node config (``fbo-max-epsilon-per-client`` and its like) must hold too.
    instruction_type : type
        Class of the instructions that it carries out.
    """

    limits: Limits | None
    instruction_type: type[AskedT]

    def answer(
        self, context: Context, arrays: Arrays, config: Mapping[str, Any]
    ) -> Answer:
        """Carry out one instruction.

        What it raises is for the site; `reported` says what the server learns.

        Parameters
        ----------
        context : flwr.app.Context
            Context of the message.
        arrays : sequence of ndarray
            Arrays of the message.
        config : mapping
            Config of the message, as `Instruction.to_config` wrote it.

        Raises
        ------
        StudyMismatchError
            If the config is not of the site's kind of study.
        ValueError
            If the arrays are not, or a value of the node config is not allowed.
        ImportError
            If real noise is wanted and OpenDP is missing; the message names the extra.
        RefusedError
            If the study promises less, would release more, or costs more, than this
            site wants.
        OutOfTimeError
            If the trials took too long; a message that asks again goes on with them.
        JournalError
            If the journal cannot be used, or is not the one with this agent's releases.
        JournalHeldError
            If an earlier evaluation still runs.
        """
        folder = self.folder_of(context)
        gate = Gate(context, folder, self.limits)
        sizes = gate.sizes
        check_config(sizes, config, self.instruction_type.study_type)
        check_arrays(sizes, arrays)
        instruction = self._read(config)
        study, key = instruction.study, (instruction.kind, instruction.study.study_id)
        check_steps(sizes, study, arrays)
        unprotected = instruction.unprotected
        gate.check(study.promise, unprotected, self.uniform_share(study))
        if self.only_private:
            require_private(study.promise)
        self.check(context, study, gate)
        receipts = [config[RECEIPT_ENTRY]] if RECEIPT_ENTRY in config else []
        gate.hear(receipts, instruction.slot, *key)
        if instruction.phase == "enrol":
            gate.admit(key, study.promise, study.strategy)
            known = self.claim(context, study, folder, gate)
            claim = Answer(metrics={**known, **gate.mark(key)})
            gate.let_go(claim.about_site)
            return claim
        release = instruction.release_charged
        require(instruction.slot >= 0, "slot", instruction.slot, "an integer >= 0")
        with self.agent(context, instruction, folder, gate) as agent:
            trials = self.num_trials(agent, instruction)
            sizes.check_size("max_trials", trials, "trials of a message")
            if release is not None:
                gate.charge(key, study.promise, release, agent)
            if unprotected:
                gate.charge_unprotected(key, agent)
            assert sizes.max_seconds is not None
            check_time = time_limit(sizes.max_seconds)
            # Apart, so that a round that carries nothing of the site's data looks the
            # same whether its trials failed or not.
            asked = context, agent, instruction, arrays
            gate.of_data(partial(self.play, *asked, check_time))
            reply = gate.of_data(partial(self.reply, agent, instruction, arrays))
            answer = Answer() if reply is None else reply
            if release is not None or unprotected:
                answer = replace(answer, metrics=answer.metrics | gate.mark(key))
            gate.let_go(answer.about_site)
            return answer

    def _read(self, config: Mapping[str, Any]) -> AskedT:
        try:
            return self.instruction_type.from_config(config)
        except ValueError as error:  # it quotes what the server has sent itself
            raise StudyMismatchError.told(str(error)) from error

    @property
    def only_private(self) -> bool:
        """True if it takes part in private studies only, without limits too."""
        return False

    def check_limits(self) -> None:
        """Raise ValueError unless the limits are `Limits`, or None."""
        expected = "Limits, or None"
        require_instance("limits", self.limits, Limits, allowed=expected, optional=True)

    def folder_of(self, context: Context) -> Path | None:
        """Return where the site's journals are, if that is a folder."""
        return configured_folder(context)

    def uniform_share(self, study: Any) -> float:
        """Return the largest share of decisions that have no regard to rewards."""
        return 0.0

    def check(self, context: Context, study: Any, gate: Gate) -> None:
        """Raise unless the study is one that this client is made for."""

    @abstractmethod
    def claim(
        self, context: Context, study: Any, folder: Path | None, gate: Gate
    ) -> Metrics:
        """Return the slot that this client knows it holds, or -1, as ``agent-id``."""

    @abstractmethod
    def agent(
        self,
        context: Context,
        instruction: AskedT,
        folder: Path | None,
        gate: Gate,
    ) -> AbstractContextManager[AgentT]:
        """Hold the agent that the instruction is for."""

    @abstractmethod
    def num_trials(self, agent: AgentT, instruction: AskedT) -> int:
        """Return how many trials are to be played for the instruction."""

    @abstractmethod
    def play(
        self,
        context: Context,
        agent: AgentT,
        instruction: AskedT,
        arrays: Arrays,
        check_time: CheckTime,
    ) -> None:
        """Take what came along, and play what is asked for while there is time."""

    @abstractmethod
    def reply(self, agent: AgentT, instruction: AskedT, arrays: Arrays) -> Answer:
        """Return what goes back, once the agent has played."""


class SiteError(RuntimeError):
    """Error at a site, as the server learns it.

    That is the error's type, and what is public of its text (`PublicError`).
    """


def reported(work: Callable[[], ResultT]) -> ResultT:
    """Do a piece of work for a server; log its errors here, and report them there.

    An error that repeats in this process is counted, see `log_fault`. Flower sends an
    exception's type and text to the server.

    Raises
    ------
    SiteError
        If it raised.
    """
    try:
        return work()
    except Exception as error:
        log_fault(error, "This site could not answer its server")
        text = type(error).__name__
        if isinstance(error, PublicError) and error.public:
            text += f": {error.public}"
        text = f"{text.removesuffix('.')} (the site's log has the details)."
        report = SiteError(text)
    # Not while the error is handled: it would be the report's context.
    raise report


def replying_with_errors(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Reply with what a server learns of an error, which `reported` has logged.

    A mod. Flower would log it once more, with a traceback, and end the process as
    failed.
    """
    try:
        return call_next(message, context)
    except SiteError as error:
        reason = f"{type(error).__name__}: {error}"
        return sent(message, Error(CLIENT_APP_RAISED, reason))


class SiteClient(NumPyClient):
    """A `NumPyClient` that hands every instruction to a site.

    Parameters
    ----------
    site : Site
        Site that carries out the instructions.
    context : flwr.app.Context
        Context of the message, as ``client_fn`` gets it.
    """

    def __init__(self, site: Site[Any, Any], context: Context) -> None:
        self._site, self._context = site, context
        tell(site.limits)

    def fit(
        self, parameters: list[np.ndarray[Any, Any]], config: dict[str, Any]
    ) -> tuple[list[np.ndarray[Any, Any]], int, dict[str, Any]]:
        """Carry out one instruction of a flwr_fbo strategy.

        Returns
        -------
        tuple of list of ndarray, int and dict
            The arrays of the answer; 1, whatever the size of the site's data, which is
            private; metrics that were asked for.
        """
        answer = reported(lambda: self._site.answer(self._context, parameters, config))
        return [*answer.passed_on, *answer.arrays], 1, dict(answer.metrics)


def add_site(app: ClientApp, site: Site[Any, Any], action: str = "default") -> None:
    """Have a Message-API app answer instructions by a site.

    The site's limits hold for all that the app answers, as a tuner's messages.

    Parameters
    ----------
    app : ClientApp
        Message-API app; its ``train`` without an action is left alone.
    site : Site
        Site that carries out the instructions.
    action : str
        Action of the app's ``train`` messages.
    """
    if site.limits is not None:
        add_first_mod(app, limiting(site.limits))
    add_first_mod(app, replying_with_errors)

    @app.train(action)
    def train(message: Message, context: Context) -> Message:
        content = reported(lambda: _content(site, context, message.content))
        return sent(message, content)


def _content(site: Site[Any, Any], context: Context, asked: RecordDict) -> RecordDict:
    """Return the content of the answer to a message of the Message API."""
    config: Mapping[str, Any] = asked.config_records.get("config") or {}
    if not is_instruction(config):
        raise StudyMismatchError.told(
            "This message is not written for this app by the Message API: it is of "
            'another strategy, or needs client_api="both" or "message" ("action" '
            "for add_tuning)."
        )
    record = asked.array_records["arrays"]
    # Before any of them is decoded: a header may name a size that fills the memory.
    sizes = size_limits(site_limits(context, site.limits))
    check_numbers(sizes, [len(array.data) / 8 for array in record.values()])
    arrays = [decoded(array) for array in record.values()]
    answer = site.answer(context, arrays, config)
    content = RecordDict()
    content["arrays"] = to_array_record([*answer.passed_on, *answer.arrays])
    content["metrics"] = MetricRecord({**answer.metrics})
    return content


def site_app(site: Site[Any, Any]) -> ClientApp:
    """Return an app that answers all its messages by a site."""
    app = ClientApp()
    add_site(app, site)
    return app
