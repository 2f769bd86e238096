"""The bandit examples say what the sites earn together, and what each does alone."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(params=["linear-bandit/bandits", "neural-bandit/kitchens"])
def compare(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module of an example that compares."""
    folder, name = request.param.split("/")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES / folder))
        yield importlib.import_module(f"{name}.compare")
    for loaded in [n for n in sys.modules if n.split(".")[0] == name]:
        del sys.modules[loaded]


def test_it_prints_what_sites_earn_together_and_alone(
    compare: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    size = {"trials": 100} if hasattr(compare, "ALONE") else {"evaluations": 12}
    compare.main(seeds=2, sites=2, **size)
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].startswith("together, ")
    assert lines[1].startswith("alone ")
    means = [float(line.split("±")[0].split()[-1]) for line in lines]
    assert np.isfinite(means).all()
    assert means[0] - means[1] == pytest.approx(means[2], abs=2e-4)
