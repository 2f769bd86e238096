"""``flwr-fbo show`` and ``ledger show`` of the folder of a tuner."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import Halving, OneTraining, PrivateChoice, Seeds
from flwr_fbo.cli import app
from flwr_fbo.tuning import FederationResult
from tests.support.apps import in_process, main_of, server_context, tuner
from tests.support.tuner_folders import OPTIONS, record, record_first_rung


@pytest.fixture(scope="module")
def tuners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a kind of tuner, and one that was ended after its first rung."""
    root = tmp_path_factory.mktemp("tuners")
    for kind in OPTIONS:
        record(root / kind, kind)
    record_first_rung(root / "ended", "private")
    return root


def _result(tuners: Path, kind: str) -> FederationResult:
    """Return what the folder has: a tuner that is complete asks nobody."""
    return record(tuners / kind, kind)


def _printed(*arguments: object, columns: int = 160) -> str:
    env = {"COLUMNS": str(columns)}
    done = CliRunner().invoke(app, [str(one) for one in arguments], env=env)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("kind", OPTIONS)
def test_listings_say_what_was_spent_and_what_is_not_private(
    kind: str, tuners: Path
) -> None:
    result = _result(tuners, kind)
    for command in (("show",), ("ledger", "show")):
        text = _printed(*command, tuners / kind)
        assert ("NOT PRIVATE" in text) == (kind in ("seeded", "exact"))
        assert ("epsilon " in text) == (kind != "exact")
        if result.privacy_spent is not None:
            assert f"epsilon {result.privacy_spent.epsilon:.4f}" in text


def test_a_ledger_shows_each_number_whole_in_a_narrow_terminal(tuners: Path) -> None:
    narrow, wide = (
        set(re.findall(r"(?<![\d.])0\.\d{3,}", text))
        for text in (
            _printed("ledger", "show", tuners / "private", columns=columns)
            for columns in (60, 160)
        )
    )
    assert narrow == wide
    assert wide


def test_show_lists_trials_with_their_scores_and_outcomes(tuners: Path) -> None:
    result = _result(tuners, "seeded")
    lines = _printed("show", tuners / "seeded").splitlines()
    rows = [line.split() for line in lines if re.match(r" *\d+  ", line)]
    assert [int(row[0]) for row in rows] == list(range(len(result.settings)))
    assert [row[-1] == "chosen" for row in rows].index(True) == result.best_trial
    first = result.rungs[0]
    assert all(
        f"{score:.4g}" in row for score, row in zip(first.scores, rows, strict=True)
    )


def test_show_needs_a_line_a_trial_at_100_columns(tmp_path: Path) -> None:
    """Also with three rungs."""
    study = {"schedule": Halving(9, (1, 3, 4)), "privacy": PrivateChoice(1.0, 1e-3)}
    trials = tuner(**study, folder=tmp_path, seeds=Seeds(study=3, noise=1))
    trials.start(main_of(), in_process(), server_context())
    text = _printed("show", tmp_path, columns=100)
    assert " round 3 " in text
    lines = text.splitlines()
    begins = [i for i, line in enumerate(lines) if re.match(r" *\d+  ", line)]
    assert begins == list(range(begins[0], begins[0] + 9))
    assert "round 4" in lines[begins[0] - 2]
    assert max(map(len, lines[: begins[-1] + 1])) <= 100


@pytest.mark.parametrize("columns", [80, 100])
def test_show_fits_the_terminal_with_many_settings(
    columns: int, tmp_path: Path
) -> None:
    """Each trial has a line in each table, and each value is whole."""
    names = [f"a-setting-with-a-name-{number}" for number in range(9)]
    space = {name: FloatDistribution(0, 1) for name in names}
    space |= {"learning-rate": FloatDistribution(1e-3, 1, log=True)}
    config = {**dict.fromkeys(names, 0.5), "learning-rate": 0.123456}
    study = {"schedule": Halving(6, (1, 3)), "space": space}
    trials = tuner(**study, folder=tmp_path, seeds=Seeds(study=3))
    found = trials.start(main_of(), in_process(), server_context(**config))
    text = _printed("show", tmp_path, columns=columns)
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    rows = [line for line in lines if re.match(r" *\d+  ", line)]
    assert len(rows) % 6 == 0
    for trial, settings in enumerate(found.settings):
        own = " ".join(row for row in rows if int(row.split()[0]) == trial)
        assert all(f"{value:.4g}" in own.split() for value in settings.values())
    assert all(name in text for name in names)


def test_show_says_how_good_the_trained_model_is(tmp_path: Path) -> None:
    """Unless that stays at the clients."""
    for number, privacy in enumerate((None, PrivateChoice(1000.0, 1e-3))):
        folder = tmp_path / str(number)
        study = {"schedule": OneTraining(trials=3), "privacy": privacy}
        trials = tuner(**study, folder=folder, seeds=Seeds(study=3))
        found = trials.start(main_of(), in_process(), server_context())
        text = " ".join(_printed("show", folder, columns=80).split())
        assert f"Chosen: trial {found.best_trial}, learning-rate = " in text
        values = json.loads(_printed("show", folder, "--json"))
        final = found.final("distance")
        if privacy is None:
            assert final is not None
            assert "distance of the trained model, as the app has it, after" in text
            assert f"{final[0]} rounds: {final[1]:.4g}." in text
            assert values["final"] == {"round": final[0], "value": final[1]}
        else:
            assert "distance of the trained model stays at the clients." in text
            assert "final" not in values
            assert "0 is the middle, larger is better" in text


def test_show_prints_json_without_infinity(tuners: Path) -> None:
    """The trial whose `main` has failed has no score."""

    def refuse(name: str) -> Any:
        raise AssertionError(name)

    result = _result(tuners, "exact")
    text = _printed("show", tuners / "exact", "--json")
    found = json.loads(text, parse_constant=refuse)
    assert [trial["settings"] for trial in found["trials"]] == list(result.settings)
    assert None in [trial["scores"]["1"] for trial in found["trials"]]
    assert (found["private"], found["epsilon"]) == (False, None)


@pytest.mark.parametrize("kind", ["exact", "ended"])
def test_show_prints_a_line_of_csv_a_trial(kind: str, tuners: Path) -> None:
    headings, *lines = csv.reader(io.StringIO(_printed("show", tuners / kind, "--csv")))
    found = json.loads(_printed("show", tuners / kind, "--json"))["trials"]
    num_rungs = 1 if kind == "ended" else 2
    names = ["params_learning-rate", "params_local-epochs"]
    scores = [f"score_rung_{number}" for number in range(1, num_rungs + 1)]
    assert headings == ["trial", *names, *scores, "outcome"]
    assert len(lines) == len(found) == 6
    for line, trial in zip(lines, found, strict=True):
        row = dict(zip(headings, line, strict=True))
        assert int(row["trial"]) == trial["trial"]
        assert row["outcome"] == trial["outcome"]
        rate = float(row["params_learning-rate"])
        assert rate == trial["settings"]["learning-rate"]
        released = list(trial["scores"].values())
        cells = [row[name] for name in scores if row[name]]
        assert [float(c) if "inf" not in c else None for c in cells] == released


def test_csv_has_the_settings_that_were_not_tried(tmp_path: Path) -> None:
    """They are left out of the text alone."""
    study = tuner(schedule=OneTraining(), folder=tmp_path)
    study.start(main_of(), in_process(), server_context())
    trials = json.loads(_printed("show", tmp_path, "--json"))["trials"]
    outcomes = [trial["outcome"] for trial in trials]
    num_left = outcomes.count("not tried")
    assert 0 < num_left < len(outcomes)
    _, *lines = csv.reader(io.StringIO(_printed("show", tmp_path, "--csv")))
    assert [line[-1] for line in lines] == outcomes
    text = _printed("show", tmp_path)
    assert f"{num_left} more settings were not tried." in text
    assert not any(line.endswith("not tried") for line in text.splitlines())


def test_csv_and_json_together_are_refused(tuners: Path) -> None:
    command = ["show", str(tuners / "exact"), "--csv", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 2
    assert "--csv" in done.output
    assert "cannot be given with --json" in done.output


def test_the_ledger_has_the_space_in_words(tuners: Path) -> None:
    text = _printed("ledger", "show", tuners / "private")
    assert "'local-epochs': '1 to 5, whole numbers'" in text
    assert "\\" not in text


def test_the_ledger_has_a_row_a_rung(tuners: Path) -> None:
    result = _result(tuners, "private")
    text = _printed("ledger", "show", tuners / "private")
    assert text.count(" gaussian ") == 2
    [whole] = json.loads(_printed("ledger", "show", tuners / "private", "--json"))
    vectors = [release["vectors"] for release in whole["releases"]]
    assert vectors == [list(rung.scores) for rung in result.rungs]


def test_a_tuner_that_was_ended_has_chosen_nothing(tuners: Path) -> None:
    assert "1 of 2 rungs are decided." in _printed("show", tuners / "ended")


def test_until_counts_evaluations_of_a_run_only(tuners: Path) -> None:
    done = CliRunner().invoke(app, ["show", str(tuners / "exact"), "--until", "3"])
    assert done.exit_code == 2
    assert "--until" in done.output
