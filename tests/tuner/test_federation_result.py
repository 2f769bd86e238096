"""Trials of a `FederationTuner` as a data frame."""

import math
import sys

import pytest

from flwr_fbo import Halving
from flwr_fbo.tuner.federation_result import Rung
from flwr_fbo.tuning import FederationResult
from tests.support.apps import in_process, main_of, server_context, tuner


def test_a_tuner_has_a_row_a_trial() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    study = tuner(schedule=Halving(8, (1, 2)))
    result = study.start(main_of(), in_process(), server_context())
    frame = result.to_dataframe()
    scores = [f"score_rung_{number}" for number in range(1, len(result.rungs) + 1)]
    names = ["params_learning-rate", "params_local-epochs"]
    assert list(frame.columns) == ["trial", *names, *scores, "outcome"]
    assert frame["trial"].tolist() == list(range(8))
    epochs = [settings["local-epochs"] for settings in result.settings]
    assert frame["params_local-epochs"].tolist() == epochs
    for name, rung in zip(scores, result.rungs, strict=True):
        released = frame[name].dropna()
        assert released.index.tolist() == sorted(rung.trials)
        assert [released[trial] for trial in rung.trials] == list(rung.scores)
    (best,) = frame.index[frame["outcome"] == "chosen"]
    assert best == result.best_trial
    ended = set(frame["outcome"]) - {"chosen"}
    assert ended == {"round 1", "round 2"}


def test_a_failed_trial_has_minus_infinity() -> None:
    pytest.importorskip("pandas", reason="needs the extra pandas")
    rung = Rung(2, (0, 1), (0.5, -math.inf), (0,))
    frame = FederationResult(({"a": True}, {"a": False}), (rung,), None).to_dataframe()
    assert frame["score_rung_1"].tolist() == [0.5, -math.inf]
    assert frame["params_a"].tolist() == [True, False]


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = FederationResult(({"a": 1},), (Rung(1, (0,), (0.5,), (0,)),), None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-fbo\[pandas\]'"):
        result.to_dataframe()
