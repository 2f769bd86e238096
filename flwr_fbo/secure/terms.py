"""What the members and the aggregator of one secure sum agree on, and its errors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, ClassVar

from flwr_fbo._common.fields import check_fields, integer, ruled
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.secure.wire import Payload

# It is part of every digest: members of another version of the protocol differ in it.
PROTOCOL = "flwr_fbo secure sum 1"
MAX_MEMBERS, MAX_SLOT, MAX_LENGTH, MAX_BITS = 2**16, 2**32 - 1, 2**24, 56
_MAX_BYTES = 64


class SumFailedError(RuntimeError):
    """The aggregator cannot complete the sum."""


class Exchange(IntEnum):
    """The five exchanges of an attempt, and its end."""

    ADVERTISE = 1
    SHARE = 2
    MASK = 3
    CONFIRM = 4
    UNMASK = 5
    DONE = 6


@dataclass(frozen=True, eq=False)
class SumRequest:
    """What one member is asked in one exchange of an attempt at a sum.

    Attributes
    ----------
    about : str
        What is summed, as JSON: the same for all members, in all exchanges.
    release : int
        Number of the release, from 1, as the member was promised it.
    slot : int
        Slot of the member.
    attempt : int
        Number that the server draws afresh for each attempt.
    exchange : int
        From 1 to `num_exchanges`.
    payload : vector of uint8
        What the `Aggregator` asks; from another party it can be anything.
    """

    about: str
    release: int
    slot: int
    attempt: int
    exchange: int
    payload: Payload

    num_exchanges: ClassVar[int] = int(Exchange.UNMASK)

    @property
    def begins(self) -> bool:
        """Whether it is the first one of an attempt."""
        return self.exchange == Exchange.ADVERTISE

    @property
    def ends(self) -> bool:
        """Whether it is the last one, after which a member answers no other attempt."""
        return self.exchange == Exchange.UNMASK


def default_threshold(num_members: int) -> int:
    """Return the smallest threshold above two thirds of the members.

    Examples
    --------
    >>> default_threshold(30)
    21
    """
    return 2 * num_members // 3 + 1


def canonical(values: Mapping[str, Any]) -> str:
    """Return the one JSON text of some values that are equal."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def require_hex(field: str, value: Any, num_bytes: int | None = None) -> None:
    """Raise ValueError unless ``value`` is lower-case hexadecimal of whole bytes.

    Lower-case only: one value has one text, and so one digest.
    """
    pattern = f"([0-9a-f]{{2}}){{{num_bytes or f'1,{_MAX_BYTES}'}}}"
    ok = isinstance(value, str) and re.fullmatch(pattern, value) is not None
    size = "whole bytes" if num_bytes is None else f"{num_bytes} bytes"
    require(ok, field, value, f"lower-case hexadecimal digits of {size}")


def _require_digest(field: str, value: Any) -> None:
    if value != "":
        require_hex(field, value)


def require_slots(field: str, slots: Any) -> None:
    """Raise ValueError unless ``slots`` is a tuple of two or more increasing slots."""
    ok = isinstance(slots, tuple) and 2 <= len(slots) <= MAX_MEMBERS
    require(ok, field, slots, f"a tuple of 2 to {MAX_MEMBERS} slots")
    for slot in slots:
        require_int(field, slot, 0, MAX_SLOT)
    increasing = all(a < b for a, b in pairwise(slots))
    require(increasing, field, slots[:8], "increasing slots")


@dataclass(frozen=True)
class SumTerms:
    """The terms of one attempt at a sum: public, and the same for all.

    Examples
    --------
    >>> terms = SumTerms("5a", "01", (0, 1, 2), 3, 3, length=512, num_bits=24)
    >>> len(terms.digest())
    32

    Attributes
    ----------
    context : str
        Digest, in hexadecimal, of what the sum is for: study, release, noise.
    attempt : str
        Hexadecimal text that the aggregator draws afresh for each attempt.
    slots : tuple of int
        Slots of the members who may take part, increasing; at least two.
    threshold : int
        Number of members whose agreement unmasks a sum: more than half of the
        ``slots``. `default_threshold` is more than two thirds.
    min_summed : int
        Smallest number of members in a sum, at least ``threshold``.
    length : int
        Number M of integers of each member.
    num_bits : int
        Integers are added modulo 2**num_bits: a multiple of 8, at most 56.
    roster : str
        Digest of the `Roster`; empty without one.

    Raises
    ------
    ValueError
        If a field is not allowed; the message names it.
    """

    context: str = field(metadata=ruled(require_hex))
    attempt: str = field(metadata=ruled(require_hex))
    slots: tuple[int, ...] = field(metadata=ruled(require_slots))
    threshold: int = field(metadata=integer(1))
    min_summed: int = field(metadata=integer(1))
    length: int = field(metadata=integer(1, MAX_LENGTH))
    num_bits: int = field(metadata=integer(8, MAX_BITS))
    roster: str = field(default="", metadata=ruled(_require_digest))

    def __post_init__(self) -> None:
        check_fields(self)
        n = len(self.slots)
        # Two sets that confirm share more than half: else a server could unmask two
        # sums over different sets, whose difference is the messages of a few.
        require_int("threshold", self.threshold, n // 2 + 1, n)
        require_int("min_summed", self.min_summed, self.threshold, n)
        require(self.num_bits % 8 == 0, "num_bits", self.num_bits, "a multiple of 8")

    @property
    def num_bytes(self) -> int:
        """Number of bytes of one integer on the wire."""
        return self.num_bits // 8

    def digest(self) -> bytes:
        """Return what is signed, and what every key is bound to: 32 bytes."""
        text = canonical(asdict(self))
        return hashlib.sha256(f"{PROTOCOL}\n{text}".encode()).digest()
