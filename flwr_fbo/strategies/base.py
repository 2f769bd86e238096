"""The Flower side of every method: rounds, replies, and a record that outlives them.

Round r of Flower is iteration t = r - 1 of the server half.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import Strategy

from flwr_fbo._compat import (
    ClientApi,
    check_client_api,
    instruction_content,
    message_type,
    reply_arrays,
    to_array_record,
)
from flwr_fbo._validation import (
    is_number,
    require,
    require_bool,
    require_int,
    require_positive,
)
from flwr_fbo.servers.base import Server
from flwr_fbo.strategies.enrolment import AnyStudy, Enrolment, first_line
from flwr_fbo.strategies.result import Round, StudyResult
from flwr_fbo.strategies.study_record import Progress, StudyRecord, check_folder

_log = logging.getLogger("flwr.fbo")


ResultT = TypeVar("ResultT", bound=StudyResult)


class StudyStrategy(Strategy, Generic[ResultT]):
    """Runs one server half over Flower's Message API.

    Parameters
    ----------
    server : Server
    study : Study or LinearBanditStudy
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
        study: AnyStudy,
        *,
        min_agents: int | None = None,
        patience: float = 300.0,
        client_api: ClientApi = "both",
        authenticated: bool = False,
        max_empty_rounds: int = 1,
        folder: str | Path | None = None,
    ) -> None:
        num_agents = server.num_agents
        if min_agents is None:
            min_agents = num_agents
        require_int("min_agents", min_agents, 1)
        allowed = f"at most num_agents={num_agents}"
        require(min_agents <= num_agents, "min_agents", min_agents, allowed)
        ok = is_number(patience) and patience >= 0
        require(ok, "patience", patience, "a number of seconds >= 0")
        check_client_api(client_api)
        self.server = server
        self.study = study
        self._client_api: ClientApi = client_api
        require_bool("authenticated", authenticated)
        require_int("max_empty_rounds", max_empty_rounds, 1)
        self._enrolment = Enrolment(
            num_agents, study, patience, client_api, authenticated
        )
        self._patience = patience
        self._max_empty_rounds = max_empty_rounds
        self._min_agents = min_agents
        self._folder = check_folder(folder)
        self._record = StudyRecord(None, {})
        self._started = False
        self._running = False
        self._timeout = 3600.0
        self._asked: list[Message] = []
        self._rounds: list[Round] = []
        self._resumed_after = 0
        self._up_to_date: set[int] = set()  # nodes that have the last release

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
        TooFewAgents
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
            arrays = _to_record(self.server.vectors) or ArrayRecord()
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

    @abstractmethod
    def instruction(self, slot: int, iteration: int, wanted: bool) -> Mapping[str, Any]:
        """Return what the agent of ``slot`` is asked, as entries of a config.

        ``wanted`` is whether the server half wants messages after ``iteration``.
        """

    def _synchronises(self, iteration: int) -> bool:
        """Return whether agents are asked for a release after an iteration."""
        return self.server.wants_messages(iteration)

    def _has_asked(self) -> bool:
        """Return whether agents have been asked for a release, arrived or not."""
        return any(self._synchronises(one.server_round - 1) for one in self._rounds)

    def _before_round(self, server_round: int) -> None:
        """Say, refuse or put off what the server half has decided about a round.

        Before it is seen who is there, which may change while it waits.
        """

    def _after_round(self, server_round: int) -> None:
        """Take note of a round, before it is committed."""

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

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Enrol nodes that are new, and ask every agent for what comes next.

        ``arrays`` is what `aggregate_train` returned, which the server half holds too.
        It is sent to an agent until that has answered; then the agent keeps it.

        Raises
        ------
        ValueError
            If it is not `start` of this strategy that asks: a strategy around it, such
            as Flower's ``DifferentialPrivacy...``, leaves out what fixes the noise and
            counts epsilon.
        """
        if not self._running:
            raise ValueError(
                f"{type(self).__name__} has to be started itself: no other strategy, "
                "such as Flower's DifferentialPrivacy wrappers, can be around it. It "
                "needs none: its noise and its epsilon are settings of its own."
            )
        self._before_round(server_round + self._resumed_after)
        # Once the study has begun, who is absent counts as zero; after a restart the
        # nodes still need time to come back.
        wanted = self._min_agents if server_round == 1 else 1
        needed = 1 if self._resumed_after else wanted
        slots = self._enrolment.update(grid, wanted, needed, self._timeout)
        # Before the first broadcast, and whenever an agent was given a slot.
        if not self._record.has(self._enrolment.slots, self._enrolment.journals):
            self._commit()
        server_round += self._resumed_after
        outgoing = self._outgoing(slots)
        message_wanted = self.server.wants_messages(server_round - 1)
        self._asked = []
        for node, slot in slots.items():
            entries = self.instruction(slot, server_round - 1, message_wanted)
            config_record = ConfigRecord(
                {**config, "server-round": server_round, **entries}
            )
            arrays = outgoing[node]
            content = instruction_content(arrays, config_record, self._client_api)
            kind = message_type(self._client_api)
            message = Message(content, node, kind, group_id=str(server_round))
            self._asked.append(message)
        return self._asked

    def _outgoing(self, slots: Mapping[int, int]) -> dict[int, ArrayRecord]:
        """Return the arrays for each node: the vectors, where it has not got them."""
        full, empty = _to_record(self.server.vectors) or ArrayRecord(), ArrayRecord()
        return {node: empty if node in self._up_to_date else full for node in slots}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Hand the agents' messages to the server half; return its vectors.

        Missing, failed and unreadable replies count as zero contributions. What is
        returned has been committed: no other vectors can leave for this round.
        """
        server_round += self._resumed_after
        answers = self._answers(server_round, replies)
        wanted = self.server.wants_messages(server_round - 1)
        messages = {
            slot: self._read(slot, reply, wanted) for slot, reply in answers.items()
        }
        before = len(self.server.ledger)
        try:
            if answers:  # who answers is public: nobody's silence is worth a release
                self.server.receive(server_round - 1, messages)
            self._after_round(server_round)
            self._commit()
        except BaseException:
            # What is not on disk must not be seen: a new run would draw it again.
            self.server.resume(self.server.ledger[:before])
            raise
        if len(self.server.ledger) > before:
            self._up_to_date.clear()
        return _to_record(self.server.vectors), self._reported(answers)

    def _read(self, slot: int, reply: Message, wanted: bool) -> Any:
        """Return what the server half takes of a reply."""
        return _message(slot, reply, wanted)

    def _answers(
        self, server_round: int, replies: Iterable[Message]
    ) -> dict[int, Message]:
        """Return the first good reply of each slot, in slot order; log the others."""
        waiting = {m.metadata.message_id: m.metadata.dst_node_id for m in self._asked}
        answers: dict[int, Message] = {}
        failures = []
        for reply in replies:
            # An error's source node id may be wrong; what it replies to is not.
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                _log.warning("Ignored a reply that nobody asked for, or a second one.")
                continue
            slot = self._enrolment.slots[node]
            if reply.has_error():
                failures.append(f"agent {slot}: {first_line(reply.error.reason)}")
            else:
                answers[slot] = reply
                self._up_to_date.add(node)
        self._note(server_round, answers, failures, waiting.values())
        return dict(sorted(answers.items()))

    def _note(
        self,
        server_round: int,
        answers: Collection[int],
        failures: list[str],
        missing: Collection[int],
    ) -> None:
        """Log how a round went, and end the run if nobody is there any more."""
        counts = len(answers), len(failures), len(missing)
        self._rounds.append(Round(server_round, *counts))
        _log.info("aggregate_train: %d results, %d failures, %d missing", *counts)
        slots = sorted(self._enrolment.slots[node] for node in missing)
        silent = [f"agent {slot}: no reply in time" for slot in slots]
        for line in sorted(failures) + silent:
            _log.warning("\t> %s", line)
        first = max(self._resumed_after, len(self._rounds) - self._max_empty_rounds)
        last = self._rounds[first:]
        empty = len(last) == self._max_empty_rounds and not any(r.results for r in last)
        if empty:
            first_of_all = min(failures, default="").removesuffix(".")
            failure = f" First failure: {first_of_all}." if failures else ""
            rounds = f" (after {len(last)} such rounds)" if len(last) > 1 else ""
            raise AggregationError(
                f"Round {server_round}: none of {sum(counts)} agents gave a result "
                f"({counts[1]} failures, {counts[2]} missing){rounds}.{failure}"
            )

    def _reported(self, answers: Mapping[int, Message]) -> MetricRecord | None:
        """Return what Flower logs of the agents' answers, by slot."""
        return None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: there is no model to evaluate."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing."""
        return None


def _to_record(vectors: np.ndarray[Any, Any] | None) -> ArrayRecord | None:
    return None if vectors is None else to_array_record([vectors])


def _message(slot: int, reply: Message, wanted: bool) -> np.ndarray[Any, Any] | None:
    """Return the one array of a reply, or None if there is not exactly one.

    One that is good for nothing is named in the log; no honest client sends it.
    """
    try:
        arrays = reply_arrays(reply.content)
        reason = "" if all(np.isfinite(a).all() for a in arrays) else "NaN or infinite"
        if wanted and len(arrays) != 1:
            reason = f"{len(arrays)} arrays in place of one"
    except Exception as error:  # bytes of a stranger can fail in any way
        arrays = []
        reason = type(error).__name__  # its text may quote them
    if reason:
        _log.warning("\t> agent %d: its message counts as zero: %s", slot, reason)
    return arrays[0] if len(arrays) == 1 else None
