"""The benchmark of the realised epsilon, and what a page says of it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import realised_epsilon
from benchmarks.classified_bandits import Table

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table_that_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    realised_epsilon.show(ROOT / "benchmarks/realised_epsilon.jsonl")
    printed = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs/app/linear-bandits.md").read_text().splitlines()
    assert len(printed) == 2 + len(realised_epsilon.NAMES)
    assert all(line in page for line in printed)


def test_a_site_of_the_study_replays_its_own_decisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(realised_epsilon, "NUM_SITES", 3)
    monkeypatch.setattr(realised_epsilon, "NUM_TRIALS", 60)
    rng = np.random.default_rng(1)
    z = np.column_stack([np.ones(99), rng.uniform(-1, 1, 99)]) / np.sqrt(2)
    table = Table(z, (z[:, 1] > 0).astype(int), np.zeros(99, dtype=int))
    study = realised_epsilon.Study(table, 4.0, 0)
    base = study.play()
    again = study.play(None, base.others)
    np.testing.assert_array_equal(base.chosen, again.chosen)
    flipped = study.play(np.array([0, 5, 11]), base.others)
    assert (flipped.sums != base.sums).any(axis=(0, 2, 3)).all()
    # Every decision is one that the site's own code makes.
    assert study.stream(base, 1).realised(2, 0).num_kept == 0
