"""The sites' ledgers as the server of a tuner knows them, and its receipts.

Each run of a tuner is a study of its own to a site. So there is a book for each run:
a site that has lost its folder between two runs lacks what it was charged in the first.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from flwr_fbo.privacy.spending import Promise
from flwr_fbo.site.receipts import Mark, ReceiptBook
from flwr_fbo.tuner.envelope import KIND, RECEIPTS, ReplyHeader

_log = logging.getLogger("flwr.fbo")

_BEHIND = (
    "Node %d lacks releases in its ledger which this tuner has got: its folder was "
    "lost, is an older copy or a clone, or is another site's. It is not asked for "
    "ballots. `flwr-fbo ledger recover FOLDER` at the site counts them."
)
_CLONE = (
    "Node %d has the agent-id, or the ledger, of node %d, which is connected too: "
    "every site needs an agent-id and a folder of its own. It is not asked for ballots."
)


class SiteLedgers:
    """The books of all runs of a tuner.

    A site is known by its agent-id; without one by its node id, which changes when a
    SuperNode restarts, unless it is authenticated.

    Parameters
    ----------
    stored : iterable of mapping
        Books that `to_json` returned.
    """

    def __init__(self, stored: Iterable[Mapping[str, Any]] = ()) -> None:
        self._books = {
            values["study"][1]: ReceiptBook.from_json(values) for values in stored
        }
        self._agents: dict[int, int] = {}  # of nodes that have said it
        self._marks: dict[int, Mark] = {}  # of nodes, the newest of this run
        self._heard: set[int] = set()  # nodes that have answered in this run
        self._refused: set[int] = set()  # nodes that are not asked for ballots

    def may_vote(self, node: int) -> bool:
        """Return whether a node is asked for a ballot.

        Not one that has said nothing yet, where others have ledgers: a site that has
        come back without its folder would be charged as if it were another one.
        """
        # Silence is suspicious only where others keep ledgers.
        is_known = node in self._heard or not any(b.sites for b in self._books.values())
        return is_known and node not in self._refused

    def hear(
        self,
        node: int,
        reply: ReplyHeader,
        attempt: str,
        promise: Promise,
        releases: Iterable[int],
        connected: Collection[int],
    ) -> bool:
        """Note what a node says of its ledger; return whether its answer counts.

        Parameters
        ----------
        node : int
            Id of the node.
        reply : ReplyHeader
            Header of its reply, with the newest mark of its ledger.
        attempt : str
            The run of the tuner that it was asked in.
        promise : Promise
            All releases of the study.
        releases : iterable of int
            What the answer has cost: releases, or `UNPROTECTED`.
        connected : collection of int
            Ids of the nodes that are there: twins of others do not count.
        """
        self._heard.add(node)
        if reply.charges < 0:
            return True  # it keeps no ledger
        self._agents[node] = reply.agent
        mark = Mark(reply.charges, reply.head)
        book = self._books.get(attempt)
        if book is None:
            book = ReceiptBook((KIND, attempt), promise)
            self._books[attempt] = book
        self._marks[node] = mark
        # Of two nodes with one agent-id, or one ledger, only the first counts.
        for other, known in self._marks.items():
            is_there = other in connected and other not in self._refused
            is_same = known == mark or reply.agent == self._agents[other] >= 0
            if other != node and is_there and is_same:
                self._refuse(_CLONE, node, other)
                return False
        # Its ledger must have all that its earlier answers to this tuner have cost.
        if book.is_behind(self._site(node), mark):
            self._refuse(_BEHIND, node)
            return False
        self._refused.discard(node)
        book.note(self._site(node), mark, releases)
        return True

    def _refuse(self, line: str, node: int, *others: int) -> None:
        if node not in self._refused:
            _log.warning(line, node, *others)
        self._refused.add(node)

    def _site(self, node: int) -> int:
        agent = self._agents.get(node, -1)
        return agent if agent >= 0 else -1 - node

    def add_receipts(self, content: RecordDict, node: int) -> RecordDict:
        """Add to a message the receipts of its node, if there are any."""
        site = self._site(node)
        receipts = [book.receipt(site, max(site, -1)) for book in self._books.values()]
        texts = {str(i): text for i, text in enumerate(filter(None, receipts))}
        if texts:
            content[RECEIPTS] = ConfigRecord({**texts})
        return content

    def commit(self) -> None:
        """Give receipts of what was noted, once it is in the tuner's record."""
        for book in self._books.values():
            book.commit()

    def receipts(self, agent: int | None = None) -> Iterator[str]:
        """Yield the receipts of all sites, or of one by its agent-id."""
        for book in self._books.values():
            for site in book.sites:
                if agent is None or site == agent:
                    yield book.receipt(site, max(site, -1))

    def to_json(self) -> list[dict[str, Any]]:
        """Return all that was noted, as JSON values."""
        return [book.to_json() for book in self._books.values()]
