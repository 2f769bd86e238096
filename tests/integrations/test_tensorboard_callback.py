"""TensorBoard's event files, read back."""

import doctest
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flwr_fbo import FTS, Halving, Host, InProcessGrid
from flwr_fbo.integrations import TensorBoardCallback, tensorboard_callback
from flwr_fbo.study.callbacks import Started
from tests.support.apps import in_process, main_of, server_context, tuner
from tests.support.federation import (
    NUM_AGENTS,
    SPACE,
    WITHOUT_NOISE,
    numpy_app,
    strategy,
)

pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")


def _events(path: Path) -> list[Any]:
    """Return the events of a file: records of length, check sum, event, check sum."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    content, events = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        (check,) = struct.unpack("<I", content[12 + length : 16 + length])
        found = crc32c(data)
        assert check == (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        events.append(Event.FromString(data))
        content = content[16 + length :]
    return events


def _read(folder: Path) -> tuple[dict[str, dict[int, float]], dict[str, str]]:
    """Return all scalars by step, and all texts, of a folder."""
    scalars: dict[str, dict[int, float]] = {}
    texts: dict[str, str] = {}
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for event in _events(path):
            for value in event.summary.value:
                if value.WhichOneof("value") == "simple_value":
                    steps = scalars.setdefault(value.tag, {})
                    assert event.step not in steps
                    steps[event.step] = value.simple_value
                else:
                    text = value.tensor.string_val[0].decode()
                    texts[value.tag.removesuffix("/text_summary")] = text
    return scalars, texts


def test_rounds_epsilon_and_settings(tmp_path: Path) -> None:
    told = TensorBoardCallback(tmp_path)
    study = strategy(callbacks=[told])
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"DPFTSDE-{study.study.study_id}"
    scalars, texts = _read(tmp_path)
    assert scalars["answered"] == dict.fromkeys((1, 2, 3, 4), NUM_AGENTS)
    assert scalars["failed"] == scalars["absent"] == dict.fromkeys((1, 2, 3, 4), 0)
    assert scalars["release"] == {1: 1, 2: 2, 3: 3, 4: 0}
    epsilons = {one.server_round: one.epsilon for one in result.rounds}
    assert scalars["epsilon"] == pytest.approx(epsilons, rel=1e-6)
    assert "| method | DPFTSDE |" in texts["settings"]
    assert "| agent.num_features | 30 |" in texts["settings"]
    assert "seed" not in texts["settings"]


def test_what_is_recommended(tmp_path: Path) -> None:
    study = strategy(callbacks=[TensorBoardCallback(tmp_path)], **WITHOUT_NOISE)
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=4)
    _, texts = _read(tmp_path)
    assert result.recommended is not None
    for name, value in result.recommended.items():
        assert f"| recommended.{name} | {json.dumps(value)} |" in texts["result"]


def test_where_nothing_is_private_there_is_no_epsilon(tmp_path: Path) -> None:
    told = TensorBoardCallback(tmp_path)
    study, grid = FTS(SPACE, "maximize", NUM_AGENTS), InProcessGrid(numpy_app(), 4)
    study.start(grid, num_rounds=2, host=Host(callbacks=[told]))
    scalars, texts = _read(tmp_path)
    assert set(scalars) == {"answered", "failed", "late", "absent", "release"}
    assert "epsilon" not in texts["result"]


def test_rungs_and_the_chosen_trial(tmp_path: Path) -> None:
    schedule = Halving(6, (1, 2))
    told = TensorBoardCallback(tmp_path)
    study = tuner(schedule=schedule, callbacks=[told])
    result = study.start(main_of(), in_process(), server_context())
    scalars, texts = _read(tmp_path)
    for number, rung in enumerate(result.rungs, 1):
        for trial, score in zip(rung.trials, rung.scores, strict=True):
            found = scalars[f"score.trial-{trial}"][number]
            assert found == pytest.approx(score, rel=1e-6)
    assert scalars["rounds"] == {1: 1, 2: 2}
    assert scalars["trials"] == {1: 6, 2: len(result.rungs[1].trials)}
    assert len(scalars["epsilon"]) == 2
    assert f"| chosen-trial | {result.best_trial} |" in texts["result"]
    assert f"| chosen.local-epochs | {result.best['local-epochs']} |" in texts["result"]


def test_after_a_restart_the_folder_is_the_same(tmp_path: Path) -> None:
    for _ in range(2):
        told = TensorBoardCallback(tmp_path / "events")
        study = strategy(callbacks=[told], folder=tmp_path / "server")
        study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=2)
    (folder,) = (tmp_path / "events").iterdir()
    assert len(list(folder.iterdir())) == 2
    scalars, _ = _read(folder)
    assert scalars["answered"] == {1: NUM_AGENTS, 2: NUM_AGENTS}


KILLED = """
import os, sys

class NoTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ImportError

sys.meta_path.insert(0, NoTorch())
from flwr_fbo.integrations import TensorBoardCallback
from flwr_fbo.study.callbacks import Round, Started

told = TensorBoardCallback(sys.argv[1])
told.on_start(Started("a", "FedVote", {"a|b": 1}, 0))
for number in range(1, 200):
    told.on_round(Round(number, 5, 0, 0, 0))
os.kill(os.getpid(), 9)
"""


def test_without_torch_and_killed_what_was_written_is_there(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == -9, done.stderr
    scalars, texts = _read(tmp_path)
    assert scalars["answered"] == dict.fromkeys(range(1, 200), 5)
    assert "| a\\|b | 1 |" in texts["settings"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("学習率", "学習率"),
        ("svc__C", "svc__C"),
        ("_lr_", r"\_lr\_"),
        ("__lr", r"\_\_lr"),
        ("a*b*", r"a\*b\*"),
        ("`a`", r"\`a\`"),
        ("a\\b", r"a\\b"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("[a](b)", r"[a]\(b)"),
        ("a\r\nb\u2028c", "a b c"),
    ],
)
def test_a_name_is_shown_as_it_is(tmp_path: Path, name: str, shown: str) -> None:
    told = TensorBoardCallback(tmp_path)
    told.on_start(Started("a", "FedVote", {name: 1}, 0))
    _, texts = _read(tmp_path)
    assert f"| {shown} | 1 |" in texts["settings"]


def test_a_folder_that_cannot_be_used_does_not_stop_the_study(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    told = TensorBoardCallback(tmp_path / "file")
    study = strategy(callbacks=[told])
    result = study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=2)
    assert len(result.rounds) == 2
    assert "TensorBoardCallback has failed in on_start" in caplog.text
    assert "There is no event file for this study." in caplog.text


@pytest.mark.parametrize("folder", ["here", None])
def test_other_folders_are_refused(folder: Any) -> None:
    with pytest.raises(ValueError, match=r"folder=.* an absolute path"):
        TensorBoardCallback(folder)


def test_without_tensorboardx_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-fbo\[tensorboard\]'"):
        TensorBoardCallback(tmp_path)


def test_the_example_prints_what_it_shows() -> None:
    assert doctest.testmod(tensorboard_callback) == (0, 2)
