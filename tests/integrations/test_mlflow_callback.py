"""An MLflow tracking store, read back."""

import doctest
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError

from flwr_fbo import FTS, FedUCB, Halving, Host, InProcessGrid, linear_bandit_app
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.integrations import MlflowCallback, mlflow_callback
from flwr_fbo.study.callbacks import DecidedRung, Started
from flwr_fbo.tuner.federation_result import FederationResult, Rung
from tests.support.apps import in_process, main_of, server_context, tuner
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    WITHOUT_NOISE,
    numpy_app,
    strategy,
)

# Before it is imported: it would report its use to its makers.
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store of all tests: making its tables takes a second."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


def _runs(uri: str, experiment: str) -> list[Any]:
    client = mlflow.MlflowClient(uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    return list(client.search_runs([number]))


def _metric(uri: str, run: Any, name: str) -> dict[int, float]:
    history = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, name)
    assert len({one.step for one in history}) == len(history)
    return {one.step: one.value for one in history}


def test_rounds_epsilon_and_settings(uri: str) -> None:
    study = strategy(callbacks=[MlflowCallback("rounds", tracking_uri=uri)])
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    (run,) = _runs(uri, "rounds")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"DPFTSDE-{study.study.study_id}"
    params = run.data.params
    assert params["method"] == "DPFTSDE"
    assert params["num_rounds"] == "4"
    assert params["agent.num_features"] == "30"
    assert [name for name in params if "seed" in name] == []
    assert result.privacy_spent is not None
    assert run.data.metrics["epsilon"] == result.privacy_spent.epsilon
    assert _metric(uri, run, "answered") == dict.fromkeys((1, 2, 3, 4), NUM_AGENTS)
    assert _metric(uri, run, "absent") == dict.fromkeys((1, 2, 3, 4), 0)
    assert _metric(uri, run, "release") == {1: 1, 2: 2, 3: 3, 4: 0}
    epsilons = {one.server_round: one.epsilon for one in result.rounds}
    assert _metric(uri, run, "epsilon") == epsilons


def test_what_is_recommended(uri: str) -> None:
    told = MlflowCallback("best", tracking_uri=uri)
    study = strategy(callbacks=[told], **WITHOUT_NOISE)
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    (run,) = _runs(uri, "best")
    params = run.data.params
    assert result.recommended is not None
    for name, value in result.recommended.items():
        assert float(params[f"recommended.{name}"]) == value


def test_where_nothing_is_private_there_is_no_epsilon(uri: str) -> None:
    told = MlflowCallback("open", tracking_uri=uri)
    study, grid = FTS(SPACE, "maximize", NUM_AGENTS), InProcessGrid(numpy_app(), 4)
    study.start(grid, num_rounds=2, host=Host(callbacks=[told]))
    (run,) = _runs(uri, "open")
    assert set(run.data.metrics) == {"answered", "failed", "late", "absent", "release"}


def test_rungs_and_the_chosen_trial(uri: str) -> None:
    told = MlflowCallback("rungs", tracking_uri=uri)
    study = tuner(schedule=Halving(6, (1, 2)), callbacks=[told])
    result = study.start(main_of(), in_process(), server_context())
    (run,) = _runs(uri, "rungs")
    scores: dict[int, dict[int, float]] = {}
    for number, rung in enumerate(result.rungs, 1):
        for trial, score in zip(rung.trials, rung.scores, strict=True):
            scores.setdefault(trial, {})[number] = score
        survivors = run.data.params[f"rung-{number}.survivors"]
        assert survivors == str(list(rung.survivors))
    for trial, by_rung in scores.items():
        assert _metric(uri, run, f"score.trial-{trial}") == by_rung
        epochs = run.data.params[f"trial-{trial}.local-epochs"]
        assert epochs == str(result.settings[trial]["local-epochs"])
    assert len(_metric(uri, run, "epsilon")) == 2
    assert run.data.params["chosen-trial"] == str(result.best_trial)
    rate = float(run.data.params["chosen.learning-rate"])
    assert rate == result.best["learning-rate"]


class Ward:
    """Three actions."""

    def contexts(self, t: int) -> Any:
        return np.eye(3)

    def reward(self, x: Any) -> float:
        return float(x @ [0.2, 0.3, 0.8])


def test_a_bandit_that_goes_on_after_its_end_ends_again(
    uri: str, tmp_path: Path
) -> None:
    releases = ContinualSettings(None, dimension=3, epsilon=4.0, delta=1e-5)
    settings = LinearUCBSettings(releases, local_data="own")
    app = linear_bandit_app(make_environment=lambda context: Ward())
    grid = InProcessGrid(app, num_nodes=2)
    for num_rounds in (3, 7):
        host = Host(callbacks=[MlflowCallback("goes-on", tracking_uri=uri)])
        study = FedUCB(settings, 2, interval=0)
        study.start(grid, num_rounds=num_rounds, folder=tmp_path, host=host)
    (run,) = _runs(uri, "goes-on")
    assert run.info.status == "FINISHED"
    assert _metric(uri, run, "epsilon") == dict.fromkeys(range(2, 8), 4.0)
    assert max(_metric(uri, run, "release").values()) == 3


def test_after_a_restart_the_run_is_the_same(uri: str, tmp_path: Path) -> None:
    for _ in range(2):
        told = MlflowCallback("restarted", tracking_uri=uri)
        study = strategy(callbacks=[told], folder=tmp_path)
        study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=2)
    (run,) = _runs(uri, "restarted")
    assert run.info.status == "FINISHED"
    assert _metric(uri, run, "answered") == {1: NUM_AGENTS, 2: NUM_AGENTS}


def test_a_study_that_raises_ends_its_run_at_once(uri: str) -> None:
    told = MlflowCallback("raised", tracking_uri=uri)
    study = strategy(callbacks=[told])
    with pytest.raises(AggregationError):
        study.start(InProcessGrid(numpy_app(), 1), num_rounds=2)
    assert _statuses(uri, "raised") == ["FAILED"]


def test_a_run_without_an_end_is_ended(uri: str) -> None:
    """With the callback, with its next study, or with the process."""
    told = MlflowCallback("unfinished", tracking_uri=uri)
    told.on_start(Started("a", "FedVote", {}, 0))
    (run,) = _runs(uri, "unfinished")
    assert run.info.status == "RUNNING"
    told.on_start(Started("b", "FedVote", {}, 0))
    assert sorted(_statuses(uri, "unfinished")) == ["FAILED", "RUNNING"]
    assert told._end.atexit
    del told
    assert _statuses(uri, "unfinished") == ["FAILED"] * 2


def test_a_result_that_cannot_be_logged_ends_the_run(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = MlflowCallback("lost", tracking_uri=uri)
    told.on_start(Started("a", "FedVote", {}, 0))

    def refused(*arguments: Any, **records: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(told._client, "log_batch", refused)
    with pytest.raises(OSError, match="full"):
        told.on_end(
            FederationResult(({}, {}), (Rung(1, (0, 1), (0.0, 0.5), (1,)),), None)
        )
    assert _statuses(uri, "lost") == ["FAILED"]


def _statuses(uri: str, experiment: str) -> list[str]:
    return [run.info.status for run in _runs(uri, experiment)]


# Each is another name, and MLflow allows the first ones.
NAMES = [
    *(
        "学習率",
        "正則化",
        "opt momentum",
        "opt_momentum",
        "opt.momentum",
        "opt/momentum",
    ),
    *("опт", "معدل", "é", "e\u0301", "lr [log]", "lr (log)", "lr _log_", "lr$", "lr€"),
    *("_", "__", ".", "..", "../lr", ".lr", "/lr", "lr/", "a//b", "a/b", "a/./b"),
    *("lr\n", "lr\t", " lr", "lr ", "🚀", "🛸", "न\u0947", "[", "_x5B_", "_x5F_x5B_"),
    *("_x5[", "\x05x5B_", "_x5/", "\x05x2F_", "grid_x1", "a=b", "a|b", "a\\b"),
    *("n" * 250, "n" * 251, "n" * 252, "学" * 300, "学" * 301, "[" * 100, "[" * 101),
]


def test_different_names_are_different_keys(uri: str) -> None:
    settings = {name: str(i) for i, name in enumerate(NAMES)}
    told = MlflowCallback("names", tracking_uri=uri)
    for _ in range(2):  # the same ones after a restart
        told.on_start(Started("a", "FedVote", settings, 0))
    (run,) = _runs(uri, "names")
    params = run.data.params
    assert params.pop("method") == "FedVote"
    assert sorted(params.values()) == sorted(settings.values())
    for name in NAMES[:8]:
        assert params[name] == settings[name]
    assert params["lr _x5B_log_x5D_"] == settings["lr [log]"]


def test_what_mlflow_does_not_allow_is_made_so(uri: str) -> None:
    """Names and lengths, more values than it takes at once, and infinity."""
    told = MlflowCallback("odd", tracking_uri=uri)
    names = [f"learning rate [{n}]!" for n in range(150)]
    settings = {**dict.fromkeys(names, 0.5), "long": "x" * 9000, "none": None}
    told.on_start(Started("a", "FederationTuner", settings, 0))
    told.on_rung(DecidedRung(1, 2, (0, 1), ({}, {}), (-math.inf, 0.5), (1,), math.inf))
    (run,) = _runs(uri, "odd")
    assert run.data.params["learning rate _x5B_149_x5D__x21_"] == "0.5"
    assert len(run.data.params["long"]) == 6000
    assert "none" not in run.data.params
    assert set(run.data.metrics) == {"rounds", "trials", "score.trial-1"}


def test_a_store_that_cannot_be_used_does_not_stop_the_study(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = f"sqlite:///{tmp_path}/missing/folder/\0/mlflow.db"
    study = strategy(callbacks=[MlflowCallback(tracking_uri=store)])
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=2)
    assert len(result.rounds) == 2
    assert "MlflowCallback has failed in on_start" in caplog.text
    assert "MLflow has no run for this study" in caplog.text


@pytest.mark.parametrize(
    ("options", "named"),
    [({"experiment": ""}, "experiment=''"), ({"tracking_uri": 3}, "tracking_uri=3")],
)
def test_other_arguments_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        MlflowCallback(**options)


def test_without_mlflow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-fbo\[mlflow\]'"):
        MlflowCallback()


def test_the_example_prints_what_it_shows() -> None:
    assert doctest.testmod(mlflow_callback) == (0, 3)
