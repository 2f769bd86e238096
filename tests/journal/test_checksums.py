"""Digests of rows: of the table, of each column, and of where a column ends."""

import pytest

from flwr_fbo.journal.checksums import Part, Row, damage_of, digests_of

ROW: Row = ("a", 1, 0.5, None, b"one", b"two")


@pytest.mark.parametrize(
    "other",
    [
        ("b", *ROW[1:]),
        ("a", 1.0, *ROW[2:]),  # another type
        (*ROW[:3], "None", *ROW[4:]),
        (*ROW[:4], b"onet", b"wo"),  # the same bytes, cut elsewhere
        (*ROW[:4], b"two", b"one"),
        ROW[:-1],
    ],
)
def test_another_row_has_another_digest(other: Row) -> None:
    one, two = digests_of("state", [ROW, other])
    assert one != two


def test_the_same_row_of_another_table_has_another_digest() -> None:
    """Else a row could be moved from one table into the other."""
    assert digests_of("state", [ROW]) != digests_of("ledger", [ROW])
    assert digests_of("state", [ROW]) == digests_of("state", [list(ROW)])
    assert digests_of("trial", [(1, -0.0)]) == digests_of("trial", [(1, 0.0)])


def test_rows_are_those_of_a_part_all_and_no_others() -> None:
    rows = [(f"array-{i}", 1, bytes([i])) for i in range(3)]
    digests = digests_of("state", rows)
    whole = [(*row, digest) for row, digest in zip(rows, digests, strict=True)]
    total = sum(int.from_bytes(digest, "big") for digest in digests) % 2**256
    part = Part(num_rows=3, total=total)
    assert damage_of("state", 1, whole, part) is None
    changed = ("array-1", 1, b"x", digests[1])
    for damaged, words in (
        (whole[:2], "2 rows are there, 3 were written"),
        ([*whole[:2], whole[1]], "rows are missing"),
        ([whole[0], changed, whole[2]], "array 'array-1' in the table state is not as"),
    ):
        assert words in str(damage_of("state", 1, damaged, part))
