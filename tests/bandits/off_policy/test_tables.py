"""Logs of other systems: columns, files, estimated propensities, copies."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flwr_fbo.bandits import Decision, evaluate_policy, read_table
from flwr_fbo.bandits.off_policy.estimators import doubly_robust, ips, snips
from flwr_fbo.bandits.off_policy.policies import uniform
from flwr_fbo.bandits.site.decision import decisions_frame

ARMS = ("away", "home", "ward")


def _decisions(n: int = 300) -> list[Decision]:
    """Return a log of ours; the older, the likelier the ward."""
    rng, log = np.random.default_rng(0), []
    for t in range(n):
        age, way = float(rng.integers(20, 90)), str(rng.choice(["car", "foot"]))
        p = np.array([0.2, 0.8 - age / 150, age / 150])
        chosen = int(rng.choice(3, p=p))
        reward = float(rng.random() < 0.2 + 0.3 * chosen)
        context = {"age": age, "way": way}
        log.append(
            Decision(
                t, 10.0 * t, context, ARMS, np.eye(3), chosen, float(p[chosen]), reward
            )
        )
    return log


LOG = _decisions()
FRAME = decisions_frame(LOG)
FLAT = pd.DataFrame(
    [{**(one.context or {}), "arm": ARMS[one.chosen]} for one in LOG]
).assign(reward=FRAME["reward"], p=FRAME["pscore"])


@pytest.mark.parametrize("source", ["frame", "log.csv", "log.parquet"])
def test_our_own_frame_is_read_back(source: str, tmp_path: Path) -> None:
    table: Any = FRAME
    if source != "frame":
        table = tmp_path / source
        getattr(FRAME, f"to_{table.suffix[1:]}")(table, index=False)
    log = read_table(table)
    assert log.propensities == ""
    for ours, read in zip(LOG, log, strict=True):
        assert (read.number, read.time, read.arms) == (ours.number, ours.time, ARMS)
        assert (read.chosen, read.propensity) == (ours.chosen, ours.propensity)
        assert (dict(read.context or {}), read.reward) == (ours.context, ours.reward)
    policy = [[0.1, 0.2, 0.7]] * len(LOG)
    decisions = list(log)
    for estimator in (ips, snips):
        assert estimator(decisions, policy) == estimator(LOG, policy)
    # Its model has the context: ours has not.
    assert doubly_robust(decisions, policy).value != doubly_robust(LOG, policy).value


def test_all_other_columns_are_the_context() -> None:
    log = read_table(FLAT, action="arm", propensity="p")
    first = next(iter(log))
    assert first.context == LOG[0].context
    assert first.arms == ARMS
    # Of each arm: 1, the age, and both ways.
    assert first.features.shape == (3, 3 * 4)
    ages = FLAT["age"].to_numpy()
    expected = (ages[0] - ages.mean()) / ages.std()
    assert first.features[1, 5] == pytest.approx(expected)
    assert first.features[1, 4] == 1
    assert not first.features[1, :4].any()
    alone = read_table(FLAT, action="arm", propensity="p", context=["age"])
    assert next(iter(alone)).context == {"age": ages[0]}


def test_propensities_are_estimated_from_the_context_and_that_is_told() -> None:
    log = read_table(FLAT.drop(columns="p"), action="arm", propensity=None)
    assert log.propensities == "logistic regression on the context"
    found = np.array([one.propensity for one in log])
    assert np.corrcoef(found, FLAT["p"])[0, 1] > 0.95
    assert np.abs(found - FLAT["p"]).max() < 0.15
    evaluation = evaluate_policy(log, uniform, reward_range=(0, 1))
    assert evaluation.propensities == log.propensities
    said = "Propensities are estimated by logistic regression on the context"
    assert said in str(evaluation)
    assert "Propensities" not in str(evaluate_policy(LOG, uniform))


def test_without_a_context_propensities_are_shares_among_the_eligible() -> None:
    table = pd.DataFrame(
        {
            "action": ["a", "a", "b", "c"],
            "reward": [1, 0, 1, math.nan],
            "eligible": [None, ["a", "b"], '["b"]', "['b', 'c']"],
        }
    )
    log = read_table(table, propensity=None)
    assert log.propensities == "the share of each arm"
    assert [one.arms for one in log] == [
        ("a", "b", "c"),
        ("a", "b"),
        ("b",),
        ("b", "c"),
    ]
    expected = [1 / 2, 2 / 3, 1.0, 1 / 2]
    assert [one.propensity for one in log] == pytest.approx(expected)
    assert [one.context for one in log] == [None] * 4
    assert math.isnan(log.decisions[3].reward)


def test_an_eligible_arm_that_was_never_chosen_counts() -> None:
    table = FRAME.assign(eligible=[[*ARMS, "hotel"]] * len(FRAME))
    assert uniform.probabilities(next(iter(read_table(table)))) == pytest.approx(0.25)


def test_tables_that_overlap_are_named() -> None:
    match = r"number=50 to 99 is not allowed.*table 0 and table 1 share 50 decisions"
    with pytest.raises(ValueError, match=match):
        read_table([FRAME[:100], FRAME[50:]])
    assert len(read_table([FRAME[:100], FRAME[100:]]).decisions) == len(FRAME)
    with pytest.raises(ValueError, match=r"number of tables=2 .* 1 without a column"):
        read_table([FLAT, FLAT], action="arm", propensity="p")
    twice = read_table(pd.concat([FRAME, FRAME[:5]]))
    with pytest.raises(ValueError, match=r"number=0 to 4 .* more often: 5"):
        evaluate_policy(twice, uniform)


def _with(**columns: Any) -> pd.DataFrame:
    return FRAME.assign(**{name: [cell] * len(FRAME) for name, cell in columns.items()})


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (FRAME, {"action": "arm"}, r"column='arm' .* one of \['action'"),
        (FRAME, {"context": ["agee"]}, "column='agee' .* one of"),
        (FRAME, {"propensity": "p"}, "propensity='p' .* None estimates propensities"),
        (FRAME[:0], {}, r"len\(table\)=0 .* a row or more"),
        (_with(action="hotel"), {}, "action of decision 0='hotel' .* one of"),
        (_with(eligible="ward"), {}, "eligible='ward' is not allowed: JSON"),
        (_with(eligible="3"), {}, "eligible=3 .* a list of arms"),
        (_with(eligible='["a", "a"]'), {}, "eligible=.* different arms"),
        (_with(context="[1]"), {}, r"context=\[1\] .* a mapping, or JSON"),
        (_with(number=0.5), {}, "number=0.5 .* an integer"),
        (_with(reward="good"), {}, "reward is not allowed: an array of numbers"),
        ("log.txt", {}, "table='log.txt' .* ends in .csv or .parquet"),
        ("gone.csv", {}, "table='gone.csv' .* a file that exists"),
        (3, {}, "table=3 .* data frame"),
    ],
)
def test_what_is_no_log_is_refused(
    table: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(table, **options)


def test_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="a table or more"):
        read_table([])


def test_a_cell_runs_nothing(tmp_path: Path) -> None:
    cell = f"__import__('pathlib').Path({json.dumps(str(tmp_path / 'x'))}).touch()"
    with pytest.raises(ValueError, match="context="):
        read_table(_with(context=cell))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["pandas", "sklearn.linear_model"])
def test_a_missing_library_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "log.csv"
    FLAT.to_csv(file, index=False)
    table = file if missing == "pandas" else FLAT
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'flwr-fbo\[tables\]'"):
        read_table(table, action="arm", propensity=None)
