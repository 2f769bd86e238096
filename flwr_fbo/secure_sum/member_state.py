"""What a member keeps between two exchanges, as bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr_fbo.secure_sum.terms import canonical

Kept = Mapping[str, Any]


@dataclass(frozen=True)
class MemberState:
    """The last exchange that was answered, and what the next one needs.

    Attributes
    ----------
    terms : str
        Digest of the terms, in hexadecimal.
    slot : int
    answered : int
        The last exchange that was answered; 0 before the first one.
    request, reply : str
        That exchange's: a digest and the bytes, both in hexadecimal.
    kept : mapping
        Secrets and keys that the next exchanges need, in hexadecimal.
    """

    terms: str
    slot: int
    answered: int = 0
    request: str = ""
    reply: str = ""
    kept: Kept = field(default_factory=dict, repr=False)

    def to_bytes(self) -> bytes:
        """Return the state as JSON."""
        return canonical(vars(self)).encode()

    @classmethod
    def of_bytes(cls, text: bytes) -> MemberState:
        """Return the state that `to_bytes` gave."""
        return cls(**json.loads(text))


def to_hex(records: Mapping[int, bytes]) -> dict[str, str]:
    """Return records by slot as JSON can hold them."""
    return {str(slot): record.hex() for slot, record in records.items()}


def from_hex(records: Mapping[str, str]) -> dict[int, bytes]:
    """Return the records that `to_hex` gave."""
    return {int(slot): bytes.fromhex(record) for slot, record in records.items()}
