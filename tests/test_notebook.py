"""The notebook of the examples: ten cells, which run from top to bottom."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first-steps.ipynb"


@pytest.mark.gate
def test_it_runs_and_shows_a_gain_and_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert len(cells) == 10
    assert not any(cell.get("outputs") for cell in cells)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in cells:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    # The same sites, with a head start and alone.
    first, alone = (
        sum(agent.values[0] for agent in names[group]) / len(names[group])
        for group in ("started", "same_alone")
    )
    assert len(names["started"]) == len(names["same_alone"]) == 11
    assert names["default"] > alone
    assert first > names["default"] + 0.03
    assert 3.9 < names["result"].privacy_spent.epsilon <= 4
    assert "epsilon 2: noise multiplier 1.45" in printed.getvalue()
