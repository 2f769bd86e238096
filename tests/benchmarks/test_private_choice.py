"""`python -m benchmarks.private_choice`, on a table of this test's own."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import choice_methods as methods
from benchmarks import private_choice as benchmark

NUM_DRAWS = 80
HONEST = methods.Design(30, 16, 1.0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A file of accuracies of which several are near the best, as in real ones."""
    rng = np.random.default_rng(0)
    accuracies = rng.uniform(0.1, 0.7, (2, 50)).astype(str)
    rows = [f"row-{i}," + " ".join(row) for i, row in enumerate(accuracies)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["name,values", *rows]) + "\n")
    return path


def _loss(path: Path, design: methods.Design, method: methods.Method) -> float:
    tables = benchmark.read_table(path)
    return float(benchmark.losses(tables, design, method, NUM_DRAWS).mean())


def test_the_default_loses_less_than_every_private_baseline(table: Path) -> None:
    ranks = _loss(table, HONEST, methods.OURS["ranks (ours)"])
    baselines = methods.PRIVATE_BASELINES
    losses = {name: _loss(table, HONEST, one) for name, one in baselines.items()}
    assert len(losses) == 4
    assert ranks < 0.8 * min(losses.values())


def test_lies_break_votes_and_not_ranks(table: Path) -> None:
    lies = replace(HONEST, num_liars=10)
    at_random = _loss(table, lies, methods.at_random)
    assert _loss(table, lies, methods.OURS["votes"]) > 0.7 * at_random
    assert _loss(table, lies, methods.OURS["ranks (ours)"]) < 0.3 * at_random


@pytest.mark.parametrize("name", [*methods.OURS, *methods.PRIVATE_BASELINES])
def test_noise_only_is_as_good_as_random_choice(table: Path, name: str) -> None:
    tables = benchmark.read_table(table)
    design = replace(HONEST, noise_only=True)
    method = {**methods.OURS, **methods.PRIVATE_BASELINES}[name]
    drawn = benchmark.losses(tables, design, method, NUM_DRAWS)
    random = benchmark.losses(tables, design, methods.at_random, NUM_DRAWS)
    error = np.hypot(drawn.std(), random.std()) / NUM_DRAWS**0.5
    assert abs(drawn.mean() - random.mean()) < 4 * error


def test_the_command_prints_a_table(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["private_choice", str(table), "--draws", "3"])
    benchmark.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(methods.METHODS)
    assert all(line.count("|") == len(benchmark.DESIGNS) + 2 for line in lines)
