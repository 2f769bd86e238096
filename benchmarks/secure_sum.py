"""What a secure sum costs a site and the server, beside a plain sum.

    python -m benchmarks.secure_sum [--quick] [--large 1000]

It takes about five minutes, nearly all of them for the sites of the large sum. The
plain sum is what it replaces: every site sends its integers, the server adds them.
Members and server run in one process; times are CPU times. A site's time and bytes are
those of its five exchanges in both directions. Its member is made afresh from its state
for each of them, as in a deployment.

The last rows compare the split of a secret with pycryptodome's; a site splits two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.graph import MaskGraph
from flwr_fbo.secure.member import Member
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.secure.shares import split
from flwr_fbo.secure.terms import Exchange, SumTerms, default_threshold
from flwr_fbo.secure.wire import pack_numbers, unpack_numbers

SMALL, LARGE, LENGTH, NUM_BITS = 30, 1000, 512, 40
SECURE, PLAIN = "secure sum", "plain sum"
OURS, LIBRARY = "flwr_fbo", "pycryptodome"
# CPU seconds a site, and bytes a site, that a sum may take.
TIME_BARS = {SMALL: 0.020, LARGE: 0.200}
KILOBYTES = {SMALL: 100.0}


@dataclass(frozen=True)
class Cost:
    """What one sum took.

    Attributes
    ----------
    site, server : float
        CPU seconds: the median site's, and the server's.
    kilobytes : float
        Those of the median site, in both directions.
    total : vector of uint64
        The sum.
    """

    site: float
    server: float
    kilobytes: float
    total: NDArray[np.uint64]


@dataclass(frozen=True)
class Federation:
    """Sites with their identities and integers."""

    keys: dict[int, SigningKey]
    roster: Roster
    terms: SumTerms
    numbers: dict[int, NDArray[np.int64]]

    @classmethod
    def draw(cls, num_members: int) -> Federation:
        """Return so many sites."""
        keys = {slot: SigningKey.draw() for slot in range(num_members)}
        roster = Roster.draw({slot: key.public for slot, key in keys.items()})
        least = default_threshold(num_members)
        slots = roster.slots
        terms = SumTerms(
            "5a", "01", slots, least, least, LENGTH, NUM_BITS, roster.digest()
        )
        rng = np.random.default_rng(0)
        numbers = {slot: rng.integers(-(2**24), 2**24, LENGTH) for slot in keys}
        return cls(keys, roster, terms, numbers)

    def secure_sum(self) -> Cost:
        """Return what all five exchanges cost."""
        site = dict.fromkeys(self.keys, 0.0)
        size = dict.fromkeys(self.keys, 0.0)
        states = dict.fromkeys(self.keys, b"")
        began = time.process_time()
        aggregator = Aggregator(self.terms, self.roster)
        while aggregator.exchange != Exchange.DONE:
            exchange = int(aggregator.exchange)
            replies = {}
            for slot, request in aggregator.requests().items():
                start = time.process_time()
                member = Member(
                    self.terms, slot, self.keys[slot], self.roster, states[slot]
                )
                numbers = partial(self.numbers.__getitem__, slot)
                reply = member.answer(exchange, request, numbers)
                replies[slot], states[slot] = reply, member.state
                site[slot] += time.process_time() - start
                size[slot] += (len(request) + len(reply)) / 1000
            aggregator.receive(replies)
        server = time.process_time() - began - sum(site.values())
        return Cost(_median(site), server, _median(size), aggregator.total)

    def plain_sum(self) -> Cost:
        """Return what it costs to send the integers, and to add them."""
        site, sent = {}, {}
        modulus = np.uint64(2**NUM_BITS - 1)
        num_bytes = NUM_BITS // 8
        for slot, numbers in self.numbers.items():
            start = time.process_time()
            sent[slot] = pack_numbers(numbers.astype(np.uint64), num_bytes)
            site[slot] = time.process_time() - start
        start = time.process_time()
        total = np.zeros(LENGTH, dtype=np.uint64)
        for text in sent.values():
            total += unpack_numbers(text, num_bytes)
        server = time.process_time() - start
        kilobytes = len(sent[0]) / 1000
        return Cost(_median(site), server, kilobytes, total & modulus)


def _median(values: dict[int, float]) -> float:
    return float(np.median(list(values.values())))


def sum_rows(num_members: int, repeats: int) -> list[Row]:
    """Return the rows of one number of members: a site's, the server's and bytes."""
    federation = Federation.draw(num_members)
    works = {SECURE: federation.secure_sum, PLAIN: federation.plain_sum}
    costs = {name: [work() for _ in range(repeats)] for name, work in works.items()}
    equal = np.array_equal(costs[SECURE][0].total, costs[PLAIN][0].total)
    graph = MaskGraph.of(federation.terms, federation.roster.seed)
    degree = len(graph.neighbours(0))
    quality = f"equal sums: {equal}; {degree} neighbours, threshold {graph.threshold}"
    what = f"{num_members:,} sites"

    def row(part: str, field: Callable[[Cost], float], unit: str = "s") -> Row:
        values = {name: _each(found, field) for name, found in costs.items()}
        parts = f"{what}: {part}"
        return compare(parts, values, SECURE, PLAIN, quality=quality, unit=unit)

    site = row("CPU of a site", lambda cost: cost.site)
    if num_members in TIME_BARS:
        bar = Bar.at_most(1e3 * site.seconds[0], 1e3 * TIME_BARS[num_members], " ms")
        site = replace(site, bar=bar)
    sent = row("bytes of a site", lambda cost: cost.kilobytes, "kB")
    if num_members in KILOBYTES:
        bar = Bar.at_most(sent.seconds[0], KILOBYTES[num_members], " kB")
        sent = replace(sent, bar=bar)
    return [site, sent, row("CPU of the server", lambda cost: cost.server)]


def _each(costs: list[Cost], field: Callable[[Cost], float]) -> FloatArray:
    return np.array([field(cost) for cost in costs])


def split_row(num_members: int, repeats: int) -> Row:
    """Return how long pycryptodome's split of one secret takes beside ours."""
    from Crypto.Protocol.SecretSharing import Shamir

    federation = Federation.draw(num_members)
    graph = MaskGraph.of(federation.terms, federation.roster.seed)
    degree, threshold = len(graph.neighbours(0)), graph.threshold
    secret = bytes(range(16))
    works: dict[str, Callable[[], object]] = {
        LIBRARY: lambda: Shamir.split(threshold, degree, secret, ssss=False),
        OURS: lambda: split(secret, degree, threshold),
    }
    what = f"split of a secret, {threshold} of {degree}"
    return compare(what, alternate(works, repeats), LIBRARY, OURS)


def measure(quick: bool, large: int = LARGE) -> list[Section]:
    """Return the section."""
    rows = [
        *sum_rows(SMALL, 3 if quick else 15),
        *sum_rows(large, 1),
        split_row(SMALL, 3 if quick else 15),
        split_row(large, 1 if quick else 5),
    ]
    text = (
        f"Signed sums of {LENGTH} integers modulo 2^{NUM_BITS}; a site's figures are "
        "those of the median site over five exchanges. The large sum runs once."
    )
    return [Section("Secure sums", text, rows)]


def main() -> None:
    """Print the section."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--large", type=int, default=LARGE, help="sites of the large")
    options = parser.parse_args()
    for section in measure(options.quick, options.large):
        print(section.to_markdown())


if __name__ == "__main__":
    main()
