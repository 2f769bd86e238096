"""Secure sums of a study, as its strategy has the sites make them between two rounds.

A sum is on record before it may be unmasked (`SecureCollector`). So a strategy that is
started again asks the same sites for the same sum, and never for a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from flwr_fbo.strategies.enrolment import (
    Enrolment,
    first_line,
    matched,
    one_array,
)
from flwr_fbo.strategies.round_progress import ToldGrid
from flwr_fbo.study.codec import Study, SumInstruction

_log = logging.getLogger("flwr.fbo")

# Seconds for one exchange of a secure sum; no trial is played in it.
_EXCHANGE_TIMEOUT = 300.0

# The sites in a sum, increasing, and the sum modulo 2**b with its noise.
Summed = tuple[tuple[int, ...], NDArray[Any]]
# Returns what the site of a slot is told, besides what it is asked of a sum.
Instruct = Callable[[int], SumInstruction]


@dataclass(frozen=True)
class SumPost:
    """The way from a server to its sites, for the exchanges of sums.

    Attributes
    ----------
    grid : ToldGrid
        Flower's grid.
    enrolment : Enrolment
        Slots of the nodes.
    client_api : str
        See `Host`.
    timeout : float
        Seconds to wait for the replies of a round: at most as long for an exchange.
    """

    grid: ToldGrid
    enrolment: Enrolment
    client_api: ClientApi
    timeout: float

    def ask(
        self, instruct: Instruct, name: str, requests: Sequence[SumRequest]
    ) -> dict[int, Any]:
        """Send one exchange; return the replies by slot.

        Skip nodes that are gone, and replies that are not arrays.

        Parameters
        ----------
        instruct : callable
            Returns what the site of a slot is told besides.
        name : str
            Name of what is summed, for the log.
        requests : sequence of SumRequest
            What the sites are asked.
        """
        of_slot = {request.slot: request for request in requests}
        slots, messages = self.enrolment.slots, []
        present = set(self.grid.get_node_ids())
        for node, slot in slots.items():
            if node in present and slot in of_slot:
                request = of_slot[slot]
                asked = replace(
                    instruct(slot),
                    phase="sum",
                    release=request.release,
                    exchange=request.exchange,
                    attempt=request.attempt,
                )
                record = ConfigRecord({**asked.to_config()})
                arrays = to_array_record([request.payload])
                content = instruction_content(arrays, record, self.client_api)
                messages.append(Message(content, node, message_type(self.client_api)))
        self.grid.send_name = (
            f"{name}, exchange {requests[0].exchange} of {SumRequest.num_exchanges} of "
            "its secure sum"
        )
        timeout = min(self.timeout, _EXCHANGE_TIMEOUT)
        replies = self.grid.send_and_receive(messages, timeout=timeout)
        found: dict[int, Any] = {}
        for sender, reply in matched(messages, replies):
            if sender is None:
                continue
            slot = slots[sender]
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
    aggregation : SecureAggregation, optional
        How the sites sum. There are no sums unless given.
    groups : sequence of range
        Slots of the sites that are summed together, group by group.

    Raises
    ------
    ValueError
        If the numbers, or the roster, do not fit so many sites.

    Attributes
    ----------
    collector : SecureCollector, optional
        It has the sites sum; None where there are no sums.
    num_planned : int
        Number of releases that are planned.
    """

    def __init__(
        self,
        aggregation: SecureAggregation | None = None,
        groups: Sequence[range] = (),
    ) -> None:
        self.collector = None if aggregation is None else aggregation.collector(groups)
        self.num_planned = 0
        self._run: tuple[SumPost, Callable[[], object]] | None = None

    def begin(self, post: SumPost, keep: Callable[[], object]) -> None:
        """Take note of the run that sums are part of.

        Parameters
        ----------
        post : SumPost
            The way to the sites.
        keep : callable
            Puts what `state_dict` has on disk.
        """
        self._run = post, keep

    def needed(self, group: int = 0) -> int:
        """Return how many sites must answer before those of a group are summed."""
        assert self.collector is not None
        return self.collector.groups[group].min_summed

    def exchanges_after(self, num_made: int) -> int:
        """Return how many exchanges are left after so many releases."""
        return max(self.num_planned - num_made, 0) * SumRequest.num_exchanges

    def sum_up(
        self,
        study: Study,
        sums: SecureSums | BlockSums,
        release: int,
        group: int = 0,
        *,
        instruct: Instruct,
    ) -> Summed | None:
        """Return what the sites of a group sum for a release.

        None if it is postponed, at no epsilon: nothing was unmasked, or the same sum is
        asked for again.

        Parameters
        ----------
        study : Study
            The study, which all sites are told.
        sums : SecureSums or BlockSums
            How it is summed.
        release : int
            Number of the release as its sites count, from 1.
        group : int
            Group of sites that are summed.
        instruct : callable
            Returns what the site of a slot is told in each exchange.
        """
        assert self.collector is not None
        assert self._run is not None
        post, keep = self._run
        name = f"release {release} of study {study.study_id}"
        summed = self.collector.collect(
            sums,
            study.text,
            release,
            group,
            ask=partial(post.ask, instruct, name),
            keep=keep,
        )
        if summed is None:
            reason = self.collector.failure
            _log.warning("The release is postponed, at no epsilon: %s", reason)
            return None
        return summed.slots, summed.total

    def trust(self) -> list[str]:
        """Return what the server learns of a site in sums, for the log."""
        return [] if self.collector is None else self.collector.trust()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the sum that may have been unmasked, if one is open."""
        return {} if self.collector is None else self.collector.state_dict()

    def resume(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Continue from a state; return the rest of it, which is the server half's."""
        if self.collector is None:
            return dict(state)
        return self.collector.resume(state)
