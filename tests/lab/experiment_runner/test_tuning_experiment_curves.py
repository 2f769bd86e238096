"""Curves of the figures of DP-FTS-DE: their settings, controls and clipped messages."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.lab.experiment_runner.config import experiment_of, load_experiment
from flwr_fbo.lab.experiment_runner.tuning_experiment import (
    Curve,
    TuningExperiment,
    run_one,
)
from flwr_fbo.lab.experiment_runner.tuning_table import Seeds, TuningRun
from flwr_fbo.privacy.release import Release
from flwr_fbo.privacy.weights import WeightSchedule
from flwr_fbo.strategies.dp_fts_de import DPFTSDE
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings

TOML = """
name = "mine"
num_agents = 6
num_evaluations = 13
num_seeds = 2
preset = "paper-synthetic"
methods = ["alone", "random"]

[task]
name = "synthetic"
signs = true
runs_per_function = 2

[agent]
random_starts = true
num_sub_regions = 3

[privacy]
noise_multiplier = 1.0
delta = 1e-3
calibration = "published"

[curves.tight]
label = "S = 4"
method = "private"
clip_norm = 4.0

[curves.wide]
label = "S = 1000"
method = "private"
clip_norm = 1000.0

[curves.squared]
label = "weights 3"
method = "private"
follow = "inverse"

[curves.squared.weights]
form = "squared"
peak = 40.0
num_constant_rounds = 1
num_decay_rounds = 2

[curves.whole]
label = "initial points anywhere"
method = "open"
initial_region = "whole"
"""


@pytest.fixture
def plan(tmp_path: Path) -> TuningExperiment:
    (tmp_path / "mine.toml").write_text(TOML)
    loaded = load_experiment(tmp_path / "mine.toml")
    assert isinstance(loaded, TuningExperiment)
    return loaded


def _built(plan: TuningExperiment, method: str) -> DPFTSDE:
    strategy = plan.known_methods[method].build(plan, Seeds.of_run(0))
    assert isinstance(strategy, DPFTSDE)
    return strategy


def test_a_curve_sets_what_its_strategy_plays(plan: TuningExperiment) -> None:
    assert experiment_of(plan.to_dict()) == replace(plan, num_seeds=5)
    weights = WeightSchedule(40.0, 1, 2, form="squared")
    for name in ("squared", "squared-noise-only"):
        built = _built(plan, name)
        assert built.server.release.settings.weights == weights
        agent = built.study.agent
        assert isinstance(agent, DPFTSDESettings)
        assert (agent.num_sub_regions, agent.follow) == (3, "inverse")
        assert agent.random_starts
    preset = _built(plan, "tight")
    assert preset.server.release.settings.weights == WeightSchedule(15.0, 5, 5)
    whole = _built(plan, "whole").study.agent
    assert isinstance(whole, DPFTSDESettings)
    assert (whole.initial_region, whole.follow) == ("whole", "inverse-sqrt")
    # The experiment's own settings are those of its controls, too.
    alone = plan.known_methods["alone"].build(plan, Seeds.of_run(0)).study.agent
    assert alone.num_sub_regions == 3


def test_curves_that_differ_in_scale_share_a_control(plan: TuningExperiment) -> None:
    """Noise alone leads to the same places, whatever S, z and q."""
    known = plan.known_methods
    assert known["wide"].noise_only == known["tight"].noise_only == "tight-noise-only"
    assert known["squared"].noise_only == "squared-noise-only"
    assert "wide-noise-only" not in plan.methods
    scaled = Curve("", "private", clip_norm=77.0, noise_multiplier=3.0)
    curves = {"a": replace(scaled, sampling_probability=0.9)}
    other = replace(plan, methods=("alone", "random"), curves=curves)
    assert other.recipe("a-noise-only") == plan.recipe("tight-noise-only")
    assert other.recipe("a") != plan.recipe("tight")
    runs = run_one(other, "a-noise-only", 1), run_one(plan, "tight-noise-only", 1)
    assert runs[0].best_so_far == runs[1].best_so_far


def test_a_run_counts_what_was_clipped(
    plan: TuningExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the norms of all messages that reach the release."""
    norms: list[float] = []
    release = Release.release

    def spy(self: Release, t: int, messages: Any, num_features: int) -> Any:
        norms.extend(float(np.linalg.norm(one)) for one in messages.values())
        return release(self, t, messages, num_features)

    monkeypatch.setattr(Release, "release", spy)
    runs = {}
    for name in ("tight", "wide", "tight-noise-only", "whole", "alone"):
        norms.clear()
        run = runs[name] = run_one(plan, name, 0)
        assert plan.run_of(json.loads(run.to_json())) == run
        limit = {"tight": 4.0, "wide": 1000.0}.get(name, math.inf) / math.sqrt(3)
        assert run.num_clipped == sum(norm > limit for norm in norms)
        assert run.num_messages == (len(norms) if limit < math.inf else 0)
    assert runs["tight"].num_messages == 6 * 3
    assert runs["tight"].num_clipped > 0
    assert runs["wide"].num_clipped == 0
    assert isinstance(runs["tight"], TuningRun)
    share = runs["tight"].num_clipped / 18
    assert plan.clipped_shares(list(runs.values())) == {"tight": share, "wide": 0.0}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('form = "squared"', 'form = "cubic"', "form='cubic' is not allowed"),
        ('"inverse"', '"slowly"', r"curves\.squared\.follow='slowly' is not allowed"),
        ("random_starts = true", "random_start = true", "did you mean 'random_starts'"),
        ("num_sub_regions = 3", "sub_region_axes = 'x'", r"agent\.sub_region_axes='x'"),
        ("runs_per_function = 2", "runs_per_function = 0", "runs_per_function=0 is"),
    ],
)
def test_a_typo_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in TOML
    (tmp_path / "mine.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(ValueError, match=words):
        load_experiment(tmp_path / "mine.toml")


def test_what_agents_alone_have_no_use_for_is_refused() -> None:
    with pytest.raises(ValueError, match="follow='inverse' is not allowed: left out"):
        Curve("a", "alone", follow="inverse")
    with pytest.raises(ValueError, match=r"weights=.* method='alone'"):
        Curve("a", "alone", weights=WeightSchedule())


def test_axes_that_do_not_exist_are_named_before_any_work(
    plan: TuningExperiment,
) -> None:
    cut = replace(plan.agent, sub_region_axes=("y",))
    with pytest.raises(ValueError, match="sub_region_axes='y' is not allowed"):
        replace(plan, agent=cut).check()


def test_votes_have_no_weights(plan: TuningExperiment) -> None:
    curves = {"squared": replace(plan.curves["squared"], follow=None)}
    with pytest.raises(ValueError, match=r"weights=.* left out, with FedVote"):
        replace(
            plan,
            strategy="FedVote",
            preset=None,
            agent=type(plan.agent)(),
            methods=("alone", "random"),
            curves=curves,
        )


@pytest.mark.gate
def test_messages_are_compared_with_the_senders_own_objective(
    plan: TuningExperiment,
) -> None:
    """Objectives differ by .02 at most: a long lengthscale says something of them."""
    long = Curve("long", "open", lengthscale=0.1)
    short = Curve("short", "open", lengthscale=1e-4)
    curves = {"long": long, "short": short}
    methods = ("alone", "random")
    measured = replace(
        plan, num_references=40, num_evaluations=30, curves=curves, methods=methods
    )
    runs = {name: run_one(measured, name, 0) for name in ("alone", "long", "short")}
    assert runs["long"].correlation > 0.3
    assert abs(runs["short"].correlation) < 0.1
    assert runs["long"].percentile > runs["short"].percentile
    assert math.isnan(runs["alone"].correlation)
    # What is measured does not change what is done.
    unmeasured = run_one(replace(measured, num_references=0), "long", 0)
    assert unmeasured.best_so_far == runs["long"].best_so_far
    back = measured.run_of(json.loads(runs["alone"].to_json()))
    assert math.isnan(back.correlation)


def test_only_functions_can_be_compared_with_objectives(plan: TuningExperiment) -> None:
    with pytest.raises(ValueError, match="num_references=0 is not allowed"):
        replace(plan, form="messages")
