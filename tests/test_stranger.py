"""What a stranger learns of a study of ten sites from its logs, metrics and reports.

Who is missing, how long it still takes, what has been spent, and whether last night
failed: nothing else is asked, and nobody who knows the study.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import FedVote, Host, InProcessGrid, Privacy, tuning_app
from flwr_fbo.cli import app
from flwr_fbo.integrations import PrometheusCallback
from flwr_fbo.tuning import FedVoteSettings
from tests.support.killing import killed_after
from tests.support.prometheus_callback import Values, read, states

NUM_SITES, NUM_ROUNDS, LAST = 10, 12, 6


class NightGrid(InProcessGrid):
    """Of ten sites one has no data, one goes away, and in round 6 the night ends."""

    def __init__(self, folder: Path, end: Callable[[], Any]) -> None:
        nodes: list[Any] = [
            {"agent-id": site, "fbo-folder": str(folder / f"site-{site}")}
            for site in range(NUM_SITES)
        ]
        super().__init__(tuning_app(_objective), NUM_SITES, node_configs=nodes)
        self._end, self._number = end, 0

    def get_node_ids(self) -> Any:
        """Return the nodes: from round 3 on site 7 is away."""
        nodes = list(super().get_node_ids())
        return nodes[:7] + nodes[8:] if self._number >= 2 else nodes

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """End the night in its round."""
        asked = list(messages)
        for message in asked:
            self._number = int(message.metadata.group_id or 0)
        if self._number == LAST:
            self._end()
        time.sleep(0.02)
        return super().send_and_receive(asked, timeout=timeout)


def _objective(context: Context) -> Callable[[Any], float]:
    if context.node_config["agent-id"] == 2:
        raise RuntimeError("no data today")
    return lambda trial: -((trial["x"] - 0.3) ** 2)


def play(folder: Path, end: Callable[[], Any]) -> Any:
    """Run the study until its night ends; return the strategy."""
    (folder / "metrics").mkdir()
    strategy = FedVote(
        {"x": FloatDistribution(0, 1)},
        "maximize",
        NUM_SITES,
        epsilon=8.0,
        delta=1e-3,
        agent=FedVoteSettings(num_features=16, num_candidates=20),
        privacy=Privacy(release_after=(3, 9)),
    )
    callbacks = [PrometheusCallback(folder / "metrics")]
    strategy.start(
        NightGrid(folder, end),
        num_rounds=NUM_ROUNDS,
        folder=folder / "record",
        host=Host(min_agents=8, patience=0.0, callbacks=callbacks),
    )
    return strategy


def _fails() -> None:
    raise ConnectionError("the SuperLink is gone")


def _is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _shown(*command: str) -> str:
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 0, result.output
    return result.output


def _seconds_left(values: Values) -> float:
    """Return what the dashboard computes."""
    planned, done = (values[f"flwr_fbo_rounds_{k}", ""] for k in ("planned", "done"))
    return (planned - done) * values["flwr_fbo_round_seconds", ""]


def _is_silent(values: Values, now: float) -> bool:
    """Return whether the second rule of the page raises an alert."""
    updated = values["flwr_fbo_updated_timestamp_seconds", ""]
    return states(values) == ["running"] and now - updated > 3600


@pytest.mark.gate
def test_a_night_that_ends_with_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    with pytest.raises(ConnectionError):
        play(tmp_path, _fails)
    log = [r.getMessage() for r in caplog.records if r.name == "flwr.fbo"]
    values, labels = read(tmp_path / "metrics")
    record = str(tmp_path / "record")

    # Who is missing? The log has the names, and the metrics how many.
    last = max(i for i, line in enumerate(log) if " agents answered in " in line)
    who = [line.strip("\t> ") for line in log[last + 1 :] if line.startswith("\t> ")]
    assert who[0].startswith("agent 2: SiteError: AppFailedError: make_objective")
    assert who[1:] == ["absent: agent 7"]
    answers = ("answered", "failed", "late", "absent")
    assert [values["flwr_fbo_agents", a] for a in answers] == [8, 1, 0, 1]

    # How long does it still take?
    name = f"round 5 of {NUM_ROUNDS} of study {labels['study']}"
    assert log[last].startswith(f"{name}: 8 of 10 agents answered in ")
    assert re.search(r"about \d+ s left$", log[last])
    assert 0.02 * (NUM_ROUNDS - 5) < _seconds_left(values) < 60

    # What has been spent? All say the same.
    [spent] = {m[1] for line in log[last:] if (m := re.search(r"epsilon (\S+)", line))}
    assert f"{values['flwr_fbo_epsilon', '']:.3f}" == spent
    ledger = _shown("ledger", "show", record).splitlines()
    assert ledger[0] == f"Study {labels['study']} of 10 agents"
    assert re.match(r"Committed from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d to ", ledger[1])
    assert ledger[2].startswith(f"1 release: epsilon {float(spent):.3f}")
    own = _shown("ledger", "show", str(tmp_path / "site-0"))
    assert f"epsilon {float(spent):.3f}" in own
    assert labels["study"] in own

    # Has last night failed?
    said = f"study {labels['study']} ends without a result: ConnectionError: the Super"
    [end] = [line for line in log if line.startswith(said)]
    assert end.endswith(
        f"What was done is in {record}: a run with that folder goes on."
    )
    assert states(values) == ["failed"]
    page = tmp_path / "report.html"
    _shown("report", record, "--output", str(page))
    assert "10 agents, 5 of 12 rounds done, 1 release" in page.read_text()


@pytest.mark.gate
def test_a_night_in_which_it_is_killed(tmp_path: Path) -> None:
    """No error is told then: the study stays silent, and the record has its rounds."""
    assert killed_after(None, play, tmp_path, _is_killed)
    values, labels = read(tmp_path / "metrics")
    assert values["flwr_fbo_rounds_done", ""] == 5
    assert not _is_silent(values, time.time())
    assert _is_silent(values, time.time() + 3601)
    ledger = _shown("ledger", "show", str(tmp_path / "record"))
    assert ledger.startswith(f"Study {labels['study']} of 10 agents")
