"""Secure sums of the ballots of a rung, from the server's side."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.serverapp.exception import AggregationError

from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.secure_sum.roster import Roster
from flwr_fbo.secure_sum.terms import SumFailedError
from flwr_fbo.strategies.secure_aggregation import exchanged_sum
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.tuner.envelope import BallotHeader, SumHeader
from flwr_fbo.tuner.shared_sends import SharedSends
from flwr_fbo.tuner.tuner_record import TunerRecord

_log = logging.getLogger("flwr.fbo")

# How often the sum of a rung is tried before the run ends.
_MOST_ATTEMPTS = 3


class SecureRungs:
    """Lets the clients sum their ballots, rung by rung.

    A sum that may have been unmasked is in the tuner's record until its rung is: a run
    that goes on asks the same clients for the same again, and never for another sum of
    these ballots.

    Parameters
    ----------
    sends : SharedSends
    record : TunerRecord
    roster : Roster, optional
        The one that the clients pin.
    """

    def __init__(
        self, sends: SharedSends, record: TunerRecord, roster: Roster | None
    ) -> None:
        self._sends, self._record = sends, record
        self._roster = roster
        self._asked: tuple[BallotHeader, SecureSums] | None = None

    def _open_sum(self) -> bytes:
        """Return the state of the sum that may have been unmasked, or nothing."""
        kept = self._record.open_sum()
        return b"" if kept is None else kept["sum"].encode()

    def _keep(self, state: bytes) -> None:
        assert self._asked is not None
        ballot, nodes = to_json(self._asked[0]), list(self._sends.voters.slots.items())
        kept = {"ballot": ballot, "nodes": nodes, "sum": state.decode()}
        self._record.save_open_sum(kept)

    def open_ballot(self) -> BallotHeader | None:
        """Return what the ballots of an open sum are about; None if none is open."""
        kept = self._record.open_sum()
        if kept is None:
            return None
        self._sends.voters.slots = dict(kept["nodes"])
        asked: BallotHeader = from_json(BallotHeader, kept["ballot"])
        _log.warning(
            "The ballots of rung %d were being summed: the same clients are asked for "
            "the same sum.",
            asked.rung + 1,
        )
        return asked

    def sum_of(self, asked: BallotHeader, sums: SecureSums) -> SecureTotal:
        """Return the sum of the ballots of a rung.

        Raises
        ------
        AggregationError
            If too few clients answer.
        """
        self._asked = asked, sums
        about = self._header(0, 1, 0).about
        was_open, reason = bool(self._open_sum()), ""
        for _ in range(_MOST_ATTEMPTS):
            open_sum = self._open_sum()
            if not open_sum:
                self._sends.assign_slots()
            try:
                total = exchanged_sum(
                    sums,
                    about,
                    asked.release,
                    0,
                    roster=self._roster,
                    open_sum=open_sum,
                    keep=self._keep,
                    ask=self._ask,
                )
            except SumFailedError as error:
                reason = str(error)
                _log.warning("Rung %d: %s", asked.rung + 1, reason)
                continue
            if was_open:  # the slots were an earlier run's
                self._sends.voters.slots = {}
            return total
        if self._open_sum():
            reason += (
                " It may have been unmasked, so these ballots are never summed again: "
                "start the tuner again with its folder when the same clients are there."
            )
        raise AggregationError(
            f"The ballots of rung {asked.rung + 1} were not summed: {reason}"
        )

    def _ask(
        self, _release: int, exchange: int, attempt: int, requests: Mapping[int, Any]
    ) -> dict[int, Any]:
        asked = {
            slot: (self._header(slot, exchange, attempt), request)
            for slot, request in requests.items()
        }
        return self._sends.exchange(asked)

    def _header(self, slot: int, exchange: int, attempt: int) -> SumHeader:
        assert self._asked is not None
        return SumHeader(*self._asked, slot, exchange, attempt)
