"""The clients of a tuner: what they are asked, what they answer, and who votes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from flwr_fbo.privacy.spending_ledger import UNPROTECTED
from flwr_fbo.tuner.choosers.voters import Voters
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    SUM,
    BallotHeader,
    ReplyHeader,
    SumHeader,
    TrialsHeader,
    header_record,
    read_header,
)
from flwr_fbo.tuner.records.site_ledgers import SiteLedgers

HINT = "Is tuner_mod the first mod of the ClientApp, as in ClientApp(mods=[tuner_mod])?"


class TunerClients:
    """Sends messages to the clients, with receipts; collects ballots and sums of them.

    Parameters
    ----------
    grid : Grid
        The Grid of the ServerApp.
    num_agents : int
        Number of nodes, >= 1, that are asked for a ballot at most.
    ledgers : SiteLedgers
        What is known of the ledgers of sites.

    Attributes
    ----------
    voters : Voters
        The nodes that give ballots, and their slots in secure sums.
    num_sends : int
        Number of sends so far, ballots included.
    timeout : float or None
        Seconds to wait for replies. A ballot is waited for as long as the last trials.
    evaluate_type : str
        Message type of ballots: one for which every app with scores has a function.
    num_examples : dict of int to int
        Examples with which the clients of the last comparison count, by slot, where one
        is protected: as each says.
    last_errors : dict of str to str
        Why a client could not do what a message asks, by the message's type.
    """

    def __init__(self, grid: Grid, num_agents: int, ledgers: SiteLedgers) -> None:
        self.voters = Voters(num_agents)
        self.num_sends = 0
        self.timeout: float | None = None
        self.evaluate_type: str = MessageType.EVALUATE
        self.last_errors: dict[str, str] = {}
        self.num_examples: dict[int, int] = {}
        self._grid = grid
        self._ledgers = ledgers
        self._connected: set[int] = set()  # as the last message was sent

    def look(self) -> set[int]:
        """Note which nodes are connected, and return them."""
        self._connected = set(self._grid.get_node_ids())
        return self._connected

    def message(
        self, node: int, content: RecordDict, kind: str = "", ttl: float | None = None
    ) -> Message:
        """Return a message to a node, with its receipts.

        Parameters
        ----------
        node : int
            The receiver.
        content : RecordDict
            What it is asked.
        kind : str
            Type of the message; empty: that of ballots.
        ttl : float, optional
            Seconds to live, of messages of `main`. None: Flower's default.
        """
        content = self._ledgers.add_receipts(content, node)
        return Message(content, node, kind or self.evaluate_type, ttl=ttl)

    def send(self, messages: list[Message]) -> dict[int, Message]:
        """Return the reply of each node that gives one, in the order of nodes.

        Raises
        ------
        AggregationError
            If all nodes reply with an error.
        """
        self.num_sends += 1
        replies = list(self._grid.send_and_receive(messages, timeout=self.timeout))
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        by_node: dict[int, Message] = {}
        for reply in replies:
            # An error's source node id may be wrong; what it replies to is not.
            node = asked.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                by_node[node] = reply
        errors = [str(r.error.reason) for r in by_node.values() if r.has_error()]
        if errors:
            last_line = "".join(errors[-1].strip().splitlines()[-1:])
            kind = messages[0].metadata.message_type
            self.last_errors[kind] = f"{last_line}. {HINT}"
            if len(errors) == len(messages):
                raise AggregationError(
                    f"All clients have failed: {self.error_of(kind)}"
                )
        return dict(sorted(by_node.items()))

    def error_of(self, kind: str) -> str:
        """Return the last error for messages of a type."""
        return self.last_errors.get(kind, "no client has answered").removesuffix(".")

    def hear(
        self, node: int, reply: ReplyHeader | None, asked: TrialsHeader | BallotHeader
    ) -> bool:
        """Note what a node says of its ledger; return whether its answer counts."""
        if reply is None:
            return True
        if isinstance(asked, BallotHeader):
            releases = [asked.release]
        else:  # replies with exact scores have cost what no noise covers
            releases = [] if asked.is_hidden else [UNPROTECTED]
        return self._ledgers.hear(
            node, reply, asked.attempt, asked.promise, releases, self._connected
        )

    def ballots(self, header: BallotHeader) -> dict[int, Any]:
        """Return the ballots by slot, of N nodes at most, in the order of their ids.

        Raises
        ------
        AggregationError
            If less than half of the nodes that are asked do.
        """
        voters = self.voters.among(self.look())
        # A site that lacks charges in its ledger would spend twice: it is not asked.
        nodes = [node for node in voters if self._ledgers.may_vote(node)]
        record = header_record(header)
        messages = [self.message(node, RecordDict({HEADER: record})) for node in nodes]
        replies = [
            reply
            for node, reply in self.send(messages).items()
            if not reply.has_error() and self.hear(node, reply_header(reply), header)
        ]
        ballots = [_array_in(reply.content, BALLOT, "ballot") for reply in replies]
        self.num_examples = {n: _examples_in(r) for n, r in enumerate(replies)}
        # Who answers is public. A sum of few ballots is nearly the noise alone.
        if 2 * len(ballots) < len(nodes) or not nodes:
            raise AggregationError(
                f"{len(ballots)} of {len(nodes)} nodes gave a ballot, and at least "
                f"half are needed: {self.error_of(self.evaluate_type)}."
            )
        return dict(enumerate(ballots))

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
        connected, nodes = self.look(), self.voters.slots
        messages = []
        for slot, (header, request) in asked.items():
            if nodes.get(slot) in connected:
                record = ArrayRecord({"request": Array(request)})
                content = RecordDict({HEADER: header_record(header), SUM: record})
                messages.append(self.message(nodes[slot], content))
        answered = self.send(messages) if messages else {}
        # The ledger of a site is heard also where its reply is of no use to the sum.
        for slot, (header, _) in asked.items():
            reply = answered.get(nodes.get(slot, -1))
            if reply is not None and not reply.has_error():
                self.num_examples[slot] = _examples_in(reply)
                self.hear(nodes[slot], reply_header(reply), header.ballot)
        return {
            slot: _array_in(answered[node].content, SUM, "reply")
            for slot, node in nodes.items()
            if node in answered and not answered[node].has_error()
        }


def reply_header(reply: Message) -> ReplyHeader | None:
    """Return the header of a client's reply; None where there is none to be read."""
    try:
        header = read_header(reply.content)
    except Exception:  # of many kinds: a client may send anything
        return None
    return header if isinstance(header, ReplyHeader) else None


def _examples_in(reply: Message) -> int:
    """Return the examples that a client says it has; 0 where it says nothing."""
    header = reply_header(reply)
    return 0 if header is None else header.num_examples


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
