"""The bytes of requests and replies: explicit lengths, one form for one meaning.

A payload is a vector of uint8. Slots have four bytes. Records, each a slot and as many
bytes as all others, are in increasing order of their slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Payload = NDArray[np.uint8]
Numbers = NDArray[np.uint64]
_SLOT_BYTES, _WORD_BYTES = 4, 8


class PayloadError(ValueError):
    """Bytes that say nothing in this protocol; the text names slots and lengths."""


def to_bytes(payload: Any) -> bytes:
    """Return the bytes of a payload."""
    ok = isinstance(payload, np.ndarray) and payload.dtype == np.uint8
    if not ok or payload.ndim != 1:
        raise PayloadError("the payload is not a vector of uint8")
    return bytes(payload.tobytes())


def to_payload(text: bytes) -> Payload:
    """Return a payload of some bytes."""
    return np.frombuffer(text, dtype=np.uint8)


def slot_bytes(*slots: int) -> bytes:
    """Return slots as bytes."""
    return b"".join(slot.to_bytes(_SLOT_BYTES) for slot in slots)


def cut(text: bytes, *sizes: int) -> list[bytes]:
    """Return parts of given sizes, and what is left after them."""
    if len(text) < sum(sizes):
        raise PayloadError(f"{len(text)} bytes where at least {sum(sizes)} belong")
    parts = []
    for size in sizes:
        parts.append(text[:size])
        text = text[size:]
    return [*parts, text]


def pack(records: Mapping[int, bytes]) -> bytes:
    """Return records by slot as bytes."""
    return b"".join(slot_bytes(slot) + records[slot] for slot in sorted(records))


def unpack(text: bytes, size: int, allowed: Collection[int]) -> dict[int, bytes]:
    """Return the records of ``size`` bytes by slot; only some slots are allowed."""
    step = _SLOT_BYTES + size
    if len(text) % step or len(text) > step * len(allowed):
        raise PayloadError(f"{len(text)} bytes are no records of {step} bytes")
    known = frozenset(allowed)
    # One form for one meaning: a slot that came twice, or in another order, could be
    # read in two ways by two who sign the same text.
    records: dict[int, bytes] = {}
    last = -1
    for begin in range(0, len(text), step):
        slot = int.from_bytes(text[begin : begin + _SLOT_BYTES])
        if slot <= last:
            raise PayloadError(f"slot {slot} is repeated or out of order")
        if slot not in known:
            raise PayloadError(f"slot {slot} is a stranger")
        records[slot] = text[begin + _SLOT_BYTES : begin + step]
        last = slot
    return records


def set_bytes(slots: tuple[int, ...]) -> int:
    """Return the number of bytes of a set of some slots."""
    return -(-len(slots) // 8)


def pack_set(members: Collection[int], slots: tuple[int, ...]) -> bytes:
    """Return a set of some of the slots: a bit for each."""
    return np.packbits(np.isin(slots, list(members))).tobytes()


def unpack_set(text: bytes, slots: tuple[int, ...]) -> tuple[int, ...]:
    """Return the members of a set of ``set_bytes`` bytes."""
    bits = np.unpackbits(np.frombuffer(text, dtype=np.uint8))
    if bits[len(slots) :].any():
        raise PayloadError("the set names strangers beyond the last slot")
    return tuple(slots[place] for place in np.flatnonzero(bits).tolist())


def pack_numbers(numbers: Numbers, num_bytes: int) -> bytes:
    """Return the low bytes of each number."""
    words = numbers.astype("<u8").view(np.uint8).reshape(-1, _WORD_BYTES)
    return words[:, :num_bytes].tobytes()


def unpack_numbers(text: bytes, num_bytes: int) -> Numbers:
    """Return numbers of ``num_bytes`` bytes each."""
    words = np.zeros((len(text) // num_bytes, _WORD_BYTES), dtype=np.uint8)
    words[:, :num_bytes] = np.frombuffer(text, np.uint8).reshape(-1, num_bytes)
    return words.view("<u8").reshape(-1).astype(np.uint64)


def to_hex(records: Mapping[int, bytes]) -> dict[str, str]:
    """Return records by slot as JSON can hold them."""
    return {str(slot): record.hex() for slot, record in records.items()}


def from_hex(records: Mapping[str, str]) -> dict[int, bytes]:
    """Return the records that `to_hex` gave."""
    return {int(slot): bytes.fromhex(record) for slot, record in records.items()}
