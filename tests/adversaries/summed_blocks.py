"""A server that attacks the sites of a secure bandit, at `SumIdentity.reply`.

    python -m tests.adversaries.summed_blocks [--messages 10000] [--seed 0]

It plays several attempts at the sums of several releases at once, each over sites of
its choice, and lies in a part of its messages: other bytes, exchanges, releases,
attempts and sites, requests of other attempts, and other sets of sites for different
sites. Each site answers from its journal alone, as a new process would. Study and slot
are those that its caller has checked.

What must hold, whatever it sends: a masked block leaves only after the caller was asked
for it, and so could charge it; a site's share of a release is drawn once; a site gives
one answer to one exchange of an attempt; of one release all sites together unmask one
attempt, and one set of sites; and a site fails in no other way than by refusing.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.secure import SumIdentity, SumRequest
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.block_noise import BlockNoise
from flwr_fbo.secure.block_sums import BlockSums
from flwr_fbo.secure.roster import SIGNATURE_BYTES, Roster, SigningKey
from flwr_fbo.secure.sum_settings import SumGroup
from flwr_fbo.secure.terms import Exchange, SumFailedError
from flwr_fbo.secure.wire import (
    cut,
    pack,
    pack_set,
    set_bytes,
    to_payload,
    unpack,
    unpack_set,
)

NUM_SITES, ABOUT = 5, "study"
RELEASES = ContinualSettings(50, 2, 4.0, 1e-5, mechanism="blocks")
MIN_SUMMED = 4
# How likely a message is a lie.
_LIES = 0.3
# How likely a new attempt begins, though others are under way.
_NEW_ATTEMPTS = 0.03
_MOST_ATTEMPTS = 4


@dataclass
class Tally:
    """What was asked, and what went wrong.

    Attributes
    ----------
    asked, answered, masked, unmasked : int
        Messages, replies, masked blocks that left, and answers to a last exchange.
    sums : int
        Sums that the server learned.
    violations : list of str
        What must not happen.
    """

    asked: int = 0
    answered: int = 0
    masked: int = 0
    unmasked: int = 0
    sums: int = 0
    violations: list[str] = field(default_factory=list)


class Site:
    """An honest site: its journal, and the ledger of its caller."""

    def __init__(self, slot: int, who: SumIdentity, sums: BlockSums) -> None:
        self.slot, self.who, self.sums = slot, who, sums
        self.journal = Journal({"slot": slot})
        self.charged: set[int] = set()
        self.shares: dict[int, int] = defaultdict(int)
        self.replies: dict[tuple[int, int, int], bytes] = {}
        # The set of sites that each attempt was last told to sum.
        self.told: dict[tuple[int, int], bytes] = {}
        self.now = 0

    def block(self) -> FloatArray:
        """Return the block of the release that is asked for, and charge it."""
        self.charged.add(self.now)
        return RELEASES.gram([[0.6, 0.8]], [1.0 if self.slot else -1.0])

    def ask(self, request: SumRequest, tally: Tally) -> NDArray[np.uint8] | None:
        """Return the reply, or None where the site refuses."""
        tally.asked += 1
        self.now = request.release
        before = set(self.charged)
        try:
            reply = self.who.reply(self.journal, self.sums, request, self.block)
        except RefusedError:
            return None
        except Exception as error:
            tally.violations.append(f"site {self.slot} fails: {error!r}")
            return None
        tally.answered += 1
        about = request.release, request.attempt, request.exchange
        if self.replies.setdefault(about, reply.tobytes()) != reply.tobytes():
            tally.violations.append(f"two answers of site {self.slot} to {about}")
        if request.exchange == Exchange.MASK:
            tally.masked += 1
            if request.release not in self.charged:
                tally.violations.append(f"site {self.slot}: {about} is not charged")
        elif self.charged != before:
            tally.violations.append(f"site {self.slot} sums its block in {about}")
        if request.exchange == Exchange.CONFIRM:
            told = request.payload.tobytes()[: set_bytes(tuple(range(NUM_SITES)))]
            self.told[about[:2]] = told
        return reply


class Server:
    """The attacker: attempts that are under way, and all that it was sent."""

    def __init__(self, rng: random.Random, sums: BlockSums, roster: Roster) -> None:
        self.rng, self.sums, self.roster = rng, sums, roster
        self.attempts: list[tuple[int, int, Aggregator]] = []
        self.sent: list[SumRequest] = []
        self.release, self.number = 1, 0

    def attempt(self) -> tuple[int, int, Aggregator]:
        """Return an attempt that goes on: mostly one that is under way."""
        rng = self.rng
        self.attempts = [one for one in self.attempts if one[0] >= self.release - 1]
        if not self.attempts or rng.random() < _NEW_ATTEMPTS:
            self.number += 1
            about = self.release, self.number
            aggregator = Aggregator(
                self.sums.terms(ABOUT, self.release, 0, self.number), self.roster
            )
            self.attempts.append((*about, aggregator))
            del self.attempts[:-_MOST_ATTEMPTS]
        return rng.choice(self.attempts)

    def play(self, sites: list[Site], tally: Tally) -> None:
        """Play one exchange of an attempt."""
        release, number, aggregator = self.attempt()
        exchange, rng = int(aggregator.exchange), self.rng
        away = set(rng.sample(range(NUM_SITES), rng.choice([0, 0, 0, 0, 0, 1, 1, 2])))
        replies = {}
        for slot, payload in aggregator.requests().items():
            honest = SumRequest(ABOUT, release, slot, number, exchange, payload)
            self.sent.append(honest)
            if rng.random() < _LIES:
                lie = self.lie(honest)
                reply = sites[slot].ask(lie, tally)
                if reply is not None:
                    # A site that has begun a release answers for no earlier one.
                    self.release = max(self.release, lie.release)
                    replies[slot] = reply
            if slot not in away:
                reply = sites[slot].ask(honest, tally)
                if reply is not None:
                    replies[slot] = reply
        try:
            aggregator.receive(replies)
        except SumFailedError:
            # Sometimes it is asked again, sometimes given up.
            if rng.random() < 0.5:
                self.attempts.remove((release, number, aggregator))
            return
        if aggregator.exchange == Exchange.DONE:
            tally.sums += 1
            self.attempts.remove((release, number, aggregator))
            if len(aggregator.summed) < MIN_SUMMED:
                tally.violations.append(f"a sum of {aggregator.summed}")
            self.release += rng.random() < 0.7

    def lie(self, honest: SumRequest) -> SumRequest:
        """Return another request than an honest one."""
        rng = self.rng
        about: dict[str, Any] = dict(vars(honest))
        payload = honest.payload.copy()
        if honest.exchange == Exchange.CONFIRM and rng.random() < 0.5:
            return replace(honest, payload=fewer_sites(rng, honest))
        kinds: list[Callable[[], dict[str, Any]]] = [
            lambda: {"exchange": rng.randint(1, 5)},
            lambda: {"release": max(honest.release + rng.choice([-1, 1, 0]), 1)},
            lambda: {"attempt": rng.randint(1, self.number + 1)},
            lambda: {"payload": to_payload(rng.randbytes(rng.randint(0, 200)))},
            lambda: {"payload": flipped(rng, payload)},
            lambda: {"payload": payload[: rng.randint(0, len(payload))]},
            lambda: {"payload": another_set(rng, payload)},
            lambda: {"payload": another_set(rng, payload)},
            lambda: {**vars(rng.choice(self.sent)), "slot": honest.slot},
            lambda: {"payload": rng.choice(self.sent).payload},
        ]
        for _ in range(rng.choice([1, 1, 2])):
            about |= rng.choice(kinds)()
        return SumRequest(**about)


def flipped(rng: random.Random, payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    changed = payload.copy()
    if len(changed):
        changed[rng.randrange(len(changed))] ^= rng.randint(1, 255)
    return changed


def another_set(rng: random.Random, payload: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a request that begins with another set of sites, of four or five."""
    changed = payload.copy()
    if len(changed):
        members = rng.sample(range(NUM_SITES), rng.choice([4, 4, 5]))
        changed[0] = sum(0x80 >> member for member in members)
    return changed


def fewer_sites(rng: random.Random, honest: SumRequest) -> NDArray[np.uint8]:
    """Return a request to confirm a sum over fewer sites, whole but for that."""
    slots = tuple(range(NUM_SITES))
    named, rest = cut(honest.payload.tobytes(), set_bytes(slots))
    summed = unpack_set(named, slots)
    away = rng.choice([slot for slot in summed if slot != honest.slot])
    views = unpack(rest, SIGNATURE_BYTES, slots)
    views.pop(away, None)
    fewer = set(summed) - {away}
    return to_payload(pack_set(fewer, slots) + pack(views))


@contextmanager
def _counted_shares(sites: list[Site]) -> Iterator[None]:
    """Count whose share of which release is drawn."""
    draw, patch = BlockNoise.draw_share, pytest.MonkeyPatch()
    asked: list[Site] = []

    def noted(noise: BlockNoise) -> NDArray[np.int64]:
        asked[-1].shares[asked[-1].now] += 1
        return draw(noise)

    ask = Site.ask

    def asking(site: Site, request: SumRequest, tally: Tally) -> Any:
        asked.append(site)
        try:
            return ask(site, request, tally)
        finally:
            asked.pop()

    patch.setattr(BlockNoise, "draw_share", noted)
    patch.setattr(Site, "ask", asking)
    try:
        yield
    finally:
        patch.undo()


def attack(messages: int = 10_000, seed: int = 0) -> Tally:
    """Return what so many messages of an attacker came to."""
    rng, tally = random.Random(seed), Tally()
    keys = {slot: SigningKey.draw() for slot in range(NUM_SITES)}
    roster = Roster.draw({slot: key.public for slot, key in keys.items()})
    group = SumGroup(0, NUM_SITES, 3, 1, MIN_SUMMED)
    sums = BlockSums(RELEASES, 1000, (group,), roster.digest())
    sites = [Site(n, SumIdentity(key, roster), sums) for n, key in keys.items()]
    server = Server(rng, sums, roster)
    with _counted_shares(sites):
        while tally.asked < messages:
            server.play(sites, tally)
    tally.violations += _unmasked_twice(sites, tally)
    for site in sites:
        again = [release for release, count in site.shares.items() if count > 1]
        if again:
            tally.violations.append(f"site {site.slot} draws shares again: {again[:5]}")
    return tally


def _unmasked_twice(sites: list[Site], tally: Tally) -> list[str]:
    """Return the releases of which sites have unmasked two different sums."""
    violations = []
    last = int(Exchange.UNMASK)
    for release in sorted({about[0] for site in sites for about in site.replies}):
        # By attempt and set: who has answered its last exchange.
        sums: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        for site in sites:
            for of, attempt, exchange in site.replies:
                if (of, exchange) == (release, last):
                    sums[attempt, site.told[release, attempt]].append(site.slot)
        tally.unmasked += sum(map(len, sums.values()))
        known = [holders for holders in sums.values() if len(holders) >= MIN_SUMMED]
        twice = [site.slot for site in sites if _count(site.slot, sums) > 1]
        # Sites that unmask one attempt have confirmed one set.
        several = len({attempt for attempt, _ in sums}) < len(sums)
        if len(known) > 1 or twice or several:
            violations.append(f"release {release} was unmasked over {len(sums)} sets")
    return violations


def _count(slot: int, sums: Mapping[tuple[int, bytes], list[int]]) -> int:
    return sum(slot in holders for holders in sums.values())


def main() -> None:
    """Attack, and say what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of each reply that the sum has no use for
    tally = attack(options.messages, options.seed)
    counts = ("asked", "answered", "masked", "unmasked", "sums")
    print(", ".join(f"{name}: {getattr(tally, name)}" for name in counts))
    for violation in tally.violations:
        print(f"VIOLATION: {violation}")
    sys.exit(bool(tally.violations))


if __name__ == "__main__":
    main()
