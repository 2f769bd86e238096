"""The text files for node_exporter, read back."""

from __future__ import annotations

import json
import re
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import Halving, InProcessGrid
from flwr_fbo.integrations import Callback, PrometheusCallback
from flwr_fbo.integrations.prometheus_callback import _METRICS
from flwr_fbo.study.callbacks import Started
from tests.support.apps import in_process, main_of, server_context, tuner
from tests.support.federation import NUM_AGENTS, numpy_app, strategy
from tests.support.prometheus_callback import Values, read, states


def test_rounds_agents_epsilon_and_seconds(tmp_path: Path) -> None:
    seen: list[Values] = []

    class Looks(Callback):
        def on_round(self, finished: Any) -> None:
            seen.append(read(tmp_path)[0])

    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    del grid.contexts[1004]
    began = time.time()
    callbacks = [PrometheusCallback(tmp_path), Looks()]
    study = strategy(callbacks=callbacks, min_agents=3)
    result = study.start(grid, num_rounds=4)
    values, labels = read(tmp_path)
    assert labels == {"study": study.study.study_id, "method": "DPFTSDE"}
    assert [v["flwr_fbo_rounds_done", ""] for v in seen] == [1, 2, 3, 4]
    assert states(seen[0]) == ["running"]
    assert states(values) == ["finished"]
    assert values["flwr_fbo_rounds_planned", ""] == 4
    assert values["flwr_fbo_agents", "answered"] == 3
    assert values["flwr_fbo_agents", "absent"] == 1
    assert result.privacy_spent is not None
    spent = pytest.approx(result.privacy_spent.epsilon)
    assert values["flwr_fbo_epsilon", ""] == spent
    assert 0 < values["flwr_fbo_round_seconds", ""] < time.time() - began
    assert began <= values["flwr_fbo_updated_timestamp_seconds", ""] <= time.time()
    [file] = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_study_that_failed_is_still_there_in_the_morning(tmp_path: Path) -> None:
    class Ends(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            if any(message.metadata.group_id == "2" for message in asked):
                raise ConnectionError("gone")
            return super().send_and_receive(asked, timeout=timeout)

    study = strategy(callbacks=[PrometheusCallback(tmp_path)])
    with pytest.raises(ConnectionError):
        study.start(Ends(numpy_app(), NUM_AGENTS), num_rounds=4)
    values, _ = read(tmp_path)
    assert states(values) == ["failed"]
    assert values["flwr_fbo_rounds_done", ""] == 1


def test_rungs_of_a_tuner(tmp_path: Path) -> None:
    told = PrometheusCallback(tmp_path)
    study = tuner(schedule=Halving(6, (1, 2)), callbacks=[told])
    result = study.start(main_of(), in_process(), server_context())
    values, labels = read(tmp_path)
    assert labels["method"] == "FederationTuner"
    assert values["flwr_fbo_rungs_done", ""] == 2
    assert ("flwr_fbo_rounds_done", "") not in values
    assert result.privacy_spent is not None
    spent = pytest.approx(result.privacy_spent.epsilon)
    assert values["flwr_fbo_epsilon", ""] == spent
    [file] = tmp_path.iterdir()
    [line] = [t for t in file.read_text().splitlines() if "flwr_fbo_epsilon{" in t]
    assert 'conditions="without the training"' in line
    assert 'unit="client"' in line


def test_labels_are_escaped(tmp_path: Path) -> None:
    told = PrometheusCallback(tmp_path)
    told.on_start(Started('a"b\\c', "FedVote", {}, 0))
    _, labels = read(tmp_path)
    assert labels["study"] == 'a\\"b\\\\c'


@pytest.mark.parametrize("folder", ["metrics", None, 3, "/nope/metrics"])
def test_a_wrong_folder_is_named(folder: Any) -> None:
    with pytest.raises(ValueError, match="folder="):
        PrometheusCallback(folder)


def test_the_dashboard_shows_metrics_that_are_written() -> None:
    path = Path(__file__).parents[2] / "examples/deployment/grafana.json"
    board = json.loads(path.read_text())
    shown = set(re.findall(r"flwr_fbo_\w+", json.dumps(board)))
    assert shown == set(_METRICS)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
