"""Chance, clock and keys that are the same in two worlds: what differs is then data.

Whatever a site draws in one message depends on the message's number and on how often it
has drawn by then from the same source. Sources do not share a stream: where one world
draws once more from one of them, the others go on alike.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flwr_fbo.privacy import noise
from flwr_fbo.secure import integer_noise, member

_generator = np.random.default_rng
_gaussian = noise.opendp_gaussian
_private_key = X25519PrivateKey.from_private_bytes
# A Monday. Between two messages an hour passes: rewards can come too late.
_BEGIN, _PAUSE = 1_767_600_000.0, 3600.0
# Of a draw: shares of noise are integers of 64 bits.
MOST = 2.0**62


class Chance:
    """Source of all that is drawn, in place of the operating system's."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, number: int, *more: int) -> None:
        """Begin what is drawn in the message of a number, at one of its receivers."""
        self._key = number, *more
        self._draws: dict[int, Iterator[int]] = {}
        self.now = _BEGIN + _PAUSE * number

    def _next(self, source: int) -> np.random.Generator:
        draws = self._draws.setdefault(source, count())
        return _generator([*self._key, source, next(draws)])

    def bytes(self, length: int) -> bytes:
        """Return what stands for ``os.urandom``."""
        return self._next(0).bytes(length)

    def below(self, most: int) -> int:
        """Return what stands for ``secrets.randbelow``."""
        return int.from_bytes(self._next(1).bytes(most.bit_length() // 8 + 9)) % most

    def generator(self, *seeds: Any, **named: Any) -> np.random.Generator:
        """Return what stands for ``numpy.random.default_rng``."""
        return _generator(*seeds, **named) if seeds or named else self._next(2)

    def gaussian(self, number: Any, length: int, scale: float, *more: Any) -> Any:
        """Return what stands for OpenDP's mechanism: it fails where that does."""
        mechanism = _gaussian(number, length, scale, *more)

        def noised(values: Any) -> Any:
            mechanism(values)
            draw = np.clip(scale * self._next(3).standard_normal(length), -MOST, MOST)
            return [v + number(d) for v, d in zip(values, draw, strict=True)]

        return noised

    def key(self) -> X25519PrivateKey:
        """Return what stands for a fresh key."""
        return _private_key(self._next(4).bytes(32))


@contextmanager
def same_chance() -> Iterator[Chance]:
    """Have all of this process draw from one `Chance`, and read its clock."""
    chance = Chance()
    instead: list[tuple[Any, str, Any]] = [
        (os, "urandom", chance.bytes),
        (secrets, "randbelow", chance.below),
        (secrets, "randbits", lambda bits: chance.below(2**bits)),
        (secrets, "token_bytes", lambda n=32: chance.bytes(n)),
        (secrets, "token_hex", lambda n=32: chance.bytes(n).hex()),
        (np.random, "default_rng", chance.generator),
        (noise, "opendp_gaussian", chance.gaussian),
        (integer_noise, "opendp_gaussian", chance.gaussian),
        (member, "X25519PrivateKey", _Keys(chance)),
        (time, "time", lambda: chance.now),
    ]
    with ExitStack() as stack:
        for where, name, drawn in instead:
            stack.enter_context(mock.patch.object(where, name, drawn))
        yield chance


def _Keys(chance: Chance) -> Any:  # noqa: N802
    """Return what stands for the class of keys."""
    return SimpleNamespace(generate=chance.key, from_private_bytes=_private_key)
