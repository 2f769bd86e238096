"""Shamir's secret sharing ("How to share a secret", 1979) over a prime field.

The field is that of the integers modulo 2**130 - 5. A library's field of 2**128
elements takes about 50 times as long to split a secret (`benchmarks.secure_sum`).
The arithmetic is that of Python's integers, whose time depends on their values.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache

SECRET_BYTES, SHARE_BYTES = 16, 17
_PRIME = 2**130 - 5


def split(secret: bytes, num_shares: int, threshold: int) -> list[bytes]:
    """Return shares: any ``threshold`` of them give the secret, and fewer nothing.

    Parameters
    ----------
    secret : bytes
        16 bytes.
    num_shares : int
        Number of shares; those at the places 1, 2, ... are returned in this order.
    threshold : int
        From 1 to ``num_shares``.
    """
    # A polynomial of degree threshold - 1 with the secret at 0: any fewer values of it
    # fit every secret, equally well.
    drawn = [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    coefficients = [*drawn, int.from_bytes(secret)]
    shares = []
    # From place 1 on: the value at 0 is the secret itself.
    for place in range(1, num_shares + 1):
        value = 0
        for coefficient in coefficients:
            value = (value * place + coefficient) % _PRIME
        shares.append(value.to_bytes(SHARE_BYTES))
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """Return the secret of as many shares, by place, as the threshold says.

    None if the shares are not those of a secret. Not all wrong shares are found.
    """
    weights = _weights(tuple(shares))
    products = (
        weight * int.from_bytes(share)
        for weight, share in zip(weights, shares.values(), strict=True)
    )
    value = sum(products) % _PRIME
    # The field is larger than the secrets: most wrong shares lead out of these.
    return value.to_bytes(SECRET_BYTES) if value < 2 ** (8 * SECRET_BYTES) else None


@lru_cache(maxsize=256)
def _weights(places: tuple[int, ...]) -> list[int]:
    """Return the weights of Lagrange's interpolation at 0."""
    weights = []
    for place in places:
        above = below = 1
        for other in places:
            if other != place:
                above = above * other % _PRIME
                below = below * (other - place) % _PRIME
        weights.append(above * pow(below, -1, _PRIME) % _PRIME)
    return weights
