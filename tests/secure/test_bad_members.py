"""Junk of one member is its drop-out; it never makes a wrong sum."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_fbo._common.errors import RefusedError
from flwr_fbo.secure.masks import COMMITMENT_BYTES, ENCRYPTED_BYTES, SHARED_BYTES
from flwr_fbo.secure.terms import SumFailedError
from flwr_fbo.secure.wire import pack, to_payload, unpack
from tests.support.attempts import Attempt, make_attempt

LIAR = 5
JUNK = [
    None,
    "text",
    np.zeros(0, np.uint8),
    np.zeros(10**6, np.uint8),
    np.zeros(96, np.int64),
    np.array([object()]),
]


def lying(phase: int, change: Any) -> Any:
    """Return what changes the liar's reply in one exchange."""

    def lie(exchange: int, replies: dict[int, Any]) -> Mapping[int, Any]:
        if exchange == phase and LIAR in replies:
            replies[LIAR] = change(replies[LIAR])
        return replies

    return lie


@pytest.mark.parametrize("phase", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_junk_counts_as_a_drop_out(
    junk: Any, phase: int, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = make_attempt(5, threshold=4)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        _end(attempt, lying(phase, lambda reply: junk))
    attempt.assert_right()
    if not (phase == 5 and isinstance(junk, np.ndarray) and junk.size == 0):
        assert f"Slot {LIAR} drops out of exchange {phase}" in caplog.text
    assert (LIAR in attempt.aggregator.summed) == (phase > 3)


def _end(attempt: Attempt, lie: Any) -> None:
    """Play with a lie; where all of five were needed, without it in the end."""
    try:
        attempt.play(replies=lie)
    except SumFailedError:
        attempt.play()


def test_an_unknown_slot_is_ignored() -> None:
    attempt = make_attempt(3)
    names: list[Any] = [99, "x"]
    attempt.play(replies=lambda e, m: {**m, **dict.fromkeys(names, m[2])})
    attempt.assert_right()


@pytest.mark.parametrize("phase", [1, 2, 3, 4, 5])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_changed_replies_never_make_a_wrong_sum(
    phase: int, data: st.DataObject
) -> None:
    def change(reply: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        changed = reply.copy()
        places = st.integers(0, len(reply) - 1)
        for place in data.draw(st.lists(places, min_size=1, max_size=3, unique=True)):
            changed[place] ^= data.draw(st.integers(1, 255))
        return changed[: data.draw(st.sampled_from([None, len(reply), -1]))]

    attempt = make_attempt(4, threshold=3)
    try:
        attempt.play(replies=lying(phase, change))
    except SumFailedError:
        return
    # With masked numbers of its own choice a member adds what it likes: but it signed.
    if phase == 3 and LIAR in attempt.aggregator.summed:
        return
    attempt.assert_right()


@pytest.mark.parametrize("exchange", [1, 2, 3, 4, 5])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_member_refuses_any_other_request(exchange: int, data: st.DataObject) -> None:
    attempt = make_attempt(3)
    attempt.play(until=exchange)
    slot = attempt.terms.slots[0]
    request = attempt.aggregator.requests()[slot]
    if data.draw(st.booleans()) and len(request):
        other = request.copy()
        other[data.draw(st.integers(0, len(request) - 1))] ^= 1
    else:
        other = to_payload(data.draw(st.binary(min_size=1, max_size=300)))
    before = attempt.members[slot].state
    reply = attempt.answer(slot, exchange, other)
    if reply is None:
        assert attempt.members[slot].state == before
        attempt.play()
        attempt.assert_right()
    else:
        # All of three encrypted shares are needed for all; nothing else may pass.
        pytest.fail(f"exchange {exchange} answered {other!r}")


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_a_member_refuses_what_is_no_payload(junk: Any) -> None:
    attempt = make_attempt(3)
    attempt.step()
    for member in attempt.members.values():
        with pytest.raises(RefusedError, match="Exchange 2: "):
            member.answer(2, junk, lambda: np.zeros(4, np.int64))


def test_a_wrong_share_is_found_and_others_are_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempt = make_attempt(6, threshold=4)

    def change(reply: Any) -> Any:
        changed = reply.copy()
        changed[-1] ^= 1
        return changed

    attempt.play(replies=lying(5, change))
    attempt.assert_right()
    assert f"Slot {LIAR} drops out of exchange 5" in caplog.text
    assert "its share of slot 17 is wrong" in caplog.text
    small = make_attempt(3)
    with pytest.raises(SumFailedError, match="has 1 shares of slot 8 and needs 2"):
        small.play(replies=lying(5, change))


def _mixed(reply: Any, num_others: int, changed_shares: int) -> Any:
    """Return shares to the others of which the first ones are junk."""
    text = reply.tobytes()
    head, rest = text[:COMMITMENT_BYTES], text[COMMITMENT_BYTES:]
    records = unpack(rest, SHARED_BYTES, range(100))
    assert len(records) == num_others
    for slot in list(records)[:changed_shares]:
        records[slot] = bytes(ENCRYPTED_BYTES) + records[slot][ENCRYPTED_BYTES:]
    return to_payload(head + pack(records))


def test_a_few_shares_that_cannot_be_read_stop_nobody() -> None:
    attempt = make_attempt(7, threshold=5)
    attempt.play(replies=lying(2, lambda reply: _mixed(reply, 6, 2)))
    attempt.assert_right()
    assert LIAR in attempt.aggregator.summed
    assert not attempt.refusals


def test_shares_that_nobody_can_read_end_the_sum_by_name() -> None:
    attempt = make_attempt(7, threshold=5)
    with pytest.raises(SumFailedError, match=f"has 0 shares of slot {LIAR} and needs"):
        attempt.play(replies=lying(2, lambda reply: _mixed(reply, 6, 6)))


def test_a_seed_other_than_promised_ends_the_sum_by_name() -> None:
    def change(reply: Any) -> Any:
        changed = reply.copy()
        changed[0] ^= 1  # in the commitment to the self mask
        return changed

    attempt = make_attempt(4)
    with pytest.raises(SumFailedError, match=f"slot {LIAR} .* not those of its seed"):
        attempt.play(replies=lying(2, change))


def test_a_masking_seed_other_than_advertised_ends_the_sum_by_name() -> None:
    """The liar shares another seed than that of its key, and drops out."""
    attempt = make_attempt(5, threshold=3)
    attempt.step()
    state = json.loads(attempt.members[LIAR].state)
    state["kept"]["seed"] = "00" * 16
    attempt.members[LIAR] = attempt.member(LIAR, json.dumps(state).encode())
    attempt.step()
    attempt.step(replies=lambda e, m: {s: r for s, r in m.items() if s != LIAR})
    with pytest.raises(SumFailedError, match=f"slot {LIAR} .* not those of its seed"):
        attempt.play()


def test_members_with_equal_keys_drop_out() -> None:
    attempt = make_attempt(5, signed=False, threshold=3)

    def copy(exchange: int, replies: dict[int, Any]) -> Mapping[int, Any]:
        return {**replies, LIAR: replies[8]} if exchange == 1 else replies

    attempt.play(replies=copy)
    assert attempt.aggregator.summed == (2, 11, 14)
    attempt.assert_right()
