from dataclasses import replace
from typing import Any

import pytest

from flwr_fbo.secure.terms import SumTerms, default_threshold

TERMS = SumTerms("5a", "01", (0, 2, 5, 9), 3, 3, length=8, num_bits=24, roster="ff")


def test_the_threshold_is_above_two_thirds() -> None:
    thresholds = [default_threshold(n) for n in range(2, 301)]
    assert all(3 * t > 2 * n for n, t in enumerate(thresholds, 2))
    assert all(3 * (t - 1) <= 2 * n for n, t in enumerate(thresholds, 2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context", ""),
        ("context", "5A"),
        ("context", "ab" * 65),
        ("attempt", 7),
        ("roster", "x"),
        ("slots", [0, 2, 5, 9]),
        ("slots", (0,)),
        ("slots", (2, 0, 5, 9)),
        ("slots", (0, 2, 5, 2**32)),
        ("slots", (0, 2, 5, True)),
        ("threshold", 2),
        ("threshold", 5),
        ("min_summed", 2),
        ("length", 0),
        ("length", 2**30),
        ("num_bits", 12),
        ("num_bits", 0),
    ],
)
def test_fields_that_are_not_allowed_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        replace(TERMS, **{field: value})


def test_every_field_changes_the_digest() -> None:
    others = [
        replace(TERMS, context="5b"),
        replace(TERMS, context="5a01", attempt="02"),
        replace(TERMS, attempt="02"),
        replace(TERMS, slots=(0, 2, 5, 8)),
        replace(TERMS, threshold=4, min_summed=4),
        replace(TERMS, min_summed=4),
        replace(TERMS, length=9),
        replace(TERMS, num_bits=32),
        replace(TERMS, roster=""),
    ]
    digests = {terms.digest() for terms in (TERMS, *others)}
    assert len(digests) == len(others) + 1
    assert {len(digest) for digest in digests} == {32}
