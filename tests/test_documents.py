"""The Python in README and tutorials runs as it is written."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def _run(path: Path) -> dict[str, Any]:
    """Execute a document's Python blocks, one after the other."""
    names: dict[str, Any] = {"__name__": "document"}
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(path), "exec"), names)
    return names


def test_the_readme() -> None:
    names = _run(ROOT / "README.md")
    spent = names["result"].privacy_spent
    assert set(names["result"].recommended) == {"C", "gamma"}
    assert spent.num_releases == 1
    assert 7.9 < spent.epsilon <= 8
    assert names["strategy"].server.release.private


def test_your_own_objective(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run(ROOT / "docs" / "your-own-objective.md")
    assert 7.9 < names["result"].privacy_spent.epsilon <= 8.0
    assert len(names["study"].trials) == 11 + 5 + 3
    assert names["study"].trials[0].params["gamma"] == 0.03
    assert len(capsys.readouterr().out.splitlines()) == 2 + 5 + 1


def test_linear_bandits(capsys: pytest.CaptureFixture[str]) -> None:
    names = _run(ROOT / "docs" / "linear-bandits.md")
    assert names["strategy"].server.private
    said = capsys.readouterr().out
    assert "epsilon=4.0" in said
    assert "[2, 2, 2]\n[5, 5, 5]" in said


def test_neural_bandits(capsys: pytest.CaptureFixture[str]) -> None:
    result = _run(ROOT / "docs" / "neural-bandits.md")["result"]
    assert all(r.results == 4 for r in result.rounds)
    said = capsys.readouterr().out
    assert "w0 has 76 numbers" in said
    assert "epsilon 8 for one evaluation" in said


def test_when_federation_helps() -> None:
    path = ROOT / "docs" / "when-federation-helps.md"
    crowds = _run(path)["crowds"]
    rows = re.findall(r"^\| ([\d.]+) \| (.*) \|$", path.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for epsilon, row in rows:
        for sites, cell in zip((5, 10, 30, 100), row.split(" | "), strict=True):
            crowd = crowds[float(epsilon), sites]
            assert cell == (f"{crowd}: never" if crowd > sites else str(crowd))
