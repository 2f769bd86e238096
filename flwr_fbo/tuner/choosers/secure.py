"""Ballots that clients sum themselves, with their noise: the server sees the sum.

A sum that may have been unmasked is in the tuner's record until its rung is: a run that
goes on asks the same clients for the same again, and never for another sum of these
ballots.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.serverapp.exception import AggregationError
from numpy.typing import NDArray

from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.secure import SecureAggregation, SecureSums, SumRequest
from flwr_fbo.tuner.choosers.chooser import Comparison
from flwr_fbo.tuner.choosers.private import NoisyChooser
from flwr_fbo.tuner.choosers.tuner_clients import TunerClients
from flwr_fbo.tuner.message_headers import BallotHeader, SumHeader
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.records.trials_record import OPEN_SUM, TrialsRecord, stored

_log = logging.getLogger("flwr.fbo")

# How often the sum of a rung is tried before the run ends.
_MOST_ATTEMPTS = 3

_SECURE = "secure aggregation: the server learns the noisy sums, and who answered"


class SecureChooser(NoisyChooser):
    """Has the clients sum their ballots and add the noise, and releases the mean.

    Parameters
    ----------
    settings : PrivateChoice
        Budget of all rungs together.
    num_clients : int
        See `NoisyChooser`.
    sizes : sequence of int
        Number of trials of each rung.
    aggregation : SecureAggregation
        How many clients must answer, and the roster of their keys.

    Raises
    ------
    ValueError
        If clients cannot sum what would be released; the message names the field.
    """

    def __init__(
        self,
        settings: PrivateChoice,
        num_clients: int,
        sizes: Sequence[int],
        aggregation: SecureAggregation,
    ) -> None:
        # The control's noise alone is none of the clients'.
        is_control, allowed = settings.noise_only, "False, with secure aggregation"
        require(not is_control, "privacy.noise_only", is_control, allowed)
        super().__init__(settings, num_clients, len(sizes))
        slots = range(num_clients)
        self._collector = collector = aggregation.collector([slots])
        pinned = None if collector.roster is None else collector.roster.slots
        allowed = f"one of the slots 0 to {num_clients - 1}: a key a client"
        require(pinned in (None, tuple(slots)), "roster", pinned, allowed)
        self.trust = "; ".join(filter(None, [_SECURE, collector.warning]))
        for num_trials in sizes:
            self.sums(num_trials)  # raises where the numbers do not fit

    def identity(self) -> dict[str, Any]:
        """Return who sums, and whose keys are pinned."""
        sums = self.sums(1)
        return {"aggregation": {**asdict(sums.groups[0]), "roster": sums.roster}}

    def sums(self, num_trials: int) -> SecureSums:
        """Return how ballots on K trials are summed."""
        return self._collector.sums(self.planned(num_trials), num_trials)

    def open_ballot(
        self, clients: TunerClients, record: TrialsRecord
    ) -> BallotHeader | None:
        """Return what the ballots of an open sum are about; None if none is open."""
        kept = stored(record.journal, OPEN_SUM)
        if kept is None:
            return None
        clients.voters.slots = dict(kept["nodes"])
        clients.num_examples = dict(kept["num_examples"])
        asked: BallotHeader = from_json(BallotHeader, kept["ballot"])
        _log.warning(
            "The ballots of rung %d were being summed: the same clients are asked for "
            "the same sum.",
            asked.rung + 1,
        )
        return asked

    def compare(self, rung: Comparison) -> LedgerRow:
        """Return the mean of the ballots with the clients' noise.

        Raises
        ------
        AggregationError
            If too few clients answer.
        """
        asked, clients, record = rung.asked, rung.clients, rung.record
        sums, collector = self.sums(len(asked.trials)), self._collector
        about = SumHeader(asked, sums, 0, 1, 0).about
        kept = stored(record.journal, OPEN_SUM)
        was_open = kept is not None
        if kept is not None:
            collector.open_sum = kept["sum"].encode()

        def keep() -> None:
            nodes = list(clients.voters.slots.items())
            text = collector.open_sum.decode()
            counts = list(clients.num_examples.items())
            kept = {"ballot": to_json(asked), "nodes": nodes, "sum": text}
            kept["num_examples"] = counts
            record.save(OPEN_SUM, kept)

        def ask(requests: Sequence[SumRequest]) -> dict[int, Any]:
            exchanged = {
                request.slot: (
                    SumHeader(
                        asked, sums, request.slot, request.exchange, request.attempt
                    ),
                    request.payload,
                )
                for request in requests
            }
            return clients.exchange(exchanged)

        for _ in range(_MOST_ATTEMPTS):
            # Of an open sum the members are fixed: it is asked of the same nodes.
            if not collector.open_sum:
                clients.voters.assign_slots(clients.look())
            summed = collector.collect(sums, about, asked.release, ask=ask, keep=keep)
            if summed is not None:
                break
            _log.warning("Rung %d: %s", asked.rung + 1, collector.failure)
        else:
            reason = collector.failure
            if collector.open_sum:
                reason += (
                    " It may have been unmasked, so these ballots are never summed "
                    "again: start the tuner again with its folder when the same "
                    "clients are there."
                )
            raise AggregationError(
                f"The ballots of rung {asked.rung + 1} were not summed: {reason}"
            )
        if was_open:  # the slots were an earlier run's
            clients.voters.slots = {}
        slots, counts = summed.slots, clients.num_examples
        counted = {slot: counts.get(slot, 0) for slot in slots}
        return self.choose(asked.rung, sums, slots, summed.total, counted)

    def choose(
        self,
        rung: int,
        sums: SecureSums,
        slots: tuple[int, ...],
        total: NDArray[np.uint64],
        num_examples: Mapping[int, int] | None = None,
    ) -> LedgerRow:
        """Return the scores of ballots that the clients of some slots have summed."""
        row = sums.row(0, 0, slots, total)
        mean = LedgerRow(rung, row.facts, row.vectors[0])
        return self.scored(mean, len(slots), num_examples or {})
