"""Experiments: the digits, the runner, the summary, the figure, the command."""

import json
import math
import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from joblib.externals.loky.process_executor import TerminatedWorkerError
from optuna.distributions import BaseDistribution, FloatDistribution
from typer.testing import CliRunner

import flwr_fbo
from flwr_fbo.cli import app
from flwr_fbo.cli.run import _number
from flwr_fbo.datasets.digits import partition
from flwr_fbo.study.experiment import EXPERIMENTS, Experiment
from flwr_fbo.study.figure import draw
from flwr_fbo.study.methods import METHODS, Privacy, Seeds
from flwr_fbo.study.runner import Run, run_all, run_one
from flwr_fbo.study.summary import Estimate, summarize, verdict
from flwr_fbo.tasks.base import Objective, Task
from flwr_fbo.tasks.digits import DigitsTask

NAMES = [method.name for method in METHODS]


@dataclass(frozen=True)
class Quadratic(Task):
    name: str = "small"
    direction: ClassVar[Literal["maximize"]] = "maximize"
    unit: ClassVar[str] = "value"

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        return {"x": FloatDistribution(0.0, 1.0)}

    def check(self, num_clients: int) -> None:
        pass

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        def objective(params: dict[str, Any]) -> float:
            if params["x"] < 0.05:
                raise ValueError("too small")
            return float(-((params["x"] - 0.6) ** 2) - 0.01 * client)

        return objective


SMALL = Experiment(
    task=Quadratic(),
    num_agents=4,
    num_iterations=2,
    privacy=Privacy(1.0, 0.35, 1e-3),
)


def test_digits_are_dealt_out_once() -> None:
    parts = [partition(i, 20, seed=3) for i in range(20)]
    sizes = [len(p.y_train) + len(p.y_validation) for p in parts]
    assert sum(sizes) == 1797
    assert min(sizes) >= 20
    for part in parts:
        assert abs(len(part.y_train) - len(part.y_validation)) <= 1
        assert len(set(part.y_train)) > 1
        assert part.X_train.shape == (len(part.y_train), 64)
    again = partition(7, 20, seed=3)
    np.testing.assert_array_equal(again.X_train, parts[7].X_train)
    other = partition(7, 20, seed=4)
    assert other.X_train.shape != again.X_train.shape or not np.array_equal(
        other.X_train, again.X_train
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((20, 20, 0), "index=20"),
        ((-1, 20, 0), "index=-1"),
        ((0, 0, 0), "num_partitions=0"),
        ((0, 41, 0), "num_partitions=41"),
        ((0, 20, -1), "seed=-1"),
        ((0, 20, 0, 0.0), "alpha=0.0"),
        ((0, 40, 0, 0.01), "alpha=0.01"),
    ],
)
def test_bad_partitions_are_named(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match="is not allowed") as error:
        partition(*arguments)
    assert words in str(error.value)


def test_the_svm_learns_the_digits() -> None:
    accuracy = DigitsTask().objective(0, 2, 0)
    assert accuracy({"C": 10.0, "gamma": 1e-3}) > 0.9
    assert accuracy({"C": 1e-3, "gamma": 10.0}) < 0.5


def test_all_methods_share_their_initial_points() -> None:
    runs = [run_one(SMALL, method, seed=1) for method in METHODS]
    first = [np.array(run.best_so_far)[:, 0] for run in runs]
    for values in first[1:]:
        np.testing.assert_array_equal(values, first[0])
    assert len({run.curve.tobytes() for run in runs}) > 2
    spent = {run.method: run.epsilon for run in runs}
    assert spent["ts"] == spent["random"] == spent["noise-only"] == 0.0
    assert spent["fts-de"] == math.inf
    assert 0 < spent["dp-fts-de"] < 10
    assert sum(run.failed_trials for run in runs) > 0
    private = {run.method for run in runs if run.private}
    assert private == {"ts", "random"}  # seeded noise protects nobody


def test_runs_repeat_whatever_the_number_of_workers(tmp_path: Path) -> None:
    experiment = replace(SMALL, methods=METHODS[:1])
    one = list(run_all(experiment, range(3), 1, tmp_path / "1.jsonl"))
    two = list(run_all(experiment, range(3), 2, tmp_path / "2.jsonl"))
    curves = {run.seed: run.best_so_far for run in one}
    assert curves == {run.seed: run.best_so_far for run in two}
    lines = (tmp_path / "2.jsonl").read_text().splitlines()
    stored = [Run(**json.loads(line)) for line in lines]
    assert [run.best_so_far for run in stored] == [run.best_so_far for run in two]


def test_seeds_of_a_run_are_three_and_its_own() -> None:
    seeds = [s for run in range(50) for s in vars(Seeds.of_run(run)).values()]
    assert len(set(seeds)) == 150


def _runs(levels: dict[str, list[float]]) -> list[Run]:
    """Return runs of two agents; method m on seed s is at levels[m][s] throughout."""
    return [
        Run(name, seed, [[0.0, v, v], [0.0, v, v]], 1.0, False, 0, 1.0)
        for name, values in levels.items()
        for seed, v in enumerate(values)
    ]


def test_differences_are_paired_by_seed() -> None:
    base = [0.1, 0.5, 0.9]  # seeds differ far more than methods do
    levels = dict.fromkeys(NAMES, base)
    levels["dp-fts-de"] = [v + d for v, d in zip(base, (0.04, 0.05, 0.06), strict=True)]
    runs = _runs(levels)
    rows = summarize(list(reversed(runs)), NAMES, maximize=True)
    over = rows["dp-fts-de"].over_ts
    assert over is not None
    assert over.mean == pytest.approx(0.05)
    assert over.standard_error == pytest.approx(0.01 / math.sqrt(3))
    assert over.sign == "positive"
    assert rows["ts"].over_ts is None
    assert rows["noise-only"].over_noise_only is None
    assert rows["dp-fts-de"].final.mean == pytest.approx(0.55)
    lines = verdict(rows)
    assert "FTS-DE) made no difference" in lines[0]
    assert "DP-FTS-DE) helped: +0.0500" in lines[1]
    assert "beats its noise-only control" in lines[2]
    minimized = summarize(runs, NAMES, maximize=False)["dp-fts-de"].over_ts
    assert minimized is not None
    assert minimized.sign == "negative"


def test_the_verdict_on_noise_is_no_gain() -> None:
    levels = {name: [0.5, 0.6, 0.7] for name in NAMES}
    lines = verdict(summarize(_runs(levels), NAMES, maximize=True))
    assert "These runs cannot show" in lines[2]
    levels["fts-de"] = [0.4, 0.5, 0.61]
    lines = verdict(summarize(_runs(levels), NAMES, maximize=True))
    assert "FTS-DE) hurt" in lines[0]


def test_one_seed_allows_no_verdict() -> None:
    rows = summarize(_runs({name: [0.5] for name in NAMES}), NAMES, maximize=True)
    assert verdict(rows) == [
        "One seed shows no standard error, and so allows no verdict."
    ]
    assert Estimate.of(np.array([1.0])).sign == "unclear"
    assert Estimate.of(np.array([0.1, math.nan, 0.2])).sign == "unclear"
    assert _number(Estimate.of(np.array([1.0])), "+") == "+1.0000"
    assert _number(None, "") == "-"


def test_the_figure_is_a_picture(tmp_path: Path) -> None:
    runs = _runs({name: [0.5, 0.6] for name in NAMES})
    draw(SMALL, runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def test_the_command_runs_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "digits", SMALL)
    result = _invoke("run", "digits", "--seeds", "2", "--output", str(tmp_path))
    assert result.exit_code == 0, result.output
    for name in ("TS", "random", "FTS-DE", "DP-FTS-DE", "noise-only"):
        assert re.search(rf"^ *{name} ", result.output, re.MULTILINE)
    assert "NOT PRIVATE" in result.output
    assert "trials failed" in result.output
    assert "no privacy" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert "…" not in result.output
    folder = tmp_path / "digits"
    assert len((folder / "results.jsonl").read_text().splitlines()) == 10
    assert (folder / "figure.png").stat().st_size > 10_000


def test_iterations_can_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "digits", SMALL)
    result = _invoke(
        "run", "digits", "--seeds=1", "--iterations=1", f"--output={tmp_path}"
    )
    assert result.exit_code == 0, result.output
    assert "iteration 1" in result.output
    assert "One seed" in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "digit"), "'digit' is not an experiment"),
        (("run", "digits", "--seeds", "0"), "--seeds"),
        (("run", "digits", "--iterations", "0"), "--iterations"),
        (("run", "digits", "--jobs", "-1"), "--jobs"),
        (("run", "digits", "--output", __file__), "--output"),
        (("walk",), "walk"),
    ],
)
def test_misuse_of_the_command_is_named(arguments: tuple[str, ...], words: str) -> None:
    result = _invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_help_and_version() -> None:
    assert "digits" in _invoke("run", "--help").output
    assert flwr_fbo.__version__ in _invoke("--version").output


def _one_line_error(result: Any) -> str:
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return str(result.output).splitlines()[-1]


def test_what_the_machine_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "digits", replace(SMALL, methods=METHODS))
    arguments = ("run", "digits", "--seeds=1", "--iterations=1", "--output")
    result = _invoke(*arguments, os.devnull + "/x")
    assert "Error: Not a directory" in _one_line_error(result)
    (tmp_path / "digits" / "figure.png").mkdir(parents=True)
    result = _invoke(*arguments, str(tmp_path))
    assert "Error: Is a directory" in _one_line_error(result)
    assert "noise-only" in result.output  # the table is not lost with the figure

    def killed(*_: Any) -> Any:
        raise TerminatedWorkerError

    monkeypatch.setattr("flwr_fbo.cli.run.run_all", killed)
    assert "a worker process was killed" in _one_line_error(
        _invoke(*arguments, str(tmp_path))
    )


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_an_interrupted_command_says_what_is_left_and_leaves_the_old(
    number: signal.Signals | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        if number is None:
            raise KeyboardInterrupt
        os.kill(os.getpid(), number)

    old = tmp_path / "digits" / "results.jsonl"
    old.parent.mkdir()
    old.write_text("of an earlier run")
    monkeypatch.setattr("flwr_fbo.cli.run.run_all", interrupted)
    result = _invoke("run", "digits", "--output", str(tmp_path))
    assert result.exit_code == 130
    assert f"results.{os.getpid()}.jsonl" in result.output.replace("\n", "")
    assert old.read_text() == "of an earlier run"
