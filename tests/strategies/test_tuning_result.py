"""The rounds of a tuning study as a data frame."""

import sys

import pytest
from flwr.app import ArrayRecord

from flwr_fbo import InProcessGrid
from flwr_fbo.tuning import TuningResult
from tests.support.federation import NUM_AGENTS, numpy_app, strategy

COLUMNS = ["server_round", "answered", "failed", "late", "absent", "epsilon", "release"]


def test_a_study_has_a_row_a_round() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    result = strategy().start(grid, num_rounds=3)
    frame = result.to_dataframe()
    assert list(frame.columns) == COLUMNS
    assert frame["server_round"].tolist() == [1, 2, 3]
    assert frame["answered"].tolist() == [NUM_AGENTS] * 3
    assert frame["release"].tolist() == [1, 2, 0]
    assert frame["epsilon"].tolist() == [one.epsilon for one in result.rounds]


def test_without_rounds_there_are_columns() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    frame = TuningResult(arrays=ArrayRecord()).to_dataframe()
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 0


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-fbo\[pandas\]'"):
        TuningResult().to_dataframe()
