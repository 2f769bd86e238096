"""Wherever an epsilon is shown, its terms and condition follow it in the same words."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import (
    FedUCB,
    FedVote,
    Host,
    InProcessGrid,
    LinearBanditPolicy,
    Seeds,
    linear_bandit_app,
    tuning_app,
)
from flwr_fbo._common.files import make_folder
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.cli import app
from flwr_fbo.cli.tune_bundle import write_bundle
from flwr_fbo.integrations import PrometheusCallback
from flwr_fbo.privacy.conditions import (
    FINISHED_TABLE,
    WITHOUT_TRAINING,
)
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger, charge_facts
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.callbacks import Started
from flwr_fbo.study.conditions import condition_of, total_guarantee
from flwr_fbo.tuner.decisions.enough_voices import too_few_voices
from flwr_fbo.tuner.message_headers import KIND
from flwr_fbo.tuner.own_app import OwnApp
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.tune_settings import TuneSettings
from tests.support.apps import NUM_CLIENTS, in_process, main_of, server_context, tuner
from tests.support.pages import page
from tests.support.tuned_apps import message_app

# An epsilon that is a number of a study, and not the name of something; and what must
# follow it: unit of privacy, adjacency and delta.
EPSILON = re.compile(r"[Ee]psilon:?\s*=?\s*(?:>= )?(?:[0-9][0-9.]*|infinite|inf\b)")
_PER = {
    "client": r"per client \((?:message or zeros|message replaced by another)",
    "example": r"per example \((?:replaced by another|with or without it)",
    "patient": r"per patient \(replaced by another",
}
TERMS = {
    unit: re.compile(
        rf"epsilon (?:>= )?(?:\S+) {words}, delta [0-9.e-]+(?:; \S+ if replaced by "
        r"another)?\)"
    )
    for unit, words in _PER.items()
}


def assert_no_bare_epsilon(text: str, *units: str) -> None:
    """Assert that each epsilon in a text has its terms, of one of these units."""
    found = [match.start() for match in EPSILON.finditer(text)]
    allowed = units or tuple(TERMS)
    for start in found:
        near = text[start : start + 160]
        assert any(TERMS[unit].match(near) for unit in allowed), near


def assert_json_has_terms(values: Any) -> None:
    """Assert that each object with an epsilon has its unit, adjacency and delta."""
    if isinstance(values, dict):
        if isinstance(values.get("epsilon"), float):
            assert "delta" in values
            # What follows for a patient stands below a claim with its unit.
            assert {"unit", "adjacency"} <= values.keys() or "hospitals" in values
        values = list(values.values())
    for value in values if isinstance(values, list) else ():
        assert_json_has_terms(value)


def printed(*arguments: object) -> str:
    env = {"COLUMNS": "200"}
    done = CliRunner().invoke(app, [*map(str, arguments)], env=env)
    assert done.exit_code == 0, done.output
    return done.output


def assert_each_has(text: str, condition: str) -> None:
    """Assert that the condition, and no other, is on each line with an epsilon."""
    assert_no_bare_epsilon(text)
    lines = [line for line in text.splitlines() if EPSILON.search(line)]
    assert lines, text
    for line in lines:
        for one in (WITHOUT_TRAINING, FINISHED_TABLE):
            assert (one in line) == (one == condition), line


class Ward:
    def contexts(self, t: int) -> Any:
        return np.eye(3)

    def reward(self, x: Any) -> float:
        return float(x @ [0.2, 0.3, 0.8])


class Study:
    """A study that was played: its folders, its log, and what it has printed."""

    def __init__(self, folder: Path, name: str, log: pytest.LogCaptureFixture) -> None:
        log.set_level(logging.INFO, "flwr.fbo")
        self.server, self.metrics = folder / "server", folder / "metrics"
        self.sites = [folder / f"site-{slot}" for slot in range(NUM_CLIENTS)]
        make_folder(self.metrics)
        self.node_configs: list[Any] = [
            {"agent-id": slot, "partition-id": slot, "fbo-folder": str(site)}
            for slot, site in enumerate(self.sites)
        ]
        self.callbacks = [PrometheusCallback(self.metrics)]
        self.result = str(getattr(self, f"_{name}")())
        self.log = "\n".join(log.messages)

    def _tuner(self) -> Any:
        private = PrivateChoice(epsilon=4, delta=1e-3)
        common: dict[str, Any] = {"folder": self.server, "callbacks": self.callbacks}
        study = tuner(privacy=private, seeds=Seeds(study=1), **common)
        grid = in_process(node_configs=self.node_configs)
        return study.start(main_of(), grid, server_context())

    def _bandit(self, local_data: Any) -> Any:
        releases = ContinualSettings(2, 3, epsilon=4.0, delta=1e-5)
        settings = LinearUCBSettings(releases, local_data=local_data)
        study = FedUCB(settings, NUM_CLIENTS, schedule=[5, 10])
        bandit = linear_bandit_app(make_environment=lambda context: Ward())
        grid = InProcessGrid(bandit, NUM_CLIENTS, node_configs=self.node_configs)
        host = Host(callbacks=self.callbacks)
        return study.start(grid, folder=self.server, host=host)

    def _own(self) -> Any:
        return self._bandit("own")

    def _released(self) -> Any:
        return self._bandit("released")

    def _vote(self) -> Any:
        space = {"x": FloatDistribution(0, 1)}
        study = FedVote(space, "maximize", NUM_CLIENTS, epsilon=8, delta=1e-3)
        voting = tuning_app(lambda context: lambda trial: -abs(trial["x"] - 0.3))
        grid = InProcessGrid(voting, NUM_CLIENTS, node_configs=self.node_configs)
        host = Host(callbacks=self.callbacks)
        return study.start(grid, num_rounds=3, folder=self.server, host=host)


UNITS = {"tuner": "client", "own": "example", "released": "example", "vote": "client"}
CONDITIONS = {
    "tuner": WITHOUT_TRAINING,
    "own": FINISHED_TABLE,
    "released": "",
    "vote": "",
}


@pytest.fixture(params=CONDITIONS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def study(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Study:
    return Study(tmp_path, name, caplog)


def test_all_that_a_study_shows_has_its_condition(
    name: str, study: Study, tmp_path: Path
) -> None:
    condition, site = CONDITIONS[name], study.sites[0]
    assert_each_has(study.result, condition)
    assert_no_bare_epsilon(study.log, UNITS[name])
    assert_no_bare_epsilon(study.result, UNITS[name])
    joined = [t for t in study.log.splitlines() if t.startswith("joined study")]
    assert len(joined) == NUM_CLIENTS
    promised = [line.partition("; spent before")[0] for line in joined]
    assert_each_has("\n".join(promised), condition)
    spent = [t for t in study.log.splitlines() if re.search("spent in .* epsilon ", t)]
    assert bool(spent) == (name != "tuner")  # whose log prints its result
    for line in spent:
        assert_each_has(line, condition)
    for folder in (study.server, site):
        assert_each_has(printed("ledger", "show", folder), condition)
        for ledger in json.loads(printed("ledger", "show", folder, "--json")):
            for total in ledger["spent"]:
                assert total["conditions"] == ([condition] if condition else [])
                assert total["unit"] == UNITS[name]
                adjacency = "zeroed" if UNITS[name] == "client" else "replaced"
                assert total["adjacency"] == adjacency
                assert 0 < total["delta"] < 0.01
    assert_each_has(page(study.server, tmp_path / "server.html"), condition)
    config = f'agent-id=0 fbo-folder="{site}"'
    [line] = [t for t in printed("check-site", config).splitlines() if " ledger " in t]
    assert_each_has(line, condition)
    [file] = study.metrics.iterdir()
    values = [
        line
        for line in file.read_text().splitlines()
        if line.startswith("flwr_fbo_epsilon{")
    ]
    label = f'conditions="{condition}"' if condition else "conditions"
    assert values
    for line in values:
        assert (label in line) == bool(condition)
        assert f'unit="{UNITS[name]}"' in line
        assert 'adjacency="' in line
        assert 'delta="' in line
        assert 'trust="' in line


def test_a_statement_has_no_bare_epsilon(
    name: str, study: Study, tmp_path: Path
) -> None:
    condition, file = CONDITIONS[name], tmp_path / "statement.html"
    for folder in (study.server, study.sites[0]):
        text = printed("statement", folder)
        assert_no_bare_epsilon(text, UNITS[name], "patient")
        # What is told at several deltas stands below the claim, with its unit alone.
        told = [t for t in text.splitlines() if "epsilon " in t and "delta " in t]
        assert len(told) > 5
        assert_each_has("\n".join(told), condition)
        printed("statement", folder, "--html", file)
        assert_no_bare_epsilon(file.read_text(), UNITS[name], "patient")
        assert_json_has_terms(json.loads(printed("statement", folder, "--json")))


def test_a_site_is_checked_with_terms(study: Study, name: str) -> None:
    config = f'agent-id=0 fbo-folder="{study.sites[0]}"'
    for protects in ("client", "example"):
        more = "--epsilon", 2, "--delta", 1e-3, "--protects", protects
        text = printed("check-site", config, *more)
        [line] = [t for t in text.splitlines() if " study " in t]
        assert_no_bare_epsilon(line, protects)
        assert EPSILON.search(line)
        assert_no_bare_epsilon(text)


def test_limits_of_a_site_are_told_with_terms(tmp_path: Path) -> None:
    limits = "fbo-max-epsilon-per-client=3.0 fbo-max-epsilon-per-example=6.0"
    config = f'agent-id=0 fbo-folder="{tmp_path}/a" {limits} fbo-max-delta=1e-3'
    text = printed("check-site", config)
    assert_no_bare_epsilon(text)
    assert len(EPSILON.findall(text)) == 2


def test_few_clients_are_warned_of_with_terms() -> None:
    warning = too_few_voices((16,), 5, PrivateChoice(epsilon=2, delta=1e-3))
    assert_no_bare_epsilon(warning, "client")
    assert len(EPSILON.findall(warning)) == 2


def test_experiments_are_listed_without_a_bare_epsilon() -> None:
    assert not EPSILON.search(printed("list"))


def test_a_tuning_and_its_bundle_say_what_a_site_spends(tmp_path: Path) -> None:
    app, space = (
        message_app(tmp_path / "app"),
        SearchSpace({"x": FloatDistribution(0, 1)}),
    )
    settings = TuneSettings(space.to_json(), "eval_acc", "maximize", 12, epsilon=2.0)
    bundle = write_bundle(OwnApp.read(app), settings, tmp_path)
    text = " ".join((bundle / "flwr_fbo_tune.py").read_text().split())
    assert_no_bare_epsilon(text, "client")
    assert [m[0] for m in EPSILON.finditer(text)] == ["epsilon 2"]
    about = "--metric", "eval_acc", "--search", "learning-rate=0.01..1:log"
    few = "--epsilon", 1, "--num-supernodes", 5, "--dry-run"
    told = " ".join(printed("tune", app, *about, *few).split())
    assert_no_bare_epsilon(told, "client")
    assert EPSILON.search(told)


def test_the_next_study_says_what_the_epsilon_before_does_not_cover(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SpendingLedger.held(tmp_path / "site-0") as ledger:
        ledger.record((KIND, "a"), 1, Charge(9.0), owner=0)
        bandit = charge_facts(("linear-bandit", "b"), 1, Charge(9.0), 0)
        ledger.add({**bandit, "fixed_rows": True})
        ledger.record(("tuning", "c"), 1, Charge(9.0), owner=0)
        ledger.record((KIND, "d"), 1, Charge(9.0), owner=1)
    study = Study(tmp_path, "vote", caplog)
    said = [t for t in study.log.splitlines() if "spent before in 0" not in t]
    [line] = [t for t in said if t.startswith("joined study")]
    assert "spent before in 4 releases: epsilon " in line
    assert_no_bare_epsilon(line)
    client, example = line.partition("spent before")[2].split(" and ")
    assert TERMS["client"].search(client)
    assert client.endswith(f", {WITHOUT_TRAINING}")
    assert TERMS["example"].search(example)
    assert f", {FINISHED_TABLE}, {WITHOUT_TRAINING}; limits: none" in example


def test_a_tuners_record_is_shown_with_the_condition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = Study(tmp_path, "tuner", caplog)
    assert_each_has(printed("show", study.server), WITHOUT_TRAINING)
    shown = json.loads(printed("show", study.server, "--json"))
    assert shown["conditions"] == [WITHOUT_TRAINING]
    assert (shown["unit"], shown["adjacency"]) == ("client", "zeroed")
    assert shown["trust"] == "server"


def test_a_site_shows_its_bandit_with_the_condition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Study(tmp_path, "own", caplog).sites[0]
    assert_each_has(str(LinearBanditPolicy.open(site).summary()), FINISHED_TABLE)
    [journal] = site.glob("linear-bandit-*.sqlite")
    assert_each_has(page(journal, tmp_path / "a.html"), FINISHED_TABLE)


def test_a_page_of_a_site_names_what_all_studies_do_not_cover(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SpendingLedger.held(tmp_path / "site-0") as ledger:
        ledger.record((KIND, "a"), 1, Charge(9.0), owner=0)
    site = Study(tmp_path, "vote", caplog).sites[0]
    text = page(next(site.glob("study-*.sqlite")), tmp_path / "a.html")
    assert_no_bare_epsilon(text, "client")
    assert f"), {WITHOUT_TRAINING}<" in text


def test_trackers_log_the_condition() -> None:
    from flwr_fbo.integrations.tracked import Tracker

    class Noted(Tracker):
        def log(self, title: str, texts: Any, numbers: Any, step: int) -> None:
            noted.update(texts)

    noted: dict[str, str] = {}
    Noted().on_start(Started("a", "FedVote", {}, 0))
    assert not [name for name in noted if name.startswith("epsilon")]
    terms = Guarantee(CLIENT, "server", (WITHOUT_TRAINING,)).facts(1e-3)
    Noted().on_start(Started("a", "FederationTuner", {}, 0, terms))
    assert noted["epsilon-conditions"] == json.dumps([WITHOUT_TRAINING])
    assert noted["epsilon-unit"] == "client"
    assert noted["epsilon-adjacency"] == "zeroed"
    assert noted["epsilon-delta"] == "0.001"


def test_a_plan_of_a_bandit_names_its_epsilon_and_condition() -> None:
    line = (
        "privacy --strategy FedUCB --agents 50 --releases 10 --trials 500 "
        "--dimensions 8 --epsilon 4 --delta 1e-5"
    )
    about = line.split()
    text = printed(*about)
    assert_no_bare_epsilon(text, "example")
    said = [t for t in text.splitlines() if "epsilon 4 per example" in t]
    assert [FINISHED_TABLE in line for line in said] == [True, False, False]
    shown = json.loads(printed(*about, "--json"))
    promises = shown["promises"]
    conditions = {name: each["conditions"] for name, each in promises.items()}
    assert shown["epsilon"] == 4
    assert conditions == {"own": [FINISHED_TABLE], "one_noise": [], "released": []}
    assert {(p["unit"], p["delta"]) for p in promises.values()} == {("example", 1e-5)}


def test_kinds_are_named_as_in_ledgers() -> None:
    assert condition_of(KIND) == WITHOUT_TRAINING
    assert condition_of("tuning") == ""
    assert total_guarantee([], CLIENT) == Guarantee(CLIENT)


@pytest.mark.parametrize(
    ("line", "unit"),
    [
        ("FedVote --agents 20 --releases 2 --epsilon 2 --delta 1e-3", "client"),
        ("FedWarmStart --agents 30 --z 1.5 --delta 1e-3", "client"),
        ("DPFTSDE --agents 29 --releases 2 --delta 1e-3", "client"),
        ("FederationTuner --agents 20 --releases 3 --epsilon 2", "client"),
        ("FederationTuner --agents 20 --releases 3 --z 2", "client"),
        (
            "FedUCB --agents 50 --releases 10 --trials 500 --dimensions 8 --epsilon .5 "
            "--delta 1e-5",
            "example",
        ),
    ],
)
def test_a_plan_names_its_terms(line: str, unit: str) -> None:
    text = " ".join(printed("privacy", "--strategy", *line.split()).split())
    assert TERMS[unit].search(text)
    assert_no_bare_epsilon(text, unit)
    shown = json.loads(printed("privacy", "--strategy", *line.split(), "--json"))
    assert shown["unit"] == unit
    assert {"adjacency", "delta", "trust", "conditions"} <= shown.keys()
    if "DPFTSDE" not in line:
        assert "The same noise: " in text
