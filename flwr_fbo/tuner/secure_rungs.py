"""Secure sums of the ballots of a rung, from the server's side.

A sum that may have been unmasked is in the tuner's record until its rung is: a run that
goes on asks the same clients for the same again, and never for another sum of these
ballots.
"""

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


def open_ballot(sends: SharedSends, record: TunerRecord) -> BallotHeader | None:
    """Return what the ballots of an open sum are about; None if none is open."""
    kept = record.open_sum()
    if kept is None:
        return None
    sends.voters.slots = dict(kept["nodes"])
    asked: BallotHeader = from_json(BallotHeader, kept["ballot"])
    _log.warning(
        "The ballots of rung %d were being summed: the same clients are asked for "
        "the same sum.",
        asked.rung + 1,
    )
    return asked


def summed_ballots(
    sends: SharedSends,
    record: TunerRecord,
    roster: Roster | None,
    ballot: BallotHeader,
    sums: SecureSums,
) -> SecureTotal:
    """Return the sum of the ballots of a rung.

    Parameters
    ----------
    sends : SharedSends
    record : TunerRecord
    roster : Roster, optional
        The one that the clients pin.
    ballot : BallotHeader
        What the ballots are about.
    sums : SecureSums
        How they are summed.

    Raises
    ------
    AggregationError
        If too few clients answer.
    """

    def open_sum() -> bytes:
        kept = record.open_sum()
        return b"" if kept is None else kept["sum"].encode()

    def keep(state: bytes) -> None:
        nodes = list(sends.voters.slots.items())
        kept = {"ballot": to_json(ballot), "nodes": nodes, "sum": state.decode()}
        record.save_open_sum(kept)

    def ask(
        _release: int, exchange: int, attempt: int, requests: Mapping[int, Any]
    ) -> dict[int, Any]:
        asked = {
            slot: (SumHeader(ballot, sums, slot, exchange, attempt), request)
            for slot, request in requests.items()
        }
        return sends.exchange(asked)

    about = SumHeader(ballot, sums, 0, 1, 0).about
    was_open, reason = bool(open_sum()), ""
    for _ in range(_MOST_ATTEMPTS):
        opened = open_sum()
        if not opened:
            sends.assign_slots()
        try:
            total = exchanged_sum(
                sums,
                about,
                ballot.release,
                0,
                roster=roster,
                open_sum=opened,
                keep=keep,
                ask=ask,
            )
        except SumFailedError as error:
            reason = str(error)
            _log.warning("Rung %d: %s", ballot.rung + 1, reason)
            continue
        if was_open:  # the slots were an earlier run's
            sends.voters.slots = {}
        return total
    if open_sum():
        reason += (
            " It may have been unmasked, so these ballots are never summed again: "
            "start the tuner again with its folder when the same clients are there."
        )
    raise AggregationError(
        f"The ballots of rung {ballot.rung + 1} were not summed: {reason}"
    )
