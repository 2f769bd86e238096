"""The benchmark of the quickstarts plays what it names, and counts losses."""

import pytest

from benchmarks import quickstarts
from benchmarks.quickstarts import QUICKSTARTS, Trained, table, trained


def test_rows_of_a_seed_differ_in_what_is_compared_alone() -> None:
    quickstart = QUICKSTARTS["numpy"]
    found = trained(quickstart, 1)
    assert list(found) == [
        (default, row) for default in quickstart.defaults for row in quickstart.rows
    ]
    for default in quickstart.defaults:
        untuned, tuned, compared = (found[default, row] for row in quickstart.rows)
        assert (tuned.num_defaults, tuned.num_warnings) == (0, 5)
        assert untuned.num_warnings == 0
        assert min(untuned.accuracy, tuned.accuracy, compared.accuracy) > 0.85
    assert found["poor", "compared"].num_warnings == 5
    assert found["good", "compared"].num_defaults > 0
    poor, good = (found[default, "untuned"] for default in quickstart.defaults)
    assert poor.accuracy < good.accuracy


def test_losses_and_silent_ones_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [0.80, 0.895, 0.80]  # two losses, one of them silent
    warnings = [0, 0, 1]

    def played(quickstart: object, seed: int) -> dict[tuple[str, str], Trained]:
        rows = {
            "untuned": Trained(0.9, 0, 0),
            "not compared": Trained(ends[seed], 0, warnings[seed]),
            "compared": Trained(0.95, 3, 2),
        }
        return {(d, row): v for d in ("poor", "good") for row, v in rows.items()}

    monkeypatch.setattr(quickstarts, "trained", played)
    first, second, third, *_ = table("numpy", 3)
    assert "| 0.000 ± 0.000 | 0 | 0 | 0.0 | 0.0 |" in first
    assert second.endswith("| 2 | 1 | 0.0 | 0.3 |")
    assert third.endswith("| 0.050 ± 0.000 | 0 | 0 | 3.0 | 2.0 |")
