"""``flwr-fbo evaluate``: other policies, valued on a site's own decisions."""

import csv
import json
import math
import shutil
import stat
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import (
    Category,
    ContinualSettings,
    EllipsoidSampling,
    FeatureEncoder,
    LinearUCBSettings,
    Number,
    Optimism,
    RewardTimeout,
    evaluate_policy,
)
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.off_policy.policies import TargetPolicy, parse_policy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.cli import app, evaluate_command
from flwr_fbo.journal.journal import Journal
from tests.support.policies import FILE_NAME, VECTORS, neural_enrolled

ENCODER = FeatureEncoder(
    context={"age": Number(0, 100), "arrival": Category(["walk-in", "ambulance"])},
    blocks=("ward", "home"),
)
# Its estimate is made of its own raw trials: no server is needed to have one.
RANDOM = LinearUCBSettings(
    ContinualSettings(
        num_releases=5, dimension=ENCODER.dimension, epsilon=math.inf, delta=0.1
    ),
    local_data="raw",
    exploration=EllipsoidSampling(uniform_share=0.5),
    encoder=ENCODER,
)
NUM_DECISIONS, NUM_AWAITED = 40, 3


def _enrolled(folder: Path, settings: LinearUCBSettings = RANDOM) -> Path:
    """Return the folder of a site that has a place in a study."""
    study = LinearBanditStudy(settings, 1, study_id="triage", noise_seed=5)
    identity = RecordedBandit.identity_of(study)
    with Journal(identity, folder / FILE_NAME) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
    return folder


def _played(
    folder: Path, settings: LinearUCBSettings = RANDOM, num_awaited: int = NUM_AWAITED
) -> Path:
    policy = LinearBanditPolicy.open(_enrolled(folder, settings))
    for t in range(NUM_DECISIONS):
        age = 7 * t % 100
        choice = policy.choose({"age": age, "arrival": "walk-in"})
        if t >= num_awaited:
            policy.reward(choice.ticket, age / 100 if choice.arm == "ward" else 0.4)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _played(tmp_path_factory.mktemp("site"))


def _invoke(*arguments: object, columns: int = 100) -> Any:
    text = ["evaluate", *map(str, arguments)]
    return CliRunner().invoke(app, text, env={"COLUMNS": str(columns)})


def _rows(*arguments: object) -> list[dict[str, Any]]:
    result = _invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.output)
    return rows


def _expected(
    site: Path, *policies: TargetPolicy, confidence: float = 0.95
) -> list[dict[str, Any]]:
    decisions = LinearBanditPolicy.open(site).decisions()
    found = [
        evaluate_policy(decisions, one, confidence, (-1.0, 1.0)) for one in policies
    ]
    pairs = [("logged policy", found[0].logged)]
    for one in found:
        pairs += [(one.policy, e) for e in (one.ips, one.snips, one.doubly_robust)]
    more = {"confidence": confidence, "propensities": "on record"}
    return [{"policy": p, **asdict(e), **more} for p, e in pairs]


def test_json_has_a_row_for_each_policy_and_estimator(site: Path) -> None:
    options = ("--policy=uniform", "--policy=always:home", "--confidence=0.8")
    policies = parse_policy("uniform"), parse_policy("always:home")
    rows = _rows(site, *options)
    assert rows == _expected(site, *policies, confidence=0.8)
    assert len(rows) == 1 + 2 * 3
    assert rows[0]["num_decisions"] == NUM_DECISIONS - NUM_AWAITED
    assert rows[0]["num_awaited"] == NUM_AWAITED


def test_greedy_is_by_the_current_estimate_of_the_site(site: Path) -> None:
    estimate = LinearBanditPolicy.open(site).summary().estimate
    expected = _expected(site, parse_policy("greedy", estimate))
    assert _rows(site, "--policy=greedy") == expected
    flipped = _expected(site, parse_policy("greedy", -estimate))
    assert expected[1]["value"] != flipped[1]["value"]


def test_a_function_is_found_in_the_current_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules_of_mine.py").write_text(
        "def by_age(context, arms, features):\n"
        "    return 'ward' if context['age'] > 50 else 'home'\n"
    )
    monkeypatch.chdir(tmp_path)
    name = "python:rules_of_mine:by_age"
    try:
        _, ips, *_ = _rows(site, "--policy", name)
    finally:
        sys.modules.pop("rules_of_mine", None)
    decisions = LinearBanditPolicy.open(site).decisions()
    matching = sum(
        decision.reward / decision.propensity
        for decision in decisions
        if not math.isnan(decision.reward)
        and decision.context is not None
        and decision.arms[decision.chosen]
        == ("ward" if decision.context["age"] > 50 else "home")
    )
    assert ips["value"] == pytest.approx(matching / (NUM_DECISIONS - NUM_AWAITED))
    assert ips["policy"] == name


def test_the_table_fits_a_terminal_and_says_how_to_read_it(site: Path) -> None:
    columns = 80
    options = ("--policy=uniform", "--policy=always:home")
    result = _invoke(site, *options, columns=columns)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= columns
    for heading in ("95 % interval", "effective", "sample", "mean", "weight"):
        assert heading in lines[1] + lines[2]
    rows = _expected(site, parse_policy("uniform"), parse_policy("always:home"))
    shown = [line for line in lines if " to " in line and line.count(".") > 3]
    assert len(shown) == len(rows)
    for line, row in zip(shown, rows, strict=True):
        assert line.split()[0] == row["policy"].split()[0]
        assert f" {row['value']:.4g} " in line
        assert f" {row['low']:.4g} to {row['high']:.4g} " in line
        assert f" {row['effective_sample_size']:.1f} " in line
        assert f" {row['mean_weight']:.2f}" in line
    text = " ".join(result.output.split())
    assert "37 decisions with a reward; 3 without one are left out." in text
    assert "`greedy`" not in text
    greedy = _invoke(site, "--policy=greedy", columns=columns)
    assert "`greedy` takes the site's current estimate" in greedy.output


def test_a_long_name_is_folded_and_no_number_is_cut(site: Path) -> None:
    name = "python:tests.cli.test_evaluate_command:_home"
    result = _invoke(site, "--policy", name)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 100
    table = result.output[: result.output.index("decisions with a reward")]
    assert name not in table  # but its pieces are, on lines of their own
    cells = [line[1:].split(" ")[0] for line in table.splitlines()]
    assert name in "".join(cells)
    for row in _expected(site, parse_policy(name)):
        assert f" {row['low']:.4g} to {row['high']:.4g} " in result.output


TABLE = """number,age,place,recovered,chance
0,71,ward,0.5,0.4
1,30,home,1,0.6
2,44,home,0,0.7
3,55,ward,1,0.3
"""
COLUMNS = ("--policy=always:home", "--action=place", "--reward=recovered")


def test_the_table_of_another_system_is_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(TABLE)
    _, ips, *_ = _rows(file, *COLUMNS, "--propensity=chance", "--reward-range", 0, 1)
    assert ips["value"] == pytest.approx((1 / 0.6 + 0 / 0.7) / 4)
    assert ips["propensities"] == "on record"
    assert ips["low"] is None  # too little
    table = _invoke(file, *COLUMNS, "--propensity=chance", "--reward-range", 0, 1)
    assert "too little" in table.output
    assert "Too little for an interval: 4 decisions" in " ".join(table.output.split())


def test_propensities_that_were_estimated_are_told(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(TABLE)
    how = "logistic regression on the context"
    assert _rows(file, *COLUMNS, "--propensity=none")[1]["propensities"] == how
    table = _invoke(file, *COLUMNS, "--propensity=none").output
    text = " ".join(table.split())
    assert f"Propensities are estimated by {how}. Intervals do not cover" in text


def test_files_that_share_decisions_are_named(tmp_path: Path) -> None:
    for name in ("may.csv", "june.csv"):
        (tmp_path / name).write_text(TABLE)
    files = tmp_path / "may.csv", tmp_path / "june.csv"
    said = _error(*files, *COLUMNS, "--propensity=chance")
    assert "number=0 to 3 is not allowed" in said
    assert said.endswith(f"{files[0]} and {files[1]} share 4 decisions.")


def test_what_is_for_tables_or_for_one_site_is_told(site: Path, tmp_path: Path) -> None:
    uniform = "--policy=uniform"
    assert "--reward-range=" in _error(site, uniform, "--reward-range", 0, 1)
    assert "one site, or files that end in" in _error(site, site, uniform)
    (tmp_path / "log.csv").write_text(TABLE)
    said = _error(tmp_path / "log.csv", "--policy=greedy", *COLUMNS[1:])
    assert "a table has no estimate" in said
    said = _error(tmp_path / "log.csv", *COLUMNS)
    assert said.startswith("Error: --propensity='pscore' is not allowed: one of")


def _wordless(*_: object) -> str:
    raise ValueError


def _without_a_number(*_: object) -> str:
    raise OSError("the rules are gone")


def _home(context: Any, arms: Any, features: Any) -> str:
    return "home"


def test_csv_has_the_rows_of_json_in_a_file_of_the_owner(
    site: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    rows = _rows(site, "--policy=uniform", "--csv", file)
    read = list(csv.DictReader(file.read_text().splitlines()))
    assert read == [{k: str(v) for k, v in row.items()} for row in rows]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    table = _invoke(site, "--policy=uniform", "--csv", file)
    assert "95 % interval" in table.output


def test_csv_in_no_folder_is_refused_before_it_is_computed(
    site: Path, tmp_path: Path
) -> None:
    file = tmp_path / "none" / "rows.csv"
    said = _error(site, "--policy=unifrom", "--csv", file)
    assert said.endswith(
        f"--csv='{file}' is not allowed: a file in a folder that exists."
    )


def test_a_file_of_any_name_is_read_like_its_folder(site: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    shutil.copy(site / FILE_NAME, copy)
    expected = _rows(site, "--policy=uniform")
    for journal in (site / FILE_NAME, copy):
        assert _rows(journal, "--policy=uniform") == expected


def test_help_says_that_the_output_is_not_private() -> None:
    text = " ".join(_invoke("--help").output.split())
    assert "Nothing leaves the site." in text
    assert "statistics of the site's raw data, without noise: it has no privacy" in text


def _error(*arguments: object) -> str:
    """Return the one line of an error."""
    result = _invoke(*arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    [line] = result.output.splitlines()
    assert line.startswith("Error: ")
    return str(line)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("unifrom", "one of uniform, always:NAME, greedy, python:MODULE:FUNCTION"),
        ("always:hame", "did you mean 'home'"),
        ("python:no_such_module:f", "no_such_module"),
        (f"python:{__name__}:_wordless", "Error: ValueError"),
        (f"python:{__name__}:_without_a_number", "Error: the rules are gone."),
    ],
)
def test_a_policy_that_is_none_is_told_in_a_line(
    site: Path, policy: str, words: str
) -> None:
    assert words in _error(site, "--policy", policy)


def test_a_confidence_is_a_fraction(site: Path) -> None:
    assert "confidence=" in _error(site, "--policy=uniform", "--confidence=nan")


def test_a_folder_without_a_journal_is_told(tmp_path: Path) -> None:
    assert FILE_NAME in _error(tmp_path, "--policy=uniform")
    assert "gone" in _error(tmp_path / "gone", "--policy=uniform")
    assert not (tmp_path / FILE_NAME).exists()


def test_a_journal_of_another_kind_is_told(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with Journal({"kind": "tuning"}, path):
        pass
    assert "kind 'tuning'" in _error(path, "--policy=uniform")


def test_a_site_without_a_place_is_told(tmp_path: Path) -> None:
    study = LinearBanditStudy(RANDOM, 1, study_id="triage")
    identity = RecordedBandit.identity_of(study)
    with Journal(identity, tmp_path / FILE_NAME) as journal:
        RecordedBandit(journal, study)
    for name in (tmp_path, tmp_path / FILE_NAME):
        assert "no place in a study" in _error(name, "--policy=uniform")


def test_a_log_without_exploration_names_the_setting(tmp_path: Path) -> None:
    site = _played(tmp_path, replace(RANDOM, exploration=Optimism()))
    error = _error(site, "--policy=uniform")
    assert "exploration=EllipsoidSampling()" in error


def test_a_log_without_rewards_is_told(tmp_path: Path) -> None:
    site = _played(tmp_path, num_awaited=NUM_DECISIONS)
    error = _error(site, "--policy=uniform")
    assert f"{NUM_DECISIONS} are without one" in error


def test_a_site_that_knows_nothing_has_no_greedy_policy(tmp_path: Path) -> None:
    site = _played(tmp_path, replace(RANDOM, local_data="released"))
    assert "policy='greedy'" in _error(site, "--policy=greedy")
    assert len(_rows(site, "--policy=uniform")) == 4


def test_a_journal_that_is_held_is_told(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate_command, "_PATIENCE", 0.1)
    with Journal(None, site / FILE_NAME):
        assert FILE_NAME in _error(site, "--policy=uniform")


def test_young_decisions_are_used_only_where_that_is_wanted(tmp_path: Path) -> None:
    """Of them only the rewards that come soon are known."""
    waiting = replace(RANDOM, reward_timeout=RewardTimeout(seconds=3600.0))
    site = _played(tmp_path, waiting)
    result = _invoke(site, "--policy=uniform")
    assert result.exit_code == 1
    assert "at least 2 with a reward" in " ".join(result.output.split())
    assert _rows(site, "--policy=uniform", "--unsettled")[0]["num_decisions"] == 37


def test_the_log_of_a_bandit_with_a_network(tmp_path: Path) -> None:
    """It has propensities, too; without privacy its rewards have no range."""
    policy = neural_enrolled(tmp_path)
    for number in range(30):
        choice = policy.choose(VECTORS, floors={"0": 0.2, "1": 0.2, "2": 0.2})
        policy.reward(choice.ticket, float(choice.arm == "1") * (number % 3) / 2)
    rows = _rows(tmp_path, "--policy=always:1", "--reward-range", 0, 1)
    assert {row["num_decisions"] for row in rows} == {30}
    greedy = _invoke(tmp_path, "--policy=greedy")
    assert greedy.exit_code == 1
    assert "linear bandit" in greedy.output
