"""Results on disk: they come back, and with what one cannot go on."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from flwr_fbo.lab.experiment_runner.config import load_experiment
from flwr_fbo.lab.experiment_runner.results import ResultsFile, read_results
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    TuningPrivacy,
    usual_methods,
)
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from tests.support.experiments import LEAN, SMALL, TOML, _made, _runs, written

NAMES = list(usual_methods(SMALL))


def _run(method: str = "alone", seed: int = 0) -> TuningRun:
    best_so_far = [[math.nan, *[0.5] * 11]] * 4
    return replace(_made(method, seed, best_so_far), epsilon=math.inf)


def test_results_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    experiment = load_experiment(written(tmp_path / "mine.toml", TOML))
    with ResultsFile(path, experiment) as results:
        results.append(_run())
    with ResultsFile(path, replace(experiment, num_seeds=9)) as results:
        assert repr(results.runs) == repr([_run()])
        results.append(_run(seed=1))
    there, runs = read_results(path.parent)
    assert there == replace(experiment, num_seeds=5)
    assert [run.seed for run in runs] == [0, 1]
    for line in path.read_text().splitlines():  # JSON of the strict kind

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        json.loads(line, parse_constant=refuse)


def test_a_line_that_was_cut_off_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, SMALL) as results:
        results.append(_run(seed=0))
        results.append(_run(seed=1))
    whole = path.read_bytes()
    for cut in range(len(whole) - 1, whole.index(b"\n"), -60):
        path.write_bytes(whole[:cut])
        with ResultsFile(path, SMALL) as results:
            seeds = [run.seed for run in results.runs]
            assert seeds in ([], [0])
            for seed in range(len(seeds), 2):
                results.append(_run(seed=seed))
        assert path.read_bytes() == whole
    path.write_bytes(b"")
    with ResultsFile(path, SMALL) as results:
        assert results.runs == []


def test_results_that_cannot_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with (
        ResultsFile(path, SMALL),
        pytest.raises(OSError, match="another process is writing these results"),
    ):
        ResultsFile(path, SMALL)
    header = path.read_text()
    with ResultsFile(path, SMALL) as results:
        results.append(_run())
    other = replace(
        SMALL,
        num_agents=5,
        privacy=TuningPrivacy(1e-3, noise_multiplier=2.0, sampling_probability=0.35),
    )
    with pytest.raises(ValueError, match="belongs to another experiment") as error:
        ResultsFile(path, other)
    assert "num_agents: 4 there, 5 now; " in str(error.value)
    assert "privacy.noise_multiplier: 1.0 there, 2.0 now." in str(error.value)
    with ResultsFile(tmp_path / "header", other):
        pass
    with ResultsFile(tmp_path / "header", SMALL) as results:  # no run is lost
        assert results.runs == []
    run = _run().to_json()
    other_shape = replace(_run(), best_so_far=[[0.5] * 12] * 3).to_json()
    negative = replace(_run(), epsilon=-1.0).to_json()
    for rubbish, line in (
        ('{"flwr_fbo": 1}\n', 1),
        (header + '{"seed": 1}\n', 2),
        (header + run + "\n" + run + "\n", 3),
        (header + other_shape + "\n", 2),
        (header + negative + "\n", 2),
        (header + _run("unknown").to_json() + "\nhalf a l", 2),
    ):
        path.write_text(rubbish)
        with pytest.raises(ValueError, match=f"is damaged in line {line}"):
            ResultsFile(path, SMALL)
        assert path.read_text() == rubbish  # nothing is lost
    for rubbish in ("x\n", "{}\n"):
        path.write_text(rubbish)
        with pytest.raises(ValueError, match="a file that flwr-fbo run wrote"):
            ResultsFile(path, SMALL)
        assert path.read_text() == rubbish
    path.write_text("somebody's only line, without an end")
    with pytest.raises(ValueError, match="is no results file"):
        ResultsFile(path, SMALL)
    assert path.read_text().startswith("somebody's")
    with pytest.raises(ValueError, match="a file that flwr-fbo run wrote"):
        read_results(written(tmp_path / "empty", ""))


def test_another_epsilon_takes_over_what_it_does_not_touch(tmp_path: Path) -> None:
    voting = replace(LEAN, name="small", task=SyntheticTask(), methods=tuple(NAMES))
    with ResultsFile(tmp_path / "a", voting) as results:
        for run in _runs({name: [0.5, 0.6] for name in NAMES}):
            results.append(replace(run, best_so_far=run.best_so_far * 2))
    other = voting.with_epsilon(0.5)
    assert other.name == "small-epsilon-0_5"
    assert other.privacy.epsilon == 0.5
    with ResultsFile(tmp_path / "b", other) as results:
        results.take_over(tmp_path / "a", other)
        results.take_over(tmp_path / "a", other)  # once is enough
        taken = [(run.method, run.seed) for run in results.runs]
    names = ("alone", "random", "open")
    assert sorted(taken) == sorted((name, seed) for name in names for seed in (0, 1))
    longer = replace(other, num_evaluations=13)
    with ResultsFile(tmp_path / "c", longer) as results:
        results.take_over(tmp_path / "a", longer)
        results.take_over(tmp_path / "gone", longer)
        assert results.runs == []
