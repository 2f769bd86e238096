"""A client's part in the secure sums of ballots.

Its ballot of a rung, its share of the noise and its keys are in a journal before a
reply leaves: in a file where the client has an ``fbo-folder``, else in
``context.state``, beside its scores.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.clients.recorded_agent import of_another_slot
from flwr_fbo.clients.site_journal import (
    configured_folder,
    configured_slot,
    held_journal,
    noted_slot,
)
from flwr_fbo.clients.sum_identity import SumIdentity
from flwr_fbo.clients.sum_member import SumMember, SumRequest
from flwr_fbo.journal.journal import Journal
from flwr_fbo.secure_sum.terms import Exchange, SumRefusedError
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.tuner.envelope import KIND, SumHeader
from flwr_fbo.tuner.trial_context import SUM

# Seconds to wait for another process of this client to let go of the file.
_PATIENCE = 1.0
# Arrays in the journal: what was asked last, and the ballot on it.
_ABOUT, _BALLOT = "about", "ballot"


def sum_reply(
    context: Context,
    header: SumHeader,
    sums: SecureSums,
    identity: SumIdentity,
    payload: Any,
    draw_ballot: Callable[[], FloatArray],
) -> NDArray[np.uint8]:
    """Return the reply to one exchange of a secure sum.

    Parameters
    ----------
    context : Context
    header : SumHeader
    sums : SecureSums
        Of the header, checked.
    identity : SumIdentity
        Who the site is in them.
    payload : Any
        What the server sent.
    draw_ballot : callable
        Charges the site, and returns its ballot; called once a rung.

    Raises
    ------
    SumRefusedError
        If an honest server would not ask that; nothing has left.
    JournalError
        If it is asked for another client's slot.
    """
    asked, own = header.asked, identity.own_slot(context)
    if own < 0:
        own = noted_slot(context, SUM, asked.attempt)
    if own not in (-1, header.slot):
        raise of_another_slot(own, header.slot)
    with _held(context, asked.attempt, header.slot) as journal:
        begin = header.exchange == Exchange.ADVERTISE
        if not _is_known(journal, header, begin):
            journal.put({_ABOUT: np.array(header.about), _BALLOT: draw_ballot()})
        member = SumMember(
            journal.load_unnumbered(), journal.put, identity.key, identity.roster
        )
        request = SumRequest(
            sums,
            header.about,
            asked.release,
            header.slot,
            header.attempt,
            header.exchange,
            payload,
        )

        def contribution() -> FloatArray:
            ballot = journal.load_array(_BALLOT)
            assert ballot is not None
            return sums.release.contribution(0, header.slot, ballot)

        reply = member.answer(request, contribution)
        if header.exchange == Exchange.UNMASK:
            journal.put({_BALLOT: np.zeros(0)})
        return reply


def _is_known(journal: Journal, header: SumHeader, may_begin: bool) -> bool:
    """Return whether the ballot that is asked for is on record; refuse another one."""
    stored = journal.load_array(_ABOUT)
    about, release = None if stored is None else str(stored), header.asked.release
    if about == header.about:
        return True
    if about is not None:
        last = json.loads(about)["ballot"]["release"]
        if release <= last:
            raise SumRefusedError(
                f"Release {release}: release {last} was asked for in other words."
            )
    if not may_begin:
        raise SumRefusedError(
            f"Release {release}: exchange {header.exchange} of a sum that did not "
            "begin here."
        )
    return False


@contextmanager
def _held(context: Context, attempt: str, slot: int) -> Iterator[Journal]:
    """Hold the journal of this client's sums in one run of a tuner.

    It belongs to one slot: under two a client could be summed twice.
    """
    identity = {"kind": f"{KIND}-sums", "study_id": attempt, "slot": slot}
    folder, path = configured_folder(context), None
    if folder is not None:
        # Clients may share a folder. The attempt's name is the server's.
        owner = hashlib.sha256(f"{attempt} {configured_slot(context)}".encode())
        path = folder / f"sums-{owner.hexdigest()[:16]}.sqlite"
    with held_journal(
        context, identity, path, record=SUM, may_begin=True, patience=_PATIENCE
    ) as journal:
        yield journal
