"""The rounds of a study: whom to ask what, and what to make of the replies.

Round r of Flower is iteration t = r - 1 of the server half.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any

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
from flwr_fbo._validation import is_number, require, require_bool, require_int
from flwr_fbo.protocol.codec import Study
from flwr_fbo.servers.base import Server
from flwr_fbo.strategies.enrolment import Enrolment, first_line
from flwr_fbo.strategies.result import Round

_log = logging.getLogger("flwr.fbo")


class StudyRounds(Strategy):
    """Base of `StudyStrategy`: one round after another, of a study that has begun."""

    def __init__(
        self,
        server: Server,
        study: Study,
        min_agents: int | None,
        patience: float,
        client_api: ClientApi,
        authenticated: bool,
        max_empty_rounds: int,
    ) -> None:
        """Check and keep the arguments, which are those of `StudyStrategy`."""
        num_agents = server.num_agents
        if min_agents is None:
            min_agents = num_agents
        require_int("min_agents", min_agents, 1)
        allowed = f"at most num_agents={num_agents}"
        require(min_agents <= num_agents, "min_agents", min_agents, allowed)
        ok = is_number(patience) and patience >= 0
        require(ok, "patience", patience, "a number of seconds >= 0")
        check_client_api(client_api)
        require_bool("authenticated", authenticated)
        require_int("max_empty_rounds", max_empty_rounds, 1)
        self.server = server
        self.study = study
        self._client_api: ClientApi = client_api
        self._enrolment = Enrolment(
            num_agents, study, patience, client_api, authenticated
        )
        self._max_empty_rounds = max_empty_rounds
        self._min_agents = min_agents
        self._running = False
        self._timeout = 3600.0
        self._asked: list[Message] = []
        self._rounds: list[Round] = []
        self._resumed_after = 0
        self._up_to_date: set[int] = set()  # nodes that have the last release

    @abstractmethod
    def _commit(self) -> None:
        """Put all that a new run would need on disk."""

    @abstractmethod
    def _commit_enrolment(self) -> None:
        """Put it there if an agent was given a slot."""

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
        self._commit_enrolment()
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

    def _before_round(self, server_round: int) -> None:
        """Say, refuse or put off what the server half has decided about a round.

        Before it is seen who is there, which may change while it waits.
        """

    @abstractmethod
    def instruction(self, slot: int, iteration: int, wanted: bool) -> Mapping[str, Any]:
        """Return what the agent of ``slot`` is asked, as entries of a config.

        ``wanted`` is whether the server half wants messages after ``iteration``.
        """

    def _outgoing(self, slots: Mapping[int, int]) -> dict[int, ArrayRecord]:
        """Return the arrays for each node: the vectors, where it has not got them."""
        full = vectors_record(self.server.vectors) or ArrayRecord()
        empty = ArrayRecord()
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
        return vectors_record(self.server.vectors), self._reported(answers)

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

    def _read(self, slot: int, reply: Message, wanted: bool) -> Any:
        """Return what the server half takes of a reply."""
        return _one_array(slot, reply, wanted)

    def _after_round(self, server_round: int) -> None:
        """Take note of a round, before it is committed."""

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


def vectors_record(vectors: np.ndarray[Any, Any] | None) -> ArrayRecord | None:
    """Return what the server half has released, as Flower sends it."""
    return None if vectors is None else to_array_record([vectors])


def _one_array(slot: int, reply: Message, wanted: bool) -> np.ndarray[Any, Any] | None:
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
