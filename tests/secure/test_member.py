"""What a server that breaks the protocol asks for, each honest member refuses.

A refusal says what is wrong, and in which slot.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.errors import RefusedError
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.masks import (
    ADVERT_BYTES,
    ENCRYPTED_BYTES,
    KEY_BYTES,
    SumKeys,
)
from flwr_fbo.secure.member import Member
from flwr_fbo.secure.roster import SIGNATURE_BYTES, Roster, SigningKey
from flwr_fbo.secure.terms import SumFailedError, SumTerms
from flwr_fbo.secure.wire import (
    Payload,
    cut,
    pack,
    pack_set,
    set_bytes,
    to_payload,
    unpack,
    unpack_set,
)
from tests.support.attempts import Attempt, make_attempt, make_roster

NUM_MEMBERS = 6  # the threshold is 5
_FULL = ADVERT_BYTES + SIGNATURE_BYTES


def at(phase: int, signed: bool = True, **options: Any) -> Attempt:
    attempt = make_attempt(NUM_MEMBERS, signed=signed, **options)
    attempt.play(until=phase)
    return attempt


def records(payload: Payload, size: int, attempt: Attempt) -> dict[int, bytes]:
    return unpack(payload.tobytes(), size, attempt.terms.slots)


def set_and_records(
    payload: Payload, size: int, attempt: Attempt
) -> tuple[tuple[int, ...], dict[int, bytes]]:
    slots = attempt.terms.slots
    named, rest = cut(payload.tobytes(), set_bytes(slots))
    return unpack_set(named, slots), unpack(rest, size, slots)


def refused_by_all(
    attempt: Attempt, requests: Mapping[int, Payload], pattern: str
) -> None:
    """Assert that each member refuses, and still answers an honest request."""
    exchange = int(attempt.aggregator.exchange)
    assert requests
    for slot, request in requests.items():
        before = attempt.members[slot].state
        assert attempt.answer(slot, exchange, request) is None
        assert re.search(pattern, attempt.refusals[slot]), attempt.refusals[slot]
        assert attempt.members[slot].state == before
    attempt.play()
    attempt.assert_right()


def advertised(attempt: Attempt, **changes: Any) -> dict[int, Payload]:
    """Return requests of exchange 2 in which one member's advert is another one."""
    victim = attempt.terms.slots[2]
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        if slot != victim:
            adverts = records(request, _FULL, attempt)
            adverts[victim] = changes["advert"]
            requests[slot] = to_payload(pack(adverts))
    return requests


def test_keys_that_nobody_signed_are_refused() -> None:
    attempt = at(2)
    fake = Member(make_attempt(6, signed=False).terms, 8)
    keys = fake.answer(1, to_payload(b""), lambda: np.zeros(4, np.int64)).tobytes()
    for signature in (bytes(64), SigningKey.draw().sign(keys)):
        requests = advertised(attempt, advert=keys + signature)
        refused_by_all(attempt, requests, "keys of slot 8 lack its signature")
        attempt = at(2)


def test_keys_of_another_slot_are_refused() -> None:
    attempt = at(2)
    some = attempt.aggregator.requests()[attempt.terms.slots[0]]
    other = records(some, _FULL, attempt)[attempt.terms.slots[1]]
    requests = advertised(attempt, advert=other)
    refused_by_all(attempt, requests, "keys of slot 8 lack its signature")


def test_keys_of_an_earlier_attempt_are_refused() -> None:
    keys, roster = make_roster(NUM_MEMBERS)
    earlier = at(2, known=(keys, roster))
    some = earlier.aggregator.requests()[earlier.terms.slots[0]]
    attempt = at(2, known=(keys, roster), attempt="02")
    old = records(some, _FULL, earlier)[8]
    requests = advertised(attempt, advert=old)
    refused_by_all(attempt, requests, "keys of slot 8 lack its signature")


def test_terms_that_differ_for_one_member_are_noticed() -> None:
    keys, roster = make_roster(NUM_MEMBERS)
    attempt = make_attempt(NUM_MEMBERS, known=(keys, roster))
    other = make_attempt(NUM_MEMBERS, known=(keys, roster), num_bits=48)
    victim = attempt.terms.slots[2]
    attempt.members[victim] = other.members[victim]
    # An honest server drops it; a malicious one passes its keys on.
    advert = other.members[victim].answer(1, to_payload(b""), lambda: np.zeros(4, int))
    attempt.step()
    assert victim not in attempt.aggregator.requests()
    requests = advertised(attempt, advert=advert.tobytes())
    text = attempt.aggregator.requests()[attempt.terms.slots[0]]
    refused_by_all(attempt, requests, "keys of slot 8 lack its signature")
    with pytest.raises(RefusedError, match="lack its signature"):
        other.members[victim].answer(2, text, lambda: np.zeros(4, int))


def test_equal_keys_are_refused() -> None:
    """A member that repeats another one's key under its own signature."""
    attempt = at(2)
    some = attempt.aggregator.requests()[attempt.terms.slots[0]]
    copied = records(some, _FULL, attempt)[attempt.terms.slots[1]][:ADVERT_BYTES]
    own = copied[:KEY_BYTES] * 2
    for keys, slots in ((copied, r"\[5, 8\]"), (own, r"\[8\]|\[5, 8\]")):
        attempt_keys = SumKeys(attempt.terms)
        signature = attempt.keys[8].sign(attempt_keys.advert_text(8, keys))
        requests = advertised(attempt, advert=keys + signature)
        # Slot 5 sees its own key in another one's advert.
        for slot, request in requests.items():
            assert attempt.answer(slot, 2, request) is None
            expected = f"slots {slots} have equal keys"
            assert re.search(expected, attempt.refusals[slot])


# Points of a small order: what they agree on does not depend on the other key.
LOW_ORDER = bytes(32), bytes([1, *bytes(31)])


@pytest.mark.parametrize("place", [0, 1])
def test_a_key_that_hides_nothing_is_refused(place: int) -> None:
    """That for shares before any share leaves, that for masks before any number."""
    attempt = at(2)
    some = attempt.aggregator.requests()[2]
    advert = records(some, _FULL, attempt)[8]
    keys = [advert[:KEY_BYTES], advert[KEY_BYTES:ADVERT_BYTES]]
    keys[place] = LOW_ORDER[place]
    text = SumKeys(attempt.terms).advert_text(8, b"".join(keys))
    signature = attempt.keys[8].sign(text)
    requests = advertised(attempt, advert=b"".join(keys) + signature)
    if place == 0:
        refused_by_all(attempt, requests, "the keys of slots .* agree on no secret")
        return
    attempt.step(lambda exchange, honest: {**honest, **requests})
    for slot, request in attempt.aggregator.requests().items():
        if slot != 8:
            assert attempt.answer(slot, 3, request) is None
            assert re.search("slots .* agree on no secret", attempt.refusals[slot])


@pytest.mark.parametrize("key", LOW_ORDER)
def test_a_server_drops_a_member_whose_key_hides_nothing(key: bytes) -> None:
    attempt = make_attempt(NUM_MEMBERS, signed=False)
    attempt.step(replies=lambda e, m: {**m, 8: to_payload(m[8].tobytes()[:32] + key)})
    assert 8 not in attempt.aggregator.requests()
    attempt.play()
    attempt.assert_right()


def test_too_few_keys_are_refused() -> None:
    attempt = at(2)
    requests = {
        slot: request[: 3 * (_FULL + 4)]
        for slot, request in attempt.aggregator.requests().items()
    }
    refused_by_all(attempt, requests, "3 advertised keys, 4 are needed")


def test_keys_of_strangers_are_refused() -> None:
    """Members that the server has enrolled: no roster, and no terms, has them."""
    attempt = at(2)
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        adverts = records(request, _FULL, attempt)
        adverts.popitem()
        requests[slot] = to_payload(pack({**adverts, 99: bytes(_FULL)}))
    refused_by_all(attempt, requests, "slot 99 is a stranger")


def test_terms_with_strangers_are_refused() -> None:
    keys, roster = make_roster(3)
    slots = (*roster.slots, 99)
    terms = SumTerms("5a", "01", slots, 3, 3, 4, 40, roster.digest())
    with pytest.raises(RefusedError, match="slots that the roster lacks"):
        Member(terms, 2, keys[2], roster)


def test_another_roster_is_refused() -> None:
    keys, roster = make_roster(3)
    _, other = make_roster(3)
    fake = Roster.draw({**other.keys, 2: keys[2].public})
    for digest in (fake.digest(), ""):
        terms = SumTerms("5a", "01", roster.slots, 3, 3, 4, 40, digest)
        with pytest.raises(RefusedError, match="another roster than the pinned"):
            Member(terms, 2, keys[2], roster)
    terms = SumTerms("5a", "01", roster.slots, 3, 3, 4, 40, roster.digest())
    with pytest.raises(RefusedError, match="slot 3 is not in the terms"):
        Member(terms, 3, keys[2], roster)
    with pytest.raises(ValueError, match="the key that the roster has for the slot"):
        Member(terms, 2, SigningKey.draw(), roster)


def test_a_part_of_a_large_roster_is_refused() -> None:
    keys, roster = make_roster(60)
    slots = roster.slots[:55]
    terms = SumTerms("5a", "01", slots, 40, 40, 4, 40, roster.digest())
    with pytest.raises(RefusedError, match="more than 50 members name the whole"):
        Member(terms, 2, keys[2], roster)


def test_swapped_shares_are_refused() -> None:
    attempt = at(3)
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        shared, encrypted = set_and_records(request, ENCRYPTED_BYTES, attempt)
        swapped = dict(zip(encrypted, reversed(encrypted.values()), strict=True))
        requests[slot] = to_payload(
            pack_set(shared, attempt.terms.slots) + pack(swapped)
        )
    refused_by_all(attempt, requests, r"1 readable shares \(not those of slots \[\d")


def test_shares_of_others_than_named_are_refused() -> None:
    attempt = at(3)
    slots = attempt.terms.slots
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        shared, encrypted = set_and_records(request, ENCRYPTED_BYTES, attempt)
        del encrypted[next(iter(encrypted))]
        requests[slot] = to_payload(pack_set(shared, slots) + pack(encrypted))
    refused_by_all(attempt, requests, "not those of the members who shared")
    attempt = at(3)
    for slot, request in attempt.aggregator.requests().items():
        shared, encrypted = set_and_records(request, ENCRYPTED_BYTES, attempt)
        others = pack_set(set(slots) - {slot}, slots)
        requests[slot] = to_payload(others + pack(encrypted))
    refused_by_all(attempt, requests, "not those of the members who shared")


def test_a_small_group_that_shares_is_refused() -> None:
    """In a sparse graph a member's neighbours are fewer than a sum needs."""
    attempt = make_attempt(51)
    attempt.play(until=3)
    slots, requests = attempt.terms.slots, {}
    for slot, request in attempt.aggregator.requests().items():
        _, encrypted = set_and_records(request, ENCRYPTED_BYTES, attempt)
        near = pack_set({slot, *encrypted}, slots)
        requests[slot] = to_payload(near + pack(encrypted))
    refused_by_all(attempt, requests, "33 members shared, fewer than 35")


def confirming(attempt: Attempt, summed: set[int]) -> dict[int, Payload]:
    """Return requests of exchange 4 with another set."""
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        _, views = set_and_records(request, SIGNATURE_BYTES, attempt)
        kept = {other: views[other] for other in views if other in summed}
        named = pack_set(summed, attempt.terms.slots)
        requests[slot] = to_payload(named + pack(kept))
    return requests


def test_a_set_that_is_too_small_is_refused() -> None:
    """The server claims that all others have dropped out."""
    attempt = at(4)
    requests = confirming(attempt, set(attempt.terms.slots[:4]))
    refused_by_all(attempt, requests, "4 members in the sum, fewer than 5")


def test_a_set_without_the_member_is_refused() -> None:
    attempt = at(4)
    slot = attempt.terms.slots[0]
    requests = confirming(attempt, set(attempt.terms.slots) - {slot})
    refused_by_all(attempt, {slot: requests[slot]}, "slot 2 is not in the sum")


def test_a_set_with_members_who_did_not_share_is_refused() -> None:
    attempt = at(2)
    gone = attempt.terms.slots[0]
    attempt.step(replies=lambda e, m: {s: r for s, r in m.items() if s != gone})
    attempt.step()
    requests = confirming(attempt, set(attempt.terms.slots))
    refused_by_all(attempt, requests, r"slots \[2\] of the sum did not share")


def test_a_set_with_strangers_is_refused() -> None:
    attempt = at(4)
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        requests[slot] = request.copy()
        requests[slot][0] |= 1  # the eighth of six slots
    refused_by_all(attempt, requests, "names strangers beyond the last slot")


def test_members_who_were_shown_different_groups_do_not_confirm() -> None:
    """One sees five share, the others six: a sum of few could be cut out."""
    attempt = at(3)
    slots = attempt.terms.slots
    victim, hidden = slots[0], slots[5]
    requests = dict(attempt.aggregator.requests())
    shared, encrypted = set_and_records(requests[victim], ENCRYPTED_BYTES, attempt)
    del encrypted[hidden]
    shown = pack_set(set(shared) - {hidden}, slots)
    requests[victim] = to_payload(shown + pack(encrypted))
    masked = {s: attempt.answer(s, 3, r) for s, r in requests.items()}
    views = {}
    for slot, reply in masked.items():
        assert reply is not None
        views[slot] = reply[-SIGNATURE_BYTES:].tobytes()
    for slot in slots[1:]:
        others = {s: views[s] for s in slots if s != slot}
        request = to_payload(pack_set(slots, slots) + pack(others))
        assert attempt.answer(slot, 4, request) is None
        expected = "slot 2 did not sign that the same members shared"
        assert expected in attempt.refusals[slot]


@pytest.mark.parametrize("missing", [True, False])
def test_views_that_are_missing_or_forged_are_refused(missing: bool) -> None:
    attempt = at(4)
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        summed, views = set_and_records(request, SIGNATURE_BYTES, attempt)
        other = next(iter(views))
        views[other] = bytes(SIGNATURE_BYTES)
        if missing:
            del views[other]
        named = pack_set(summed, attempt.terms.slots)
        requests[slot] = to_payload(named + pack(views))
    what = "not all members of the sum signed" if missing else "did not sign that"
    refused_by_all(attempt, requests, what)


def unmasking(attempt: Attempt, change: Any) -> dict[int, Payload]:
    """Return requests of exchange 5 with other signatures."""
    requests = {}
    for slot, request in attempt.aggregator.requests().items():
        signatures = records(request, SIGNATURE_BYTES, attempt)
        requests[slot] = to_payload(change(signatures))
    return requests


def _repeated(signatures: dict[int, bytes]) -> bytes:
    few = dict(list(signatures.items())[:4])
    return pack(few) + pack({max(few): few[max(few)]})


def _forged(signatures: dict[int, bytes]) -> bytes:
    return pack({**signatures, 8: bytes(SIGNATURE_BYTES)})


def _one_for_all(signatures: dict[int, bytes]) -> bytes:
    return pack(dict.fromkeys(signatures, signatures[2]))


@pytest.mark.parametrize(
    ("change", "pattern"),
    [
        (_repeated, "slot 11 is repeated or out of order"),
        (_forged, "slot 8 did not confirm the same sum"),
        (_one_for_all, "slot 5 did not confirm the same sum"),
        (lambda s: pack(dict(list(s.items())[:4])), "4 members confirmed, 5 are"),
        (lambda s: pack({**dict(list(s.items())[1:]), 99: s[2]}), "99 is a stranger"),
        (lambda s: pack(s)[:-1], "bytes are no records"),
    ],
)
def test_bad_confirmations_are_refused(change: Any, pattern: str) -> None:
    attempt = at(5)
    refused_by_all(attempt, unmasking(attempt, change), pattern)


def test_confirmations_of_two_sets_unmask_neither() -> None:
    """The server asks three to confirm the sum without slot 17, and three with it."""
    attempt = at(4)
    slots = attempt.terms.slots
    small = set(slots[:5])
    requests = confirming(attempt, small)
    full = attempt.aggregator.requests()
    votes = {}
    for slot in slots:
        request = requests[slot] if slot in slots[:3] else full[slot]
        reply = attempt.answer(slot, 4, request)
        assert reply is not None
        votes[slot] = reply.tobytes()
    for slot in slots:
        allowed = small if slot in slots[:3] else set(slots)
        request = to_payload(pack({s: v for s, v in votes.items() if s in allowed}))
        assert attempt.answer(slot, 5, request) is None
        pattern = r"slot \d+ did not confirm the same sum"
        assert re.search(pattern, attempt.refusals[slot])


def test_nobody_reveals_both_kinds_of_shares() -> None:
    """After one unmasking, another set and other signatures get no second reply."""
    attempt = at(4)
    slots = attempt.terms.slots
    small = confirming(attempt, set(slots[:5]))
    attempt.play()
    attempt.assert_right()
    votes = attempt.aggregator._replies[3]
    few = pack({slot: votes[slot] for slot in slots[1:]})
    for slot in slots[:5]:
        for exchange, request in ((4, small[slot]), (5, to_payload(few))):
            assert attempt.answer(slot, exchange, request) is None
            text = f"Exchange {exchange}: it is already answered"
            assert text in attempt.refusals[slot]
    # It reveals one share of each other member.
    for slot in slots:
        reply = bytes.fromhex(json.loads(attempt.members[slot].state)["reply"])
        assert set(unpack(reply, 17, slots)) == set(slots) - {slot}


def test_exchanges_that_are_answered_are_not_answered_differently() -> None:
    attempt = make_attempt(NUM_MEMBERS)
    seen: dict[int, dict[int, Payload]] = {}
    for exchange in range(1, 6):
        seen[exchange] = attempt.aggregator.requests()
        attempt.step()
        for earlier in range(1, exchange + 1):
            for slot in attempt.terms.slots:
                other = np.append(seen[earlier][slot], np.uint8(0))
                assert attempt.answer(slot, earlier, other) is None
                text = f"Exchange {earlier}: it is already answered"
                assert text in attempt.refusals[slot]
    attempt.assert_right()


def test_a_first_request_with_content_is_refused() -> None:
    attempt = at(1)
    requests = dict.fromkeys(attempt.terms.slots, to_payload(b"x"))
    refused_by_all(attempt, requests, "the first request is not empty")


def test_a_server_with_another_roster_than_the_terms_is_told() -> None:
    attempt = make_attempt(3)
    _, other = make_roster(3)
    with pytest.raises(ValueError, match=r"roster=.*another roster"):
        Aggregator(attempt.terms, other)


def test_an_isolated_member_of_a_sparse_graph_is_refused() -> None:
    """The server leaves out the honest neighbours of one member, but not too many."""
    attempt = make_attempt(51)
    attempt.play(until=4)
    graph = attempt.members[2]._graph
    least = attempt.terms.min_summed
    left_out = set(graph.neighbours(2)[: 51 - least])
    assert len(graph.neighbours(2)) - len(left_out) < graph.threshold
    requests = confirming(attempt, set(attempt.terms.slots) - left_out)
    far = {s: r for s, r in requests.items() if s not in left_out}
    assert any(2 not in graph.neighbours(slot) for slot in far if slot != 2)
    refused_by_all(attempt, far, r"slot \d+ has \d+ neighbours, needs \d+")


def test_a_failed_sum_names_the_counts() -> None:
    attempt = at(3)
    with pytest.raises(SumFailedError, match="has 0 valid replies and needs 5"):
        attempt.aggregator.receive({})
