"""Curves, differences and verdicts of an experiment."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest

from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.tuning_experiment import usual_methods
from tests.support.experiments import LEAN, SMALL, Quadratic, _made, _runs


@dataclass(frozen=True)
class Minimized(Quadratic):
    direction: ClassVar[Literal["maximize", "minimize"]] = "minimize"


NAMES = list(usual_methods(SMALL))


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
