"""The command ``flwr-fbo``."""

import csv
import io
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from joblib.externals.loky.process_executor import TerminatedWorkerError
from typer.testing import CliRunner

import flwr_fbo
from flwr_fbo.cli import app
from flwr_fbo.cli.output import ends_like_ctrl_c
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.experiment_runner.results import read_results
from tests.support.command import invoke, one_line_error

TOML = """
name = "mine"
num_agents = 4
num_evaluations = 12
num_seeds = 2
preset = "paper-synthetic"

[task]
name = "synthetic"

[privacy]
noise_multiplier = 1.0
sampling_probability = 0.35
delta = 1e-3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    return str(path)


@dataclass(frozen=True)
class Played:
    """An experiment that has been run: tests read it, and may draw its figure anew."""

    root: Path
    said: str

    @property
    def folder(self) -> Path:
        return self.root / "mine"

    @property
    def run(self) -> tuple[str, ...]:
        return "run", str(self.root / "mine.toml"), "--jobs=1", f"--output={self.root}"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    root = tmp_path_factory.mktemp("played")
    (root / "mine.toml").write_text(TOML)
    # Of one process: starting workers takes longer than to play so little.
    result = invoke(*Played(root, "").run)
    assert result.exit_code == 0, result.output
    return Played(root, result.output)


def test_run_reports_and_show_repeats_it(played: Played) -> None:
    for name in ("TS", "random", "FTS-DE", "DP-FTS-DE", "noise-only"):
        assert re.search(rf"^ *{name} ", played.said, re.MULTILINE)
    assert "NOT PRIVATE" in " ".join(played.said.split())
    assert "infinite" in played.said
    table = played.said[played.said.index("Best function value") :]
    lines = table[: table.index("Results:")].splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "…" not in played.said
    assert len((played.folder / "results.jsonl").read_text().splitlines()) == 11
    assert (played.folder / "figure.png").stat().st_size > 10_000
    shown = invoke("show", str(played.folder)).output
    assert shown.splitlines()[2:] == lines[2 : len(shown.splitlines())]


def test_another_epsilon_has_a_folder_of_its_own(tmp_path: Path) -> None:
    voting = TOML.replace('preset = "paper-synthetic"', 'strategy = "FedVote"')
    voting = re.sub("noise_m.*\nsampling.*\n", "epsilon = 2.0\n", voting)
    methods = 'methods = ["alone", "random", "private", "noise-only"]'
    voting = voting.replace("num_seeds = 2", methods + "\nnum_seeds = 1")
    path = tmp_path / "votes.toml"
    path.write_text(voting)
    run = ("run", str(path), "--jobs=1", f"--output={tmp_path}")
    assert invoke(*run).exit_code == 0
    result = invoke(*run, "--epsilon=8")
    assert "2 of 4 runs are in" in " ".join(
        result.output.split()
    )  # those that epsilon leaves alone
    early = invoke("show", str(tmp_path / "mine"), "--until=1")
    assert "evaluations 1 to 1;" in " ".join(early.output.split())
    for arguments, words in (
        (("run", "digits", "--evaluations=1"), "Error: --evaluations=1 is not allowed"),
        ((*run, "--epsilon=0"), "Error: --epsilon=0.0 is not allowed"),
        (
            ("show", str(tmp_path / "mine"), "--until=13"),
            "Error: --until=13 is not allowed: 1 to 12",
        ),
    ):
        assert words in one_line_error(invoke(*arguments))


def test_json_is_all_that_goes_to_stdout(played: Played) -> None:
    values = json.loads(invoke(*played.run, "--json").stdout)
    assert values["experiment"]["num_evaluations"] == 12
    assert values["methods"]["open"]["epsilon"] is None
    assert values["private"] is False
    shown = invoke("show", str(played.folder / "results.jsonl"), "--json")
    assert json.loads(shown.stdout) == values
    listed = json.loads(invoke("list", "--json").stdout)
    assert {"digits", "landmine", "synthetic"} <= {e["name"] for e in listed}


def test_a_single_seed_has_no_errors_and_no_verdict(played: Played) -> None:
    values = json.loads(invoke(*played.run, "--seeds=1", "--json").stdout)
    assert values["methods"]["alone"]["final"]["standard_error"] is None
    assert values["curves"]["methods"]["alone"]["standard_error"] == [None] * 12
    assert "One seed" in values["verdict"][0]


def test_show_prints_csv_by_seed_and_curves_by_step(played: Played) -> None:
    folder = str(played.folder)
    for options, until in (((), 12), (("--until=3",), 3)):
        values = json.loads(invoke("show", folder, "--json", *options).stdout)
        printed = invoke("show", folder, "--csv", *options)
        assert printed.exit_code == 0, printed.output
        rows = list(csv.DictReader(io.StringIO(printed.stdout)))
        keys = [(row["method"], int(row["seed"])) for row in rows]
        seeds = values["seeds"]
        assert keys == [(name, seed) for name in values["methods"] for seed in seeds]
        assert {row["private"] for row in rows} == {"true", "false"}
        assert "inf" in {row["epsilon"] for row in rows}
        assert values["curves"]["steps"] == list(range(1, until + 1))
        for name, estimates in values["methods"].items():
            mine = [row for row in rows if row["method"] == name]
            for column in ("final", "mean", "over_alone"):
                cells = [row[column] for row in mine]
                if estimates[column] is None:
                    assert cells == ["", ""]
                    continue
                mean = statistics.mean(map(float, cells))
                assert mean == pytest.approx(estimates[column]["mean"])
            curve = values["curves"]["methods"][name]
            final = estimates["final"]
            assert len(curve["mean"]) == len(curve["standard_error"]) == until
            if until == 12:
                last = {key: curve[key][-1] for key in ("mean", "standard_error")}
                assert last == pytest.approx(final)
            assert statistics.mean(curve["mean"]) == pytest.approx(
                estimates["mean"]["mean"]
            )


@pytest.mark.parametrize("command", ["run", "claims"])
def test_a_published_figure_outside_a_clone_is_refused_by_what_it_needs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "published figures need a clone of the repository"
    typo = "experiment='dp-fts-de/fig3x' is not allowed"
    monkeypatch.chdir(Path(__file__).parents[2])
    in_a_clone = invoke(command, "dp-fts-de/fig3x")
    assert typo in in_a_clone.output
    assert words not in in_a_clone.output
    monkeypatch.chdir(tmp_path)
    elsewhere = invoke(command, "dp-fts-de/fig3d")
    assert elsewhere.exit_code == 1
    assert words in elsewhere.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "digits", "--seeds", "0"), "--seeds"),
        (("run", "digits", "--output", __file__), "--output"),
        (("walk",), "walk"),
    ],
)
def test_misuse_of_the_command_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_unknown_names_and_missing_data_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    unknown = invoke("run", "digit")
    assert unknown.exit_code == 1
    error, *names = unknown.output.splitlines()
    assert "did you mean 'digits'" in error
    assert "  digits-votes" in names  # a line each
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path / "none"))
    output = f"--output={tmp_path}"
    line = one_line_error(invoke("run", "landmine", output))
    assert "`flwr-fbo data download landmine`" in line
    folder = tmp_path / "data" / "landmine"
    folder.mkdir(parents=True)
    (folder / "LandmineData.mat").write_bytes(b"rubbish")
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path / "data"))
    line = one_line_error(invoke("run", "landmine", output))
    assert "LandmineData.mat is damaged" in line
    assert not (tmp_path / "landmine").exists()
    Path(file).write_text(TOML.replace("delta", "detla"))
    line = one_line_error(invoke("run", file, output))
    assert "did you mean 'delta'" in line
    assert "No such file" in one_line_error(invoke("show", str(tmp_path / "none")))
    line = one_line_error(invoke("show", file))
    assert "is not allowed: a file that flwr-fbo run wrote; this one" in line
    (tmp_path / "cut").write_text('{"flwr_fbo": 3,\n')
    line = one_line_error(invoke("show", str(tmp_path / "cut")))
    assert "is damaged in line 1: move it away." in line
    line = one_line_error(invoke("run", "no/such.toml", output))
    assert line == "Error: There is no file no/such.toml."
    Path(file).write_text("")
    line = one_line_error(invoke("run", file, output))
    assert line.startswith(f"Error: {file}: name is missing; num_agents is missing; ")
    assert line.endswith("is missing.")


def test_results_of_another_experiment_are_left_alone(played: Played) -> None:
    before = (played.folder / "results.jsonl").read_bytes()
    line = one_line_error(invoke(*played.run, "--evaluations=11"))
    assert "another experiment: num_evaluations: 12 there, 11 now. Give" in line
    again = invoke(*played.run)
    said = " ".join(again.output.split())
    assert "4 agents, 12 evaluations, 2 seeds, methods" in said
    assert "All 10 runs are in" in said
    assert "nothing is run" in said
    assert "going on" not in said
    assert (played.folder / "results.jsonl").read_bytes() == before


def test_help_and_version() -> None:
    assert "flwr-fbo list" in invoke("run", "--help").output
    assert flwr_fbo.__version__ in invoke("--version").output


def test_what_the_machine_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, played: Played
) -> None:
    arguments = ("run", file, "--jobs=1", "--output")
    result = invoke(*arguments, os.devnull + "/x")
    assert "Error: Not a directory" in one_line_error(result)
    (tmp_path / "mine" / "figure.png").mkdir(parents=True)
    shutil.copy(played.folder / "results.jsonl", tmp_path / "mine")
    result = invoke(*arguments, str(tmp_path))
    assert "Error: Is a directory" in one_line_error(result)
    assert "noise-only" in result.output  # the table is not lost with the figure

    def killed(*_: Any) -> Any:
        raise TerminatedWorkerError

    monkeypatch.setattr("flwr_fbo.lab.experiment_runner.runner.play", killed)
    line = one_line_error(invoke(*arguments, str(tmp_path), "--seeds=3"))
    assert "a worker process was killed" in line


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with ends_like_ctrl_c(signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_an_interrupted_command_says_how_to_go_on(
    number: signal.Signals | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
) -> None:
    def interrupted(*_: Any) -> Any:
        if number is None:
            raise KeyboardInterrupt
        os.kill(os.getpid(), number)

    monkeypatch.setattr("flwr_fbo.lab.experiment_runner.runner.play", interrupted)
    result = invoke("run", file, "--output", str(tmp_path))
    assert result.exit_code == 130
    assert "the same command goes on" in result.output.replace("\n", " ")


DYING = """
import os, signal
from flwr_fbo.lab.experiment_runner.results import ResultsFile

append = ResultsFile.append

def append_and_die(self, run):
    append(self, run)
    if len(self.runs) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

ResultsFile.append = append_and_die
"""


def _command(
    file: str, output: Path, before: str = "", **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-c", f"{before}\nfrom flwr_fbo.cli import app; app()"),
            *("run", file, "--output", str(output), "--jobs", "1"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )


def test_killed_half_way_it_goes_on_to_the_same_numbers(
    tmp_path: Path, file: str, played: Played
) -> None:
    fewer = 'methods = ["alone", "random"]\npreset'  # fast ones
    Path(file).write_text(TOML.replace("preset", fewer, 1))
    killed = _command(file, tmp_path, before=DYING)
    assert killed.returncode == -signal.SIGKILL, killed.stdout
    again = invoke("run", file, "--jobs=1", f"--output={tmp_path}")
    assert again.exit_code == 0, again.output
    assert "3 of 4 runs are in" in " ".join(again.output.split())
    cut, whole = (
        {(run.method, run.seed): run.curve.tolist() for run in read_results(folder)[1]}
        for folder in (tmp_path / "mine", played.folder)
    )
    assert cut == {one: whole[one] for one in cut}
    assert len(cut) == 4


@pytest.mark.slow
def test_a_full_disk_loses_nothing(tmp_path: Path, file: str) -> None:
    """A limit on the size of files stands in for the disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    # Python would leave the first 4000 bytes of a module's, for all other tests.
    no_bytecode = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = _command(file, tmp_path / "full", preexec_fn=limit, env=no_bytecode)
    assert process.returncode == 1, process.stdout
    assert "Error: File too large" in process.stdout
    assert "Traceback" not in process.stdout
    again = invoke("run", file, "--jobs=1", f"--output={tmp_path / 'full'}")
    assert again.exit_code == 0, again.output
    assert re.search(r"[1-9] of 10 runs are in", " ".join(again.output.split()))


def test_a_report_makes_no_folders(tmp_path: Path) -> None:
    with Journal({"kind": "a"}, tmp_path / "server.sqlite"):
        pass
    output = tmp_path / "nope" / "x.html"
    arguments = ["report", str(tmp_path), "--output", str(output)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    said = f"--output={str(output)!r} is not allowed: a file in a folder that exists."
    assert done.output == f"Error: {said}\n"
    assert not output.parent.exists()
