"""Replies about the trials of a rung: a ballot, alone or in a secure sum."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import RefusedError, log_once, refused
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.spending_ledger import Promise
from flwr_fbo.secure import SumRequest
from flwr_fbo.site.gate import sent
from flwr_fbo.site.limits import range_text
from flwr_fbo.site.recorded_agent import of_another_slot
from flwr_fbo.site.site_journal import (
    configured_folder,
    configured_slot,
    held_journal,
    noted_slot,
)
from flwr_fbo.tuner.ballots.ballots import Ballots
from flwr_fbo.tuner.ballots.rank_ballots import RankBallots
from flwr_fbo.tuner.message_headers import (
    BALLOT,
    HEADER,
    KIND,
    SUM,
    BallotHeader,
    SumHeader,
    header_record,
)
from flwr_fbo.tuner.site.asked_site import AskedSite
from flwr_fbo.tuner.site.trial_replies import EXACT_SCORES
from flwr_fbo.tuner.site.trial_states import KEPT_SUM, TrialStates

# Seconds to wait for another process of this client to let go of its sums.
_PATIENCE = 1.0
# Arrays in the journal of sums: what was asked last, the ballot on it, and the number
# of examples with which the client counts.
_ABOUT, _BALLOT, _COUNT = "about", "ballot", "num-examples"


def ballot_reply(site: AskedSite, header: BallotHeader) -> Message:
    """Return what the client says about the trials of a rung."""
    gate, unprotected = site.gate, EXACT_SCORES if header.is_exact else ""
    site.admit(header, None, unprotected)
    # No noise of a server covers exact scores, whatever it promises.
    promise = Promise() if header.is_exact else header.promise
    # On disk before the ballot is even computed: a crash cannot undo a release.
    gate.charge(site.key(header), promise, header.release)
    said = gate.of_data(partial(ballot_of, gate.context, header))
    assert said is not None
    vector, num_examples = said
    arrays = ArrayRecord({"ballot": Array(vector)})
    gate.let_go(arrays)
    record = _reply_record(site, header, num_examples)
    return sent(site.message, RecordDict({HEADER: record, BALLOT: arrays}))


def sum_reply_of(site: AskedSite, header: SumHeader) -> Message:
    """Return the client's reply in one exchange of the sum of a rung's ballots.

    Its ballot, its share of the noise and its keys are in a journal before a reply
    leaves: in a file where the client has an ``fbo-folder``, else in ``context.state``,
    beside its scores. So whatever is asked again, ballot and noise are the same: the
    difference of two sums would reveal them.

    Raises
    ------
    RefusedError
        If an honest server would not ask that; nothing has left.
    JournalError
        If it is asked for another client's slot.
    """
    gate, asked, sums = site.gate, header.ballot, header.sums
    context = gate.context
    if asked.is_exact or len(asked.trials) != sums.num_features:
        raise refused("a secure sum is of one bounded ballot")
    identity = site.admit(asked, sums)
    own = site.own_slot(identity)
    if own < 0:
        own = noted_slot(context, KEPT_SUM, asked.attempt)
    # Under two slots this client's ballot would be summed twice.
    if own not in (-1, header.slot):
        raise of_another_slot(own, header.slot)
    request = SumRequest(
        about=header.about,
        release=asked.release,
        slot=header.slot,
        attempt=header.attempt,
        exchange=header.exchange,
        payload=site.message.content.array_records[SUM]["request"].numpy(),
    )
    with _held(context, asked.attempt, header.slot) as journal:
        if _is_known(journal, header, request.begins):
            gate.is_on_record()
        else:
            # Charged once a rung, before anything about the client can leave.
            gate.charge(site.key(asked), asked.promise, asked.release)
            vector, count = ballot_of(context, asked)
            about = {_ABOUT: np.array(header.about), _COUNT: np.array(count)}
            journal.put({**about, _BALLOT: vector})
        counted = journal.load_array(_COUNT)
        num_examples = 0 if counted is None else int(counted)

        def contribution() -> FloatArray:
            ballot = journal.load_array(_BALLOT)
            assert ballot is not None
            return sums.release.contribution(0, header.slot, ballot)

        reply = identity.reply(journal, sums, request, contribution)
        if request.ends:  # it is never needed again
            journal.put({_BALLOT: np.zeros(0)})
    arrays = ArrayRecord({"reply": Array(reply)})
    record = _reply_record(site, asked, num_examples)
    gate.let_go(arrays)
    return sent(site.message, RecordDict({HEADER: record, SUM: arrays}))


def _reply_record(
    site: AskedSite, header: BallotHeader, num_examples: int
) -> ConfigRecord:
    reply = replace(site.reply_header(header), num_examples=num_examples)
    return header_record(reply)


def _is_known(journal: Journal, header: SumHeader, may_begin: bool) -> bool:
    """Return whether the ballot that is asked for is on record; refuse another one."""
    stored = journal.load_array(_ABOUT)
    known, release = None if stored is None else str(stored), header.ballot.release
    if known == header.about:
        return True
    if known is not None:
        last = json.loads(known)["ballot"]["release"]
        if release <= last:
            raise RefusedError.told(
                f"Release {release}: release {last} was asked for in other words."
            )
    if not may_begin:
        raise RefusedError.told(
            f"Release {release}: exchange {header.exchange} of a sum that did not "
            "begin here."
        )
    return False


def _held(context: Context, attempt: str, slot: int) -> AbstractContextManager[Journal]:
    """Hold the journal of this client's sums in one run of a tuner.

    It belongs to one slot: under two a client could be summed twice.
    """
    identity = {"kind": f"{KIND}-sums", "study_id": attempt, "slot": slot}
    folder, path = configured_folder(context), None
    if folder is not None:
        # Clients may share a folder. The attempt's name is the server's.
        owner = hashlib.sha256(f"{attempt} {configured_slot(context)}".encode())
        path = folder / f"sums-{owner.hexdigest()[:16]}.sqlite"
    return held_journal(
        context, identity, path, record=KEPT_SUM, may_begin=True, patience=_PATIENCE
    )


def ballot_of(context: Context, header: BallotHeader) -> tuple[FloatArray, int]:
    """Return the client's ballot, or its exact scores and their weights.

    And the number of examples with which it counts, which is public and exact at the
    server; 0 with ranks.
    """
    known = TrialStates(context.state, header.attempt, header.examples).scores
    values, weights = _scores_of(known, header)
    is_asked, is_valid, count = weights > 0, np.isfinite(values), 0
    ballots: Ballots = RankBallots()
    if header.examples is not None:
        # The range is that of the metric; scores are larger where they are better.
        turned = header.examples if header.maximize else header.examples.negated()
        ballots, count = turned, turned.num_examples(values, weights)
        is_finite, is_valid = is_valid, turned.is_inside(values)
        if (is_asked & is_finite & ~is_valid).any():
            named = range_text((header.examples.low, header.examples.high))
            log_once(
                "a mean outside metric_range:",
                f"a mean of this client is outside the metric_range {named} that the "
                "server names, and counts as the worst value: the app does not clip "
                "each example's value to it, and no epsilon holds for it",
            )
    # Asked, and without a valid score: its ballot says so, and ranks nothing.
    if known and not is_valid[is_asked].any():
        client = context.node_config.get("partition-id", context.node_id)
        rung, num_trials = header.rung + 1, len(header.trials)
        log_once(
            f"a client without a finite score in rung {rung}:",
            f"client {client} has no finite score in any of the {num_trials} trials of "
            f"rung {rung}"
            + (", or none within metric_range" if header.examples is not None else ""),
        )
    if header.is_exact:
        return np.stack([values, weights]), count
    if not known:
        return np.zeros(len(values)), count
    return ballots.vector(values, weights), count


def _scores_of(
    known: Mapping[int, tuple[float, float]], header: BallotHeader
) -> tuple[FloatArray, FloatArray]:
    """Return the client's scores of the trials, larger is better, and their weights."""
    scores = np.array([known.get(t, (0.0, 0.0)) for t in header.trials])
    values, weights = scores[:, 0], scores[:, 1]
    is_failed = np.isin(header.trials, header.failed)
    # The server knows which trials have failed: for all clients they are the worst.
    values[is_failed] = math.nan
    # A failure weighs as the client does elsewhere, or its ballot would say of fewer
    # examples that they have no score.
    numbers = [weight for _, weight in known.values() if weight > 0]
    own = min(numbers, default=1.0 if header.examples is None else 0.0)
    weights[np.isnan(weights) | (is_failed & (weights == 0))] = own
    return (values if header.maximize else -values), weights
