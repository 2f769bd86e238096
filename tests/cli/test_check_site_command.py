"""``flwr-fbo check-site``: what a site has, and whether studies would be refused."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from typer.testing import CliRunner

from flwr_fbo import charge_training
from flwr_fbo._common.version import __version__
from flwr_fbo.cli import app
from flwr_fbo.privacy import plan_training
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.spending_ledger import (
    FILE_NAME,
    Charge,
    SpendingLedger,
    composed_epsilon,
)
from flwr_fbo.secure.roster import Roster, SigningKey
from tests.support.ledgers import ledger_charges


def check(config: object, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check-site", str(config), *options])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def line(text: str, topic: str) -> str:
    """Return what is said of a topic, with its state, between single spaces."""
    (found,) = (t for t in text.splitlines() if t[9:].startswith(f"{topic} "))
    return " ".join(found.split())


def test_a_site_that_is_ready(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    with SpendingLedger.held(folder) as ledger:
        ledger.record(("tuning", "a"), 1, Charge(4.0), owner=3)
        ledger.record(("tuning", "b"), 1, Charge(9.0), owner=2)  # an earlier agent-id
    code, text = check(
        f'agent-id=3 fbo-folder="{folder}" fbo-max-epsilon-per-client=3 '
        'fbo-max-delta=1e-5 fbo-max-releases=4 data="/srv/data.npz"'
    )
    assert code == 0, text
    assert f"flwr_fbo {__version__} (protocol " in line(text, "versions")
    assert " UTC; a SuperLink refuses" in line(text, "clock")
    assert line(text, "agent-id") == "ok agent-id 3"
    said = "max_epsilon_per_client=3, max_delta=1e-05, max_releases=4"
    assert line(text, "limits") == f"ok limits {said}; those of the app hold too"
    assert f"ok fbo-folder {folder}, " in line(text, "fbo-folder")
    both = [Charge(4.0), Charge(9.0)]
    spent = composed_epsilon(both, 1e-5)
    expected = f"2 charges, epsilon {spent:.4g} per client (message or zeros, "
    expected += "delta 1e-05)"
    assert line(text, "ledger").endswith(expected)
    assert "ok       left         2 releases of 4\n" in text
    left = Spent(tuple((one,) for one in both)).epsilon_left(3.0, 1e-5)
    words = re.search(
        r"a study of epsilon (\S+) per client \(.* delta 1e-05\) at most, of 3", text
    )
    assert words is not None
    assert 0.99 * left < float(words[1]) <= left  # rounded down
    assert line(text, "for the app") == "ok for the app data"
    assert text.endswith("This site is ready.\n")


@pytest.mark.parametrize(
    ("config", "topic", "words"),
    [
        ({}, "agent-id", "PROBLEM agent-id none: a study with authenticated=True"),
        ({"agent-id": "x"}, "agent-id", "agent-id='x' is not allowed"),
        ({"fbo_max_epsilon": 3}, "limits", "did you mean 'fbo-max-epsilon-per-client'"),
        (
            {"fbo-max-epsilon-per-client": 3},
            "limits",
            "together with fbo-max-epsilon-per-client",
        ),
        ({"fbo-max-releases": 9}, "fbo-folder", "holds for one run only"),
        ({"fbo-folder": "site"}, "fbo-folder", "an absolute path"),
        ({"fbo-folder": "/dev/null/a"}, "fbo-folder", "/dev/null cannot be written"),
        ({"fbo-roster": "/nope"}, "secure sums", "are given together"),
        ({"fbo-roster": "/nope", "fbo-key": "/no"}, "secure sums", "No such file"),
    ],
)
def test_a_problem_is_named(config: dict[str, Any], topic: str, words: str) -> None:
    entries = {"agent-id": 0, **config} if config else {}
    code, text = check(" ".join(f'{k}="{v}"' for k, v in entries.items()) or "a=1")
    assert code == 1
    found = line(text, topic)
    assert found.startswith("PROBLEM")
    assert words in found
    assert text.count("PROBLEM") == 1, text
    assert text.endswith("1 problem: this site is not ready.\n")


def test_a_limit_on_epsilon_without_a_folder_is_a_problem() -> None:
    """Each run would begin to count at zero; a limit on sizes needs no folder."""
    code, text = check("agent-id=0 fbo-max-epsilon-per-client=3 fbo-max-delta=1e-3")
    assert code == 1
    assert line(text, "fbo-folder").startswith("PROBLEM")
    code, text = check("agent-id=0 fbo-max-trials=9")
    assert code == 0, text
    assert line(text, "fbo-folder").startswith("note")


def test_a_study_that_no_limit_refuses_is_not_said_to_be_within_limits() -> None:
    code, text = check("agent-id=0", "--epsilon", "9", "--delta", "1e-3")
    assert code == 0, text
    said = "note study 1 release, epsilon 9 per client (message or zeros, "
    said += "delta 0.001): no limit refuses it"
    assert line(text, "study").startswith(said)
    assert text.endswith("This site is ready, with the notes above.\n")


def test_another_agent_id_in_a_used_folder_forgets_nothing(tmp_path: Path) -> None:
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("tuning", "a"), 1, Charge(4.0), owner=0)
    code, text = check(f'agent-id=1 fbo-folder="{tmp_path}"')
    assert code == 0, text
    assert ": 1 charge, epsilon " in line(text, "ledger")


def test_an_entry_that_is_misspelled_is_not_said_to_be_for_the_app() -> None:
    code, text = check('agent-id=0 max-epsilon=2 fbo-max-epslion=3 data="x"')
    assert code == 1
    assert line(text, "limits").startswith("PROBLEM")
    assert line(text, "for the app") == "ok for the app data"


def test_an_agent_id_that_is_the_partition_is_said_so() -> None:
    _, text = check("partition-id=3")
    assert line(text, "agent-id") == "ok agent-id 3, the partition-id"


def test_a_study_that_was_announced(tmp_path: Path) -> None:
    """It fits beside the others, or is refused as an app at the site refuses it."""
    config = f'agent-id=0 fbo-folder="{tmp_path}" fbo-max-releases=5 '
    config += "fbo-max-epsilon-per-client=3 fbo-max-delta=1e-3"
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("tuning", "a"), 1, Charge(2.5), owner=0)
    left = Spent(((Charge(2.5),),)).epsilon_left(3.0, 1e-3)
    assert 1 < left < 3
    code, text = check(config, "--epsilon", f"{left}", "--delta", "1e-3")
    assert code == 0, text
    said = f"ok study 1 release, epsilon {left:.4g} per client (message or zeros, "
    said += "delta 0.001): within the limits"
    assert line(text, "study").startswith(said)
    for options, words in (
        (("--epsilon", f"{1.03 * left}", "--delta", "1e-3"), "epsilon 3.0"),
        # The same epsilon at a smaller delta has less noise.
        (("--epsilon", "0.9", "--delta", "0.9"), "is epsilon "),
        (("--epsilon", "0.1", "--delta", "1e-3", "--releases", "5"), "is 6 releases"),
    ):
        code, text = check(config, *options)
        assert code == 1, text
        assert line(text, "study").startswith("PROBLEM study This site takes no part:")
        assert words in line(text, "study")
        assert text.endswith("1 problem: this site is not ready.\n")
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger, 0) == [Charge(2.5)]


def test_nothing_is_left_beside_a_training_that_was_planned_for_the_limit(
    tmp_path: Path,
) -> None:
    plan = plan_training(8.0, 1e-5, sampling_probability=0.05, num_steps=60).training
    limits: Any = {"fbo-max-epsilon-per-example": 8.0, "fbo-max-delta": 1e-5}
    context = Context(7, 1, {"fbo-folder": str(tmp_path), **limits}, RecordDict(), {})
    charge_training(context, replace(plan, num_steps=20), plan=plan)
    entries = " ".join(f"{name}={value}" for name, value in limits.items())
    code, text = check(f'agent-id=0 fbo-folder="{tmp_path}" {entries}')
    assert code == 0, text
    assert line(text, "left").endswith(" at most, of 8: no further study")


def test_a_limit_without_its_delta_is_told_once() -> None:
    code, text = check(
        "agent-id=0 fbo-max-epsilon-per-client=2", "--epsilon", "1", "--delta=1e-3"
    )
    assert code == 1
    assert text.count("PROBLEM") == 1, text
    said = "fbo-max-delta=None is not allowed: given together with "
    said += "fbo-max-epsilon-per-client=2"
    assert said in line(text, "limits")


def test_a_study_is_asked_about_with_epsilon_and_delta() -> None:
    for options, words in (
        (("--epsilon", "2"), "--epsilon=2.0 is not allowed: given with both"),
        (("--delta", "1e-3"), "--delta=0.001 is not allowed"),
        (("--releases", "2"), "--releases=2 is not allowed"),
        (("--epsilon", "0", "--delta", "1e-3"), "--epsilon=0.0 is not allowed"),
        (("--epsilon", "2", "--delta", "1"), "--delta=1.0 is not allowed"),
    ):
        code, text = check("agent-id=0", *options)
        assert code == 1
        assert words in " ".join(text.split())


def test_a_toml_file_and_what_is_not_a_node_config(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(f'agent-id = 0\nfbo-folder = "{tmp_path}/site"\n')
    code, text = check(file)
    assert code == 0, text
    assert "it will be created" in text
    assert not (tmp_path / "site").exists()
    for wrong, words in (
        (tmp_path / "none.toml", "No such file"),
        ("agent-id=0 fbo-max-releases 3", "NODE_CONFIG='fbo-max-releases 3'"),
        ("agent-id=zero", "in an invalid format"),
    ):
        code, text = check(wrong)
        assert code == 1
        assert words in " ".join(text.split())
    file.write_text("agent-id = \n")
    code, text = check(file)
    assert code == 1
    assert text.startswith("Error: ")


def test_a_ledger_that_is_spent_lost_or_of_others(tmp_path: Path) -> None:
    limits = (
        "agent-id=0 fbo-max-epsilon-per-client=1 fbo-max-delta=1e-5 fbo-max-releases=1"
    )
    config = f'{limits} fbo-folder="{tmp_path}"'
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("tuning", "a"), 1, Charge(0.5), owner=0)
    # A SuperNode that is started again must still end the study that spent it.
    code, text = check(config)
    assert code == 0
    assert "note     left         0 releases of 1: no further study" in text
    assert (
        "epsilon 0 per client (message or zeros, delta 1e-05) at most, of 1: no "
        in text
    )
    assert check(config, "--epsilon", "0.1", "--delta", "1e-5")[0] == 1
    (tmp_path / FILE_NAME).chmod(0o666)
    assert "others may write it" in line(check(config)[1], "ledger")
    (tmp_path / FILE_NAME).write_bytes(b"rubbish" * 999)
    (tmp_path / FILE_NAME).chmod(0o600)
    assert "PROBLEM ledger The journal" in line(check(config)[1], "ledger")


@pytest.mark.parametrize("days", [1, 3650])
def test_a_clock_that_was_once_ahead_keeps_no_site_down(
    days: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperNode that begins with this command starts, and spends as before."""
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("tuning", "a"), 1, Charge(9.0), owner=0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - days * 86_400)
    config = f'agent-id=0 fbo-folder="{tmp_path}" fbo-max-releases=2'
    code, text = check(config, "--epsilon", "1", "--delta", "1e-3")
    assert code == 0, text
    said = line(text, "ledger")
    assert said.startswith("note ledger ")
    assert "is the clock right?" in said
    assert "all charges count, and nothing waits for one" in said
    assert "ok       left         1 release of 2\n" in text
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.record(("tuning", "b"), 1, Charge(9.0), owner=0)
        assert len(ledger_charges(ledger)) == 2
    # All of it counts, whatever agent-id it was charged under.
    code, text = check(config.replace("agent-id=0", "agent-id=1"))
    assert code == 0
    assert "2 charges" in line(text, "ledger")


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    code, text = check(f'agent-id=0 fbo-folder="{tmp_path}"')
    assert code == 1
    assert "0.0 GiB free: too little" in line(text, "fbo-folder")


def test_the_slot_is_that_of_the_key(tmp_path: Path) -> None:
    keys = [SigningKey.draw() for _ in range(3)]
    roster = Roster.draw({slot: key.public for slot, key in enumerate(keys)})
    roster.save(tmp_path / "roster.json")
    keys[1].save(tmp_path / "1.pem")
    files = f'fbo-roster="{tmp_path}/roster.json" fbo-key="{tmp_path}/1.pem"'
    expected = f"slot 1 of 3 in the roster {roster.digest()}"
    code, text = check(f"agent-id=1 {files} fbo-min-colluding=1")
    assert code == 0, text
    assert line(text, "secure sums") == f"ok secure sums {expected}"
    text = check(f"agent-id=1 {files}")[1]
    unset = "fbo-min-colluding is not set, so the server chooses it"
    assert line(text, "secure sums") == f"note secure sums {expected}; {unset}"
    code, text = check(f"agent-id=1 {files} fbo-max-epslion=3")
    assert text.count("PROBLEM") == 1, text  # of the limits, which it does not read
    code, text = check(f"agent-id=2 {files}")
    assert code == 1
    assert "PROBLEM secure sums slot 1 of 3" in line(text, "secure sums")
