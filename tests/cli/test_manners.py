"""How the command behaves: help, suggestions, pipes, mistakes, and what it loads."""

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.cli.commands import COMMANDS, load_command

HEAVY = ("flwr", "ray", "torch", "matplotlib", "optuna", "numpy", "scipy", "sklearn")
COMMAND = (sys.executable, "-c", "from flwr_fbo.cli import app; app()")
GROUPS = ("data", "ledger", "keys")
MORE = (
    *("data list", "data download", "ledger show", "ledger recover", "ledger receipts"),
    *("keys new", "keys public", "keys roster", "keys show"),
)
ALL = (*(name for name in COMMANDS if name not in GROUPS), *MORE)


def _invoke(*arguments: object, **environment: str) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], env=environment)


def test_help_ends_with_an_example_of_each_command() -> None:
    for name in ALL:
        text = _invoke(*name.split(), "--help", COLUMNS="100").output
        _, _, examples = text.partition("Examples:\n")
        assert re.search(rf"^    \$ flwr-fbo {name}\b", examples, re.MULTILINE), text
        assert max(map(len, text.splitlines())) <= 100
        assert "\\[" not in text
        assert "\b" not in text


def test_the_text_of_a_command_says_what_to_give() -> None:
    """With Click 8.5 and Typer 0.20 an argument's own help is not shown."""
    for name in ALL:
        text = _invoke(*name.split(), "--help", COLUMNS="100").output
        usage, _, rest = text.partition("\n\n")
        said, _, _ = rest.partition("\nOptions:")[0].partition("\nArguments:")
        given = re.findall(r"[A-Z_=]{4,}", usage.partition("[OPTIONS]")[2])
        assert [one for one in given if one not in said] == [], name


def test_every_command_is_listed_with_a_line() -> None:
    text = _invoke("--help").output
    for name, (_, line) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", text, re.MULTILINE)
        assert isinstance(load_command(name), click.Command)
    assert text.isascii()
    assert "--install-completion" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rn",), "Did you mean 'run'?"),
        (("run", "digits", "--ouptut", "x"), "--output"),
        (("run", "digitz"), "did you mean 'digits'?"),
        (("data", "download", "landmin"), "did you mean 'landmine'?"),
        (("audit", "--plant", "half-nois"), "did you mean 'half-noise'?"),
    ],
)
def test_the_nearest_name_is_suggested(arguments: tuple[str, ...], words: str) -> None:
    result = _invoke(*arguments, COLUMNS="200")
    assert result.exit_code in (1, 2)
    assert words in result.output
    assert result.output.lower().count("did you mean") == 1


def test_help_loads_nothing_it_does_not_need() -> None:
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
    for arguments in (
        ("list",),
        ("privacy", "--strategy=DPFTSDE", "--agents=9", "--releases=1"),
        ("--help",),
    ):
        out = _invoke(*arguments).stdout
        assert out
        assert "\x1b" not in out
        assert not re.search("[\u2500-\u259f\u2800-\u28ff\u2026]", out)


@pytest.fixture
def experiment(tmp_path: Path) -> tuple[str, ...]:
    """Arguments that run a small experiment."""
    toml = tmp_path / "mine.toml"
    toml.write_text(
        'name = "mine"\nnum_agents = 2\nnum_evaluations = 11\nnum_seeds = 1\n'
        'methods = ["alone", "random"]\npreset = "paper-synthetic"\n'
        '[task]\nname = "synthetic"\n'
        "[privacy]\nnoise_multiplier = 1.0\ndelta = 1e-3\n"
    )
    return "run", str(toml), "--jobs=1", f"--output={tmp_path}"


def test_a_run_in_a_pipe_shows_no_bar(experiment: tuple[str, ...]) -> None:
    done = subprocess.run([*COMMAND, *experiment], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "starting workers" not in done.stdout
    assert not re.search("[\u2500-\u259f]", done.stdout)


def test_who_wants_no_colour_gets_none(experiment: tuple[str, ...]) -> None:
    """Even where a terminal is asked for."""
    done = _invoke(*experiment, NO_COLOR="1", FORCE_COLOR="1")
    assert done.exit_code == 0, done.output
    assert "\x1b" in done.output  # bold, or a bar that moves
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", done.output)


def test_a_reader_that_leaves_early_sees_no_error(tmp_path: Path) -> None:
    command = " ".join(f"'{part}'" for part in COMMAND)
    done = subprocess.run(
        ["bash", "-c", f"{command} data list --json | head -c 10"],
        capture_output=True,
        text=True,
    )
    assert done.stdout
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


# The command, which says when it begins to draw studies.
INTERRUPTED = """
import signal
# What runs in the background ignores it, and so would the command.
signal.signal(signal.SIGINT, signal.default_int_handler)
from flwr_fbo.lab.audit.tuning_audit import TuningAuditPlan
draw = TuningAuditPlan.draw

def told(self, *arguments):
    print("draws", flush=True)
    return draw(self, *arguments)

TuningAuditPlan.draw = told
from flwr_fbo.cli import app
app()
"""


def test_ctrl_c_is_130_whatever_runs() -> None:
    arguments = ("audit", "--draws=100000000", "--seed=0", "--study=FedVote")
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "draws\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error


MISTAKES = (
    ("run", "{folder}"),
    ("run", "{binary}"),
    ("run", "digits", "--output", "{binary}/x"),
    ("show", "{binary}"),
    ("report", "{binary}"),
    ("claims", "{folder}"),
    ("export", "{binary}", "sqlite:///{folder}/a.db"),
    ("export", "{gone}", "nothing"),
    ("ledger", "show", "{folder}"),
    ("ledger", "show", "{binary}"),
    ("evaluate", "{binary}", "--policy", "uniform"),
    ("privacy", "--strategy=DPFTSDE", "--agents", "x", "--releases", "2"),
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


def test_a_table_in_a_pipe_is_as_wide_as_columns_says() -> None:
    printed = _invoke("list", COLUMNS="60").output
    assert max(map(len, printed.splitlines())) <= 60
    assert "digits-votes" in printed
