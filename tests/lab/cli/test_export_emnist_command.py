"""The export of digits by writer, by a stand-in for uv and by TFF itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import uv
from typer.testing import CliRunner

from flwr_fbo.lab.cli import export_emnist_command as command
from flwr_fbo.lab.datasets import emnist
from tests.support.emnist_files import (
    NUMBERS,
    TRAIN,
    all_splits,
    assert_equal,
    data_folder_of,
    example_of,
    floats_feature,
    ints_feature,
    write_sqlite,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return data_folder_of(tmp_path, monkeypatch)


# The export, by a uv that stands in for the real one


FAKE_UV = f"""#!{sys.executable}
import subprocess, sys, time
from pathlib import Path
run, option, script, folder, writers, result = sys.argv[1:]
assert (run, option) == ("run", "--script") and Path(script).is_file()
# As TFF's worker: it goes on when its parent has ended.
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
Path(folder, "..", "..", "pids").resolve().write_text(str(worker.pid))
print("Installed 67 packages in 300ms", flush=True)
{{action}}
"""
WRITES = """
import numpy as np
images = np.zeros((2 * int(writers), 28, 28), np.float32)
number = np.arange(len(images))
np.savez(result, images=images, labels=number % 10, writer=number // 2,
         is_test=number % 2 == 1)
"""


@pytest.fixture
def fake_uv(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """A function of what uv shall do; what it started must have ended."""
    path = folder / "uv"

    def write(action: str) -> None:
        path.write_text(FAKE_UV.format(action=textwrap.dedent(action)))
        path.chmod(0o700)
        monkeypatch.setattr(uv, "find_uv_bin", lambda: str(path))

    yield write
    if (folder / "pids").is_file():
        assert _ended(int((folder / "pids").read_text()))


def _ended(pid: int) -> bool:
    """Whether the process ends within some seconds, or has been a zombie since."""
    for _attempt in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


APP = typer.Typer()
APP.command()(command.export_emnist)


def _export(*arguments: str | Path, answer: str | None = None) -> Any:
    return CliRunner().invoke(APP, [str(a) for a in arguments], input=answer)


def _only_error(result: Any, *words: str) -> None:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    for word in ("Error: ", *words):
        assert word in line


def _left_by_export(folder: Path) -> set[str]:
    return {p.name for p in (folder / "emnist").glob("*")}


def test_an_export_is_read(folder: Path, fake_uv: Callable[[str], None]) -> None:
    fake_uv(WRITES)
    result = _export("--writers=3", "--yes")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{folder}/emnist/emnist_digits.npz: 3 writers\n"
    assert _left_by_export(folder) == {"emnist_digits.npz"}
    assert emnist.num_partitions() == 3


def test_an_export_goes_where_it_is_told(
    folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(WRITES)
    output = folder / "emnist" / "mine.npz"
    assert _export("--writers=1", "--yes", "--output", output).exit_code == 0
    assert len(emnist.ArrayWriters(output)) == 1
    _only_error(_export("--writers=2", "--yes", "--output", output), "a new file")
    assert len(emnist.ArrayWriters(output)) == 1


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_nothing_is_run_unasked(
    answer: str, folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(WRITES)
    result = _export("--writers=3", answer=answer)
    assert result.exit_code == 1
    for figure in ("2.5 GB", "a minute", "170 MB", "4.7 GB"):
        assert figure in result.output
    assert not (folder / "pids").exists()
    assert _left_by_export(folder) == set()


def test_a_yes_runs_it(folder: Path, fake_uv: Callable[[str], None]) -> None:
    source = write_sqlite(folder / "tff")
    fake_uv(
        f"assert Path(folder, 'emnist_all.sqlite').samefile({str(source)!r})\n" + WRITES
    )
    result = _export("--writers=3", "--source", source, answer="y\n")
    assert result.exit_code == 0, result.output
    assert "170 MB" not in result.output
    assert source.is_file()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("print('a'); sys.exit('There are 2 writers, not 3.\\n\\n')", ("2 writers,",)),
        ("sys.stdout.buffer.write(b'50%\\r\\xff [/x]'); sys.exit(2)", ("\ufffd [/x]",)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ("Installed 67",)),
        ("Path(result).write_bytes(b'PK')", ("result.npz is damaged",)),
        (WRITES.replace("int(writers)", "2"), ("2 of 3 writers",)),
    ],
)
def test_a_failure_is_told_and_leaves_nothing(
    action: str, words: tuple[str], folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(action)
    _only_error(_export("--writers=3", "--yes"), *words)
    assert _left_by_export(folder) == set()


STOPPED = """
import signal, sys, typer, uv
from flwr_fbo.lab.cli.export_emnist_command import export_emnist
# Whatever a shell or nohup has made of them for the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
path = sys.argv.pop()
uv.find_uv_bin = lambda: path
typer.run(export_emnist)
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_stop_ends_everything_and_leaves_nothing(
    number: signal.Signals, folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv("time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, "--writers=1", "--yes", folder / "uv"],
        stderr=subprocess.PIPE,
        text=True,
    )
    for _attempt in range(300):
        if (folder / "pids").is_file() and (folder / "pids").read_text():
            break
        time.sleep(0.1)
    assert process.poll() is None
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == f"Stopped. {folder}/emnist/emnist_digits.npz was not written.\n"
    assert _left_by_export(folder) == set()


def test_without_uv_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> str:
        raise FileNotFoundError("nowhere")

    monkeypatch.setattr(uv, "find_uv_bin", find)
    _only_error(_export("--writers=3", "--yes"), "uv is missing", "pip install uv")
    monkeypatch.setitem(sys.modules, "uv", None)
    _only_error(_export("--writers=3", "--yes"), "uv is missing", "pip install uv")


def test_a_full_disk_is_seen_before_the_work(
    folder: Path, fake_uv: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_uv(WRITES)
    usage = type(shutil.disk_usage(folder))(10**12, 10**12 - 10**9, 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    words = ("4.8 GB are needed, 1.0 GB are free", str(folder / "emnist"))
    _only_error(_export("--writers=300", "--yes"), *words)
    assert not (folder / "pids").exists()
    source = write_sqlite(folder / "tff")
    assert _export("--writers=3", "--yes", "--source", source).exit_code == 0


def test_an_output_that_cannot_be_written_is_seen_before_the_work(
    folder: Path, fake_uv: Callable[[str], None]
) -> None:
    fake_uv(WRITES)
    (folder / "file").touch()
    output = folder / "file" / "x.npz"
    _only_error(_export("--writers=3", "--yes", "--output", output), "file")
    if os.geteuid() != 0:  # root may write anywhere
        (folder / "emnist").mkdir(0o500)
        _only_error(_export("--writers=3", "--yes"), "Permission denied")
    assert not (folder / "pids").exists()


@pytest.mark.parametrize(
    "option", ["--writers=3384", "--source=/nowhere", "--output=/tmp"]
)
def test_a_wrong_option_is_refused(option: str, fake_uv: Callable[[str], None]) -> None:
    fake_uv(WRITES)
    result = _export("--writers=3", "--yes", option)
    assert result.exit_code == 2
    assert "Invalid value" in result.output


# The export by tensorflow-federated itself


BY_TENSORFLOW = """
import json, sys
import numpy as np, tensorflow as tf
for line in sys.stdin:
    pixels, label = json.loads(line)
    example = tf.train.Example(features=tf.train.Features(feature={
        "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }))
    print(example.SerializeToString().hex())
"""


@pytest.fixture(scope="module")
def tff_python() -> str:
    """The Python of the script's environment, made from what uv has in its cache."""
    arguments = ("--offline", "--script", command.SCRIPT)
    synced = subprocess.run(
        [uv.find_uv_bin(), "sync", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if synced.returncode:
        reason = (
            f"uv sync --script {command.SCRIPT} has not been run: {synced.stderr!r}"
        )
        if os.environ.get("FLWR_FBO_REQUIRE_ENGINE"):
            pytest.fail(f"FLWR_FBO_REQUIRE_ENGINE is set, but {reason}")
        pytest.skip(reason)
    found = subprocess.run(
        [uv.find_uv_bin(), "python", "find", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip()


def _with_marker(marker: str) -> list[int]:
    """The processes that inherited an environment variable, but for this one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is somebody else's
        if marker.encode() in environment and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


@pytest.mark.slow
def test_tff_and_the_loader_agree(
    folder: Path, tff_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    drawn = [(rng.random(784, np.float32), n % 10) for n in range(16)]
    drawn[0][0][:4] = 0, 1, np.float32(1e-40), np.nextafter(np.float32(1), 0)
    lines = "\n".join(json.dumps([p.tolist(), label]) for p, label in drawn)
    encoded = subprocess.run(
        [tff_python, "-I", "-c", BY_TENSORFLOW],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    messages = [bytes.fromhex(line) for line in encoded.stdout.split()]
    # Every third one as protobuf also allows it, but TensorFlow does not write it.
    for n in range(0, 16, 3):
        pixels, label = drawn[n]
        features = {
            "pixels": floats_feature(pixels.tolist(), packed=False),
            "label": ints_feature([label], packed=False),
        }
        messages[n] = example_of(features)
    source = write_sqlite(
        folder / "emnist" / "emnist_all.sqlite", message=messages.__getitem__
    )
    ours = all_splits()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("FLWR_FBO_TEST", str(folder))
    result = _export("--writers=2", "--source", source, "--yes")
    assert result.exit_code == 0, result.output
    assert not _with_marker(f"FLWR_FBO_TEST={folder}")
    theirs = emnist.ArrayWriters(folder / "emnist" / "emnist_digits.npz")
    assert len(ours) == len(theirs) == 2
    for i, split in enumerate(ours):
        assert_equal(split, theirs.split(i))
    numbers = NUMBERS["f0002_10", TRAIN]
    expected = [1 - drawn[n][0].reshape(28, 28) for n in numbers]
    np.testing.assert_array_equal(ours[1].X_train, expected)
    assert ours[1].y_train.tolist() == numbers

    output = ("--output", folder / "second.npz")
    result = _export("--writers=3", "--source", source, "--yes", *output)
    _only_error(result, "There are 2 writers, not 3.")
    assert not _with_marker(f"FLWR_FBO_TEST={folder}")
