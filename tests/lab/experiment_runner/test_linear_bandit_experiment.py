"""Experiments of linear bandits: their files, runs, tables, and the command."""

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flwr_fbo.bandits.linear.settings import geometric_schedule
from flwr_fbo.cli import app
from flwr_fbo.lab.cli.experiment_tables import print_report
from flwr_fbo.lab.experiment_runner.base import Claim, RegretRun
from flwr_fbo.lab.experiment_runner.claims import findings
from flwr_fbo.lab.experiment_runner.config import (
    builtin_experiments,
    experiment_of,
    load_experiment,
)
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.figure import draw
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.results import ResultsFile, read_results
from flwr_fbo.lab.simulation.mean_field import mean_field_regret
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask

TOML = """
name = "mine"
num_agents = 3
num_iterations = 250
num_seeds = 2
num_synchronisations = 4
first_synchronisation = 20

[task]
name = "linear-bandit"
dimension = 3
num_actions = 6

[privacy]
epsilon = 8.0
delta = 0.1
"""
ALL = (
    "fed-ucb",
    "fed-ucb-raw",
    "paper",
    "paper-noise-only",
    "non-private",
    "full",
    "independent",
    "alone",
    "noise-only",
    "random",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def experiment(file: Path) -> BanditExperiment:
    experiment = load_experiment(file)
    assert isinstance(experiment, BanditExperiment)
    return experiment


def test_its_file(experiment: BanditExperiment) -> None:
    assert experiment.task == LinearBanditTask(dimension=3, num_actions=6)
    assert experiment.schedule == geometric_schedule(250, 4, 20)
    assert experiment.methods == tuple(name for name in ALL if name != "full")
    assert experiment_of(experiment.to_dict()) == replace(experiment, num_seeds=5)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dimension = 3", "dimenson = 3", "task.dimenson is not known: .*'dimension'"),
        ("num_actions = 6", "num_actions = 10", "num_actions=10 .* at most d.2 = 9"),
        ("epsilon = 8.0", "epsilon = 0.0", "epsilon=0.0 is not allowed: a number from"),
        ("num_seeds = 2", 'graph = "wide"', "graph='wide' is not allowed"),
        ("first_synchronisation = 20", "first_synchronisation = 250", "at most 249"),
        (
            "num_synchronisations = 4",
            "num_synchronisations = 231",
            "so many in the 230",
        ),
        (
            "num_seeds = 2",
            'methods = ["fed-ucb", "independent"]',
            r"fed-ucb beside its controls: \['noise-only'\] missing",
        ),
    ],
)
def test_what_is_wrong_in_its_file_is_named(
    file: Path, old: str, new: str, words: str
) -> None:
    assert old in TOML
    file.write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=words) as error:
        load_experiment(file)
    assert str(file) in str(error.value)


def test_all_methods_of_a_seed_play_the_same_trials(
    experiment: BanditExperiment,
) -> None:
    experiment = replace(experiment, methods=ALL)
    runs = {run.method: run for run in experiment.play(ALL, seed=1)}
    again = {run.method: run for run in experiment.play(ALL[::-1], seed=1)}
    (alone,) = experiment.play(["fed-ucb"], seed=1)
    assert alone.regret == runs["fed-ucb"].regret
    for name, run in runs.items():
        assert run.regret == again[name].regret
        assert len(run.regret) == len(experiment.steps)
        assert np.all(np.diff([0.0, *run.regret]) >= 0)
    curves = {tuple(run.regret) for run in runs.values()}
    assert len(curves) == len(ALL)
    assert experiment.play(["random"], seed=2)[0].regret != runs["random"].regret
    epsilon = {name: run.epsilon for name, run in runs.items()}
    assert epsilon == {
        **dict.fromkeys(("fed-ucb", "fed-ucb-raw", "paper"), 8.0),
        **dict.fromkeys(("non-private", "full"), math.inf),
        **dict.fromkeys(("independent", "alone", "noise-only", "random"), 0.0),
        "paper-noise-only": 0.0,
    }
    private = {name for name, run in runs.items() if run.private}
    assert private == {"independent", "alone", "random"}  # seeded noise protects nobody
    final = {name: run.regret[-1] for name, run in runs.items()}
    assert final["full"] < final["non-private"] < final["independent"]
    assert final["independent"] < 0.8 * final["random"]
    # Five of six actions are worse than the best, by 0.2 in the mean.
    assert final["random"] == pytest.approx(250 * 0.2 * 5 / 6, rel=0.05)


def test_a_curve_is_the_regret_of_an_agent(experiment: BanditExperiment) -> None:
    odd = replace(experiment, num_iterations=150)
    iterations = odd.steps
    assert 50 < len(set(iterations)) == len(iterations) <= 100
    assert (iterations[0], iterations[-1]) == (1, 150)
    (run,) = odd.play(["independent"], seed=3)
    simulation = odd.known_methods["independent"].simulation(odd)
    regret = np.cumsum(simulation.run(6, 7).regret) / 3
    np.testing.assert_allclose(run.regret, regret[iterations - 1])
    assert len(replace(experiment, num_iterations=100_000).steps) > 80
    short = replace(experiment, num_iterations=30)
    assert short.steps.tolist() == list(range(1, 31))


def test_what_is_played_in_the_mean_field(experiment: BanditExperiment) -> None:
    limit = replace(experiment, simulator="mean-field", methods=ALL)
    methods = ["paper", "independent"]
    assert limit.batches(methods) == [["paper"], ["independent"]]
    simulation = limit.simulation("paper")
    (run,) = limit.play(["paper"], seed=3)
    assert run.regret == mean_field_regret(simulation, 6, 7, limit.steps).tolist()
    assert limit.recipe("paper") != replace(limit, simulator="exact").recipe("paper")
    with pytest.raises(ValueError, match=r"simulator='mean-field' .* with a graph"):
        replace(limit, graph="ring")
    with pytest.raises(ValueError, match="num_releases=9999980"):  # not a tree
        replace(limit, num_iterations=10**7, num_synchronisations=10**7 - 20)


@pytest.mark.parametrize("num", [10**4, pytest.param(10**7, marks=pytest.mark.slow)])
def test_published_curves_of_millions_of_trials(
    experiment: BanditExperiment, num: int
) -> None:
    methods = ("paper", "paper-noise-only", "paper-open", "independent")
    often = replace(
        experiment,
        simulator="mean-field",
        methods=methods,
        num_iterations=num,
        num_synchronisations=num - 20,
    )
    assert often.schedule == range(20, num)
    regret = {run.method: run.regret[-1] for run in often.play(methods, 0)}
    assert regret["paper-open"] < regret["paper"] < regret["paper-noise-only"]
    assert often.num_sent("paper", []) == 2 * 3 * 16 * (num - 20)


def test_methods_are_what_they_are_called(experiment: BanditExperiment) -> None:
    simulations: dict[str, Any] = {
        name: method.simulation(experiment)
        for name, method in experiment.known_methods.items()
    }
    for name in ("fed-ucb", "fed-ucb-raw", "noise-only"):
        settings = simulations[name].settings
        assert settings.width == "observed"
        assert settings.releases.mechanism == "toeplitz"
        assert settings.releases.epsilon == 8.0
        local_data = "raw" if name == "fed-ucb-raw" else "released"
        assert settings.local_data == local_data
    for name, width in (("paper", "paper"), ("paper-authors", "authors")):
        paper = simulations[name].settings
        assert (paper.width, paper.local_data) == (width, "raw")
        assert paper.releases.calibration == "paper"
        assert paper.releases.mechanism == "tree"
        assert simulations[f"{name}-noise-only"].settings == paper
        assert simulations[f"{name}-open"].settings.width == width
        assert simulations[f"{name}-open"].settings.local_data == "raw"
    assert simulations["independent"].schedule == ()
    assert simulations["independent"].settings.width == "observed"
    for name, simulation in simulations.items():
        controls = [one for one in ("noise-only", "random") if name.endswith(one)]
        control = controls[0] if controls else None
        assert simulation.control == control
        noisy = experiment.known_methods[name].noisy or name == "random"
        assert (simulation.settings.releases.noise_std > 0) == noisy


def _made(method: str, seed: int, last: float, **more: Any) -> RegretRun:
    values: dict[str, Any] = {
        "epsilon": 1.0,
        "private": False,
        "seconds": 1.0,
        "regret": [0.0] * 59 + [last / 2] + [0.0] * 4 + [last],
    }
    return RegretRun(method=method, seed=seed, **(values | more))


def _runs(levels: dict[str, list[float]]) -> list[RegretRun]:
    return [
        _made(name, seed, last)
        for name, values in levels.items()
        for seed, last in enumerate(values)
    ]


def test_the_table_compares_by_seed(experiment: BanditExperiment) -> None:
    base = [100.0, 200.0, 300.0]
    levels = dict.fromkeys(experiment.methods, base)
    levels["fed-ucb"] = [90.0, 178.0, 267.0]
    levels["noise-only"] = [400.0, 401.0, 402.0]
    runs = _runs(levels)
    row = summarize(experiment, runs)["fed-ucb"]
    assert row.estimates["over_independent"] == Estimate.of(
        np.array([-10.0, -22.0, -33.0])
    )
    assert row.estimates["over_noise_only"] == Estimate.of(
        np.array([-310.0, -223.0, -135.0])
    )
    assert "ratio" in row.estimates
    assert row.estimates["ratio"].mean == pytest.approx((0.9 + 0.89 + 0.89) / 3)
    assert "ratio" not in summarize(experiment, runs)["independent"].estimates
    half = summarize(experiment, runs, int(experiment.steps[59]))["fed-ucb"]
    assert half.estimates["regret"].mean == pytest.approx(
        row.estimates["regret"].mean / 2
    )
    for until, kept in ((0, 1), (249, 250), (251, 250)):
        with pytest.raises(ValueError, match=f"until={until} .* {kept} is the nearest"):
            summarize(experiment, runs, until)
    with pytest.raises(ValueError, match="No seed has been run by all methods"):
        summarize(experiment, runs[:1])


def test_the_table_is_narrow_enough_for_a_hundred_thousand_trials(
    experiment: BanditExperiment,
) -> None:
    levels = {name: [20901.234, 20805.678] for name in experiment.methods}
    levels["independent"] = [101.234, 95.678]
    levels["fed-ucb"] = [45.123, 44.789]
    text = StringIO()
    print_report(experiment, _runs(levels), Console(file=text, width=80))
    assert "…" not in text.getvalue()
    rows = [line.split("  ") for line in text.getvalue().splitlines() if "±" in line]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:] if cell] for row in rows}
    expected = ["45.0 ± 0.2", "-53.5 ± 2.6", "0.457 ± 0.011", "-20808 ± 48", "1"]
    assert cells["FedUCB"] == expected
    assert cells["random"][:2] == ["20853 ± 48", "+20755 ± 45"]


def test_the_verdict(experiment: BanditExperiment) -> None:
    levels = {name: [100.0, 101.0, 102.0] for name in experiment.methods}
    levels["fed-ucb"] = [90.0, 91.1, 92.0]
    levels["paper"] = [190.0, 191.1, 192.0]
    lines = experiment.verdict(summarize(experiment, _runs(levels)))
    assert lines[0].startswith("FedUCB does better than independent agents: +9.96")
    assert lines[1].startswith("FedUCB beats its noise-only control")
    assert lines[2].startswith("FedUCB raw† cannot be told from independent agents")
    assert lines[3].startswith("published† does worse than independent agents: -90.03")
    assert len(lines) == 5
    one = summarize(experiment, _runs({name: [1.0] for name in levels}))
    assert "One seed" in experiment.verdict(one)[0]


def test_results_come_back(experiment: BanditExperiment, tmp_path: Path) -> None:
    made = _runs({name: [100.0, 200.0] for name in experiment.methods})
    path = tmp_path / "results" / "results.jsonl"
    with ResultsFile(path, experiment) as results:
        for run in made:
            results.append(run)
    there, runs = read_results(path)
    assert there == replace(experiment, num_seeds=5)
    assert runs == made
    draw(experiment, runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    other = experiment.with_epsilon(2.0)
    with ResultsFile(tmp_path / "other", other) as results:
        results.take_over(path, other)
        taken = {run.method for run in results.runs}
    assert taken == {"independent", "alone", "non-private", "random"}
    cut = _made("random", 7, 1.0, regret=[1.0] * 64)
    path.write_text(path.read_text() + cut.to_json() + "\n")
    with pytest.raises(ValueError, match=f"is damaged in line {len(made) + 2}"):
        read_results(path)


def test_results_of_the_other_kind_are_left_alone(
    experiment: BanditExperiment, tmp_path: Path
) -> None:
    digits = load_experiment(builtin_experiments()["digits"])
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, experiment) as results:
        results.append(_made("random", 0, 1.0))
    with pytest.raises(ValueError, match="belongs to another experiment"):
        ResultsFile(path, digits)


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def test_the_command(file: Path, tmp_path: Path) -> None:
    run = ("run", str(file), "--jobs=1", f"--output={tmp_path}")
    assert _invoke(*run, "--seeds=1").exit_code == 0
    result = _invoke(*run)
    assert result.exit_code == 0, result.output
    assert "9 of 18 runs are in" in " ".join(result.output.split())
    table = result.output[result.output.index("Regret of an agent in 250") :]
    lines = table[: table.index("Results:")].splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "…" not in table
    assert "NOT PRIVATE" in table
    assert "with all other records fixed" in " ".join(table.split())
    rows = {line.split()[0]: line for line in lines if "±" in line}
    assert {"published†", "independent", "noise-only", "random"} <= rows.keys()
    assert rows["non-private"].endswith("infinite  ")
    assert (tmp_path / "mine" / "figure.png").stat().st_size > 10_000
    shown = _invoke("show", str(tmp_path / "mine"))
    assert shown.output.splitlines()[2:] == lines[2 : len(shown.output.splitlines())]
    values = json.loads(_invoke("show", str(tmp_path / "mine"), "--json").stdout)
    assert values["experiment"]["task"]["dimension"] == 3
    assert values["private"] is False
    assert any("only with all other records fixed" in note for note in values["notes"])
    terms = {"delta", "unit", "adjacency", "trust", "conditions"}
    assert set(values["methods"]["fed-ucb"]) == terms | {
        "epsilon",
        "regret",
        "over_independent",
        "ratio",
        "over_noise_only",
    }
    assert values["methods"]["non-private"]["epsilon"] is None
    assert "failed_trials" not in values


def test_claims_of_bandits_count_trials(experiment: BanditExperiment) -> None:
    """Iterations of a bandit are those at which its regret is kept."""
    kept = experiment.steps
    assert len(kept) < experiment.num_iterations
    claim = Claim("a", "fed-ucb", "independent")
    regret = dict.fromkeys(experiment.methods, 2.0 * kept)
    regret["fed-ucb"] = 1.0 * kept
    runs = [
        RegretRun(
            method=name,
            seed=seed,
            regret=(values + seed).tolist(),
            epsilon=1.0,
            private=False,
            seconds=1.0,
        )
        for name, values in regret.items()
        for seed in range(3)
    ]
    (finding,) = findings(replace(experiment, claims=(claim,)), runs)
    assert finding.gain.mean == pytest.approx(kept[-1])
    assert finding.beyond_noise is not None
    mean = replace(experiment, claims=(replace(claim, by="mean"),))
    with pytest.raises(ValueError, match="by='mean' is not allowed"):
        findings(mean, runs)
