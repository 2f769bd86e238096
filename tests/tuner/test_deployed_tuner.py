"""The example's tuner among real processes: what is decided outlives a ServerApp."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo.journal.journal import open_patiently
from flwr_fbo.tuner.tuner_record import FILE_NAME, recorded_settings
from tests.deployed import await_condition, begun, process_named

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune-fedavg-sklearn" / "after"
NUM_SITES, NUM_TRIALS = 2, 3
# What the example's tuner has, and what makes it short, and durable.
LONG = "20, schedule=Halving(16, (3, 9)), privacy=privacy"
SHORT = "{}, schedule=Halving({}, (1, 2)), privacy=privacy, folder={!r}"


def _short_app(folder: Path, record: Path) -> Path:
    """Return a copy of the example with few trials and a record."""
    app = folder / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    server = app / "digits_sgd" / "server_app.py"
    short = SHORT.format(NUM_SITES, NUM_TRIALS, str(record))
    assert LONG in server.read_text()
    server.write_text(server.read_text().replace(LONG, short))
    return app


def _printed(federation: Any) -> str:
    """Return what the last run has printed so far."""
    return str(max(federation.folder.glob("run-*.out")).read_text())


def _await_line(federation: Any, line: str) -> None:
    await_condition(lambda: line in _printed(federation), line, 300)


def _decided(record: Path) -> tuple[Any, list[tuple[int, Any, list[float]]]]:
    """Return settings and releases of a record."""
    with open_patiently(None, record / FILE_NAME, 60.0) as journal:
        rows = [(r.iteration, r.facts, r.vectors.tolist()) for r in journal.ledger()]
        return recorded_settings(journal), rows


@pytest.mark.slow
def test_a_tuner_goes_on_after_its_server_app_was_killed(
    federation: Any, tmp_path: Path
) -> None:
    """In the second rung: the first stays decided, with the same noise."""
    record = tmp_path / "record"
    app, config = _short_app(tmp_path, record), "num-server-rounds=2"
    federation.start_superlink()
    sites: dict[str, dict[str, str | int]] = {
        f"site-{site}": {"partition-id": site, "num-partitions": NUM_SITES}
        for site in range(NUM_SITES)
    }
    for name, node_config in sites.items():
        federation.register(name)
        federation.start_supernode(name, node_config)
    for name, node_config in sites.items():
        federation.await_supernode(name, node_config)

    with begun(federation, app, config):
        _await_line(federation, "rung 1 of 2: 3 trials at round 1")
        os.kill(process_named(federation, "flwr-serverapp"), signal.SIGKILL)
    settings, first = _decided(record)
    assert [number for number, _, _ in first] == [0]
    left_over = record / "trial-0" / "left-over"
    left_over.touch()

    with begun(federation, app, config):
        _await_line(federation, "chosen: {")
        printed = _printed(federation)
    assert "goes on: 1 of 2 rungs are decided" in printed
    assert "rung 1 of 2:" not in printed
    assert "rung 2 of 2: 2 trials at round 2" in printed
    # The real training follows; of the record nothing is left to do.
    os.kill(process_named(federation, "flwr-serverapp"), signal.SIGKILL)
    again, both = _decided(record)
    assert again == settings
    assert both[:1] == first
    assert [number for number, _, _ in both] == [0, 1]
    assert len({str(vectors) for _, _, vectors in both}) == 2
    assert all(facts["private"] for _, facts, _ in both)
    survivors = first[0][1]["survivors"]
    assert both[1][1]["trials"] == survivors
    assert left_over.exists() == (0 not in survivors)
