"""Which members mask with each other, and how many of them recover a secret.

Up to 50 members all do. Above, each does with the k nearest on a ring in random order:
a Harary graph, as in Bell et al. (CCS 2020). The order comes from the roster's seed and
from nothing that the server can choose; without a roster, from the attempt.

The rule for k and the threshold t is stricter than theirs. Let at most a share
`COLLUDING` of the members collude, chosen before the order is drawn. Then no k/2
members next to another one have t - k/2 or more colluding ones among them, but with
probability `FAILURE`. It follows:

- A member has at most 2 (t - k/2 - 1) < t colluding neighbours. They cannot recover its
  secrets.
- Honest members of a set remain connected with each other, whichever others the server
  leaves out, if each member of the set has t neighbours in it. Two honest ones in a row
  that are not neighbours would be apart by k/2 members or more, among which the one has
  no honest neighbour. It would have less than k/2 + (t - k/2) = t neighbours.

If a share `DROPPED` of the members drops out at random, every member keeps t neighbours
but with probability `FAILURE`. Otherwise the sum fails, which costs no privacy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from flwr_fbo.secure.terms import SumTerms

MAX_COMPLETE = 50
COLLUDING, DROPPED, FAILURE = 0.2, 0.1, 2.0**-30


@dataclass(frozen=True)
class MaskGraph:
    """A ring on which neighbours are up to ``reach`` places apart.

    Attributes
    ----------
    ring : tuple of int
        Slots in the ring's order.
    reach : int
        k / 2, or half of the ring and more, where all are neighbours.
    threshold : int
        Number t of neighbours that recover a member's secret.
    """

    ring: tuple[int, ...]
    reach: int
    threshold: int

    @classmethod
    def of(cls, terms: SumTerms, seed: str | None) -> MaskGraph:
        """Return the graph of some terms, by the roster's seed if there is one."""
        n = len(terms.slots)
        sparse = sparse_rule(n) if n > MAX_COMPLETE else None
        if sparse is None:
            # One of the `threshold` members is the one whose secret it is.
            return cls(terms.slots, n // 2, terms.threshold - 1)
        key = bytes.fromhex(terms.attempt if seed is None else seed)
        return cls(tuple(sorted(terms.slots, key=lambda s: _rank(key, s))), *sparse)

    @property
    def is_complete(self) -> bool:
        """Whether all members are neighbours."""
        return 2 * self.reach + 1 >= len(self.ring)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {slot: place for place, slot in enumerate(self.ring)}

    def neighbours(self, slot: int) -> tuple[int, ...]:
        """Return a member's neighbours, increasing."""
        n = len(self.ring)
        if self.is_complete:
            return tuple(sorted(set(self.ring) - {slot}))
        place = self._places[slot]
        steps = range(1, self.reach + 1)
        # On both sides: who is my neighbour has me as one, so that masks cancel.
        places = [(place + step) % n for step in (*steps, *(-s for s in steps))]
        return tuple(sorted(self.ring[p] for p in places))

    def fewest(self, present: Collection[int]) -> tuple[int, int]:
        """Return who of some members has the fewest of them near, and how many.

        It is computed for all members, as a set must leave none of them alone.
        """
        if self.is_complete:
            return min(present), len(present) - 1
        n = len(self.ring)
        there = np.isin(self.ring, list(present))
        # Three times round, so that no window crosses an end; less the member itself.
        sums = np.concatenate([[0], np.cumsum(np.tile(there, 3))])
        places = np.flatnonzero(there) + n
        counts = sums[places + self.reach + 1] - sums[places - self.reach] - 1
        worst = int(np.argmin(counts))
        return self.ring[int(places[worst]) - n], int(counts[worst])


def _rank(key: bytes, slot: int) -> bytes:
    # A hash, not a generator: the same order in every version of every library.
    return hashlib.sha256(b"ring" + key + slot.to_bytes(4)).digest()


@lru_cache(maxsize=64)
def sparse_rule(num_members: int) -> tuple[int, int] | None:
    """Return reach k/2 and threshold t of the smallest k that the module's rule allows.

    None where all members would be neighbours.
    """
    n = num_members
    colluding, dropped = math.floor(COLLUDING * n), math.floor(DROPPED * n)
    for reach in range(1, (n - 1) // 2):
        # A union over n members and the two sides of each.
        crowd = _quantile(n - 1, colluding, reach, FAILURE / (2 * n))
        threshold = reach + crowd
        lost = 2 * reach - threshold + 1
        if lost > 0 and _tail(n - 1, dropped, 2 * reach, lost) <= FAILURE / n:
            return reach, threshold
    return None


def _quantile(total: int, marked: int, drawn: int, chance: float) -> int:
    """Return the smallest x that x or more marked are drawn with at most a chance."""
    # From the mean on the tail decreases; `drawn` + 1 are drawn never.
    mean = drawn * marked // total
    return next(
        x for x in range(mean, drawn + 2) if _tail(total, marked, drawn, x) <= chance
    )


def _tail(total: int, marked: int, drawn: int, least: int) -> float:
    """Return the chance of ``least`` or more marked: a hypergeometric tail."""
    everything = _log_binomial(total, drawn)
    counts = range(max(least, drawn - (total - marked), 0), min(marked, drawn) + 1)
    return sum(
        math.exp(
            _log_binomial(marked, count)
            + _log_binomial(total - marked, drawn - count)
            - everything
        )
        for count in counts
    )


# Not scipy.stats: each site of a sum would have to import it.
def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
