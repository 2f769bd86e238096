"""Experiments of non-linear bandits: their files, runs, tables, and the command."""

import json
import math
import re
import tomllib
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from flwr_fbo._common.text import humanised
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.cli import app
from flwr_fbo.lab.baselines.kernel_ucb import KernelUCBSettings
from flwr_fbo.lab.cli.experiment_tables import print_report
from flwr_fbo.lab.datasets.base import DataError
from flwr_fbo.lab.experiment_runner.base import Claim
from flwr_fbo.lab.experiment_runner.claims import findings, in_second_reading
from flwr_fbo.lab.experiment_runner.config import (
    builtin_experiments,
    experiment_of,
    load_experiment,
)
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.figure import draw
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    METHODS,
    Constants,
    NonlinearBanditExperiment,
    NonlinearRun,
)
from flwr_fbo.lab.experiment_runner.results import ResultsFile, read_results
from flwr_fbo.lab.simulation.neural_bandits import (
    EachOnce,
    TurnSimulation,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    ClusterBanditTask,
    FunctionBanditTask,
    NonlinearBandit,
)
from flwr_fbo.models.langevin_regression import LangevinSettings

FIGURES = Path(__file__).parents[3] / "experiments" / "fed-go-ucb"
FIG2 = "fig2-cosine", "fig2-hartmann"
FIG3 = "fig3-magic", "fig3-magic-hadron", "fig3-shuttle", "fig3-shuttle-normal"
TOML = """
name = "mine"
num_agents = 3
num_iterations = 6
num_seeds = 2
width = 4

[task]
name = "function-bandit"
function = "cosine"
num_actions = 12

[settings]
num_exploration = 2
threshold = 4.0

[settings.regression]
num_iterations = 5

[linear]
ridge = 0.2

[glm]
reward_range = [-8.0, 1.0]
max_iterations = 7

[kernel]
lengthscale = 0.6
"""
ALL = (
    "fed-go-ucb",
    "one-go-ucb",
    "n-go-ucb",
    "dislinucb",
    "fed-glb-ucb",
    "approx-dis-kernel-ucb",
    "no-phase-one",
    "each-once",
    "random",
)
SECOND = (
    "fed-go-ucb-second",
    "phase-two-second",
    "one-go-ucb-second",
    "n-go-ucb-second",
)
# Parameters of a network of width 4 in 8 dimensions, and of a linear model.
SIZE, LINEAR_SIZE = 4 * 10 + 1, 9
PHASE_ONE = 2 * 5 * 3 * SIZE + 3 * SIZE
ONCE = 2 * 3 * (SIZE**2 + SIZE)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def experiment(file: Path) -> NonlinearBanditExperiment:
    experiment = load_experiment(file)
    assert isinstance(experiment, NonlinearBanditExperiment)
    return experiment


def test_its_file(experiment: NonlinearBanditExperiment) -> None:
    assert experiment.task == FunctionBanditTask(function="cosine", num_actions=12)
    assert experiment.methods == ALL
    assert experiment.privacy is None
    assert (experiment.linear.ridge, experiment.linear.beta) == (0.2, 0.01)
    assert experiment_of(experiment.to_dict()) == replace(experiment, num_seeds=5)
    settings = experiment.settings
    assert isinstance(settings.regression, LangevinSettings)
    assert settings.regression.num_iterations == 5
    assert (settings.num_exploration, settings.threshold) == (2, 4.0)
    usual = FedGOUCBSettings()
    assert (settings.ridge, settings.beta) == (usual.ridge, usual.beta)
    assert settings.regression.step == usual.regression.step


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"function-bandit"', '"function-bandits"', "did you mean 'function-bandit'"),
        ("threshold = 4.0", "gamma = 4.0", "settings.gamma is not known: one of"),
        ("threshold = 4.0", "privacy = 8.0", "settings.privacy"),
        ("num_exploration = 2", "num_exploration = 7", "=7 .* at most num_iterations"),
        ("max_iterations = 7", "curvature = 3.0", "curvature=3.0 .* at most 2.25"),
        ("[-8.0, 1.0]", "[1.0, -8.0]", r"low, high=\(1.0, -8.0\) is not allowed"),
        ("width = 4", "total_exploration = 8", "num_exploration=2 .* left out, with"),
        ("width = 4", 'methods = ["phase-two"]', "only with total_exploration"),
        (
            "width = 4",
            'methods = ["fed-go-ucb", "n-go-ucb", "random"]',
            r"beside its controls: \['each-once', 'no-phase-one'\] missing",
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


def test_methods_are_what_they_are_called(
    experiment: NonlinearBanditExperiment,
) -> None:
    runs = {run.method: run for run in experiment.play(ALL, seed=1)}
    for run in runs.values():
        assert len(run.regret) == len(run.num_scalars) == 6
        assert np.all(np.diff([0.0, *run.regret]) >= 0)
        assert np.all(np.diff([0, *run.num_scalars]) >= 0)
    sent = {name: run.num_scalars[-1] for name, run in runs.items()}
    counts = {name: run.num_synchronisations for name, run in runs.items()}
    assert sent["n-go-ucb"] == sent["random"] == counts["random"] == 0
    assert counts["one-go-ucb"] == 3 * 4 > counts["fed-go-ucb"] > 0
    for name in ("fed-go-ucb", "one-go-ucb"):
        assert sent[name] == PHASE_ONE + counts[name] * ONCE
    assert sent["no-phase-one"] == counts["no-phase-one"] * ONCE
    linear = 2 * 3 * (LINEAR_SIZE**2 + LINEAR_SIZE)
    assert (sent["each-once"], counts["each-once"]) == (12 * 2 * 3, 12)
    assert sent["dislinucb"] == counts["dislinucb"] * linear > 0
    for name in ("fed-go-ucb", "one-go-ucb", "n-go-ucb"):  # the same exploration
        assert runs[name].regret[:2] == runs["random"].regret[:2]
    released = {name for name, run in runs.items() if math.isinf(run.epsilon)}
    assert released == set(ALL) - {"n-go-ucb", "random"}
    assert released == {name for name, run in runs.items() if not run.private}
    (again,) = experiment.play(["fed-go-ucb"], seed=1)
    assert again.regret == runs["fed-go-ucb"].regret
    assert experiment.play(["random"], seed=2)[0].regret != runs["random"].regret


def test_readings_of_fed_go_ucb(experiment: NonlinearBanditExperiment) -> None:
    readings = ("phase-two", "linearised", "code-defaults")
    regression = LangevinSettings(
        num_iterations=5, start="zero", inverse_temperature=9.0
    )
    published = replace(
        experiment,
        settings=Constants(regression=regression, beta=3.0, num_refinements=4),
        total_exploration=8,
        methods=(*ALL, *readings),
    )
    runs = {run.method: run for run in published.play((*ALL, *readings), seed=1)}
    ours, simulation = runs["fed-go-ucb"], METHODS["fed-go-ucb"].simulation(published)
    played = simulation.run(1)
    assert played.regret_before > 0
    assert ours.regret == (played.regret_before + np.cumsum(played.regret)).tolist()
    assert runs["phase-two"].regret == np.cumsum(played.regret).tolist()
    assert runs["phase-two"].num_scalars == ours.num_scalars
    assert ["fed-go-ucb", "phase-two"] in published.batches((*ALL, *readings))
    linear = replace(published.settings, num_refinements=0)
    expected = replace(published, settings=linear).play(["fed-go-ucb"], seed=1)[0]
    assert runs["linearised"].regret == expected.regret != ours.regret
    sampling = Constants(exploration="sampling")
    methods = tuple(name for name in ALL if name != "one-go-ucb")
    usual = replace(experiment, settings=sampling, methods=methods)
    assert runs["code-defaults"].regret == usual.play(["fed-go-ucb"], seed=1)[0].regret
    # The controls have no phase I before the first round.
    plain = {run.method: run for run in experiment.play(["dislinucb", "random"], 1)}
    for name, run in plain.items():
        assert runs[name].regret == run.regret


def test_the_second_reading_has_a_random_start_and_line_3_in_closed_form(
    experiment: NonlinearBanditExperiment,
) -> None:
    """And turns, T0 and optimism as the first; its constants are those of Hartmann."""
    first = replace(
        experiment,
        settings=Constants(beta=3.0, num_refinements=4),
        total_exploration=8,
        methods=(*ALL, *SECOND),
    )
    hartmann = load_experiment(FIGURES / "fig2-hartmann.toml")
    assert isinstance(hartmann, NonlinearBanditExperiment)
    found = hartmann.settings
    regression = replace(found.regression, start="model")
    settings = replace(found, num_refinements=0, regression=regression)
    expected = replace(first, settings=settings, methods=ALL)
    for name in ("fed-go-ucb", "one-go-ucb", "n-go-ucb"):
        second = METHODS[name].second_reading
        assert second in SECOND
        [run], [like] = first.play([second], 1), expected.play([name], 1)
        assert run.regret == like.regret
        assert run.num_scalars == like.num_scalars
        assert run.regret != first.play([name], 1)[0].regret
    claim = Claim("a", "fed-go-ucb", "n-go-ucb")
    in_second = in_second_reading(claim, first)
    assert in_second == replace(claim, better=SECOND[0], than=SECOND[3])
    claim = Claim("b", "fed-go-ucb", "dislinucb")
    assert in_second_reading(claim, first) == replace(claim, better=SECOND[0])
    assert in_second_reading(replace(claim, first_reading_only=True), first) is None
    without = replace(first, methods=(*ALL, SECOND[0]))
    assert in_second_reading(claim, without) == in_second_reading(claim, first)
    assert in_second_reading(Claim("a", "fed-go-ucb", "n-go-ucb"), without) is None
    assert in_second_reading(claim, experiment) is None  # it has no second reading
    assert in_second_reading(Claim("c", "dislinucb", "random"), first) is None


def test_a_linear_model_s_threshold_is_that_of_its_analysis_unless_given(
    experiment: NonlinearBanditExperiment,
) -> None:
    # T log(N T) / (d N)
    usual = 6 * math.log(18) / (LINEAR_SIZE * 3)
    counts = []
    for threshold in (None, usual, 1e-9, 1e9):
        linear = replace(experiment.linear, threshold=threshold)
        (run,) = replace(experiment, linear=linear).play(["dislinucb"], seed=1)
        counts.append(run.num_synchronisations)
    assert counts[0] == counts[1]
    assert counts[2:] == [18, 0]


def test_the_other_bandits_play_in_the_same_environment(
    experiment: NonlinearBanditExperiment,
) -> None:
    glm, kernel = experiment.glm, experiment.kernel
    assert (glm.reward_range, glm.max_iterations) == ((-8.0, 1.0), 7)
    assert vars(kernel) == vars(KernelUCBSettings(lengthscale=0.6))
    runs = experiment.play(["fed-glb-ucb", "approx-dis-kernel-ucb"], seed=1)
    for run, settings in zip(runs, (glm, kernel), strict=True):
        expected = TurnSimulation(settings, experiment.task, 3, 6).run(1)
        assert run.regret == np.cumsum(expected.regret).tolist()
        assert run.num_scalars == expected.num_scalars.tolist()
        assert run.num_synchronisations == expected.num_synchronisations > 0
        assert math.isinf(run.epsilon)
    again = _written_and_read(experiment)
    assert (again.glm, again.kernel) == (experiment.glm, experiment.kernel)


def _written_and_read(
    experiment: NonlinearBanditExperiment,
) -> NonlinearBanditExperiment:
    again = experiment_of(json.loads(json.dumps(experiment.to_dict())))
    assert isinstance(again, NonlinearBanditExperiment)
    return again


def test_each_action_is_tried_once_and_then_the_best(
    experiment: NonlinearBanditExperiment,
) -> None:
    bandit = NonlinearBandit(experiment.task, 4)
    gaps = bandit.means.max() - bandit.means
    run = EachOnce(experiment.task, 5, 6).run(4)
    assert run.actions.ravel()[:12].tolist() == list(range(12))
    assert set(run.actions.ravel()[12:]) == {int(bandit.means.argmax())}
    assert run.regret.sum() == pytest.approx(gaps.sum())
    assert run.num_scalars.tolist() == [50, 100, 120, 120, 120, 120]
    short = EachOnce(experiment.task, 5, 2).run(4)
    assert short.actions.ravel().tolist() == list(range(10))
    assert short.num_synchronisations == 10


def test_what_is_sent_by_formula(experiment: NonlinearBanditExperiment) -> None:
    assert experiment.scalars_a_synchronisation == ONCE
    assert experiment.scalars_of_points == 3**2 * 6 * 9
    task = FunctionBanditTask()
    paper = replace(experiment, num_agents=20, num_iterations=100, task=task, width=25)
    assert paper.scalars_a_synchronisation == 1_624_080
    assert paper.scalars_of_points == 280_000
    notes = " ".join(paper.notes([], None)[1])
    assert "1.62 M a synchronisation" in notes
    assert "280 k in 100 rounds" in notes
    assert "NOT PRIVATE" in notes


def test_runs_are_shared_by_what_they_depend_on(
    experiment: NonlinearBanditExperiment,
) -> None:
    other = replace(
        experiment,
        name="other",
        settings=replace(experiment.settings, ridge=0.5),
        linear=replace(experiment.linear, beta=0.5),
    )
    same = {name for name in ALL if other.recipe(name) == experiment.recipe(name)}
    assert same == {"each-once", "random", "fed-glb-ucb", "approx-dis-kernel-ucb"}
    other = replace(experiment, linear=other.linear)
    same = {name for name in ALL if other.recipe(name) == experiment.recipe(name)}
    assert same == set(ALL) - {"dislinucb"}
    other = replace(
        experiment,
        glm=replace(experiment.glm, beta=0.5),
        kernel=replace(experiment.kernel, beta=0.5),
    )
    same = {name for name in ALL if other.recipe(name) == experiment.recipe(name)}
    assert same == set(ALL) - {"fed-glb-ucb", "approx-dis-kernel-ucb"}


def _made(method: str, seed: int, last: float, scalars: int = 0) -> NonlinearRun:
    return NonlinearRun(
        method=method,
        seed=seed,
        epsilon=0.0,
        private=True,
        seconds=1.0,
        regret=[last * (t + 1) / 6 for t in range(6)],
        num_scalars=[scalars] * 6,
        num_synchronisations=scalars // 1000,
    )


def _runs(scalars: int = 0, **levels: list[float]) -> list[NonlinearRun]:
    """Return three runs a method, of a regret of 100 to 102 unless given."""
    every = {name: [100.0, 101.0, 102.0] for name in ALL}
    every |= {name.replace("_", "-"): values for name, values in levels.items()}
    sent = {"one-go-ucb": 10 * scalars, "fed-go-ucb": scalars}
    return [
        _made(name, seed, last, sent.get(name, 0))
        for name, values in every.items()
        for seed, last in enumerate(values)
    ]


def test_the_table_compares_by_seed(experiment: NonlinearBanditExperiment) -> None:
    runs = _runs(7000, fed_go_ucb=[40.0, 42.0, 43.0], dislinucb=[50.0, 60.0, 70.0])
    row = summarize(experiment, runs)["fed-go-ucb"]
    assert row.estimates["over_alone"] == Estimate.of(np.array([-60.0, -59.0, -59.0]))
    assert row.estimates["over_linear"] == Estimate.of(np.array([-10.0, -18.0, -27.0]))
    assert row.estimates["over_no_phase_one"] == row.estimates["over_alone"]
    assert row.estimates["scalars"] == Estimate(7000.0, 0.0, 3, 3)
    assert row.estimates["synchronisations"] == Estimate(7.0, 0.0, 3, 3)
    half = summarize(experiment, runs, 3)["fed-go-ucb"]
    assert half.estimates["regret"].mean == pytest.approx(
        row.estimates["regret"].mean / 2
    )
    assert "synchronisations" not in half.estimates
    assert "over_alone" not in summarize(experiment, runs)["n-go-ucb"].estimates
    for until in (0, 7):
        with pytest.raises(ValueError, match=f"until={until} .* 1 to 6"):
            summarize(experiment, runs, until)
    few = replace(experiment, methods=("n-go-ucb", "random"))
    assert "over_linear" not in summarize(few, runs)["random"].estimates


def test_the_table_is_narrow_enough(experiment: NonlinearBanditExperiment) -> None:
    runs = _runs(81_500_000, random=[20901.2, 20705.6, 21500.0])
    text = StringIO()
    print_report(experiment, runs, Console(file=text, width=80))
    said = text.getvalue()
    assert "…" not in said
    heading = next(line for line in said.splitlines() if "method" in line)
    columns = ["method", "regret", "over", "N-GO*", "over", "linear*", "scalars"]
    assert heading.split() == [*columns, "syncs"]
    rows = [line for line in said.splitlines() if line.startswith(" Fed-GO-UCB ")]
    assert "81.5 ± 0.0 M" in rows[0]


def test_the_verdict(experiment: NonlinearBanditExperiment) -> None:
    runs = _runs(
        1_000_000,
        fed_go_ucb=[40.0, 42.0, 43.0],
        dislinucb=[200.0, 201.5, 203.0],
        no_phase_one=[40.0, 42.0, 43.0],
    )
    lines = experiment.verdict(summarize(experiment, runs))
    assert lines[0].startswith("Fed-GO-UCB does better than N-GO-UCB: +59.3")
    assert "95% t interval" in lines[0]
    assert lines[1].startswith("One-GO-UCB cannot be told from N-GO-UCB")
    assert lines[2].startswith("DisLinUCB does worse than N-GO-UCB")
    assert lines[7].startswith("Fed-GO-UCB does better than DisLinUCB")
    assert lines[8].startswith("Fed-GO-UCB cannot be told from without phase I")
    assert lines[9].startswith("Fed-GO-UCB does better than trying each action once")
    last = "Fed-GO-UCB sends 1.00 M scalars, 10.00% of the 10.0 M of One-GO-UCB."
    assert lines[10] == last
    one = [run for run in runs if run.seed == 0]
    assert "One seed" in experiment.verdict(summarize(experiment, one))[0]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.0, math.nan, "0"),
        (11_200.0, math.nan, "11.2 k"),
        (1_624_080.0, math.nan, "1.62 M"),
        (81_500_000.0, 1_200_000.0, "81.5 ± 1.2 M"),
        (-3_217_290_420.0, 0.0, "-3.22 ± 0.00 G"),
    ],
)
def test_numbers_for_people(value: float, error: float, text: str) -> None:
    assert humanised(value, error) == text


def test_claims_of_regret_and_of_scalars(experiment: NonlinearBanditExperiment) -> None:
    claims = (
        Claim("lower regret", "fed-go-ucb", "n-go-ucb"),
        Claim("fewer scalars", "fed-go-ucb", "one-go-ucb", by="scalars"),
    )
    experiment = replace(experiment, claims=claims)
    runs = _runs(1000, fed_go_ucb=[40.0, 42.0, 43.0])
    regret, scalars = findings(experiment, runs)
    assert regret.gain.mean == pytest.approx(178 / 3)
    assert scalars.gain == Estimate(9000.0, 0.0, 3, 3)
    assert regret.verdict == scalars.verdict == "confirmed"
    digits = load_experiment(builtin_experiments()["digits"])
    claim = Claim("a", "private", "alone", by="scalars")
    with pytest.raises(ValueError, match=r"by='scalars' .* where scalars are counted"):
        replace(digits, claims=(claim,))


def test_results_come_back(
    experiment: NonlinearBanditExperiment, tmp_path: Path
) -> None:
    made = _runs(1000)
    path = tmp_path / "results" / "results.jsonl"
    with ResultsFile(path, experiment) as results:
        for run in made:
            results.append(run)
    there, runs = read_results(path)
    assert there == replace(experiment, num_seeds=5)
    assert runs == made
    draw(experiment, runs, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    cut = replace(_made("random", 7, 1.0), num_scalars=[0] * 5)
    path.write_text(path.read_text() + cut.to_json() + "\n")
    with pytest.raises(ValueError, match=f"is damaged in line {len(made) + 2}"):
        read_results(path)


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def test_the_command(file: Path, tmp_path: Path) -> None:
    claim = 'text = "sends less"\nbetter = "fed-go-ucb"\nthan = "one-go-ucb"\n'
    file.write_text(TOML + "\n[[claims]]\n" + claim + 'by = "scalars"\n')
    run = ("run", str(file), "--jobs=1", f"--output={tmp_path}")
    result = _invoke(*run, "--seeds=1")
    assert result.exit_code == 0, result.output
    result = _invoke(*run)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "9 of 18 runs are in" in said
    assert "Regret of 3 agents together in 6 rounds" in said
    assert "NOT PRIVATE" in said
    assert "sends less: fewer scalars +" in said
    assert (tmp_path / "mine" / "figure.png").stat().st_size > 10_000
    values = json.loads(_invoke("show", str(tmp_path / "mine"), "--json").stdout)
    assert values["private"] is False
    assert set(values["methods"]["fed-go-ucb"]) == {
        "epsilon",
        "regret",
        "over_alone",
        "over_linear",
        "over_no_phase_one",
        "over_each_once",
        "scalars",
        "synchronisations",
    }
    shown = _invoke("show", str(tmp_path / "mine"), "--until=3")
    assert "in 3 rounds" in shown.output
    lines = _invoke("claims", str(file), f"--output={tmp_path}").output.splitlines()
    assert re.fullmatch(r"mine: .*\. [\d.e-]+ CPU minutes\.", lines[0])
    cells = lines[4].split(" | ")
    assert cells[0] == "| sends less (not in the paper)"
    assert cells[1].startswith("fewer scalars +")
    refused = _invoke(*run, "--epsilon=2")
    assert refused.exit_code == 1
    assert "where no method is private" in refused.output


def test_missing_data_are_named_before_any_work(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path / "nowhere"))
    task = TOML[TOML.index('name = "function') : TOML.index("\n[settings]")]
    table = 'name = "cluster-bandit"\ntable = "shuttle"\nrewarded = "normal"\n'
    file.write_text(TOML.replace(task, table))
    experiment = load_experiment(file)
    assert isinstance(experiment, NonlinearBanditExperiment)
    assert experiment.task == ClusterBanditTask(table="shuttle", rewarded="normal")
    with pytest.raises(DataError, match=r"shuttle.* is missing"):
        experiment.check()
    result = _invoke("run", str(file), f"--output={tmp_path / 'results'}")
    assert result.exit_code == 1
    assert "FLWR_FBO_DATA" in result.output
    assert not (tmp_path / "results").exists()


def test_the_published_figures() -> None:
    """Each has the paper's sizes, phase I, baselines and claims."""
    sizes = {}
    for path in FIGURES.glob("*.toml"):
        experiment = load_experiment(path)
        assert isinstance(experiment, NonlinearBanditExperiment)
        agents, rounds = experiment.num_agents, experiment.num_iterations
        sizes[experiment.name] = (agents, rounds, experiment.num_seeds)
        assert experiment.total_exploration == math.ceil(math.sqrt(agents * rounds))
        second = tuple(name for name in SECOND if name in experiment.methods)
        if not experiment.name.endswith(("-noise", "-hadron", "-normal")):
            assert {*SECOND} - {*second} <= {"one-go-ucb-second"}
        assert experiment.methods == (
            "fed-go-ucb",
            "phase-two",
            "linearised",
            "code-defaults",
            *second,
            *ALL[1:],
        )
        assert experiment.settings.regression.start == "zero"
        assert experiment.settings.num_refinements > 0
        claimed = [(c.better, c.than, c.by) for c in experiment.claims]
        for baseline in ALL[2:6]:
            assert ("fed-go-ucb", baseline, "final") in claimed
        assert ("fed-go-ucb", "one-go-ucb", "scalars") in claimed
    synthetic, real = (20, 100, 10), (100, 100, 10)
    assert sizes == {
        f"fed-go-ucb/{name}{noise}": real if name in FIG3 else synthetic
        for name in FIG2 + FIG3
        for noise in ("", "-noise")
    }


def test_a_figure_with_more_noise_is_else_the_same() -> None:
    for name in FIG2 + FIG3:
        quiet, noisy = (
            tomllib.loads((FIGURES / f"{name}{noise}.toml").read_text())
            for noise in ("", "-noise")
        )
        assert quiet["task"].pop("noise_std") == 0.01
        assert noisy["task"].pop("noise_std") == 0.3
        for values in (quiet, noisy):
            for part in ("settings", "linear", "glm", "kernel"):  # of searches apart
                values.pop(part, None)
            values["methods"] = [m for m in values["methods"] if m not in SECOND]
        for key in ("name", "description"):
            assert quiet.pop(key) != noisy.pop(key)
        assert quiet == noisy, name
