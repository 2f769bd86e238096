"""Attempts at a sum, for tests: members, an aggregator, and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.errors import RefusedError
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.member import Member
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.terms import (
    Exchange,
    SumTerms,
    default_threshold,
)
from flwr_fbo.secure.wire import Payload

Requests = dict[int, Payload]
# What a test makes of the requests or the replies of an exchange.
Between = Callable[[int, dict[int, Any]], Mapping[int, Any]]


def unchanged(exchange: int, messages: dict[int, Any]) -> Mapping[int, Any]:
    return messages


@dataclass
class Attempt:
    """All who take part in one attempt, with everything that was said."""

    terms: SumTerms
    keys: dict[int, SigningKey]
    roster: Roster | None
    members: dict[int, Member] = field(default_factory=dict)
    numbers: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.aggregator = Aggregator(self.terms, self.roster)
        rng = np.random.default_rng(0)
        for slot in self.terms.slots:
            self.members[slot] = self.member(slot)
            self.numbers[slot] = rng.integers(-(2**20), 2**20, self.terms.length)

    def member(self, slot: int, state: bytes = b"") -> Member:
        return Member(self.terms, slot, self.keys.get(slot), self.roster, state)

    def answer(self, slot: int, exchange: int, request: Payload) -> Payload | None:
        """Return a member's reply, or None and note why it refused."""
        try:
            member = self.members[slot]
            return member.answer(exchange, request, lambda: self.numbers[slot])
        except RefusedError as error:
            self.refusals[slot] = error.public
            return None

    def step(
        self, requests: Between = unchanged, replies: Between = unchanged
    ) -> dict[int, Payload]:
        """Play one exchange; return what the members replied."""
        exchange = int(self.aggregator.exchange)
        asked = requests(exchange, self.aggregator.requests())
        answers = {s: self.answer(s, exchange, r) for s, r in asked.items()}
        found = {s: reply for s, reply in answers.items() if reply is not None}
        self.aggregator.receive(replies(exchange, dict(found)))
        return found

    def play(
        self,
        requests: Between = unchanged,
        replies: Between = unchanged,
        until: int = Exchange.DONE,
    ) -> None:
        while self.aggregator.exchange != until:
            self.step(requests, replies)

    def expected(self) -> NDArray[np.uint64]:
        """Return the sum of the numbers of those in the sum."""
        total = sum(self.numbers[slot] for slot in self.aggregator.summed)
        modulus = 2**self.terms.num_bits
        return np.asarray(total).astype(np.uint64) & np.uint64(modulus - 1)

    def assert_right(self) -> None:
        assert len(self.aggregator.summed) >= self.terms.min_summed
        np.testing.assert_array_equal(self.aggregator.total, self.expected())


def make_roster(num_members: int) -> tuple[dict[int, SigningKey], Roster]:
    # The slots have gaps, so that no place is taken for a slot.
    keys = {3 * i + 2: SigningKey.draw() for i in range(num_members)}
    return keys, Roster.draw({slot: key.public for slot, key in keys.items()})


def make_attempt(
    num_members: int,
    *,
    signed: bool = True,
    length: int = 4,
    num_bits: int = 40,
    attempt: str = "01",
    threshold: int | None = None,
    known: tuple[dict[int, SigningKey], Roster] | None = None,
) -> Attempt:
    keys, roster = known or make_roster(num_members)
    least = threshold or default_threshold(num_members)
    digest = roster.digest() if signed else ""
    slots = roster.slots[:num_members]
    terms = SumTerms("5a", attempt, slots, least, least, length, num_bits, digest)
    return Attempt(terms, keys if signed else {}, roster if signed else None)
