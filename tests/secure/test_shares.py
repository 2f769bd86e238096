import itertools
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_fbo.secure.shares import SHARE_BYTES, combine, split


@settings(max_examples=50, deadline=None)
@given(secret=st.binary(min_size=16, max_size=16), data=st.data())
def test_any_shares_up_to_the_threshold_give_the_secret(
    secret: bytes, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 20))
    threshold = data.draw(st.integers(1, count))
    shares = split(secret, count, threshold)
    assert {len(share) for share in shares} == {SHARE_BYTES}
    places = data.draw(st.permutations(range(count)))[:threshold]
    assert combine({place + 1: shares[place] for place in places}) == secret


def test_fewer_shares_do_not_give_the_secret() -> None:
    secret = os.urandom(16)
    shares = dict(enumerate(split(secret, 5, 3), 1))
    for pair in itertools.combinations(shares, 2):
        assert combine({place: shares[place] for place in pair}) != secret


def test_fewer_shares_are_those_of_any_secret() -> None:
    """Each other secret has one polynomial through two shares of three."""
    first, second, _ = split(os.urandom(16), 3, 3)
    drawn = [random.randrange(2**130 - 5).to_bytes(17) for _ in range(400)]
    secrets = [combine({1: first, 2: second, 3: third}) for third in drawn]
    found = [secret for secret in secrets if secret is not None]
    # A quarter of the field's elements are secrets: six deviations either way.
    assert 40 < len(set(found)) == len(found) < 260


def test_a_wrong_share_gives_another_secret() -> None:
    secret = os.urandom(16)
    shares = dict(enumerate(split(secret, 3, 3), 1))
    shares[2] = bytes(SHARE_BYTES)
    assert combine(shares) != secret


@pytest.mark.parametrize("places", [(1, 2, 3), (9, 4, 2), (30, 31, 299)])
def test_it_interpolates_a_polynomial(places: tuple[int, ...]) -> None:
    """Such as 7 + 3 x + 5 x^2, at places where it is far below the modulus."""
    values = {x: (7 + 3 * x + 5 * x**2).to_bytes(SHARE_BYTES) for x in places}
    assert combine(values) == (7).to_bytes(16)
