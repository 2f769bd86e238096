"""Secure sums of a study, as its strategy has the sites make them between two rounds.

A sum is on record before it may be unmasked (`SecureCollector`). So a strategy that is
started again asks the same sites for the same sum, and never for a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from flwr_fbo._compat import (
    ClientApi,
    instruction_content,
    message_type,
    to_array_record,
)
from flwr_fbo.secure import BlockSums, SecureAggregation, SecureSums, SumRequest
from flwr_fbo.strategies.enrolment import first_line, matched, one_array
from flwr_fbo.strategies.round_progress import ToldGrid
from flwr_fbo.study.codec import Instruction

_log = logging.getLogger("flwr.fbo")

# Seconds for one exchange of a secure sum; no trial is played in it.
EXCHANGE_TIMEOUT = 300.0

# The sites in a sum, increasing, and the sum modulo 2**b with its noise.
Summed = tuple[tuple[int, ...], NDArray[Any]]
# Returns what a site is asked in one exchange of a sum.
Instruct = Callable[[SumRequest], Instruction]


@dataclass(frozen=True)
class SumPost:
    """The way from a server to its sites, for the exchanges of one sum.

    Attributes
    ----------
    grid : ToldGrid
        Flower's grid.
    slots : mapping of int to int
        Slot of each node.
    client_api : str
        See `Host`.
    timeout : float
        Seconds for one exchange.
    name : str
        Name of what is summed, for the log.
    instruct : callable
        Returns what a site is asked.
    """

    grid: ToldGrid
    slots: Mapping[int, int]
    client_api: ClientApi
    timeout: float
    name: str
    instruct: Instruct

    def ask(self, requests: Sequence[SumRequest]) -> dict[int, Any]:
        """Send one exchange; return the replies by slot.

        Skip nodes that are gone, and replies that are not arrays.
        """
        of_slot = {request.slot: request for request in requests}
        present, messages = set(self.grid.get_node_ids()), []
        for node, slot in self.slots.items():
            if node in present and slot in of_slot:
                request = of_slot[slot]
                record = ConfigRecord({**self.instruct(request).to_config()})
                arrays = to_array_record([request.payload])
                content = instruction_content(arrays, record, self.client_api)
                messages.append(Message(content, node, message_type(self.client_api)))
        self.grid.send_name = (
            f"{self.name}, exchange {requests[0].exchange} of "
            f"{SumRequest.num_exchanges} of its secure sum"
        )
        replies = self.grid.send_and_receive(messages, timeout=self.timeout)
        found: dict[int, Any] = {}
        for asked, reply in matched(messages, replies):
            if asked is None:
                continue
            slot = self.slots[asked]
            if reply.has_error():
                reason = first_line(reply.error.reason)
                _log.warning("\t> agent %d: %s", slot, reason)
            elif (array := one_array(slot, reply)) is not None:
                found[slot] = array
        return found


class SecureRounds:
    """Has the sites of a study sum what they send, one release at a time.

    Parameters
    ----------
    aggregation : SecureAggregation
        How the sites sum.
    groups : sequence of range
        Slots of the sites that are summed together, group by group.

    Raises
    ------
    ValueError
        If the numbers, or the roster, do not fit so many sites.

    Attributes
    ----------
    num_planned : int
        Number of releases that are planned.
    """

    def __init__(self, aggregation: SecureAggregation, groups: Sequence[range]) -> None:
        self.collector = aggregation.collector(groups)
        self.num_planned = 0

    def needed(self, group: int = 0) -> int:
        """Return how many sites must answer before those of a group are summed."""
        return self.collector.groups[group].min_summed

    def exchanges_after(self, num_made: int) -> int:
        """Return how many exchanges are left after so many releases."""
        return max(self.num_planned - num_made, 0) * SumRequest.num_exchanges

    def sum_up(
        self,
        post: SumPost,
        sums: SecureSums | BlockSums,
        about: str,
        release: int,
        group: int,
        *,
        keep: Callable[[], object],
    ) -> Summed | None:
        """Return what the sites of a group sum for a release.

        None if it is postponed, at no epsilon: nothing was unmasked, or the same sum is
        asked for again.

        Parameters
        ----------
        post : SumPost
            The way to the sites.
        sums, about, release, group, keep
            See `SecureCollector.collect`.
        """
        summed = self.collector.collect(
            sums, about, release, group, ask=post.ask, keep=keep
        )
        if summed is None:
            reason = self.collector.failure
            _log.warning("The release is postponed, at no epsilon: %s", reason)
            return None
        return summed.slots, summed.total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the sum that may have been unmasked, if one is open."""
        return self.collector.state_dict()

    def resume(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Continue from a state; return the rest of it, which is the server half's."""
        return self.collector.resume(state)
