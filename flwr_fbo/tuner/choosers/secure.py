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

from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo._common.validation import require
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal
from flwr_fbo.secure_sum.roster import digest_of
from flwr_fbo.secure_sum.terms import SumFailedError
from flwr_fbo.strategies.secure_aggregation import (
    NO_ROSTER,
    SecureAggregation,
    exchanged_sum,
)
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.tuner.choosers.chooser import Comparison
from flwr_fbo.tuner.choosers.private import NoisyChooser
from flwr_fbo.tuner.choosers.tuner_clients import TunerClients
from flwr_fbo.tuner.envelope import BallotHeader, SumHeader
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.records.trials_record import TrialsRecord

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
        self._roster = aggregation.load_roster()
        pinned = None if self._roster is None else self._roster.slots
        allowed = f"one of the slots 0 to {num_clients - 1}: a key a client"
        require(pinned in (None, tuple(slots)), "roster", pinned, allowed)
        self._group = aggregation.group(slots)
        self._release = SecureRelease(self._planned)
        self.trust = f"{_SECURE}{'' if self._roster else f'; {NO_ROSTER}'}"
        for num_trials in sizes:
            self.sums(num_trials).noise(0)  # raises where the numbers do not fit

    def identity(self) -> dict[str, Any]:
        """Return who sums, and whose keys are pinned."""
        roster = digest_of(self._roster)
        return {"aggregation": {**asdict(self._group), "roster": roster}}

    def sums(self, num_trials: int) -> SecureSums:
        """Return how ballots on K trials are summed."""
        roster = digest_of(self._roster)
        return SecureSums(self._planned, num_trials, (self._group,), roster)

    def open_ballot(
        self, clients: TunerClients, record: TrialsRecord
    ) -> BallotHeader | None:
        """Return what the ballots of an open sum are about; None if none is open."""
        kept = record.open_sum()
        if kept is None:
            return None
        clients.voters.slots = dict(kept["nodes"])
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
        asked, num_trials = rung.asked, len(rung.asked.trials)
        summed = self._summed(rung, self.sums(num_trials))
        return self.choose(asked.rung, summed, num_trials)

    def choose(self, rung: int, summed: SecureTotal, num_trials: int) -> LedgerRow:
        """Return the mean of ballots on K trials that clients have summed."""
        noise = self.sums(num_trials).noise(0)
        scores = self._release.decoded(0, noise, summed)[0]
        facts = self._release.facts_of_sum(0, noise, summed.slots)
        facts["num_ballots"] = len(summed.slots)
        return LedgerRow(rung, {"mechanism": "gaussian", **facts}, scores)

    def _summed(self, rung: Comparison, sums: SecureSums) -> SecureTotal:
        """Return the sum of the ballots of a rung."""
        ballot, clients, record = rung.asked, rung.clients, rung.record

        def open_sum() -> bytes:
            kept = record.open_sum()
            return b"" if kept is None else kept["sum"].encode()

        def keep(state: bytes) -> None:
            nodes = list(clients.voters.slots.items())
            kept = {"ballot": to_json(ballot), "nodes": nodes, "sum": state.decode()}
            record.save_open_sum(kept)

        def ask(
            _release: int, exchange: int, attempt: int, requests: Mapping[int, Any]
        ) -> dict[int, Any]:
            asked = {
                slot: (SumHeader(ballot, sums, slot, exchange, attempt), request)
                for slot, request in requests.items()
            }
            return clients.exchange(asked)

        about = SumHeader(ballot, sums, 0, 1, 0).about
        was_open, reason = bool(open_sum()), ""
        for _ in range(_MOST_ATTEMPTS):
            opened = open_sum()
            if not opened:
                clients.assign_slots()
            try:
                total = exchanged_sum(
                    sums,
                    about,
                    ballot.release,
                    0,
                    roster=self._roster,
                    open_sum=opened,
                    keep=keep,
                    ask=ask,
                )
            except SumFailedError as error:
                reason = str(error)
                _log.warning("Rung %d: %s", ballot.rung + 1, reason)
                continue
            if was_open:  # the slots were an earlier run's
                clients.voters.slots = {}
            return total
        if open_sum():
            reason += (
                " It may have been unmasked, so these ballots are never summed again: "
                "start the tuner again with its folder when the same clients are there."
            )
        raise AggregationError(
            f"The ballots of rung {ballot.rung + 1} were not summed: {reason}"
        )
