"""How the command behaves: help, suggestions, pipes, mistakes, and how fast it is."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.cli.commands import LazyGroup
from tests.documents import ROOT

HEAVY = ("flwr", "ray", "torch", "matplotlib", "optuna", "numpy", "scipy", "sklearn")
COMMAND = (sys.executable, "-c", "from flwr_fbo.cli import app; app()")
GROUPS = ("data", "ledger", "keys")
MORE = (
    *("data list", "data download", "data export-emnist", "ledger show"),
    *("keys new", "keys public", "keys roster", "keys show"),
)
ALL = (*(name for name in LazyGroup.listed if name not in GROUPS), *MORE)


def _invoke(*arguments: object, **environment: str) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], env=environment)


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("name", ALL)
def test_help_ends_with_an_example_of_the_command(name: str) -> None:
    text = _invoke(*name.split(), "--help", COLUMNS="100").output
    _, _, examples = text.partition("Examples:\n")
    assert re.search(rf"^    \$ flwr-fbo {name}\b", examples, re.MULTILINE), text
    assert max(map(len, text.splitlines())) <= 100
    assert "\\[" not in text
    assert "\b" not in text


def test_every_command_is_listed_with_a_line() -> None:
    text = _invoke("--help").output
    for name, one in LazyGroup.listed.items():
        assert re.search(rf"^  {name} +{re.escape(one.text)}$", text, re.MULTILINE)
        command = one.load(name)
        assert isinstance(command, click.Command)
    assert text.isascii()
    assert "--install-completion" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rn",), "did you mean 'run'?"),
        (("reprot", "x"), "did you mean 'report'?"),
        (("data", "lst"), "did you mean 'list'?"),
        (("ledger", "shwo"), "did you mean 'show'?"),
        (("run", "digits", "--ouptut", "x"), "--output"),
        (("report", "--otput", "x", "y"), "--output"),
        (("run", "digitz"), "did you mean 'digits'?"),
        (("claims", "digitz"), "did you mean 'digits'?"),
        (("data", "download", "landmin"), "did you mean 'landmine'?"),
        (("audit", "--plant", "half-nois"), "did you mean 'half-noise'?"),
    ],
)
def test_the_nearest_name_is_suggested(arguments: tuple[str, ...], words: str) -> None:
    result = _invoke(*arguments, COLUMNS="200")
    assert result.exit_code in (1, 2)
    assert words in result.output
    assert result.output.lower().count("did you mean") == 1


def test_help_is_fast_and_loads_nothing_it_does_not_need() -> None:
    code = (
        "import sys; from flwr_fbo.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        f"print('LOADED', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(run.stdout.rpartition("LOADED ")[2]) == []
    assert _fastest("from flwr_fbo.cli import app; app(['--help'])") < 0.7
    assert _fastest("import flwr_fbo") < 0.3


def _fastest(code: str) -> float:
    """Return seconds of processor time, the least of a few: others use it, too."""

    def once() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    return min(once() for _ in range(3))


def test_completion_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    found = group.shell_complete(click.Context(group), "re")
    assert [item.value for item in found] == ["report"]
    # Whatever shell runs the tests: under `make` it may be one without completion.
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    script = _invoke("--show-completion").output
    assert "complete" in script


def test_a_pipe_gets_plain_text() -> None:
    for arguments in (("list",), ("privacy", "--agents=9", "--rounds=2"), ("--help",)):
        out = _run(*arguments).stdout
        assert out
        assert "\x1b" not in out
        assert not re.search("[\u2500-\u259f\u2800-\u28ff\u2026]", out)


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_a_run_in_a_pipe_shows_no_bar(
    environment: dict[str, str], tmp_path: Path
) -> None:
    toml = tmp_path / "mine.toml"
    toml.write_text(
        'name = "mine"\nnum_agents = 2\nnum_evaluations = 11\nnum_seeds = 1\n'
        'methods = ["alone", "random"]\npreset = "paper-synthetic"\n'
        '[task]\nname = "synthetic"\n'
        "[privacy]\nnoise_multiplier = 1.0\ndelta = 1e-3\n"
    )
    done = _run("run", str(toml), "--jobs=1", f"--output={tmp_path}", **environment)
    assert done.returncode == 0, done.stderr
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", done.stdout)  # no colour
    if not environment:
        assert "\x1b" not in done.stdout
        assert "starting workers" not in done.stdout
        assert not re.search("[\u2500-\u259f]", done.stdout)


def test_a_reader_that_leaves_early_sees_no_error(tmp_path: Path) -> None:
    command = " ".join(f"'{part}'" for part in COMMAND)
    done = subprocess.run(
        ["bash", "-c", f"{command} list --json | head -c 10"],
        capture_output=True,
        text=True,
    )
    assert done.stdout
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


def test_ctrl_c_is_130_whatever_runs() -> None:
    process = subprocess.Popen(
        [*COMMAND, "audit", "--draws", "100000000", "--seed", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in the background ignores it, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        _wait_for_cpu(process.pid, seconds=5.0)  # longer than it takes to import
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error


def _wait_for_cpu(pid: int, seconds: float) -> None:
    """Wait until a process has computed for so long."""
    for _ in range(1200):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if sum(map(int, fields[11:13])) >= seconds * os.sysconf("SC_CLK_TCK"):
            return
        time.sleep(0.1)
    raise TimeoutError(f"process {pid} does not compute")


MISTAKES = (
    ("run", "{folder}"),
    ("run", "{binary}"),
    ("run", "{text}"),
    ("run", "{gone}"),
    ("run", "digits", "--output", "{binary}"),
    ("run", "digits", "--output", "{binary}/x"),
    ("run", "digits", "--seeds", "many"),
    ("run", "digits", "--epsilon", "nan"),
    ("show", "{folder}"),
    ("show", "{binary}"),
    ("show", "{text}"),
    ("show", "{gone}"),
    ("report", "{folder}"),
    ("report", "{binary}"),
    ("report", "{text}"),
    ("report", "{gone}"),
    ("claims", "{folder}"),
    ("claims", "{binary}"),
    ("tradeoff", "{folder}"),
    ("tradeoff", "{binary}"),
    ("export", "{binary}", "sqlite:///{folder}/a.db"),
    ("export", "{gone}", "sqlite:///{folder}/a.db"),
    ("export", "{gone}", "nothing"),
    ("ledger", "show", "{folder}"),
    ("ledger", "show", "{binary}"),
    ("ledger", "show", "{text}"),
    ("ledger", "show", "{gone}"),
    ("evaluate", "{folder}"),
    ("evaluate", "{folder}", "--policy", "uniform"),
    ("evaluate", "{binary}", "--policy", "uniform"),
    ("evaluate", "{text}", "--policy", "uniform"),
    ("evaluate", "{gone}", "--policy", "uniform"),
    ("data", "download", "nothing"),
    ("data", "export-emnist", "--writers", "0"),
    ("audit", "--agents", "0"),
    ("audit", "--q", "7"),
    ("privacy", "--agents", "x", "--rounds", "2"),
)


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_told_in_a_line(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("folder", "binary", "text", "gone")}
    places["folder"].mkdir()
    places["binary"].write_bytes(bytes(range(256)) * 20)
    places["text"].write_text("name = [broken\n")
    given = [one.format(**places) for one in arguments]
    result = _invoke(*given, COLUMNS="200")
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    errors = [line for line in result.output.splitlines() if "Error: " in line]
    assert len(errors) == 1, result.output
    assert "Traceback" not in result.output


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [phony] = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    printed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = [line.split("\t")[0] for line in printed.splitlines()]
    assert sorted(named) == sorted(f"make {target}" for target in phony.split())


@pytest.mark.parametrize("columns", [60, 100])
def test_a_table_in_a_pipe_is_as_wide_as_columns_says(columns: int) -> None:
    printed = _invoke("list", COLUMNS=str(columns)).output
    assert max(map(len, printed.splitlines())) <= columns
    assert "digits-votes" in printed
