"""Experiments of bandits over a grid of settings: their names, runs and picture."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.lab.experiment_runner.base import RegretRun
from flwr_fbo.lab.experiment_runner.config import experiment_of, load_experiment
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.figure import draw
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.results import ResultsFile, read_results
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditTask

PLAIN = """
name = "mine"
num_agents = 3
num_iterations = 60
num_seeds = 2
num_synchronisations = 4
first_synchronisation = 10
methods = ["fed-ucb", "paper", "paper-noise-only", "non-private", "full", \
"independent", "noise-only", "random"]

[task]
name = "linear-bandit"
dimension = 3
num_actions = 6

[privacy]
epsilon = 2.0
delta = 0.1
"""
TOML = f"""{PLAIN}
[sweep]
axis = "epsilon"
epsilon = [0.5, 2.0]
num_agents = [2, 3]

[[claims]]
text = "more epsilon is better"
better = "fed-ucb@epsilon=2,num_agents=3"
than = "fed-ucb@epsilon=0.5,num_agents=3"

[[claims]]
text = "more agents are better"
better = "non-private@num_agents=3"
than = "non-private@num_agents=2"
"""
NOISY = ("fed-ucb", "paper", "paper-noise-only", "noise-only")
OTHERS = ("non-private", "full", "independent", "random")


def _load(tmp_path: Path, text: str) -> BanditExperiment:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    experiment = load_experiment(path)
    assert isinstance(experiment, BanditExperiment)
    return experiment


@pytest.fixture
def sweep(tmp_path: Path) -> BanditExperiment:
    return _load(tmp_path, TOML)


@pytest.fixture
def plain(tmp_path: Path) -> BanditExperiment:
    return _load(tmp_path, PLAIN)


def _over(tmp_path: Path, table: str, old: str = "", new: str = "") -> BanditExperiment:
    return _load(tmp_path, f"{PLAIN}\n[sweep]\n{table}\n".replace(old, new))


def test_each_method_is_played_where_it_differs(sweep: BanditExperiment) -> None:
    noisy = {
        f"{name}@epsilon={epsilon},num_agents={m}"
        for name in NOISY
        for epsilon in ("0.5", "2")
        for m in (2, 3)
    }
    others = {f"{name}@num_agents={m}" for name in OTHERS for m in (2, 3)}
    assert set(sweep.methods) == noisy | others
    assert sweep.methods[:2] == (
        "fed-ucb@epsilon=0.5,num_agents=2",
        "fed-ucb@epsilon=0.5,num_agents=3",
    )
    method = sweep.known_methods["paper@epsilon=2,num_agents=3"]
    control = "paper-noise-only@epsilon=2,num_agents=3"
    assert method.controls == ("independent@num_agents=3", control)
    assert method.noise_only == control
    assert sweep.label_of(method.name) == "published† (epsilon=2, M=3)"
    assert experiment_of(sweep.to_dict()) == replace(sweep, num_seeds=5, claims=())


def test_what_does_not_depend_on_it_is_played_once(tmp_path: Path) -> None:
    sweep = _over(
        tmp_path, 'axis = "num_synchronisations"\nnum_synchronisations = [4, 50]'
    )
    once = {"full", "independent", "random"}
    assert once <= set(sweep.methods)
    assert {"non-private@num_synchronisations=4", "paper@num_synchronisations=50"} <= {
        *sweep.methods
    }
    assert len(sweep.methods) == 3 + 2 * 5
    every = sweep.plain("fed-ucb@num_synchronisations=50").schedule
    assert every == range(10, 60)  # after every trial from the first one on


def test_without_a_sweep_all_is_as_it_was(plain: BanditExperiment) -> None:
    assert plain.sweep is None
    assert plain.methods[0] == "fed-ucb"
    assert set(plain.recipe("fed-ucb")) == {
        "first_synchronisation",
        "method",
        "num_agents",
        "num_iterations",
        "num_synchronisations",
        "privacy",
        "simulator",
        "task",
    }


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            'axis = "epsilon"\nepsilom = [1.0]',
            "sweep.epsilom is not known: .*'epsilon'",
        ),
        ('axis = "gap"\nepsilon = [2.0]', r"sweep.axis='gap' .* one of .'epsilon'"),
        ('axis = "epsilon"\nepsilon = [2.0, 2]', "sweep.epsilon=.* none twice"),
        ('axis = "epsilon"\nepsilon = [4.0]', r"epsilon=2.0 .* one of 4 \(\[sweep\]\)"),
        ('axis = "gap"\ngap = [0.1, 0.4]', "gap=0.4 is not allowed: .* <= 0.3"),
        ('axis = "dimension"\ndimension = [2, 3]', r"num_actions=6 .* d.2 = 4"),
        (
            'axis = "num_synchronisations"\nnum_synchronisations = [4, 51]',
            "num_releases=51 is not allowed: so many in the 50",
        ),
    ],
)
def test_what_is_wrong_with_a_sweep_is_named(
    tmp_path: Path, table: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as error:
        _over(tmp_path, table)
    assert "mine.toml" in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"noise-only", ', "", r"beside its controls: \['noise-only@epsilon=0.5,num_"),
        ("epsilon=2,num_agents=3", "epsilon=3,num_agents=3", "did you mean 'fed-ucb@"),
        ('better = "fed-ucb@epsilon=2,num_agents=3"', 'better = "full"', "'full' is"),
        ('["fed-ucb"', '["fed-ubc"', "did you mean"),
    ],
)
def test_its_methods_and_claims_are_checked(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in TOML
    with pytest.raises(ValueError, match=words):
        _load(tmp_path, TOML.replace(old, new))


def test_another_epsilon_only_where_it_is_not_swept(
    sweep: BanditExperiment, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"epsilon=4\.0 .* left out: it is swept"):
        sweep.with_epsilon(4.0)
    gaps = _over(tmp_path, 'axis = "gap"\ngap = [0.1, 0.3]')
    assert gaps.with_epsilon(4.0).plain("paper@gap=0.3").privacy.epsilon == 4.0


def test_a_point_is_the_plain_experiment(
    sweep: BanditExperiment, plain: BanditExperiment
) -> None:
    runs = {run.method: run for run in sweep.play(sweep.methods, seed=1)}
    assert set(runs) == set(sweep.methods)
    alone = replace(plain.with_epsilon(0.5), num_agents=2)
    for run in alone.play(alone.methods, seed=1):
        point = "num_agents=2" if run.method in OTHERS else "epsilon=0.5,num_agents=2"
        same = runs[f"{run.method}@{point}"]
        assert same.regret == run.regret
        assert (same.epsilon, same.private) == (run.epsilon, run.private)
        assert sweep.recipe(same.method) == alone.recipe(run.method)


@pytest.mark.parametrize(
    ("table", "method", "task"),
    [
        (
            'axis = "dimension"\ndimension = [3, 4]',
            "random@dimension=4",
            LinearBanditTask(dimension=4, num_actions=6),
        ),
        (
            'axis = "gap"\ngap = [0.05, 0.1]',
            "random@gap=0.05",
            LinearBanditTask(dimension=3, num_actions=6, gap=0.05),
        ),
    ],
)
def test_tasks_can_be_swept(
    tmp_path: Path, plain: BanditExperiment, table: str, method: str, task: Any
) -> None:
    sweep = _over(tmp_path, table)
    (run,) = sweep.play([method], seed=0)
    (same,) = replace(plain, task=task).play(["random"], seed=0)
    assert run.regret == same.regret


def test_runs_are_shared_with_plain_experiments(
    sweep: BanditExperiment, plain: BanditExperiment, tmp_path: Path
) -> None:
    path = tmp_path / "plain" / "results.jsonl"
    with ResultsFile(path, plain) as results:
        for run in plain.play(plain.methods, seed=0):
            results.append(run)
    with ResultsFile(tmp_path / "sweep" / "results.jsonl", sweep) as results:
        assert results.take_over(path, sweep) == len(plain.methods)
        names = {run.method for run in results.runs}
    assert names == {f"{name}@epsilon=2,num_agents=3" for name in NOISY} | {
        f"{name}@num_agents=3" for name in OTHERS
    }


def test_how_often_they_synchronise_is_nothing_to_those_alone(
    plain: BanditExperiment,
) -> None:
    often = replace(plain, num_synchronisations=8, first_synchronisation=5)
    same = {name for name in plain.methods if plain.recipe(name) == often.recipe(name)}
    assert same == {"full", "independent", "random"}
    before, after = (e.play(sorted(same), seed=0) for e in (plain, often))
    assert [run.regret for run in before] == [run.regret for run in after]


def _made(experiment: BanditExperiment, levels: dict[str, float]) -> list[RegretRun]:
    """Return runs of three seeds; a method's regret is its level, else 10."""
    return [
        RegretRun(
            method=name,
            seed=seed,
            epsilon=1.0,
            private=False,
            seconds=1.0,
            regret=np.linspace(
                0.1, levels.get(name, 10.0) + seed, len(experiment.steps)
            ).tolist(),
        )
        for name in experiment.methods
        for seed in range(3)
    ]


def test_the_table_compares_to_controls_of_the_same_point(
    sweep: BanditExperiment,
) -> None:
    point = "epsilon=2,num_agents=3"
    levels = {
        f"fed-ucb@{point}": 5.0,
        f"noise-only@{point}": 50.0,
        "independent@num_agents=3": 20.0,
    }
    rows = summarize(sweep, _made(sweep, levels))
    row = rows[f"fed-ucb@{point}"]
    assert "over_independent" in row.estimates
    assert "over_noise_only" in row.estimates
    assert row.estimates["over_independent"].mean == pytest.approx(-15.0)
    assert row.estimates["over_noise_only"].mean == pytest.approx(-45.0)
    unclear = rows["non-private@num_agents=3"]  # has no noise-only of its own
    assert "over_independent" in unclear.estimates
    assert "over_noise_only" not in unclear.estimates
    assert "over_independent" not in rows["independent@num_agents=3"].estimates
    lines = sweep.verdict(rows)
    label = sweep.label_of(f"fed-ucb@{point}")
    assert f"{label} does better than independent agents: +15.0000" in "".join(lines)
    assert f"{label} beats its noise-only control" in "".join(lines)
    assert "with all other records fixed" in " ".join(sweep.notes([], None)[1])


@pytest.mark.parametrize(
    "table",
    [
        'axis = "epsilon"\nepsilon = [0.5, 2.0]\nnum_agents = [2, 3]',
        'axis = "num_synchronisations"\nnum_synchronisations = [4, 40]',
    ],
)
def test_it_has_a_picture(tmp_path: Path, table: str) -> None:
    sweep = _over(tmp_path, table)
    draw(sweep, _made(sweep, {}), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_process_plays_what_shares_its_trials(sweep: BanditExperiment) -> None:
    batches = sweep.batches(sweep.methods)
    assert sorted(name for batch in batches for name in batch) == sorted(sweep.methods)
    assert [{name.endswith("num_agents=2") for name in b} for b in batches] == [
        {True},
        {False},
    ]


def test_the_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = _load(tmp_path, TOML)
    path = tmp_path / "results" / "mine" / "results.jsonl"
    left = {claim.better for claim in sweep.claims}
    made = [run for run in _made(sweep, {}) if run.seed < 2]
    with ResultsFile(path, sweep) as results:
        for run in made:
            if run.method not in left:
                results.append(run)
    path.write_text(path.read_text() + '{"method": "fed-')  # killed as it wrote
    invoke = CliRunner().invoke
    before = invoke(app, ["claims", "mine.toml"])
    assert "| not run | - |" in before.output
    result = invoke(app, ["run", "mine.toml", "--jobs=1"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert f"{len(made) - 4} of {len(made)} runs are in" in said
    assert "- more agents are better: in the end" in said
    assert max(map(len, result.output.splitlines())) <= 80
    assert (path.parent / "figure.png").stat().st_size > 10_000
    _, runs = read_results(path)
    assert len(runs) == len(made)
    shown = invoke(app, ["show", "results/mine", "--json"])
    assert set(json.loads(shown.stdout)["methods"]) == set(sweep.methods)
    after = invoke(app, ["claims", "mine.toml"])
    row = r"\| more epsilon is better \(not in the"
    assert re.search(row, after.output)


def test_results_from_before_the_gap_go_on(
    plain: BanditExperiment, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    with ResultsFile(path, plain) as results:
        for run in plain.play(["random"], seed=0):
            results.append(run)
    lines = path.read_text().splitlines()
    header = json.loads(lines[0])
    del header["experiment"]["task"]["gap"], header["experiment"]["sweep"]
    path.write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    with ResultsFile(path, plain) as results:
        assert len(results.runs) == 1
    with ResultsFile(tmp_path / "b", plain) as results:
        assert results.take_over(path, plain) == 1


GRAPHS = PLAIN.replace("num_agents = 3", 'num_agents = 4\ngraph = "ring"').replace(
    '"full", ', '"cliques", "cliques-non-private", '
)


def test_graphs_can_be_swept(tmp_path: Path) -> None:
    text = f'{GRAPHS}\n[sweep]\naxis = "graph"\ngraph = ["complete", "ring"]\n'
    experiment = _load(tmp_path, text)
    runs = {run.method: run for run in experiment.play(experiment.methods, seed=0)}
    assert {"independent", "random", "cliques@graph=ring"} <= runs.keys()
    assert "independent@graph=ring" not in runs
    # A complete graph has one clique, which is everybody's neighbourhood.
    everywhere = runs["fed-ucb@graph=complete"].regret
    assert runs["cliques@graph=complete"].regret == everywhere
    assert runs["fed-ucb@graph=ring"].regret != everywhere
    ring = _load(tmp_path, GRAPHS)
    assert ring.play(["cliques"], 0)[0].regret == runs["cliques@graph=ring"].regret
    draw(experiment, list(runs.values()), tmp_path / "graphs.png")
    assert (tmp_path / "graphs.png").stat().st_size > 10_000


def test_a_graph_has_a_part_only_in_what_is_sent_along_it(tmp_path: Path) -> None:
    ring = _load(tmp_path, GRAPHS)
    line = replace(ring, graph="line")
    assert ring.recipe("independent") == line.recipe("independent")
    assert ring.recipe("fed-ucb") != line.recipe("fed-ucb")
    assert ring.num_sent("fed-ucb", []) is None  # it is not counted
    paper, ours = ring.simulation("cliques"), ring.simulation("fed-ucb")
    assert paper.graph is not None
    assert ours.graph is not None
    assert (paper.graph.streams, paper.graph.pooling) == (1, "clique")
    assert (ours.graph.streams, ours.graph.pooling) == (1, "neighbourhood")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRAPHS.replace('graph = "ring"', ""), "methods='cliques'.*only with a graph"),
    ],
)
def test_what_is_wrong_with_a_graph_is_named(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _load(tmp_path, text)
