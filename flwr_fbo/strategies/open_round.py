"""A round whose replies are awaited: who was asked what, and which replies are good."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import Message

from flwr_fbo._compat import reply_metrics
from flwr_fbo.site.receipts import ReceiptBook, read_mark
from flwr_fbo.strategies.enrolment import first_line, matched
from flwr_fbo.study.callbacks import Round
from flwr_fbo.study.server import Step

_log = logging.getLogger("flwr.fbo")


class Replies(NamedTuple):
    """Replies to the messages of a round.

    Attributes
    ----------
    answers : dict of int to Message
        First good reply of each agent, by slot, in slot order.
    failures : list of str
        A line for each reply that is of no use: whose it is, and why.
    late : list of int
        Slots of agents that did not answer in time.
    """

    answers: dict[int, Message]
    failures: list[str]
    late: list[int]


@dataclass
class OpenRound:
    """A round whose replies are awaited.

    Attributes
    ----------
    step : Step
        Decision of the server half about the round.
    absent : list of int
        Slots that the round is for, and that are not there to be asked.
    asked : list of Message
        Messages to the agents.
    charged : dict of int to list of int
        Releases, from 1, that an answer is charged as, by slot.
    """

    step: Step
    absent: list[int] = field(default_factory=list)
    asked: list[Message] = field(default_factory=list)
    charged: dict[int, list[int]] = field(default_factory=dict)

    def sort_replies(
        self, replies: Iterable[Message], slots: Mapping[int, int], book: ReceiptBook
    ) -> Replies:
        """Return the replies by what they are good for.

        Parameters
        ----------
        replies : iterable of Message
            Replies that have come, in any order.
        slots : mapping of int to int
            Slot of each node, by node id.
        book : ReceiptBook
            Charges of the sites' ledgers. Those of good answers are noted in it. A site
            whose ledger lacks earlier releases has failed.
        """
        late = {slots[message.metadata.dst_node_id] for message in self.asked}
        answers: dict[int, Message] = {}
        failures = []
        for node, reply in matched(self.asked, replies):
            if node is None:
                _log.warning("Ignored an unexpected or repeated reply.")
                continue
            slot = slots[node]
            late.remove(slot)
            if reply.has_error():
                failures.append(f"agent {slot}: {first_line(reply.error.reason)}")
                continue
            mark = read_mark(reply_metrics(reply.content))
            if mark is not None and book.is_behind(slot, mark):
                failures.append(f"agent {slot}: its ledger lacks earlier releases")
                continue
            book.note(slot, mark, self.charged[slot])
            answers[slot] = reply
        return Replies(dict(sorted(answers.items())), failures, sorted(late))

    def finished(self, replies: Replies) -> Round:
        """Return how the agents answered."""
        return Round(
            self.step.iteration + 1,
            len(replies.answers),
            len(replies.failures),
            len(replies.late),
            len(self.absent),
            release=self.step.release,
        )
