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

import numpy as np
import pytest
from joblib.externals.loky.process_executor import TerminatedWorkerError
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

import flwr_fbo
from flwr_fbo import DPFTSDE, FedVote
from flwr_fbo.cli import app
from flwr_fbo.cli.output import ends_like_ctrl_c
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.experiment_runner.results import read_results
from flwr_fbo.privacy.release import Release
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
    assert "NOT PRIVATE" in played.said
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


def test_list() -> None:
    lines = invoke("list").output.splitlines()
    for name in ("digits", "landmine", "landmine-noisy", "synthetic"):
        assert sum(line.startswith(f" {name} ") for line in lines) == 1
    tasks = " ".join(lines).partition("Tasks of a TOML file: ")[2]
    assert {"digits", "synthetic"} <= set(tasks.removesuffix(".").split(", "))


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


def test_a_table_with_long_headings_still_names_its_methods() -> None:
    figure = Path(__file__).parents[2] / "experiments/dp-fts-de/fig2c-functions.jsonl"
    said = invoke("show", str(figure)).stdout
    assert max(map(len, said.splitlines())) <= 80
    names = [line[1:12].strip() for line in said.splitlines()]
    assert {"random", "FTS-DE", "TS", "q = 0.15", "q = 0.5"} <= {*names}
    assert "± one standard error over 4 functions, 20 seeds in all." in said


@pytest.mark.parametrize("name", ["there", "gone"])
def test_a_folder_without_a_ledger_is_said_to_have_spent_nothing(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    result = invoke("ledger", "show", str(tmp_path / name))
    assert "nothing was spent there" in one_line_error(result)


def test_claims_of_each_experiment_that_is_named_have_rows() -> None:
    names = ("fts/fig3a", "fts/fig4")
    alone = [invoke("claims", name).stdout for name in names]
    assert invoke("claims", *names).stdout == "\n".join(alone)
    assert all("| claim (section) | what came out | verdict |" in one for one in alone)


def test_privacy_prints_published_and_exact_side_by_side() -> None:
    options = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=29",
        "--releases=60",
        "--q=.35",
        "--z=4",
        "--rdp",
    )
    result = invoke(*options)
    assert result.exit_code == 0, result.output
    assert "delta = 0.0246 (1/N^1.1, as in the paper)" in result.output
    assert "Warning: delta = 0.025" in result.stderr
    split = [line.split() for line in result.output.splitlines()]
    rows = {words[0]: words for words in split if words}
    assert rows["moments"][1:] == ["2.161", "1.507", "2.161"]
    assert rows["pld"][1:] == ["1.135", "0.7025", "1.135"]
    assert rows["rdp"][1] == rows["rdp"][3] == "1.458"
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    for words in ("Fixed throughout", "z phi_max S / q", "1 to 2 times z", "0.5 to 1"):
        assert words in result.output.replace("\n", " ")


BANDIT = (
    *("privacy", "--strategy=FedUCB", "--releases=10", "--trials=500"),
    *("--dimensions=22", "--delta=1e-5"),
)


def test_privacy_says_whether_a_bandit_pays() -> None:
    result = invoke(*BANDIT, "--agents=50", "--epsilon=4")
    assert result.exit_code == 0, result.output
    assert "synchronisations after 44, 56, 72, 91, ... trials" in result.output
    assert "At least 7 % less regret than alone" in result.output
    result = invoke(*BANDIT, "--agents=50", "--epsilon=.5")
    assert "Let each site play alone; it takes epsilon 2 or 500 sites" in result.output
    plan = json.loads(invoke(*BANDIT, "--agents=50", "--epsilon=4", "--json").output)
    assert plan["pays"] is True
    assert plan["promised_saving"] == pytest.approx(0.066, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--epsilon=None is not allowed: given, with FedUCB"),
        (("--epsilon=4", "--z=1"), "--z=1.0 is not allowed: left out, with FedUCB"),
        (("--epsilon=-1",), "--epsilon=-1.0"),
        (("--epsilon=4", "--trials=9"), "Error: --trials=9"),
        (("--epsilon=4", "--releases=0"), "Error: --releases=0"),
        (("--epsilon=4", "--dimensions=0"), "Error: --dimensions=0"),
    ],
)
def test_privacy_names_what_it_refuses_of_a_bandit(
    arguments: tuple[str, ...], words: str
) -> None:
    result = invoke(*BANDIT, "--agents=20", *arguments)
    assert result.exit_code != 0
    assert words in result.output


def test_privacy_leaves_out_an_accountant_that_cannot_count_so_little() -> None:
    plan = "--strategy=FedVote", "--agents=20", "--releases=2", "--delta=1e-3"
    result = invoke("privacy", *plan, "--epsilon=.1")
    assert result.exit_code == 0, result.output
    assert re.search(r"moments +- *\n", result.stdout)
    assert "-: by this accountant no noise is enough" in result.stdout
    found = json.loads(invoke("privacy", *plan, "--epsilon=.1", "--json").stdout)
    answers = {name: row["default"] for name, row in found["accountants"].items()}
    assert answers["moments"] is None
    assert answers["pld"] == pytest.approx(24.62, rel=2e-3)


@pytest.mark.slow
def test_privacy_inverts_and_speaks_json() -> None:
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=12",
        "--delta=1e-3",
        "--rdp",
        "--json",
    )
    inverted = json.loads(invoke(*plan, "--epsilon=2").stdout)
    assert inverted["answer"] == "noise_multiplier"
    assert len(inverted["published_noise_over_default_noise"]) == 12
    z = inverted["accountants"]
    assert z["pld"]["published"] < z["rdp"]["published"] < z["moments"]["published"]
    for method, row in z.items():
        for column in ("published", "exact"):
            spent = json.loads(invoke(*plan, f"--z={row[column]}").stdout)
            epsilon = spent["accountants"][method][column]
            assert epsilon == pytest.approx(2.0, rel=5e-3)
    nothing = json.loads(invoke(*plan, "--z=.001", "--delta=1e-20").stdout)
    assert nothing["accountants"]["pld"]["exact"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--z", "nan"), "z=nan"),
        (("--z=1", "--epsilon=2"), "--epsilon=2.0 is not allowed: only without --z"),
        (("--q=3",), "Error: --q=3.0 is not allowed: a number in (0, 1]"),
        (("--releases", "0"), "Error: --releases=0 is not allowed: an integer >= 1"),
        (("--agents=2000000",), "--agents=2000000 is not allowed: at most 1000000"),
        (("--preset", "papers"), "did you mean 'paper'"),
        (("--q", "0.01"), "below sampling_probability=0.01"),
        (("--q", ".2", "--delta", ".2"), "delta=0.2 is not allowed: below sampling"),
        (("--strategy=FedVote", "--q", "0.01"), "below sampling_probability=0.01"),
    ],
)
def test_privacy_names_what_it_refuses(arguments: tuple[str, ...], words: str) -> None:
    result = invoke(
        "privacy", "--strategy=DPFTSDE", "--agents=20", "--releases=2", *arguments
    )
    assert words in one_line_error(result)


def test_many_rounds_are_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    known = Release.effective_noise_multiplier

    def counted(release: Release, iteration: int) -> float:
        computed.append(iteration)
        return known(release, iteration)

    monkeypatch.setattr(Release, "effective_noise_multiplier", counted)
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=1000",
        "--q=1",
        "--delta=1e-3",
    )
    values = json.loads(invoke(*plan, "--json").stdout)
    times = values["published_noise_over_default_noise"]
    assert len(times) == 1000
    assert len(computed) <= 40
    settings = DPFTSDE.presets["paper"]
    uniform = settings.weights.weights(999, 20, settings.agent.num_sub_regions)
    largest = np.linalg.norm(uniform, axis=1).max()
    root = np.sqrt(settings.agent.num_sub_regions)
    assert times[-1] == pytest.approx(uniform.max() * root / largest)
    assert times[0] != pytest.approx(times[-1])


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


def test_a_study_of_warm_starts_says_how_many_pioneers_it_needs() -> None:
    plan = ("privacy", "--strategy=FedWarmStart", "--epsilon=2", "--delta=1e-3")
    text = " ".join(invoke(*plan, "--agents=30").output.split())
    assert "30 agents, 1 release, q = 1" in text
    assert "Pioneers, who search alone first: 9." in text
    assert "Group 1, the pioneers: 9 sites start in round 1, and each" in text
    assert "sends one message." in text
    assert "Group 2: 10 sites start in round 11, and each sends one message." in text
    assert "Last group: 11 sites start in round 21, and send nothing." in text
    few = " ".join(invoke(*plan, "--agents=9").output.split())
    assert "Pioneers, who search alone first: 9. Too few sites" in few
    found = json.loads(invoke(*plan, "--agents=30", "--json").stdout)
    assert (found["pioneers"], found["cohorts"]) == (9, [9, 10])
    assert found["accountants"]["pld"]["default"] == pytest.approx(1.445, abs=1e-3)
    with_z = ("privacy", "--strategy=FedWarmStart", "--agents=12", "--z=1")
    assert "first: 6." in " ".join(invoke(*with_z, "--delta=1e-3").output.split())
    for wrong, words in (
        ("--releases=2", "--releases=2 is not allowed: left out"),
        ("--q=.5", "--q=0.5 is not allowed: 1"),
        ("--preset=paper", "--preset='paper' is not allowed: left out, with FedW"),
        ("--dimensions=3", "--dimensions=3 is not allowed: left out"),
    ):
        assert words in one_line_error(invoke(*with_z, wrong))
    assert "--releases=None" in one_line_error(
        invoke("privacy", "--strategy=DPFTSDE", "--agents=9")
    )


def test_the_sampling_probability_is_the_strategys() -> None:
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=1",
        "--delta=1e-3",
        "--z=2",
    )
    for more, q in (
        ((), 0.35),
        (("--preset=paper-synthetic",), 0.25),
        (("--preset=paper-synthetic", "--q=.5"), 0.5),
    ):
        assert json.loads(invoke(*plan, *more, "--json").stdout)["q"] == q
    plan = (
        "privacy",
        "--strategy=DPFTSDE",
        "--agents=20",
        "--releases=2",
        "--delta=1e-3",
        "--epsilon=2",
    )
    found = json.loads(invoke(*plan, "--strategy=FedVote", "--json").stdout)
    assert found["q"] == 1.0
    study = FedVote(
        {"x": FloatDistribution(0, 1)}, "maximize", 20, epsilon=2, delta=1e-3
    )
    study.plan(11)
    settings = study.server.release.settings
    assert found["accountants"]["pld"]["default"] == pytest.approx(
        settings.noise_multiplier, rel=1e-3
    )


def test_a_ledger_wants_a_delta_that_can_be(tmp_path: Path) -> None:
    result = invoke("ledger", "show", str(tmp_path), "--delta=nan")
    assert "Error: --delta=" in one_line_error(result)


def test_export_of_a_sites_folder_names_its_journals(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/trials.db"
    for name in ("study-a-agent-0.sqlite", "study-b-agent-0.sqlite"):
        (tmp_path / name).touch()
    done = CliRunner().invoke(app, ["export", str(tmp_path), storage])
    assert done.exit_code == 1
    names = "study-a-agent-0.sqlite, study-b-agent-0.sqlite"
    assert f"is not allowed: one of its journals: {names}." in done.output
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(app, ["export", str(tmp_path / "empty"), storage])
    assert done.exit_code == 1
    assert "a client's journal, or the folder of a tuner." in done.output
    assert not (tmp_path / "trials.db").exists()


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
