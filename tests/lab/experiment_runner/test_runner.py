"""Experiments: their files, the runner, results, the summary, the figure."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution
from threadpoolctl import threadpool_info, threadpool_limits

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.datasets.digits import partition
from flwr_fbo.lab.experiment_runner.config import (
    builtin_experiments,
    experiment_of,
    load_experiment,
)
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    NonlinearBanditExperiment,
)
from flwr_fbo.lab.experiment_runner.results import ResultsFile, read_results
from flwr_fbo.lab.experiment_runner.runner import play
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    METHODS,
    TuningExperiment,
    TuningPrivacy,
    run_one,
    usual_methods,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds, TuningRun
from flwr_fbo.lab.tasks.base import Objective, Task
from flwr_fbo.lab.tasks.digits import DigitsTask
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.privacy.release import Release


@dataclass(frozen=True)
class Quadratic(Task):
    name: str = "small"
    direction: ClassVar[Literal["maximize", "minimize"]] = "maximize"
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


@dataclass(frozen=True)
class Minimized(Quadratic):
    direction: ClassVar[Literal["maximize", "minimize"]] = "minimize"


SMALL = TuningExperiment(
    name="small",
    task=Quadratic(),
    num_agents=4,
    num_evaluations=12,
    privacy=TuningPrivacy(1e-3, noise_multiplier=1.0, sampling_probability=0.35),
)
NAMES = list(usual_methods(SMALL))
LEAN = TuningExperiment(
    name="lean",
    task=Quadratic(),
    num_agents=4,
    num_evaluations=12,
    strategy="FedVote",
    privacy=TuningPrivacy(1e-3, epsilon=2.0),
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
        ((0, 41, 0), "num_partitions=41"),
        ((0, 20, -1), "seed=-1"),
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
    first = [np.array(run.best_so_far)[:, :10] for run in runs]
    for values in first[1:]:
        np.testing.assert_array_equal(values, first[0])
    assert len({run.curve.tobytes() for run in runs}) > 2
    spent = {run.method: run.epsilon for run in runs}
    assert spent["alone"] == spent["random"] == spent["noise-only"] == 0.0
    assert spent["open"] == math.inf
    assert 0 < spent["private"] < 10
    assert sum(run.failed_trials for run in runs) > 0
    private = {run.method for run in runs if run.private}
    assert private == {"alone", "random"}  # seeded noise protects nobody


def test_one_process_has_one_blas_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(*_: Any) -> list[Any]:
        pools = threadpool_info()
        threads.append({p["num_threads"] for p in pools if p["user_api"] == "blas"})
        return []

    monkeypatch.setattr(TuningExperiment, "play", noted)
    with threadpool_limits(2):
        assert list(play(SMALL, [("alone", 0)], 1)) == []
    assert threads == [{1}]


def test_runs_repeat_whatever_the_number_of_workers() -> None:
    todo = [("alone", seed) for seed in range(2)]
    one, two = list(play(SMALL, todo, 1)), list(play(SMALL, todo, 2))
    curves = {run.seed: run.curve.tolist() for run in one}
    assert curves == {run.seed: run.curve.tolist() for run in two}


def test_curves_of_noisy_functions_are_without_noise() -> None:
    experiment = replace(SMALL, task=SyntheticTask(), preset="paper-synthetic")
    run = run_one(experiment, "random", seed=0)
    best = np.array(run.best_so_far)
    assert np.all(best <= 1.02)  # noisy ones would exceed it
    assert run.failed_trials == 0


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


TOML = """
name = "mine"
num_agents = 4
num_evaluations = 12
num_seeds = 2
preset = "paper-synthetic"

[task]
name = "synthetic"
alpha = 0.5

[privacy]
noise_multiplier = 1.0
sampling_probability = 0.35
delta = 1e-3
"""


def test_an_experiment_is_a_toml(tmp_path: Path) -> None:
    experiment = load_experiment(_written(tmp_path / "mine.toml", TOML))
    assert isinstance(experiment, TuningExperiment)
    assert experiment.task == SyntheticTask(alpha=0.5)
    assert experiment.privacy == TuningPrivacy(
        1e-3, noise_multiplier=1.0, sampling_probability=0.35
    )
    assert experiment.methods == usual_methods(experiment)
    assert experiment_of(experiment.to_dict()) == replace(experiment, num_seeds=5)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"synthetic"', '"syntetic"', "name='syntetic' .*did you mean 'synth"),
        ("num_agents = 4", "num_agents = 0", "num_agents=0 is not allowed"),
        ("num_agents = 4", "", "num_agents is missing"),
        ('name = "synthetic"', "", "task.name is missing: one of"),
        ("delta = 1e-3", "delta = nan", "delta=nan is not allowed"),
        ("alpha = 0.5", "noisy = true", r"task.noisy is not known: one of \['alpha'"),
        (
            "num_seeds = 2",
            'methods = ["alon"]',
            "methods='alon' .*did you mean 'alone'",
        ),
        (
            "num_seeds = 2",
            'methods = ["private", "alone"]',
            r"private beside its controls: \['noise-only', 'random'\] missing",
        ),
        ('"mine"', '"../mine"', "name='../mine' is not allowed"),
        ("[task]", "[task", "is no TOML: .*line 8"),
    ],
)
def test_a_typo_in_a_toml_is_named(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in TOML
    path = _written(tmp_path / "mine.toml", TOML.replace(old, new))
    with pytest.raises(ValueError, match=words) as error:
        load_experiment(path)
    assert str(path) in str(error.value)


def test_built_in_experiments_are_complete() -> None:
    for name, path in builtin_experiments().items():
        experiment = load_experiment(path)
        assert experiment.name == name
        assert 0 < len(experiment.description) < 80
        controls = {"random", "alone", "private", "noise-only"}
        if isinstance(experiment, TuningExperiment) and experiment.base.agent.is_lean:
            assert experiment.num_evaluations == 30
            if experiment.list_first:
                controls |= {"list", "blind"}
                assert len(experiment.methods) == 6
            elif "liars" not in experiment.methods:
                controls |= {"open", "blind", "portfolio", "random-start"}
        if isinstance(experiment, BanditExperiment):
            controls = {"independent", "fed-ucb", "noise-only"}
        elif isinstance(experiment, NonlinearBanditExperiment):
            controls = {"random", "n-go-ucb", "fed-go-ucb", "no-phase-one"}
        assert set(experiment.methods) >= controls


def _run(method: str = "alone", seed: int = 0) -> TuningRun:
    best_so_far = [[math.nan, *[0.5] * 11]] * 4
    return replace(_made(method, seed, best_so_far), epsilon=math.inf)


def _made(method: str, seed: int, best_so_far: list[list[float]]) -> TuningRun:
    return TuningRun(
        method=method,
        seed=seed,
        best_so_far=best_so_far,
        epsilon=1.0,
        private=False,
        failed_trials=1,
        seconds=1.5,
    )


def test_results_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.jsonl"
    experiment = load_experiment(_written(tmp_path / "mine.toml", TOML))
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
        read_results(_written(tmp_path / "empty", ""))


def test_seeds_of_a_run_are_three_and_its_own() -> None:
    seeds = [s for run in range(50) for s in vars(Seeds.of_run(run)).values()]
    assert len(set(seeds)) == 150


def _runs(levels: dict[str, list[float]]) -> list[TuningRun]:
    """Return runs of two agents; method m on seed s is at levels[m][s] throughout."""
    return [
        _made(name, seed, [[v] * 12] * 2)
        for name, values in levels.items()
        for seed, v in enumerate(values)
    ]


def test_differences_are_paired_by_seed() -> None:
    base = [0.1, 0.5, 0.9]  # seeds differ far more than methods do
    levels = dict.fromkeys(NAMES, base)
    levels["private"] = [v + d for v, d in zip(base, (0.04, 0.05, 0.06), strict=True)]
    runs = _runs(levels)
    rows = summarize(SMALL, list(reversed(runs)))
    over = rows["private"].estimates["over_alone"]
    assert over is not None
    assert over.mean == pytest.approx(0.05)
    assert over.standard_error == pytest.approx(0.01 / math.sqrt(3))
    assert over.sign == "positive"
    assert "over_alone" not in rows["alone"].estimates
    assert "over_noise_only" not in rows["noise-only"].estimates
    assert rows["private"].estimates["final"].mean == pytest.approx(0.55)
    lines = SMALL.verdict(rows)
    assert "FTS-DE) cannot be told from TS in sub-regions" in lines[0]
    assert "DP-FTS-DE) does better than TS in sub-regions (ours): +0.0500" in lines[1]
    assert "beats its noise-only control" in lines[2]
    minimizing = replace(SMALL, task=Minimized())
    minimized = summarize(minimizing, runs)["private"].estimates["over_alone"]
    assert minimized is not None
    assert minimized.sign == "negative"


def test_what_is_lost_in_the_end_is_bounded() -> None:
    levels = {name: [0.5, 0.6, 0.7] for name in NAMES}
    levels["private"] = [0.51, 0.60, 0.69]
    rows = summarize(SMALL, _runs(levels))
    final = rows["private"].estimates["final_over_alone"]
    assert final is not None
    # t of 0.95 with two degrees of freedom.
    assert final.lower_bound == pytest.approx(-2.92 * 0.01 / math.sqrt(3), rel=1e-3)
    assert "behind TS in sub-regions (ours) by 0.0169 at most" in SMALL.verdict(rows)[3]
    levels["private"] = [0.6, 0.7, 0.81]
    rows = summarize(SMALL, _runs(levels))
    assert "DP-FTS-DE is ahead of TS" in SMALL.verdict(rows)[3]


def test_means_may_end_before_the_last_evaluation() -> None:
    runs = [
        _made(name, seed, [[0.5 + (name == "open"), *[0.7] * 11]])
        for name in NAMES
        for seed in range(3)
    ]
    gains = [
        summarize(SMALL, runs, until)["open"].estimates["over_alone"]
        for until in (1, 2, None)
    ]
    assert [g.mean for g in gains if g] == pytest.approx([1.0, 1 / 2, 1 / 12])
    for until in (0, 13):
        with pytest.raises(ValueError, match=f"until={until} is not allowed: 1 to 12"):
            summarize(SMALL, runs, until)


def test_votes_have_names_of_their_own() -> None:
    levels = {name: [0.5, 0.6] for name in LEAN.methods}
    rows = summarize(LEAN, _runs(levels))
    controls = ["alone", "random", "random start", "portfolio"]
    votes = ["open vote", "private vote", "noise-only", "blind vote"]
    assert [row.label for row in rows.values()] == controls + votes
    assert LEAN.estimates()["over_alone"].heading == "over alone*"
    assert "cannot be told from alone by" in LEAN.verdict(rows)[0]
    assert SMALL.estimates()["over_alone"].heading == "over TS in sub-regions (ours)*"


def test_an_experiment_may_name_its_epsilon() -> None:
    run = run_one(LEAN, "private", 0)
    assert 1.9 < run.epsilon <= 2.0
    with pytest.raises(ValueError, match=r"epsilon=2\.0 is not allowed: None where"):
        TuningPrivacy(1e-3, noise_multiplier=1.0, epsilon=2.0)
    with pytest.raises(ValueError, match="noise_multiplier=None is not allowed"):
        TuningPrivacy(1e-3)


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


def test_liars_all_praise_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they send reaches the server, which clips it."""
    methods = ("alone", "random", "noise-only", "private", "liars")
    task = Quadratic()
    voting = replace(
        SMALL,
        num_agents=6,
        strategy="FedVote",
        privacy=TuningPrivacy(1e-3, noise_multiplier=1e-3),
        methods=methods,
        task=task,
    )
    seen: dict[int, FloatArray] = {}
    release = Release.release

    def spy(self: Release, t: int, messages: Any, num_features: int) -> FloatArray:
        seen.update(messages)
        return release(self, t, messages, num_features)

    monkeypatch.setattr(Release, "release", spy)
    run_one(voting, "liars", 0)
    norms = [float(np.linalg.norm(seen[slot])) for slot in range(6)]
    np.testing.assert_allclose(norms, [1e6, 1e6, 1, 1, 1, 1])
    np.testing.assert_array_equal(seen[0], seen[1])
    blind = replace(voting, methods=("alone", "random", "noise-only", "blind"))
    run_one(blind, "blind", 0)
    norms = [float(np.linalg.norm(seen[slot])) for slot in range(6)]
    np.testing.assert_allclose(norms, [1e6] * 6)
    assert len({tuple(message) for message in seen.values()}) == 6


def test_the_verdict_on_noise_is_no_gain() -> None:
    levels = {name: [0.5, 0.6, 0.7] for name in NAMES}
    lines = SMALL.verdict(summarize(SMALL, _runs(levels)))
    assert "These runs cannot show" in lines[2]
    levels["open"] = [0.4, 0.5, 0.61]
    lines = SMALL.verdict(summarize(SMALL, _runs(levels)))
    assert "FTS-DE) does worse than TS" in lines[0]


def test_one_seed_allows_no_verdict() -> None:
    rows = summarize(SMALL, _runs({name: [0.5] for name in NAMES}))
    assert SMALL.verdict(rows) == [
        "One seed shows no standard error, and so allows no verdict."
    ]
    assert Estimate.of(np.array([1.0])).sign == "unclear"
    assert Estimate.of(np.array([0.1, math.nan, 0.2])).sign == "unclear"


def test_of_an_incomplete_run_only_common_seeds_count() -> None:
    levels = {name: [0.5, 0.6, 0.7] for name in NAMES}
    levels["noise-only"] = [0.5, 0.6]
    rows = summarize(SMALL, _runs(levels))
    assert {row.estimates["final"].num_runs for row in rows.values()} == {2}
    with pytest.raises(ValueError, match="No seed has been run by all methods"):
        summarize(SMALL, _runs({"alone": [0.5]}))


def test_without_a_federated_method_there_is_no_verdict() -> None:
    alone = replace(SMALL, methods=("alone", "random"))
    rows = summarize(alone, _runs({"alone": [0.5, 0.6], "random": [0.5, 0.5]}))
    assert SMALL.verdict(rows) == []
    assert "over_noise_only" not in rows["random"].estimates
