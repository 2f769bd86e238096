"""Experiments in which targets learn from agents that have finished."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.lab.experiment_runner.config import experiment_of, load_experiment
from flwr_fbo.lab.experiment_runner.transfer_experiment import (
    Messages,
    TransferCurve,
    TransferExperiment,
    _finished_agents,
    _received,
    messages_of,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds
from flwr_fbo.lab.tasks.har import HarTask
from flwr_fbo.lab.tasks.synthetic import SyntheticTask
from flwr_fbo.tuning.fts.settings import FTSSettings
from flwr_fbo.tuning.search.study import create_agent

TOML = """\
name = "transfer"
num_agents = 5
num_targets = 2
num_evaluations = 6
num_seeds = 2
num_observations = 6
follow = "inverse-sqrt"

[task]
name = "synthetic"
deviation = 0.5
num_exact = 2

[messages]
num_features = 12

[[claims]]
text = "FTS is faster"
better = "fts"
than = "alone"
by = "mean"
"""


@pytest.fixture
def experiment(tmp_path: Path) -> TransferExperiment:
    (tmp_path / "transfer.toml").write_text(TOML)
    loaded = load_experiment(tmp_path / "transfer.toml")
    assert isinstance(loaded, TransferExperiment)
    return loaded


def test_it_is_a_toml(experiment: TransferExperiment) -> None:
    assert experiment.methods[:3] == ("alone", "random", "fts")
    settings = experiment.settings_of("fts")
    assert isinstance(settings, FTSSettings)
    assert (settings.num_initial, settings.num_features) == (3, 12)
    assert (settings.share_after, settings.follow) == (1, "inverse-sqrt")
    plain = replace(experiment, claims=(), num_seeds=5)
    assert experiment_of(plain.to_dict()) == plain


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("num_targets = 2", "num_targets = 6", "num_targets=6 .* at most num_agents=5"),
        ("num_observations = 6", "num_observations = 2", "at least num_initial=3"),
        ("inverse-sqrt", "inverse-log", "follow='inverse-log' is not allowed"),
        ("num_seeds = 2", 'methods = ["fts"]', "beside its controls"),
    ],
)
def test_a_typo_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in TOML
    (tmp_path / "a.toml").write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=words):
        load_experiment(tmp_path / "a.toml")


def test_targets_share_their_initial_points(experiment: TransferExperiment) -> None:
    runs = experiment.play(experiment.methods, 1)
    assert {len(run.best_so_far) for run in runs} == {2}
    starts = {tuple(tuple(row[:3]) for row in run.best_so_far) for run in runs}
    assert len(starts) == 1
    by_name = {run.method: run for run in runs}
    informed = {"fts", "rgpe", "taf"}
    for name, run in by_name.items():
        assert math.isinf(run.epsilon) == (name in informed)
        assert run.private == (name not in informed)
        again = experiment.run_of(json.loads(run.to_json()))
        assert again.best_so_far == run.best_so_far
    assert by_name["fts"].best_so_far != by_name["alone"].best_so_far
    (alone,) = experiment.play(["rgpe"], 1)  # the same, whoever else plays
    assert alone.best_so_far == by_name["rgpe"].best_so_far


def test_those_who_finished_did_so_on_their_own(experiment: TransferExperiment) -> None:
    """And not from the initial points that the targets have."""
    finished = _finished_agents(experiment, 1, 6)
    assert [len(agent.values) for agent in finished] == [6] * 5
    study = experiment.study(experiment.settings_of("fts"), Seeds.of_run(1))
    target = create_agent(study, 0, Seeds.of_run(1).study)
    assert not np.array_equal(target.first_points()[0], finished[0].points[0])


def test_messages_of_the_ignorant_are_prior_draws(
    experiment: TransferExperiment,
) -> None:
    wide = replace(experiment, messages=Messages(num_features=2000))
    finished = _finished_agents(experiment, 1, 6)
    study = wide.study(wide.settings_of("noise-only"), Seeds.of_run(1))
    vectors = messages_of(study, finished, 7, zeroed=True)
    assert vectors is not None
    assert vectors.shape == (5, 2000)
    np.testing.assert_allclose(vectors.std(axis=1), 1.0, atol=0.06)
    informed = messages_of(study, finished, 7)
    assert informed is not None
    assert not np.array_equal(informed, vectors)


CURVES = """
[curves.late]
label = "FTS, M = 8"
method = "fts"
num_features = 8
num_observations = 4
follow = "inverse-square"

[curves.together]
label = "concurrent"
method = "fts"
concurrent = true

[curves.rgpe-8]
label = "RGPE, M = 8"
method = "rgpe"
num_features = 8
"""


def test_a_curve_has_settings_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML + CURVES)
    plan = load_experiment(tmp_path / "a.toml")
    assert isinstance(plan, TransferExperiment)
    assert plan.methods[-5:] == (
        *("late", "late-noise-only", "together", "together-noise-only"),
        "rgpe-8",
    )
    assert experiment_of({**plan.to_dict(), "num_seeds": 2}).to_dict() == plan.to_dict()
    late, fts = plan.settings_of("late"), plan.settings_of("fts")
    assert isinstance(late, FTSSettings)
    assert isinstance(fts, FTSSettings)
    assert (late.num_features, late.follow) == (8, "inverse-square")
    assert (fts.num_features, fts.follow) == (12, "inverse-sqrt")
    assert plan.message_length("rgpe-8") == 8 + 64
    assert plan.num_sent_observations("late-noise-only") == 4
    # A curve that sets nothing is the method; another one is not.
    same = TOML + '[curves.same]\nlabel = "FTS again"\nmethod = "fts"\n'
    (tmp_path / "b.toml").write_text(same)
    other = load_experiment(tmp_path / "b.toml")
    assert other.recipe("same") == plan.recipe("fts")
    assert other.recipe("same-noise-only") == plan.recipe("noise-only")
    assert plan.recipe("late") != plan.recipe("fts")
    assert plan.recipe("alone") == other.recipe("alone")
    for old, new, words in (
        ('method = "rgpe"', 'method = "rgpe"\nfollow = "never"', "follow='never'"),
        ("num_observations = 4", "num_observations = 2", "at least num_initial=3"),
        ("curves.late", "curves.fts", "a name that no method or control has"),
        ("concurrent", "concurent", "did you mean 'concurrent'"),
    ):
        assert old in CURVES
        (tmp_path / "a.toml").write_text(TOML + CURVES.replace(old, new))
        with pytest.raises(ValueError, match=words):
            load_experiment(tmp_path / "a.toml")


def test_a_curve_of_fewer_agents_has_the_messages_of_the_first_ones(
    tmp_path: Path,
) -> None:
    curve = '[curves.few]\nlabel = "FTS, N = 3"\nmethod = "fts"\nnum_agents = 3\n'
    (tmp_path / "a.toml").write_text(TOML + curve)
    plan = load_experiment(tmp_path / "a.toml")
    assert isinstance(plan, TransferExperiment)
    assert (plan.num_senders("few"), plan.num_senders("fts")) == (3, 5)
    assert plan.num_senders("few-noise-only") == 3
    assert plan.num_senders("alone") == plan.num_senders("random") == 0
    study = plan.study(plan.settings_of("few"), Seeds.of_run(1))
    (few,), (fts,) = (
        _received(plan, study, name, 1).values() for name in ("few", "fts")
    )
    assert few is not None
    assert fts is not None
    assert fts.shape == (5, 12)
    np.testing.assert_array_equal(few, fts[:3])
    # Once to the server, and from it to both targets.
    assert plan.num_sent("few", []) == 3 * 12 * 3
    assert plan.num_sent("alone", []) == 0
    assert plan.recipe("few") != plan.recipe("fts")
    for number in (1, 6):
        (tmp_path / "a.toml").write_text(TOML + curve.replace("3\n", f"{number}\n"))
        with pytest.raises(
            ValueError, match=rf"num_agents={number} .* 2 \(all targets"
        ):
            load_experiment(tmp_path / "a.toml")


def test_concurrent_agents_send_what_they_know_by_then(
    experiment: TransferExperiment,
) -> None:
    """Before query t: a draw of its own, by t_n + t - 1 observations."""
    curve = TransferCurve("concurrent", "fts", concurrent=True)
    plan = replace(experiment, curves={"together": curve})
    study = plan.study(plan.settings_of("together"), Seeds.of_run(1))
    received = _received(plan, study, "together", 1)
    assert sorted(received) == [1, 2, 3]
    assert sorted(_received(plan, study, "fts", 1)) == [1]
    longest = _finished_agents(plan, 1, 8)
    for t, vectors in received.items():
        # Agents that stopped then had the same history.
        stopped = _finished_agents(plan, 1, 6 + t - 1)
        assert [a.values for a in stopped] == [a.values[: 6 + t - 1] for a in longest]
        expected = messages_of(study, stopped, Seeds.of_run(1).noise, iteration=t - 1)
        assert expected is not None
        np.testing.assert_array_equal(vectors, expected)
    assert plan.num_sent("together", []) == 3 * 5 * 12 * 3
    (run,) = plan.play(["together"], 1)
    assert np.shape(run.best_so_far) == (2, 6)


def test_run_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    methods = 'methods = ["alone", "random", "fts", "taf", "noise-only"]\n'
    (tmp_path / "transfer.toml").write_text(methods + TOML)
    runner = CliRunner()
    result = runner.invoke(app, ["run", "transfer.toml", "--jobs=1"])
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "mean over 2 targets" in said
    assert "NOT PRIVATE: messages are passed on" in said
    assert "- FTS is faster: in the mean" in said
    assert "TAF (0.5) cannot be told from TS by these runs: " in said
    refused = runner.invoke(app, ["run", "transfer.toml", "--epsilon=2"])
    assert refused.exit_code == 1
    assert "epsilon=2.0 is not allowed" in " ".join(refused.output.split())


def test_how_much_is_sent(experiment: TransferExperiment) -> None:
    lengths = {name: experiment.message_length(name) for name in experiment.methods}
    assert lengths["alone"] == lengths["random"] == 0
    assert lengths["fts"] == lengths["noise-only"] == 12
    assert (lengths["rgpe"], lengths["taf"]) == (12 + 144, 12 + 144 + 1)


def test_exact_clients_have_the_shared_function() -> None:
    task = SyntheticTask(deviation=1.2, num_exact=2)
    plain = SyntheticTask(deviation=0.0)
    grid = [{"x": x} for x in np.linspace(0, 1, 500)]
    exact = [plain.truth(0, 4, 3)(p) for p in grid]
    for client, reach in ((0, 0.0), (1, 0.0), (2, 1.2)):
        values = [task.truth(client, 4, 3)(p) for p in grid]
        gap = np.abs(np.subtract(values, exact))
        assert gap.max() == pytest.approx(reach, rel=0.01)


def test_har_has_the_ranges_of_both_papers() -> None:
    assert dict(HarTask(log=False, ranges="narrow").space) == {
        "batch_size": IntDistribution(20, 60),
        "l2": FloatDistribution(1e-6, 1.0),
        "learning_rate": FloatDistribution(0.01, 0.1),
    }
    with pytest.raises(ValueError, match="ranges='medium' is not allowed"):
        HarTask(ranges="medium")  # type: ignore[arg-type]
