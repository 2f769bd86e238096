"""Published figures: curves with settings of their own, claims, and the rule."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.lab.cli.claims_command import outcome, power_text
from flwr_fbo.lab.experiment_runner.base import Claim
from flwr_fbo.lab.experiment_runner.claims import findings, hours_missing
from flwr_fbo.lab.experiment_runner.config import builtin_experiments, load_experiment
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.figure import (
    _figure_of,
    draw,
    draw_curves,
    looks_of,
    new_figure,
    own_form,
    say_at_the_foot,
)
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    NonlinearBanditExperiment,
)
from flwr_fbo.lab.experiment_runner.results import ResultsFile, place_of, read_results
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    Curve,
    TuningExperiment,
    TuningPrivacy,
    run_one,
)
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun
from flwr_fbo.lab.tasks.base import Task
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.privacy.accounting import ReleaseAccountant

FOLDER = Path(__file__).parents[3] / "experiments"
TOML = """\
name = "fig9"
description = "A figure"
num_agents = 3
num_evaluations = 12
num_seeds = 2
preset = "paper-synthetic"
form = "tradeoff"
methods = ["alone", "random", "open", "private", "noise-only"]

[task]
name = "synthetic"

[privacy]
noise_multiplier = 1.0
sampling_probability = 0.35
delta = 1e-2

[curves.fts]
label = "FTS"
method = "open"
num_sub_regions = 1

[curves.loud]
label = "z = 4"
method = "private"
noise_multiplier = 4.0
series = ["z"]

[curves.quiet]
label = "z = 1"
method = "private"
noise_multiplier = 1.0
sampling_probability = 0.35
series = ["z"]

[[claims]]
text = "less noise is better"
section = "3.2"
better = "quiet"
than = "loud"

[[claims]]
text = "FTS is faster than TS"
better = "fts"
than = "alone"
by = "mean"
"""


@pytest.fixture
def figure(tmp_path: Path) -> TuningExperiment:
    (tmp_path / "fig9.toml").write_text(TOML)
    experiment = load_experiment(tmp_path / "fig9.toml")
    assert isinstance(experiment, TuningExperiment)
    return experiment


def _draw_own_form(axes: Any, experiment: Any, runs: Any) -> None:
    draw_form = own_form(experiment)
    assert draw_form is not None
    draw_form(axes, experiment, runs)


def test_private_curves_bring_their_control(figure: TuningExperiment) -> None:
    assert figure.methods[5:] == (
        "fts",
        "loud",
        "loud-noise-only",
        "quiet",
    )
    assert figure.label_of("loud-noise-only") == "z = 4, noise-only"
    # They differ in z alone: one control is enough.
    for name in ("loud", "quiet"):
        assert figure.known_methods[name].noise_only == "loud-noise-only"
    assert figure.known_methods["fts"].noise_only is None


def test_a_curve_is_the_method_with_its_settings(figure: TuningExperiment) -> None:
    """And so the two have one recipe, where others differ."""
    for curve, method in (("quiet", "private"), ("loud-noise-only", "noise-only")):
        assert figure.recipe(curve) == figure.recipe(method)
        ours, theirs = (run_one(figure, name, 1) for name in (curve, method))
        assert ours.best_so_far == theirs.best_so_far
        assert ours.epsilon == theirs.epsilon
    assert run_one(figure, "loud", 1).epsilon < run_one(figure, "quiet", 1).epsilon
    recipes = [str(figure.recipe(name)) for name in figure.methods]
    assert len(set(recipes)) == len(recipes) - 2


def test_one_sub_region_is_the_whole_space(figure: TuningExperiment) -> None:
    anywhere = {"anywhere": Curve("TS from anywhere", "alone", num_sub_regions=1)}
    plan = replace(
        figure,
        claims=(),
        form="convergence",
        methods=("alone", "random"),
        curves=anywhere,
    )
    assert (
        run_one(plan, "anywhere", 0).best_so_far
        != run_one(plan, "alone", 0).best_so_far
    )
    assert plan.recipe("anywhere") != plan.recipe("alone")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_sub_regions", "num_sub_region", "did you mean 'num_sub_regions'"),
        ("= 4.0", '= "x"', r"curves\.loud\.noise_multiplier='x' is not allowed"),
        ('than = "loud"', 'than = "lout"', "claims='lout' .*did you mean 'loud'"),
        ("[curves.fts]", "[curves.alone]", "curves='alone' is not allowed"),
        (
            "num_sub_regions = 1",
            "clip_norm = 1.0",
            "clip_norm=1.0 is not allowed: left out, with method='open'",
        ),
        ('form = "tradeoff"', 'form = "table"', "form='table' is not allowed"),
        (
            'series = ["z"]',
            "",
            r"curves=\['loud'.* is not allowed: private curves, each",
        ),
        ('than = "alone"', 'than = "fts"', "than='fts' is not allowed: another than"),
        ("FTS is", "FTS | is", "text='FTS . is faster than TS' is not allowed"),
    ],
)
def test_a_typo_in_a_figure_is_named(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert old in TOML
    (tmp_path / "fig9.toml").write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=words):
        load_experiment(tmp_path / "fig9.toml")


def test_what_a_curve_must_not_be_is_refused_before_any_work(
    figure: TuningExperiment,
) -> None:
    for curve, words in (
        (Curve("a", "private", noise_multiplier=-1.0), "noise_multiplier=-1.0"),
        (Curve("a", "private", clip_norm=0.0), "clip_norm=0.0"),
        (Curve("a", "open", num_sub_regions=0), "num_sub_regions=0"),
    ):
        plan = replace(
            figure,
            claims=(),
            form="convergence",
            methods=("alone", "random"),
            curves={"a": curve},
        )
        with pytest.raises(ValueError, match=re.escape(f"a: {words}")):
            plan.check()
    with pytest.raises(ValueError, match=r"epsilon=2\.0 is not allowed: left out"):
        figure.with_epsilon(2.0)


def _runs(
    experiment: TuningExperiment, ends: dict[str, list[float]]
) -> list[TuningRun]:
    """Return runs in which all agents end at a value, having begun at 0."""
    return [
        TuningRun(
            method=name,
            seed=seed,
            best_so_far=[[*[0.0] * 10, end, end]] * experiment.num_agents,
            epsilon=math.inf if name == "fts" else 1.0,
            private=False,
            failed_trials=0,
            seconds=1.0,
        )
        for name in experiment.methods
        for seed, end in enumerate(ends.get(name, [0.5, 0.51, 0.52]))
    ]


HIGH, LOW = [0.7, 0.72, 0.71], [0.3, 0.32, 0.3]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"quiet": HIGH}, "confirmed"),
        ({"quiet": HIGH, "loud-noise-only": HIGH}, "not told from noise-only"),
        ({"quiet": [0.2, 0.51, 0.9]}, "undecided"),
        ({"quiet": LOW}, "not confirmed: the contrary"),
        ({"random": HIGH}, "undecided"),
        ({}, "no room"),
    ],
)
def test_verdicts_follow_the_rule(
    figure: TuningExperiment, ends: dict[str, list[float]], expected: str
) -> None:
    claims = (Claim("a", "quiet", "alone"), Claim("b", "fts", "alone"))
    first, second = findings(replace(figure, claims=claims), _runs(figure, ends))
    assert first.verdict == expected
    assert first.beyond_noise is not None
    assert second.beyond_noise is None
    assert second.verdict in ("undecided", "no room")


def test_noise_cannot_explain_a_gap_of_two_curves_that_share_their_control(
    figure: TuningExperiment,
) -> None:
    """Whatever the control does: it cancels in the difference of differences."""
    ends = {"quiet": HIGH, "loud-noise-only": [0.9, 0.1, 0.8]}
    finding, _ = findings(figure, _runs(figure, ends))
    assert finding.beyond_noise is None
    assert finding.verdict == "confirmed"


def test_the_control_of_two_private_curves_is_a_difference_of_differences(
    figure: TuningExperiment,
) -> None:
    plan = replace(
        figure,
        claims=(Claim("a", "quiet", "wide"),),
        form="convergence",
        methods=("alone", "random"),
        curves={
            "quiet": replace(figure.curves["quiet"], series=()),
            "wide": Curve("wide", "private", num_sub_regions=1),
        },
    )
    noise = [0.8, 0.4, 0.6]
    ends = {"quiet": HIGH, "quiet-noise-only": noise, "wide-noise-only": noise}
    (finding,) = findings(plan, _runs(plan, ends))
    assert finding.verdict == "confirmed"  # over its own noise-only it is not
    assert finding.beyond_noise == finding.gain
    ends["wide-noise-only"] = [0.6, 0.2, 0.4]  # noise alone has all of the gap
    (finding,) = findings(plan, _runs(plan, ends))
    assert finding.beyond_noise is not None
    assert finding.beyond_noise.mean == pytest.approx(0.2 - 0.2)
    assert finding.verdict == "not told from noise-only"


def test_an_effect_that_the_interval_excludes_is_not_confirmed(
    figure: TuningExperiment,
) -> None:
    runs = _runs(figure, {"quiet": [0.5, 0.515, 0.517], "random": HIGH})
    less = "not confirmed: less than the paper's"
    for effect, verdict in ((0.1, less), (0.001, "undecided"), (None, "undecided")):
        claim = Claim("a", "quiet", "loud", effect=effect)
        (finding,) = findings(replace(figure, claims=(claim,)), runs)
        assert finding.verdict == verdict


def test_power_is_that_of_simulated_runs(figure: TuningExperiment) -> None:
    """And as many seeds as it says have a power of 0.8."""
    rng = np.random.default_rng(0)
    gaps = np.array([0.02, -0.01, 0.03, 0.0, 0.01])
    found = Estimate.of(gaps)
    spread = found.standard_error * 5**0.5

    def simulated(effect: float, number: int) -> float:
        values = rng.normal(effect, spread, (10_000, number))
        return float(np.mean([Estimate.of(v).interval[0] > 0 for v in values[:2000]]))

    assert found.power(0.03) == pytest.approx(simulated(0.03, 5), abs=0.03)
    assert found.power(found.detectable()) == pytest.approx(0.8, abs=1e-6)
    needed = found.num_needed(0.01, 1000)
    assert needed is not None
    assert simulated(0.01, needed) == pytest.approx(0.8, abs=0.03)
    assert found.num_needed(1e-5, 1000) is None


def test_an_undecided_claim_says_what_it_lacks(figure: TuningExperiment) -> None:
    ends = {"quiet": [0.52, 0.5, 0.55], "random": HIGH}
    finding, _ = findings(figure, _runs(figure, ends))
    power = finding.power
    assert power is not None
    assert power.effect == pytest.approx(finding.gain.mean)
    assert power.num_needed is not None
    assert power.num_needed > 3
    assert f"or with {power.num_needed} seeds" in power_text(finding)
    # Two runs of a second a seed.
    hours = 2 * (power.num_needed - 3) / 3600
    assert hours_missing([finding, finding]) == pytest.approx(hours)
    confirmed, _ = findings(figure, _runs(figure, {"quiet": HIGH}))
    assert confirmed.power is None
    assert power_text(confirmed) == ""


def test_a_figure_shows_losses_where_its_paper_does(figure: TuningExperiment) -> None:
    """And within the paper's range; what runs are is the same."""
    curves = {"fts": figure.curves["fts"]}
    methods = ("alone", "random", "open")
    plan = replace(
        figure, claims=(), form="convergence", curves=curves, methods=methods
    )
    loss = replace(plan, as_loss=True, y_range=(0.2, 0.6))
    assert loss.to_dict() == plan.to_dict()
    runs = _runs(plan, {"fts": HIGH})
    up, down = (_figure_of(one, runs).axes[0] for one in (plan, loss))
    assert up.get_ylabel() == "best function value so far"
    assert down.get_ylabel() == "simple regret (1 - function value) so far"
    assert down.get_ylim() == (0.2, 0.6)
    for value, regret in zip(up.lines, down.lines, strict=True):
        np.testing.assert_allclose(regret.get_ydata(), 1 - value.get_ydata())
    with pytest.raises(ValueError, match="y_range="):
        replace(plan, y_range=(0.6, 0.2))
    object.__setattr__(figure, "task", _Down())
    with pytest.raises(ValueError, match=r"as_loss=True.* a task to minimize"):
        replace(figure, as_loss=True)


class _Down(Task):
    """A task to minimize, with nothing to evaluate."""

    name = "synthetic"
    direction = "minimize"
    space = SyntheticTask().space
    objective = check = None  # type: ignore[assignment]


def test_where_low_is_good_a_claim_holds_below(figure: TuningExperiment) -> None:
    object.__setattr__(figure, "task", _Down())
    assert findings(figure, _runs(figure, {"quiet": LOW}))[0].verdict == "confirmed"
    assert findings(figure, _runs(figure, {"fts": LOW}))[1].verdict == "confirmed"


def test_final_and_mean_are_what_they_say(figure: TuningExperiment) -> None:
    runs = _runs(figure, {})
    late = [[*[0.0] * 11, 1.0]] * figure.num_agents
    runs = [replace(r, best_so_far=late) if r.method == "fts" else r for r in runs]
    claims = (
        Claim("a", "fts", "alone"),
        Claim("b", "fts", "alone", by="mean"),
    )
    final, mean = findings(replace(figure, claims=claims), runs)
    assert final.gain.mean == pytest.approx(1 - 0.51)
    # Without the ten initial points, which no method has chosen.
    assert mean.gain.mean == pytest.approx((0 - 0.51 + 1 - 0.51) / 2)


def test_fewer_seconds_are_better(figure: TuningExperiment) -> None:
    """And messages of zeros, which take as long, decide nothing."""
    runs = [
        replace(r, seconds=(2.0 if r.method == "quiet" else 5.0) + r.seed**2)
        for r in _runs(figure, {"alone": HIGH})
        if r.method in ("quiet", "alone")
    ]
    runs[0] = replace(runs[0], seconds=runs[0].seconds + 0.5)
    claim = Claim("it is quick", "quiet", "alone", by="seconds")
    (finding,) = findings(replace(figure, claims=(claim,)), runs)
    assert finding.verdict == "confirmed"
    assert finding.beyond_noise is None
    said = "fewer CPU seconds +3.1667 ± 0.1667"
    assert outcome(finding) == said
    one = [run for run in runs if run.seed == 0]
    (finding,) = findings(replace(figure, claims=(claim,)), one)
    assert finding.verdict == "no verdict: one seed"


def test_an_interval_over_functions_counts_functions(figure: TuningExperiment) -> None:
    """Runs that share their function are one value, unless there is one function."""
    ends = {"quiet": [0.9, 0.91, 0.55]}
    runs = _runs(figure, ends)
    for per_function, groups, num in ((1, [0, 1, 2], 3), (2, [0, 0, 1], 2), (3, [], 3)):
        task = SyntheticTask(runs_per_function=per_function)
        (found, _) = findings(replace(figure, task=task), runs)
        gaps = np.array(ends["quiet"]) - [0.5, 0.51, 0.52]
        of_group = [gaps[np.equal(groups, g)].mean() for g in sorted(set(groups))]
        values = of_group or list(gaps)
        assert found.gain.num_runs == 3
        assert found.gain.num_groups == num
        error = np.std(values, ddof=1) / num**0.5
        assert found.gain.standard_error == pytest.approx(error)
        assert ("(± over 2 functions)" in outcome(found)) is (num == 2)
        assert found.gain.interval[0] < found.gain.mean - 2 * error


def test_a_claim_needs_the_seeds_of_its_own_methods_only(
    figure: TuningExperiment,
) -> None:
    runs = [r for r in _runs(figure, {}) if r.method != "loud" or r.seed < 2]
    first, second = findings(figure, runs)
    assert (first.gain.num_runs, second.gain.num_runs) == (2, 3)


def test_runs_of_another_figure_are_taken_over(
    figure: TuningExperiment, tmp_path: Path
) -> None:
    """Under the name that they have here."""
    with ResultsFile(tmp_path / "a", figure) as results:
        for run in _runs(figure, {"quiet": HIGH}):
            results.append(run)
    plain = replace(
        figure,
        name="plain",
        claims=(),
        form="convergence",
        curves={},
        methods=("usual",),
    )
    with ResultsFile(tmp_path / "b", plain) as results:
        assert results.take_over(tmp_path / "a", plain) == 5 * 3
        assert results.take_over(tmp_path / "a", plain) == 0
    louder = replace(
        plain, name="louder", privacy=TuningPrivacy(1e-2, noise_multiplier=3.0)
    )
    with ResultsFile(tmp_path / "c", louder) as results:
        assert results.take_over(tmp_path / "a", louder) == 4 * 3  # all but private
    (tmp_path / "a").write_text("damaged")
    with ResultsFile(tmp_path / "d", plain) as results:
        assert results.take_over(tmp_path / "a", plain) == 0


def test_a_figure_has_a_picture(figure: TuningExperiment, tmp_path: Path) -> None:
    draw(figure, _runs(figure, {"quiet": HIGH}), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_begins_where_methods_differ_and_has_all_names(
    figure: TuningExperiment,
) -> None:
    """However long names are: no column of them is cut off."""
    long = Curve("a curve whose name is that of all its settings", "private")
    curves, methods = {"long": long}, ("alone", "random", "open")
    plan = replace(
        figure, claims=(), form="convergence", curves=curves, methods=methods
    )
    levels = {name: [0.1 * k, 0.2, 0.3] for k, name in enumerate(plan.methods)}
    made = _figure_of(plan, _runs(plan, levels))
    [legend] = made.legends
    assert len(legend.get_texts()) == len(plan.methods)
    assert legend.get_window_extent().width <= made.bbox.width
    starts = {line.get_xdata()[0] for line in made.axes[0].get_lines()}
    assert starts == {plan.base.agent.num_initial}


def test_bars_end_within_the_picture(figure: TuningExperiment) -> None:
    _, axes = new_figure()
    _draw_own_form(axes, figure, _runs(figure, {"quiet": [0.2, 0.51, 0.9]}))
    low, high = axes.get_ylim()
    bars = np.concatenate(
        [bar for drawn in axes.containers for bar in drawn.lines[2][0].get_segments()]
    )
    assert len(bars) == 2 * 2
    assert np.ptp(bars[:, 1]) > 0.3
    assert low < bars[:, 1].min()
    assert high > bars[:, 1].max()


def test_the_error_is_drawn_against_the_papers_epsilon(
    figure: TuningExperiment,
) -> None:
    """What is to be maximised as 1 less it, and noise-only as one level."""
    _, axes = new_figure()
    loss = replace(figure, as_loss=True)
    _draw_own_form(axes, loss, _runs(figure, {"quiet": HIGH, "loud": LOW}))
    assert axes.get_ylabel().startswith("simple regret (1 - ")
    [drawn] = axes.containers
    x, y = drawn.lines[0].get_data(orig=False)
    np.testing.assert_allclose(y, [1 - np.mean(LOW), 1 - np.mean(HIGH)], rtol=1e-6)
    accountant = ReleaseAccountant(0.35, 1e-2, "moments")
    accountant.charge(1.0, 2)
    assert x[1] == pytest.approx(accountant.epsilon())
    labels = axes.get_legend_handles_labels()[1]
    assert "DP-FTS-DE, z" in labels
    assert "noise-only: 0.4900" in labels


def test_curves_of_a_series_have_a_panel(figure: TuningExperiment) -> None:
    curves = {
        "a": Curve("FTS-DE, P = 2", "open", num_sub_regions=2, series=("P = 2",)),
        "b": Curve("FTS-DE, P = 3", "open", num_sub_regions=3, series=("P = 3",)),
    }
    methods = ("alone", "random")
    plan = replace(
        figure, claims=(), form="convergence", curves=curves, methods=methods
    )
    ends = {"alone": LOW, "random": [0.1, 0.1, 0.2], "a": HIGH}
    made = _figure_of(plan, _runs(plan, ends))
    panels = [axes.get_legend_handles_labels()[1] for axes in made.axes]
    shared = ["TS in sub-regions (ours)", "random"]
    assert panels == [[*shared, "FTS-DE, P = 2"], [*shared, "FTS-DE, P = 3"]]


def test_no_two_curves_look_alike(figure: TuningExperiment) -> None:
    looks = looks_of(figure)
    assert set(looks) == set(figure.methods)
    assert len(set(looks.values())) == len(looks)
    loud = looks["loud"]
    assert looks["loud-noise-only"] == (loud[0], ":", loud[2])
    curves = {f"c{i}": Curve(str(i), "private", series=("a",)) for i in range(14)}
    methods = ("alone", "random", "open")
    looks = looks_of(replace(figure, claims=(), methods=methods, curves=curves))
    assert len({looks[name] for name in curves}) == 14


def test_runs_of_other_settings_decide_no_claim(
    figure: TuningExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they lie where those of the claim would."""
    monkeypatch.chdir(tmp_path)
    path = Path("results", "fig9", "results.jsonl")
    shorter = figure.with_steps(11)
    with ResultsFile(path, shorter) as results:
        for run in _runs(figure, {}):
            cut = [curve[:11] for curve in run.best_so_far]
            results.append(replace(run, best_so_far=cut))
    runner = CliRunner()
    table = runner.invoke(app, ["claims", "fig9.toml"], catch_exceptions=False)
    assert "| 11 of 12 evaluations run | - |" in table.output
    refused = runner.invoke(app, ["run", "fig9.toml"])
    assert "rename that one" in " ".join(refused.output.split())
    path.unlink()
    with ResultsFile(path, figure) as results:
        for run in _runs(figure, {}):
            if run.seed < 2:
                results.append(run)
    Path("longer.toml").write_text(TOML.replace("num_seeds = 2", "num_seeds = 3"))
    table = runner.invoke(app, ["claims", "longer.toml"], catch_exceptions=False)
    assert "(2 of 3 seeds)" in table.output
    nothing = runner.invoke(app, ["claims", "digits"])
    assert "experiment='digits' is not allowed: one that has claims" in nothing.output


def test_a_file_from_before_a_setting_was_there_goes_on(
    figure: TuningExperiment, tmp_path: Path
) -> None:
    plain = replace(
        figure,
        name="plain",
        claims=(),
        curves={},
        form="convergence",
        methods=("alone",),
    )
    with ResultsFile(tmp_path / "a", plain) as results:
        results.append(_runs(plain, {})[0])
    lines = (tmp_path / "a").read_text().splitlines()
    header = json.loads(lines[0])
    del header["experiment"]["curves"], header["experiment"]["task"]["deviation"]
    (tmp_path / "a").write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    with ResultsFile(tmp_path / "a", plain) as results:
        assert len(results.runs) == 1
    header["experiment"] = None
    (tmp_path / "a").write_text("\n".join([json.dumps(header), *lines[1:], ""]))
    with ResultsFile(tmp_path / "b", plain) as results:
        assert results.take_over(tmp_path / "a", plain) == 0


def test_a_published_figure_has_its_runs_beside_its_toml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments" / "paper"
    folder.mkdir(parents=True)
    toml = TOML.replace('"fig9"', '"paper/fig9"', 1)
    (folder / "fig9.toml").write_text(toml)
    runner = CliRunner()

    def invoke(*arguments: str) -> str:
        result = runner.invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return " ".join(result.output.split())

    assert "| not run | - |" in invoke("claims", "paper/fig9")
    said = invoke("run", "paper/fig9", "--jobs=1", "--seeds=1")
    assert "- less noise is better: in the end" in said
    rows = (folder / "fig9.jsonl").read_text().splitlines()
    values = json.loads(rows[1])["best_so_far"]
    assert np.shape(values) == (1, 12)
    assert all(value == float(f"{value:.6g}") for value in values[0])
    assert (folder / "fig9.png").stat().st_size > 10_000
    # A clone goes on from these rows, and another figure takes them over.
    assert "9 of 18 runs are in" in invoke("run", "paper/fig9", "--jobs=1")
    (folder / "fig10.toml").write_text(toml.replace("paper/fig9", "paper/fig10"))
    assert "All 18 runs are in" in invoke("run", "paper/fig10", "--jobs=1")
    title, _, _, _, first, second = runner.invoke(
        app, ["claims", "paper/fig9"]
    ).output.splitlines()
    took = sum(run.seconds for run in read_results(folder / "fig9.jsonl")[1]) / 60
    assert title == f"paper/fig9: A figure. {took:.3g} CPU minutes."
    assert first.startswith("| less noise is better (3.2) | in the end ")
    text = "| FTS is faster than TS (not in the paper) | in the mean "
    assert second.startswith(text)
    *_, one, other = runner.invoke(app, ["claims", "paper"]).output.splitlines()
    assert one.startswith("| paper/fig10 | 2 | ")
    name, seeds, minutes, number, *counts = other.strip("| ").split(" | ")
    assert (name, seeds, minutes, number) == ("paper/fig9", "2", f"{took:.3g}", "2")
    *counts, _, second_reading = counts  # between them the hours that are missing
    assert sum(map(int, counts)) == 2
    assert second_reading == "-"
    assert not (tmp_path / "results").exists()
    # What is not the published figure is not among its runs.
    shorter = load_experiment(folder / "fig9.toml").with_steps(11)
    place = place_of("paper/fig9", shorter, None)
    assert place.rows == Path("results", "paper", "fig9", "results.jsonl")
    wrong = runner.invoke(app, ["claims", "paper/fig8"])
    assert wrong.exit_code == 1
    assert "did you mean 'paper/fig9'" in wrong.output


def test_a_published_figure_has_as_many_runs_of_all_agents_elsewhere(
    figure: TuningExperiment, tmp_path: Path
) -> None:
    run = run_one(figure, "alone", 0)
    with ResultsFile(tmp_path / "a", figure, compact=True) as results:
        results.append(run)
        (kept,) = results.runs
    np.testing.assert_allclose(kept.curve, run.curve, rtol=1e-5)
    assert kept.seconds == pytest.approx(run.seconds, rel=1e-2)
    assert read_results(tmp_path / "a")[1] == [kept]


def test_published_figures_are_complete() -> None:
    """Each has controls, its paper's delta, a claim, and a row on its paper's page."""
    files = sorted(FOLDER.glob("*/*.toml"))
    assert len(files) > 50
    for path in files:
        plan = load_experiment(path)
        assert plan.name == f"{path.parent.name}/{path.stem}"
        assert 0 < len(plan.description) < 80
        if path.stem.startswith("mean-field"):
            continue  # it compares two simulators, and no methods
        assert plan.claims
        controls = {"alone", "random"}
        if isinstance(plan, BanditExperiment):
            controls = {"independent", "random"}
        elif isinstance(plan, NonlinearBanditExperiment):
            controls = {"n-go-ucb", "random", "no-phase-one", "each-once"}
        assert controls <= {name.split("@")[0] for name in plan.methods}
        page = (path.parent / "README.md").read_text()
        assert page.count(f"\n| {plan.name} | ") == 1
        if not isinstance(plan, TuningExperiment):
            continue
        assert plan.privacy.delta == pytest.approx(plan.num_agents**-1.1)
        if plan.form == "tradeoff":
            assert any(curve.series for curve in plan.curves.values())
            assert plan.falls


@pytest.mark.gate
@pytest.mark.parametrize("paper", ["dp-fts-de", "fed-go-ucb", "feducb", "fts"])
def test_a_papers_page_has_the_table_that_its_command_prints(
    paper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER.parent)
    table = CliRunner().invoke(app, ["claims", paper], catch_exceptions=False).output
    assert table.count("\n") > 7
    assert table in (FOLDER / paper / "README.md").read_text()


def test_what_two_figures_share_has_one_recipe() -> None:
    trade, convergence = (
        load_experiment(FOLDER / "dp-fts-de" / f"{name}.toml")
        for name in ("fig3a", "fig3d")
    )
    for name in convergence.methods:
        assert trade.recipe(name) == convergence.recipe(name)


def test_methods_that_do_the_same_are_one_line() -> None:
    from matplotlib.figure import Figure

    plan = load_experiment(builtin_experiments()["digits-start"])
    same = np.linspace([0.1, 0.2], [0.5, 0.6], 30).T
    curves = {"alone": same - 0.05, "list": same, "private": same, "blind": same + 0.1}
    axes = Figure().subplots()
    draw_curves(axes, plan, curves)
    names = axes.get_legend_handles_labels()[1]
    assert names == ["alone", "list = list + start", "blind start"]


@pytest.mark.parametrize("num_panels", [2, 3])
def test_a_line_at_the_foot_touches_no_label(num_panels: int) -> None:
    figure, axes = new_figure(num_panels)
    label = "a label that is as long as its panel is wide"
    for one in np.ravel(axes):
        one.set_xlabel(label)
    say_at_the_foot(figure, "an experiment: not private")
    figure.savefig(BytesIO(), dpi=figure.dpi)
    boxes = {
        text.get_text(): text.get_window_extent(figure.canvas.get_renderer())
        for text in figure.findobj(Text)
    }
    assert not boxes["an experiment: not private"].overlaps(boxes[label])
