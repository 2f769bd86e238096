"""Trials that share sends: one message a node, with what several trials ask of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo._compat import CLIENT_APP_RAISED
from flwr_fbo.privacy.spending import UNPROTECTED
from flwr_fbo.tuner.envelope import (
    BALLOT,
    HEADER,
    SUM,
    BallotHeader,
    ReplyHeader,
    SumHeader,
    TrialsHeader,
    header_record,
    pack,
    read_header,
    unpack,
)
from flwr_fbo.tuner.hidden_metrics import MetricError
from flwr_fbo.tuner.site_ledgers import SiteLedgers
from flwr_fbo.tuner.trial_thread import TrialThread, for_others

_log = logging.getLogger("flwr.fbo")

_HINT = (
    "Is tuner_mod the first mod of the ClientApp, as in ClientApp(mods=[tuner_mod])?"
)

_EVALUATE = MessageType.EVALUATE

# Of the models of all trials that share a send: those that come back from all nodes,
# and those that one node evaluates. Sharing saves what each send costs whatever its
# size, which hardly counts where more is sent.
_MOST_BYTES, _MOST_BYTES_A_NODE = 100e6, 50e6

# A trial's number, and the message of it that is at a place in a node's message.
_Places = list[tuple[int, Message]]


class Voters:
    """Who gives a ballot where more nodes come than expected, and under which slot.

    Of the connected nodes, those N give a ballot that were seen first. So they are the
    same in all rungs, while they stay connected, and a release is over N ballots at
    most. A SuperNode that comes back with another node id takes a place that is free.

    In secure sums each has a slot, from its first sum to the end. A slot that a node
    has by its own configuration, or by its key, is its own. Other nodes get the lowest
    free one. A slot changes hands only if the node that had it is gone, and another
    one says that the slot is its own: a SuperNode that has come back. Under two slots a
    client could be summed twice.

    Parameters
    ----------
    num_agents : int
        N >= 1; the slots are 0 to N - 1.

    Attributes
    ----------
    slots : dict of int to int
        The node of each slot that is taken.
    """

    def __init__(self, num_agents: int) -> None:
        self._num_agents = num_agents
        self.slots: dict[int, int] = {}
        # In the order in which they came.
        self._seen: list[int] = []
        # Which slot nodes have said they have: -1 if they do not know.
        self._said: dict[int, int] = {}
        # Nodes without a ballot that the log has already.
        self._named: set[int] = set()

    def among(self, connected: Iterable[int]) -> list[int]:
        """Note who is connected; return those of them that give a ballot, sorted."""
        nodes = set(connected)
        self._seen += sorted(nodes - set(self._seen))
        in_order = [node for node in self._seen if node in nodes]
        voters, others = in_order[: self._num_agents], in_order[self._num_agents :]
        self._warn(
            others,
            "num_agents=%(num_agents)d nodes were there before nodes %(nodes)s, which "
            "are trained with, but are not asked for ballots.",
        )
        return sorted(voters)

    def hear(self, node: int, slot: int) -> None:
        """Note which slot a node says that it has."""
        self._said[node] = slot

    def assign_slots(self, connected: Iterable[int]) -> None:
        """Give slots to the nodes that give a ballot, where they answered before."""
        voters = self.among(connected)
        heard = [node for node in voters if node in self._said]
        for node in heard:
            slot = self._said[node]
            is_new = node not in self.slots.values()
            is_free = self.slots.get(slot) not in voters
            if 0 <= slot < self._num_agents and is_new and is_free:
                self.slots[slot] = node
        taken = set(self.slots) | set(self._said.values())
        free = (slot for slot in range(self._num_agents) if slot not in taken)
        for node in heard:
            if self._said[node] == -1 and node not in self.slots.values():
                slot = next(free, -1)
                if slot != -1:
                    self.slots[slot] = node
        self._warn(
            set(heard) - set(self.slots.values()),
            "Nodes %(nodes)s are not asked for ballots: their slot is another node's, "
            "or not below num_agents=%(num_agents)d.",
        )

    def _warn(self, nodes: Iterable[int], line: str) -> None:
        if unnamed := sorted(set(nodes) - self._named):
            about = {"nodes": unnamed, "num_agents": self._num_agents}
            _log.warning(line, about)
        self._named |= set(nodes)


class SharedSends:
    """Sends what trials ask, several in one message, and hands out the replies.

    Parameters
    ----------
    grid : Grid
    header_of : callable
        From the trials of a message to its header.
    parallel : int
        Trials that share a send, >= 1.
    num_agents : int
        Nodes, >= 1, that are asked for a ballot at most.
    ledgers : SiteLedgers
        What is known of the ledgers of sites.
    asks_all : bool
        Whether all that give a ballot evaluate a trial at the end of a rung, though its
        `main` may ask only some.
    skips : bool
        Whether nobody evaluates a trial before the end of a rung.
    hear_state : callable
        Called when the app of a client is first heard to keep a state in a trial.

    Attributes
    ----------
    read : set of str
        The tuned keys that clients have read.
    num_sends : int
        So far, ballots included.
    has_score : bool
        Whether any trial could be scored so far.
    voters : Voters
        The nodes that give ballots, and their slots in secure sums.
    """

    def __init__(
        self,
        grid: Grid,
        header_of: Callable[[list[int]], TrialsHeader],
        *,
        parallel: int,
        num_agents: int,
        ledgers: SiteLedgers,
        asks_all: bool,
        skips: bool,
        hear_state: Callable[[], None],
    ) -> None:
        self._hear_state = hear_state
        self._has_state = False
        self._ledgers = ledgers
        self._connected: set[int] = set()  # as the last message was sent
        self._skips = skips
        self._asks_all = asks_all
        self.read: set[str] = set()
        self.num_sends = 0
        self._grid = grid
        self._header_of = header_of
        self._parallel = parallel
        self.voters = Voters(num_agents)
        self._timeout: float | None = None
        # What every app that has scores has a function for.
        self._evaluate_type: str = _EVALUATE
        # Of the rung: which types clients were asked for, and for which they answered.
        self._asked: set[str] = set()
        self._answered: set[str] = set()
        # Whether any client has ever given a score, and the trials for which replies
        # came without one that can be used.
        self.has_score = False
        self._without_metric: set[int] = set()
        self._last_errors: dict[str, str] = {}

    def advance(
        self,
        trials: Sequence[TrialThread],
        rounds: int,
        after_send: Callable[[Sequence[TrialThread]], None],
    ) -> None:
        """Run trials until each was scored after so many rounds, or has ended.

        ``after_send`` is called after each send, with the trials that have shared it.

        Raises
        ------
        AggregationError
            If already two trials were evaluated, and no reply has the metric as a
            number.
        ValueError
            If the trials that came first have nothing to be compared by.
        """
        for trial in trials:
            trial.begin()
            self._skip(trial, rounds)
        while waiting := [t for t in trials if not t.has_reached(rounds)]:
            shared = next_trials(waiting, self._parallel, not self.has_score)
            for trial in trials:
                trial.prepare() if trial in shared else trial.put_away()
            self._share(shared, rounds)
            for trial in shared:
                self._skip(trial, rounds)
            after_send(shared)
            self.has_score |= any(math.isfinite(t.server_score) for t in shared)
            done = [t for t in shared if t.has_reached(rounds)]
            if not self.has_score and len(done) == len(shared):
                for trial in done:
                    # Clients may yet be able to evaluate another one.
                    is_known = trial.error is not None or trial.last_error
                    if not is_known and trial.failure is not None:
                        raise trial.failure

    def _skip(self, trial: TrialThread, rounds: int) -> None:
        """Leave evaluations out that come before the end of a rung."""
        while self._skips and trial.waits_for_evaluate and trial.num_train < rounds:
            trial.skip()

    def begin_rung(self) -> None:
        """Forget which clients could do what was asked of them."""
        self._asked, self._answered = set(), set()

    def check_answers(self) -> None:
        """Raise `AggregationError` if no client could train, or none evaluate."""
        # Training first: evaluation fails where an app has not been trained.
        for kind in sorted(self._asked - self._answered, reverse=True):
            raise AggregationError(f"No client could {kind}: {self._error_of(kind)}.")

    def ballots(self, header: BallotHeader) -> dict[int, Any]:
        """Return the ballots by slot, of N nodes at most, in the order of their ids.

        Raises
        ------
        AggregationError
            If less than half of the nodes that are asked do.
        """
        self._connected = set(self._grid.get_node_ids())
        voters = self.voters.among(self._connected)
        nodes = [node for node in voters if self._ledgers.may_vote(node)]
        record = header_record(header)
        kind = self._evaluate_type
        messages = []
        for node in nodes:
            content = self._ledgers.add_receipts(RecordDict({HEADER: record}), node)
            messages.append(Message(content, node, kind))
        ballots = [
            _array_in(reply.content, BALLOT, "ballot")
            for node, reply in self._send(messages).items()
            if not reply.has_error() and self._hear(node, _reply_header(reply), header)
        ]
        if 2 * len(ballots) < len(nodes) or not nodes:
            raise AggregationError(
                f"{len(ballots)} of {len(nodes)} nodes gave a ballot, and at least "
                f"half are needed: {self._error_of(kind)}."
            )
        return dict(enumerate(ballots))

    def assign_slots(self) -> None:
        """Give slots in secure sums to the nodes that are connected, of N at most."""
        self.voters.assign_slots(self._grid.get_node_ids())

    def exchange(self, asked: Mapping[int, tuple[SumHeader, Any]]) -> dict[int, Any]:
        """Return the replies to one exchange of a secure sum, by slot.

        Parameters
        ----------
        asked : mapping of int to tuple
            Header and request by slot; slots without a node are left out.

        Raises
        ------
        AggregationError
            If all nodes refuse.
        """
        self._connected, nodes = set(self._grid.get_node_ids()), self.voters.slots
        kind = self._evaluate_type
        messages = []
        for slot, (header, request) in asked.items():
            if nodes.get(slot) in self._connected:
                record = ArrayRecord({"request": Array(request)})
                content = RecordDict({HEADER: header_record(header), SUM: record})
                self._ledgers.add_receipts(content, nodes[slot])
                messages.append(Message(content, nodes[slot], kind))
        answered = self._send(messages) if messages else {}
        for slot, (header, _) in asked.items():
            reply = answered.get(nodes.get(slot, -1))
            if reply is not None and not reply.has_error():
                said = _reply_header(reply)
                self._hear(nodes[slot], said, header.ballot)
        return {
            slot: _array_in(answered[node].content, SUM, "reply")
            for slot, node in nodes.items()
            if node in answered and not answered[node].has_error()
        }

    def _hear(
        self,
        node: int,
        said: ReplyHeader | None,
        header: TrialsHeader | BallotHeader,
    ) -> bool:
        """Note what a node says of its ledger; return whether its answer counts."""
        if isinstance(header, BallotHeader):
            releases = [header.release]
        else:
            releases = [] if header.is_hidden else [UNPROTECTED]
        if said is None:
            return True
        return self._ledgers.hear(
            node, said, header.attempt, header.promise, releases, self._connected
        )

    def _error_of(self, kind: str) -> str:
        return self._last_errors.get(kind, "no client has answered").removesuffix(".")

    def _share(self, trials: Sequence[TrialThread], rounds: int) -> None:
        """Send what trials wait for, and let them go on with the replies."""
        self._connected = set(self._grid.get_node_ids())
        voters = self.voters.among(self._connected)
        by_node: dict[int, _Places] = {}
        for trial in trials:
            self._asked.add(trial.pending_type)
            messages = list(trial.pending)
            if trial.waits_for_evaluate:
                self._evaluate_type = trial.pending_type
                is_first = not trial.goes_on
                if trial.num_train >= rounds and self._asks_all and is_first:
                    messages += for_others(messages, voters)
            for message in messages:
                node = message.metadata.dst_node_id
                by_node.setdefault(node, []).append((trial.number, message))
        timeouts = [t.timeout for t in trials if t.timeout is not None]
        # A trial that waits as long as it takes must not be cut off by another.
        self._timeout = max(timeouts) if len(timeouts) == len(trials) else None
        messages = [self._message(places) for places in by_node.values()]
        replies: dict[int, list[Message]] = {trial.number: [] for trial in trials}
        answered = self._send(messages)
        headers = {node: _reply_header(reply) for node, reply in answered.items()}
        bare = [
            node
            for node, reply in answered.items()
            if reply.has_content() and headers[node] is None
        ]
        if bare and len(bare) == len(answered):
            raise AggregationError(_without_mod(bare[0]))
        for node, reply in answered.items():
            for number, one in self._taken_apart(reply, headers[node], by_node[node]):
                replies[number].append(one)
        if self._asks_all and trials[0].waits_for_evaluate:
            self._check_scores(replies)
        # From here on a trial's models are its own: each is gone once it is used.
        del answered, messages, by_node
        for trial in trials:
            asked = {message.metadata.dst_node_id for message in trial.pending}
            found = replies.pop(trial.number)
            if self._asks_all and trial.waits_for_evaluate:
                errors = [m.error.reason for m in found if m.has_error()]
                has_failed = 0 < len(found) == len(errors)
                trial.last_error = str(errors[-1]) if has_failed else ""
            trial.answer([m for m in found if m.metadata.src_node_id in asked])
            trial.put_away()  # the others have their models to use yet

    def _check_scores(self, replies: Mapping[int, list[Message]]) -> None:
        """Raise `AggregationError` if two trials have replies, but no usable metric.

        One trial is not enough: an app may leave a metric out that it cannot compute.
        """
        for number, answers in replies.items():
            self.has_score |= any(reply.has_content() for reply in answers)
            failed = [reply.error for reply in answers if reply.has_error()]
            kind = MetricError.__name__
            if any(str(error.reason).startswith(kind) for error in failed):
                self._without_metric.add(number)
        if not self.has_score and len(self._without_metric) > 1:
            metric = " + ".join(self._header_of([]).metric)
            raise AggregationError(
                f"metric={metric!r}: no client has such a score: "
                f"{self._error_of(self._evaluate_type)}."
            )

    def _message(self, places: _Places) -> Message:
        """Return one message of several to one node."""
        header = self._header_of([number for number, _ in places])
        contents = {place: m.content for place, (_, m) in enumerate(places)}
        _, first = places[0]
        ttl = max(message.metadata.ttl for _, message in places)
        node, kind = first.metadata.dst_node_id, first.metadata.message_type
        content = self._ledgers.add_receipts(pack(header, contents), node)
        return Message(content, node, kind, ttl=ttl)

    def _send(self, messages: list[Message]) -> dict[int, Message]:
        """Return the reply of each node that gives one, in the order of nodes."""
        self.num_sends += 1
        replies = list(self._grid.send_and_receive(messages, timeout=self._timeout))
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        by_node: dict[int, Message] = {}
        for reply in replies:
            # An error's source node id may be wrong; what it replies to is not.
            node = asked.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                by_node[node] = reply
        errors = [str(r.error.reason) for r in by_node.values() if r.has_error()]
        if errors:
            last_line = errors[-1].strip().splitlines()[-1:]
            kind = messages[0].metadata.message_type
            self._last_errors[kind] = f"{''.join(last_line)}. {_HINT}"
        if errors and len(errors) == len(messages):
            error = self._error_of(messages[0].metadata.message_type)
            raise AggregationError(f"All clients have failed: {error}")
        return dict(sorted(by_node.items()))

    def _taken_apart(
        self, reply: Message, header: ReplyHeader | None, places: _Places
    ) -> list[tuple[int, Message]]:
        """Return the trials' replies in a reply, each an answer to its own message."""
        first = places[0][1].metadata
        node, kind = first.dst_node_id, first.message_type
        if reply.has_error():
            return [(n, Message(reply.error, reply_to=m)) for n, m in places]
        if header is None:
            reasons = dict.fromkeys(map(str, range(len(places))), _without_mod(node))
            contents: dict[int, RecordDict] = {}
        else:
            self.read |= set(header.read)
            self.voters.hear(node, header.slot)
            if header.keeps_state and not self._has_state:
                self._has_state = True
                self._hear_state()
            asked = self._header_of([])
            self._hear(node, header, asked)
            reasons = header.errors
            contents = unpack(reply.content, range(len(places)))
        replies = []
        for place, (number, message) in enumerate(places):
            reason = reasons.get(str(place))
            if reason is None:
                self._answered.add(kind)
                replies.append((number, Message(contents[place], reply_to=message)))
            else:
                self._last_errors[kind] = reason
                error = Error(CLIENT_APP_RAISED, reason)
                replies.append((number, Message(error, reply_to=message)))
        return replies


def next_trials(
    waiting: Sequence[TrialThread], parallel: int, score_first: bool = False
) -> list[TrialThread]:
    """Return the trials that share the next send: all of one message type.

    Where most wait, and evaluations before training, as a trial keeps the replies to
    training until then; among them those that have come least far, so that none is left
    to run alone at the end. At most ``parallel``, and fewer where the models are large
    that come back from all nodes, or that one node evaluates. With ``score_first``
    those that wait for an evaluation, or have come furthest without one: they show
    whether there are scores at all, before all trials are trained.
    """
    by_type: dict[str, list[TrialThread]] = {}
    for trial in waiting:
        if trial.pending:
            by_type.setdefault(trial.pending_type, []).append(trial)

    def progress(trial: TrialThread) -> tuple[int, ...]:
        if score_first:
            return trial.num_scores, -trial.num_sends, trial.number
        return trial.num_sends, trial.number

    if score_first:
        evaluations = {k: v for k, v in by_type.items() if k.startswith(_EVALUATE)}
        by_type = evaluations or by_type
    groups = [sorted(group, key=progress)[:parallel] for group in by_type.values()]
    groups = [_small(group) for group in groups]
    return min(
        groups,
        key=lambda group: (-len(group), not _is_evaluation(group), progress(group[0])),
    )


def _is_evaluation(trials: Sequence[TrialThread]) -> bool:
    return trials[0].waits_for_evaluate


def _small(trials: Sequence[TrialThread]) -> list[TrialThread]:
    """Return the first of some trials, whose models are small together.

    Trials that share the nodes out come along whatever their size: together they are no
    more than one trial that all nodes train.
    """
    is_evaluation = _is_evaluation(trials)
    most = _MOST_BYTES_A_NODE if is_evaluation else _MOST_BYTES
    found, nodes, total = list[TrialThread](), set[int](), 0.0
    for trial in trials:
        own = {message.metadata.dst_node_id for message in trial.pending}
        total += trial.num_bytes / (len(own) if is_evaluation else 1)
        if found and total > most and own & nodes:
            break
        found.append(trial)
        nodes |= own
    return found


def _without_mod(node: int) -> str:
    return f"Node {node} has answered without tuner_mod. {_HINT}"


def _reply_header(reply: Message) -> ReplyHeader | None:
    """Return the header of a client's reply; None where there is none to be read."""
    try:
        header = read_header(reply.content)
    except Exception:  # of many kinds: a client may send anything
        return None
    return header if isinstance(header, ReplyHeader) else None


def _array_in(
    content: RecordDict, record_name: str, name: str
) -> np.ndarray[Any, Any] | None:
    """Return an array that a client sent, whatever it is; None where there is none."""
    record = content.get(record_name)
    if not isinstance(record, ArrayRecord) or name not in record:
        return None
    try:
        return record[name].numpy()
    except Exception:  # of many kinds: a client may send anything
        return None
