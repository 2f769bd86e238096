"""Honest sites and servers get the right sum, or none, whoever drops out."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.errors import RefusedError
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.graph import MaskGraph
from flwr_fbo.secure.terms import Exchange, SumFailedError
from flwr_fbo.secure.wire import to_payload
from tests.support.attempts import Attempt, Between, make_attempt, unchanged


@pytest.mark.parametrize(("num_members", "signed"), [(2, True), (5, True), (5, False)])
def test_the_sum_is_exact(num_members: int, signed: bool) -> None:
    attempt = make_attempt(num_members, signed=signed)
    attempt.play()
    assert attempt.aggregator.summed == attempt.terms.slots
    assert all(member.has_unmasked for member in attempt.members.values())
    attempt.assert_right()
    assert attempt.aggregator.requests() == {}


@pytest.mark.parametrize("num_bits", [8, 56])
def test_sums_wrap_around_at_the_modulus(num_bits: int) -> None:
    attempt = make_attempt(3, num_bits=num_bits)
    for slot in attempt.terms.slots:
        attempt.numbers[slot] = np.array([2**62, -1, -(2**60) - 5, 2**55])
    attempt.play()
    attempt.assert_right()
    assert int(attempt.aggregator.total[1]) == 2**num_bits - 3


def _losing(rng: np.random.Generator, share: float) -> Between:
    """Return what loses each message with some probability."""

    def lose(exchange: int, messages: dict[int, Any]) -> Mapping[int, Any]:
        kept = rng.random(len(messages)) >= share
        return {s: m for (s, m), k in zip(messages.items(), kept, strict=True) if k}

    return lose


def _play_rounds(num_rounds: int) -> dict[str, int]:
    """Play rounds in which messages of one exchange, or of all, are lost."""
    ends = {"right": 0, "failed": 0}
    for seed in range(num_rounds):
        rng = np.random.default_rng(seed)
        lose = _losing(rng, 0.3 if seed % 2 else 0.08)
        phase = 1 + seed % 6  # 6 is: in all exchanges
        attempt = make_attempt(8, signed=seed % 3 > 0, threshold=5)

        def some(
            exchange: int,
            messages: dict[int, Any],
            phase: int = phase,
            lose: Between = lose,
        ) -> Mapping[int, Any]:
            return lose(exchange, messages) if phase in (exchange, 6) else messages

        before, after = (some, unchanged) if rng.random() < 0.5 else (unchanged, some)
        try:
            attempt.play(before, after)
        except SumFailedError:
            ends["failed"] += 1
        else:
            attempt.assert_right()
            ends["right"] += 1
    return ends


def test_the_sum_is_right_or_fails_when_messages_are_lost() -> None:
    ends = _play_rounds(24)
    assert min(ends.values()) >= 4, ends


@pytest.mark.slow
def test_the_sum_is_right_or_fails_in_many_rounds() -> None:
    ends = _play_rounds(200)
    assert min(ends.values()) >= 20, ends


@pytest.mark.parametrize(
    ("num_members", "phase"), [*((7, phase) for phase in range(1, 6)), (51, 3)]
)
def test_some_may_drop_out_in_any_exchange(num_members: int, phase: int) -> None:
    """Their neighbours alone, where there are more than fifty, undo their masks."""
    attempt = make_attempt(num_members)
    assert attempt.roster is not None
    graph = MaskGraph.of(attempt.terms, attempt.roster.seed)
    assert graph.is_complete == (num_members == 7)
    gone = set(attempt.terms.slots[:2])

    def drop(exchange: int, replies: dict[int, Any]) -> Mapping[int, Any]:
        left = set(replies) - gone if exchange >= phase else set(replies)
        return {slot: replies[slot] for slot in left}

    attempt.play(replies=drop)
    attempt.assert_right()
    expected = attempt.terms.slots if phase > 3 else attempt.terms.slots[2:]
    assert attempt.aggregator.summed == expected


@pytest.mark.parametrize("phase", [1, 2, 3, 4, 5])
def test_too_few_members_end_a_sum(phase: int) -> None:
    attempt = make_attempt(6)  # the threshold is 5

    def drop(exchange: int, replies: dict[int, Any]) -> Mapping[int, Any]:
        few = list(replies)[:4] if exchange == phase else list(replies)
        return {slot: replies[slot] for slot in few}

    attempt.play(until=phase)
    pattern = "4 valid replies and needs 5" if phase < 5 else "3 shares .* needs 4"
    with pytest.raises(SumFailedError, match=pattern):
        attempt.play(replies=drop)
    # Members answer the same request with the same reply, so that it can go on.
    attempt.play()
    attempt.assert_right()


def test_a_reply_that_was_lost_is_given_again() -> None:
    attempt = make_attempt(5)
    while attempt.aggregator.exchange != Exchange.DONE:
        exchange = int(attempt.aggregator.exchange)
        requests = attempt.aggregator.requests()
        first = {s: attempt.answer(s, exchange, r) for s, r in requests.items()}
        # No number is asked for again: another one would unmask the difference.
        attempt.numbers = {slot: n + 1 for slot, n in attempt.numbers.items()}
        again = attempt.step()
        for slot, reply in first.items():
            np.testing.assert_array_equal(reply, again[slot])


def test_a_member_that_was_killed_goes_on_from_its_state() -> None:
    """Killed before its state is on disk, or after it and before the reply left."""
    attempt = make_attempt(4, threshold=3)
    slot = attempt.terms.slots[1]
    while attempt.aggregator.exchange != Exchange.DONE:
        exchange = int(attempt.aggregator.exchange)
        request = attempt.aggregator.requests()[slot]
        before = attempt.members[slot].state
        attempt.answer(slot, exchange, request)
        attempt.members[slot] = attempt.member(slot, before if exchange > 1 else b"")
        reply = attempt.answer(slot, exchange, request)
        attempt.members[slot] = attempt.member(slot, attempt.members[slot].state)
        again = attempt.step()[slot]
        np.testing.assert_array_equal(again, reply)
    attempt.assert_right()


def test_a_state_is_bound_to_its_slot_and_terms() -> None:
    attempt = make_attempt(3)
    attempt.step()
    first, second, _ = attempt.terms.slots
    state = attempt.members[first].state
    with pytest.raises(ValueError, match=r"state=.* that of these terms and slot"):
        attempt.member(second, state)
    other = make_attempt(3, attempt="02", known=(attempt.keys, _roster(attempt)))
    with pytest.raises(ValueError, match=r"state=.* that of these terms and slot"):
        other.member(first, state)
    with pytest.raises(ValueError, match=r"state=.* that of the same terms"):
        Aggregator(other.terms, other.roster, attempt.aggregator.state)


def _roster(attempt: Attempt) -> Any:
    assert attempt.roster is not None
    return attempt.roster


def test_an_aggregator_goes_on_from_its_state() -> None:
    attempt = make_attempt(5, threshold=3)
    gone = attempt.terms.slots[4]
    lose: Callable[[int, dict[int, Any]], Mapping[int, Any]] = lambda e, m: {  # noqa: E731
        slot: reply for slot, reply in m.items() if slot != gone or e < 3
    }
    while attempt.aggregator.exchange != Exchange.DONE:
        before = attempt.aggregator
        attempt.aggregator = Aggregator(attempt.terms, attempt.roster, before.state)
        again = attempt.aggregator.requests()
        for slot, request in before.requests().items():
            np.testing.assert_array_equal(again[slot], request)
        attempt.step(replies=lose)
    attempt.assert_right()
    done = Aggregator(attempt.terms, attempt.roster, attempt.aggregator.state)
    np.testing.assert_array_equal(done.total, attempt.expected())


def test_there_is_no_total_before_the_end() -> None:
    attempt = make_attempt(3)
    with pytest.raises(RuntimeError, match="exchange 1 of 5"):
        attempt.aggregator.total  # noqa: B018
    attempt.play()
    with pytest.raises(RuntimeError, match="done"):
        attempt.aggregator.receive({})


@pytest.mark.parametrize("numbers", [np.zeros(3, np.int64), np.zeros(4), [0] * 4])
def test_numbers_of_another_form_are_an_error(numbers: Any) -> None:
    attempt = make_attempt(3)
    attempt.play(until=3)
    slot = attempt.terms.slots[0]
    request = attempt.aggregator.requests()[slot]
    with pytest.raises(ValueError, match="a vector of 4 integers of 64 bits"):
        attempt.members[slot].answer(3, request, lambda: numbers)
    attempt.play()
    attempt.assert_right()


def test_secrets_are_gone_from_the_state_when_they_are_no_longer_needed() -> None:
    attempt = make_attempt(4, threshold=3)
    slot, gone = attempt.terms.slots[0], attempt.terms.slots[3]
    member = attempt.members[slot]
    attempt.step()
    kept = json.loads(member.state)["kept"]
    secrets = {k: kept[k].encode() for k in ("encryption", "seed")}
    attempt.step()
    secrets["self"] = json.loads(member.state)["kept"]["self"].encode()
    assert all(secret in member.state for secret in secrets.values())
    attempt.step(replies=lambda e, m: {s: r for s, r in m.items() if s != gone})
    assert not any(secret in member.state for secret in secrets.values())
    shares = json.loads(member.state)["kept"]["shares"]
    attempt.step()
    attempt.play()
    assert set(shares) == {str(other) for other in attempt.terms.slots[1:]}
    for other, pair in shares.items():
        # Of each pair one has been sent, and is there to be sent again.
        masking, own = pair[:34].encode(), pair[34:].encode()
        sent, kept_back = (masking, own) if int(other) == gone else (own, masking)
        assert sent in member.state
        assert kept_back not in member.state


def test_masked_numbers_look_uniform_whatever_is_masked() -> None:
    """A smoke test: the bytes of masked zeros, and of ones, have equal frequencies."""
    for value in (0, 1):
        attempt = make_attempt(3, length=20_000, num_bits=16)
        for slot in attempt.terms.slots:
            attempt.numbers[slot] = np.full(20_000, value)
        attempt.play(until=3)
        sent = attempt.step()[attempt.terms.slots[0]][: 2 * 20_000]
        for low in (0, 1):
            counts = np.bincount(sent[low::2], minlength=256)
            chi_square = ((counts - 20_000 / 256) ** 2 / (20_000 / 256)).sum()
            # Each bound fails by chance once in 10 million times.
            assert 150 < chi_square < 392


def test_exchanges_come_in_order() -> None:
    attempt = make_attempt(3)
    member = attempt.members[attempt.terms.slots[0]]
    for exchange in (0, 2, 5, 6, -1):
        with pytest.raises(RefusedError, match="does not follow 0"):
            member.answer(exchange, to_payload(b""), lambda: np.zeros(4, np.int64))
