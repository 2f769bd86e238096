"""The example's tuner among real processes: what is decided outlives a ServerApp."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo.journal.journal import open_patiently
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.secure.roster import Roster, SigningKey
from flwr_fbo.tuner.records.trials_record import FILE_NAME, recorded_settings
from tests.support.deployed import await_condition, begun, process_named

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune-fedavg-sklearn" / "after"
NUM_SITES, NUM_TRIALS = 2, 3
# What the example's tuner has, and what makes it short, and durable.
LONG = "20, privacy=privacy"
SHORT = "{}, schedule=Halving({}, (1, 2)), privacy=privacy"
# Kills the ServerApp once, when all clients have answered the last exchange of a sum.
START = "tuner.start(main, grid, context)"
DURABLE_START = "tuner.start(main, grid, context, folder={!r})"
# A training of its own follows.
THEN_TRAIN = f"main(*{DURABLE_START}.apply(grid, context))"
DYING = """

def dying(grid: Grid) -> Grid:
    deliver, marker = grid.send_and_receive, Path({marker!r})

    def send_and_receive(messages, *, timeout=None):
        sent = list(messages)
        replies = list(deliver(sent, timeout=timeout))
        is_last = '"exchange": 5' in str(sent[0].content.get("fbo-tuner"))
        if is_last and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), 9)
        return replies

    grid.send_and_receive = send_and_receive
    return grid
"""


def _short_app(folder: Path, record: Path) -> Path:
    """Return a copy of the example with few trials and a record."""
    app = folder / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    server = app / "digits_sgd" / "server_app.py"
    short = SHORT.format(NUM_SITES, NUM_TRIALS)
    assert LONG in server.read_text()
    then_train = THEN_TRAIN.format(str(record))
    text = server.read_text().replace(LONG, short).replace(START, then_train)
    text = text.replace("import FederationTuner", "import FederationTuner, Halving")
    server.write_text(text)
    return app


def _dying_app(folder: Path, record: Path, roster: Path) -> Path:
    """Return such a copy with secure sums, whose ServerApp is killed in the first."""
    app = _short_app(folder, record)
    server = app / "digits_sgd" / "server_app.py"
    text = server.read_text()
    start = DURABLE_START.format(str(record))
    assert start in text
    text = text.replace(start, start.replace("grid", "dying(grid)"))
    secure = f"aggregation=SecureAggregation(roster={str(roster)!r})"
    text = text.replace("privacy=privacy", f"privacy=privacy, {secure}")
    text = text.replace(
        "import FederationTuner", "import SecureAggregation, FederationTuner"
    )
    imports = "\nimport os\nfrom pathlib import Path\n"
    text = text.replace("\n\nfrom flwr.app", f"\n{imports}from flwr.app", 1)
    server.write_text(text + DYING.format(marker=str(folder / "killed")))
    return app


def _start(federation: Any, **of_site: list[str]) -> None:
    """Start all processes; node configs have their site's value of each key."""
    federation.start_superlink()
    sites: dict[str, dict[str, str | int]] = {
        f"site-{site}": {
            "partition-id": site,
            "num-partitions": NUM_SITES,
            **{key: values[site] for key, values in of_site.items()},
        }
        for site in range(NUM_SITES)
    }
    for name, node_config in sites.items():
        federation.register(name)
        federation.start_supernode(name, node_config)
    for name, node_config in sites.items():
        federation.await_supernode(name, node_config)


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
    _start(federation)

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


@pytest.mark.slow
def test_a_sum_is_asked_for_again_after_its_server_app_was_killed(
    federation: Any, tmp_path: Path
) -> None:
    """All sites had unmasked it: from their journals they reply the same again."""
    record, roster = tmp_path / "record", tmp_path / "roster.json"
    keys = [SigningKey.draw() for _ in range(NUM_SITES)]
    Roster.draw({n: key.public for n, key in enumerate(keys)}).save(roster)
    for n, key in enumerate(keys):
        key.save(tmp_path / f"{n}.pem")
    folders = [tmp_path / f"data-{n}" for n in range(NUM_SITES)]
    for folder in folders:
        folder.mkdir()
    app, config = _dying_app(tmp_path, record, roster), "num-server-rounds=2"
    _start(
        federation,
        **{
            "fbo-roster": [str(roster)] * NUM_SITES,
            "fbo-key": [str(tmp_path / f"{n}.pem") for n in range(NUM_SITES)],
            "fbo-folder": [str(folder) for folder in folders],
        },
    )
    with begun(federation, app, config):
        await_condition((tmp_path / "killed").exists, "the first sum", 300)
    assert _decided(record)[1] == []
    with begun(federation, app, config):
        _await_line(federation, "chosen: {")
        printed = _printed(federation)
    assert "the same clients are asked for the same sum" in printed
    os.kill(process_named(federation, "flwr-serverapp"), signal.SIGKILL)
    rungs = _decided(record)[1]
    assert [facts["summed"] for _, facts, _ in rungs] == [[0, 1]] * 2
    for folder in folders:
        with SpendingLedger.held(folder) as ledger:
            assert len(ledger.rows) == 2
            assert Spent.of(CLIENT, ledger.facts()).epsilon(1e-3) <= 2.0 * (1 + 1e-6)
