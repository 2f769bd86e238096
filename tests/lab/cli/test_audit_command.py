"""The command ``flwr-fbo audit``."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from flwr_fbo.cli import app
from flwr_fbo.lab.audit.default_studies import DELTA, SECURE_STUDIES


def _invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", "--draws=1000", "--seed=1", *arguments])


@pytest.mark.slow
def test_the_command_audits_a_study_of_each_strategy() -> None:
    result = _invoke("--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    kinds = [(one["study"], one["unit"], one["adjacency"]) for one in found]
    flips = ["FedVote", "DPFTSDE", "FedWarmStart", "FederationTuner"]
    assert set(kinds) == {
        *((study, "client", "zeroed") for study in flips),
        *((study, "client", "replaced") for study in flips),
        *(
            (study, "example", "replaced")
            for study in ("FedUCB", "FedGOUCB", "FederationTuner")
        ),
    }
    for one in found:
        assert one["violated"] is False
        assert (one["delta"], one["num_counted"]) == (DELTA, 500)
        if one["epsilon_promised"] is None:
            assert one["plan"]["settings"]["local_data"] == "own"
            assert one["verdict"].startswith("nothing is promised here")
            assert one["epsilon_lower"] > 4
            continue
        assert one["verdict"].startswith("no violation")
        if one["plan"].get("adjacency") == "replaced":
            assert 1.7 < one["epsilon_promised"] < 2.6
        else:
            assert one["epsilon_promised"] == pytest.approx(2, rel=2e-3)
        assert one["epsilon_lower"] < one["epsilon_promised"]


def test_the_command_exits_with_1_on_a_violation() -> None:
    result = _invoke("--study=FedVote", "--plant=no-clip")
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[-3].startswith("Verdict   VIOLATION")
    assert lines[-2] == "Planted   no-clip"
    assert "Entropy   seeded" in lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("adjacency", "unit", "promised"),
    [
        ("zeroed", "per client (message or zeros, delta 0.1", "1.998"),
        ("replaced", "per client (message replaced by another, delta 0.1)", "6.423"),
    ],
)
def test_what_is_found_and_promised_has_unit_adjacency_and_delta(
    adjacency: str, unit: str, promised: str
) -> None:
    about = ("--study=FederationTuner", f"--adjacency={adjacency}", "--epsilon=2")
    result = _invoke(*about, "--unit=client")
    assert result.exit_code == 0
    assert result.output.count("Strategy  FederationTuner") == 1
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines() if line)
    assert re.match(rf"at least \d\.\d+ {re.escape(unit)}", lines["Epsilon"])
    assert lines["Promised"].startswith(f"epsilon {promised} {unit}")


def test_fed_ucb_is_audited_for_what_own_data_promise_and_for_a_running_clinic() -> (
    None
):
    result = _invoke("--study=FedUCB", "--unit=example")
    assert result.exit_code == 0
    released, table, running = result.output.strip().split("\n\n")
    terms = "per example (replaced by another, delta 0.1)"
    assert f"epsilon 2.000 {terms}\n" in released
    assert f"epsilon 2.000 {terms}, for a finished table\n" in table
    assert "own data" in table
    assert "no other row changes" in table
    assert f"epsilon infinite {terms}\n" in running
    assert "own data" in running
    assert "later trials follow" in running
    assert "nothing is promised here" in running


@pytest.mark.slow
def test_a_fault_is_not_looked_for_where_nothing_is_promised() -> None:
    found = json.loads(_invoke("--study=FedUCB", "--plant=half-noise", "--json").stdout)
    assert [one["plan"]["plays_on"] for one in found] == [True, False]
    assert all(one["violated"] for one in found)


@pytest.mark.slow
def test_a_fault_is_planted_wherever_there_can_be_one() -> None:
    result = _invoke("--plant=drawn-again", "--json")
    found = json.loads(result.stdout)
    assert [one["study"] for one in found] == ["FedUCB", "FedUCB", "FedGOUCB"]


@pytest.mark.slow
def test_json_tells_of_a_violation() -> None:
    result = _invoke("--study=FedGOUCB", "--plant=drawn-again", "--json")
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)
    assert found["violated"] is True
    assert found["planted_fault"] == "drawn-again"
    assert found["epsilon_promised"] == pytest.approx(2, rel=2e-3)


def test_options_change_a_tuning_study() -> None:
    options = ("--agents=3", "--sub-regions=2", "--q=.5", "--release-after=1")
    more = ("--release-after=8", "--features=3", "--absent=zeros", "--epsilon=1")
    result = _invoke("--study=DPFTSDE", *options, *more, "--json")
    (found,) = json.loads(result.stdout)
    assert found["violated"] is False
    assert found["planted_fault"] is None
    assert found["epsilon_promised"] == pytest.approx(1, rel=5e-3)
    plan = found["plan"]
    assert (plan["release_after"], plan["num_features"]) == ([1, 8], 3)
    assert plan["absence"] == "zeros"
    assert plan["settings"]["num_agents"] == 3
    assert plan["settings"]["num_sub_regions"] == 2
    assert plan["settings"]["sampling_probability"] == 0.5


@pytest.mark.slow
def test_the_command_audits_secure_studies() -> None:
    result = _invoke("--secure", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert list(dict.fromkeys(one["study"] for one in found)) == list(SECURE_STUDIES)
    for one in found:
        assert one["plan"]["honest"] == 2
        assert one["trust"] == "sums"
        assert 0.4 < one["epsilon_lower"] < one["epsilon_promised"] < 2.001


def test_the_command_finds_a_planted_fault() -> None:
    about = ("--secure", "--study=FedVote", "--agents=3", "--honest=1")
    result = _invoke(*about, "--plant=half-shares")
    assert result.exit_code == 1
    assert "secure sums, honest = 1, colluding = 2" in result.output
    assert "VIOLATION" in result.output
    assert max(map(len, result.output.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plant=noclip",), "did you mean 'no-clip'"),
        (("--plant=no-clip", "--study=FedUCB"), "--plant='no-clip' is not allowed"),
        (("--study=FedVotes",), "did you mean 'FedVote'"),
        (
            ("--z=1", "--epsilon=1", "--study=FedVote"),
            "--epsilon=1.0 is not allowed: on",
        ),
        (
            ("--agents=1000000000", "--study=FedVote"),
            "--agents x --sub-regions=1000000000",
        ),
        (("--z=1",), "Error: --z=1.0 is not allowed: only with --st"),
        (
            ("--agents=3", "--study=FedUCB"),
            "Error: --agents=3 is not allowed: only with",
        ),
        (("--z=0", "--study=FedVote"), "Error: --z=0.0 is not allowed"),
        (("--q=3", "--study=FedVote"), "Error: --q=3.0 is not allowed: a number in"),
        (("--draws=9",), "Error: --draws=9 is not allowed: an integer >= 1000"),
        (
            ("--release-after=3", "--release-after=1", "--study=FedVote"),
            "Error: --release-after=(3, 1) is not allowed: increasing",
        ),
        (("--features=0", "--study=FedVote"), "Error: --features=0 is not allowed"),
        (
            ("--secure", "--study=FedVote", "--absent=missing"),
            "Error: --absent='missing' is not allowed: 'zeros'",
        ),
        (("--delta=1",), "--delta=1.0 is not allowed"),
        (
            ("--study=FedVote", "--absent=zeros", "--adjacency=replaced"),
            "--adjacency='replaced' is not allowed: 'zeroed', with --absent",
        ),
        (
            ("--study=FedUCB", "--adjacency=zeroed"),
            "--adjacency='zeroed' is not allowed: 'replaced', of these studies",
        ),
        (
            ("--study=FedVote", "--unit=example"),
            "--unit='example' is not allowed: 'client', of these studies",
        ),
        (("--secure", "--study=FedGOUCB"), "--study='FedGOUCB' is not allowed"),
        (("--secure", "--study=FedVote", "--honest=9"), "--honest=9 is not allowed"),
    ],
)
def test_what_the_command_refuses_is_one_line(
    arguments: tuple[str, ...], words: str
) -> None:
    result = _invoke(*arguments)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert words in result.output.splitlines()[-1]
