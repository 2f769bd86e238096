"""Releases wait for enough answers: sites that are slow, away and late, simulated."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp.exception import PrivacyBudgetExhausted
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from flwr_fbo import FTS, InProcessGrid, tuning_app
from flwr_fbo._common.text import humanised
from flwr_fbo.cli import app as cli
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger, composed_epsilon
from flwr_fbo.tuning import FedVoteSettings
from tests.support.federation import NUM_AGENTS, SPACE, numpy_app, strategy
from tests.support.ledgers import ledger_charges

AFTER = (2, 4)


class LateGrid(InProcessGrid):
    """Sites of which some are away, or answer after the round's timeout.

    Parameters
    ----------
    late, away : mapping of int to collection of int
        By round, from 1: whose answers come too late, and who hears nothing.
    """

    def __init__(
        self,
        late: Mapping[int, tuple[int, ...]] | None = None,
        away: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(numpy_app(), NUM_AGENTS)
        self.late, self.away = dict(late or {}), dict(away or {})
        self.asked: dict[int, dict[int, int]] = {}  # round -> slot -> release

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """Deliver what sites hear; return what is there in time."""
        asked = list(messages)
        if not asked or asked[0].content["config"]["fbo-phase"] == "enrol":
            return super().send_and_receive(asked, timeout=timeout)
        number = int(asked[0].metadata.group_id)
        self.asked[number] = {
            self._site(m.metadata.dst_node_id): m.content["config"]["fbo-release"]
            for m in asked
        }
        heard = [m for m in asked if not self._is(m, number, self.away)]
        late = {m.metadata.dst_node_id for m in heard if self._is(m, number, self.late)}
        replies = list(super().send_and_receive(heard, timeout=timeout))
        return [r for r in replies if r.metadata.src_node_id not in late]

    def _is(self, message: Message, number: int, whom: Mapping[int, Any]) -> bool:
        return self._site(message.metadata.dst_node_id) in whom.get(number, ())

    def _site(self, node: int) -> int:
        return int(self.contexts[node].node_config["partition-id"])


def _study(**options: Any) -> Any:
    return strategy(release_after=AFTER, **options)


def test_below_the_quorum_nothing_is_released_and_nothing_spent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    on_time, study = _study(), _study()
    on_time.start(LateGrid(), num_rounds=5)
    grid = LateGrid(late={2: (1, 2, 3)})
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        result = study.start(grid, num_rounds=5)
    postponed = "Release 1 is postponed, at no epsilon: 1 answer came, and min_answers"
    assert postponed in caplog.text
    # Site 0, whose message is there, is not asked for it again.
    assert grid.asked[2] == dict.fromkeys(range(4), 1)
    assert grid.asked[3] == {0: 0, 1: 1, 2: 1, 3: 1}
    assert [r.epsilon for r in result.rounds][:2] == [0.0, 0.0]
    assert [row.iteration for row in study.server.ledger] == [1, 3]
    assert [row.facts["made_after"] for row in study.server.ledger] == [2, 3]
    assert study.privacy_spent == on_time.privacy_spent
    # A late message is the one that was not in time: the release is the same.
    np.testing.assert_array_equal(
        study.server.ledger[0].vectors, on_time.server.ledger[0].vectors
    )


def test_log_ledger_and_report_have_one_number_for_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower's, from 1: also of a release that was postponed."""
    study, invoke = _study(folder=tmp_path), CliRunner().invoke
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        study.start(LateGrid(late={2: (1, 2, 3)}), num_rounds=5)
        study.summary()
    told = re.findall(
        r"round (\d) of 5 .*\n(?:.*\n)*?.*so far in (\d) release", caplog.text
    )
    logged = [
        int(number)
        for (number, made), (_, before) in zip(told[1:], told, strict=False)
        if made > before
    ]
    assert logged == [3, 4]
    assert f"2 releases, after rounds {AFTER[0]} and {AFTER[1]}" in caplog.text

    shown = invoke(cli, ["ledger", "show", str(tmp_path)], env={"COLUMNS": "200"})
    assert "\n round " in shown.output
    rows = re.findall(r"^ +(\d+)  \d{4}-", shown.output, re.MULTILINE)
    assert [*map(int, rows)] == logged
    assert f"\nrelease_after: {list(AFTER)}\n" in shown.output
    (values,) = json.loads(
        invoke(cli, ["ledger", "show", str(tmp_path), "--json"]).output
    )
    assert [release["round"] for release in values["releases"]] == logged
    assert not {"iteration", "made_after"} & values["releases"][0].keys()

    invoke(cli, ["report", str(tmp_path), "--output", str(tmp_path / "page.html")])
    page = unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "teration" not in page
    # Four messages up and four times all vectors down, in both releases.
    sizes = [
        4 * (row.vectors.shape[-1] + row.vectors.size) for row in study.server.ledger
    ]
    assert f"{humanised(sum(sizes))} numbers" in page


def test_answers_count_until_the_release_is_made() -> None:
    """No round has the quorum of three, and two rounds together have it."""
    study = _study(min_answers=3)
    study.start(LateGrid(away={2: (0, 1), 3: (2, 3)}), num_rounds=5)
    assert [row.facts["made_after"] for row in study.server.ledger] == [2, 3]


def test_a_release_that_waits_delays_the_next_and_none_is_lost() -> None:
    study = _study(min_answers=4)
    grid = LateGrid(away={2: (0,), 3: (0,), 4: (0,)})
    study.start(grid, num_rounds=8)
    assert [row.facts["made_after"] for row in study.server.ledger] == [4, 5]
    planned = composed_epsilon(study.study.promise.charges, study.server.delta)
    assert study.privacy_spent.epsilon == pytest.approx(planned, rel=1e-9)


def test_a_release_that_nobody_waits_for_is_not_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    study = _study(min_answers=4)
    away = dict.fromkeys(range(1, 7), (3,))
    study.start(LateGrid(away=away), num_rounds=5)
    assert study.server.ledger == []
    assert "0 of 2 planned releases were made" in caplog.text
    assert study.privacy_spent.epsilon == 0.0
    assert study.recommendation.params is None


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
)
def test_sites_that_come_and_go(seed: int) -> None:
    """At random: none below the quorum, none lost while there is time, as planned."""
    rng = np.random.default_rng(seed)

    def some() -> dict[int, tuple[int, ...]]:
        return {
            number: tuple(np.flatnonzero(rng.random(NUM_AGENTS) < 0.4).tolist())
            for number in range(1, 12)
        }

    grid = LateGrid(late=some(), away=some())
    study = _study(max_empty_rounds=12, min_agents=1, min_answers=3)
    study.start(grid, num_rounds=16)
    made = [row.facts["made_after"] for row in study.server.ledger]
    assert len(made) == 2  # from round 12 on all are there
    assert [row.iteration for row in study.server.ledger] == [1, 3]
    answered: set[int] = set()
    expected: list[int] = []
    for number, asked in grid.asked.items():
        release = len(expected) + 1
        due = release <= 2 and AFTER[release - 1] <= number
        lost = {*grid.late.get(number, ()), *grid.away.get(number, ())}
        answered |= {s for s, k in asked.items() if k and s not in lost}
        if due and len(answered) >= 3:
            expected.append(number - 1)
            answered = set()
    assert made == expected
    planned = composed_epsilon(study.study.promise.charges, study.server.delta)
    assert study.privacy_spent.epsilon == pytest.approx(planned, rel=1e-9)


# A budget that outlives a study.


def _spending(folder: Path, **options: Any) -> Any:
    study = _study(budget=folder, noise_multiplier=2.0, noise_seed=None, **options)
    study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=5)
    return study


def test_the_budget_of_a_federation_outlives_its_studies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = _study(noise_multiplier=2.0)
    alone.plan(4)
    one = alone.server.charge(1)
    together = Spent(((one, one), (one, one), (one,)))
    limit = together.epsilon(alone.server.delta) * (1 + 1e-9)
    made = []
    for _ in range(4):
        study = _spending(tmp_path, max_epsilon=limit)
        made.append(len(study.server.ledger))
        assert study.study.promise.num_releases == made[-1]
    assert made == [2, 2, 1, 0]
    assert f"more by others with budget={tmp_path}" in caplog.text
    with SpendingLedger.held(tmp_path) as ledger:
        assert ledger_charges(ledger) == [one] * 5
        spent = Spent.of(CLIENT, ledger.facts())
    assert spent.epsilon(alone.server.delta) <= limit


def test_a_budget_may_end_the_study(tmp_path: Path) -> None:
    with pytest.raises(PrivacyBudgetExhausted, match=r"max_epsilon=0\.01"):
        _spending(tmp_path, max_epsilon=0.01, when_exhausted="raise")


class EndedError(Exception):
    """The server's process has ended."""


class Ending(LateGrid):
    """A grid whose server ends in some round."""

    def __init__(self, ends_in: str) -> None:
        super().__init__()
        self._ends_in = ends_in

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        """End, or deliver all."""
        asked = list(messages)
        if asked and asked[0].metadata.group_id == self._ends_in:
            raise EndedError
        return super().send_and_receive(asked, timeout=timeout)


def test_a_study_that_goes_on_is_not_charged_twice(tmp_path: Path) -> None:
    alone = _study()
    alone.plan(4)
    both = composed_epsilon(alone.study.promise.charges, alone.server.delta)
    options: dict[str, Any] = {
        "budget": tmp_path / "budget",
        "folder": tmp_path / "server",
        "max_epsilon": both + 1e-9,
        "noise_seed": None,
    }

    def grid(ends_in: str = "") -> LateGrid:
        found = Ending(ends_in)
        for context in found.contexts.values():
            context.run_config = {"fbo-folder": str(tmp_path / "clients")}
        return found

    ending = grid("4")
    with pytest.raises(EndedError):
        _study(**options).start(ending, num_rounds=5)
    study = _study(**options)
    study.start(grid(), num_rounds=5)
    assert len(study.server.ledger) == 2
    with SpendingLedger.held(tmp_path / "budget") as ledger:
        assert len(ledger_charges(ledger)) == 2


def test_a_budget_that_is_given_later_counts_what_was_released(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path / "server", "max_epsilon": 50.0}
    with pytest.raises(EndedError):
        _study(**options, noise_seed=None).start(Ending("4"), num_rounds=5)
    study = _study(**options, noise_seed=None, budget=tmp_path / "budget")
    study.start(LateGrid(), num_rounds=5)
    with SpendingLedger.held(tmp_path / "budget") as ledger:
        assert len(ledger_charges(ledger)) == len(study.server.ledger) == 2


def test_a_control_spends_nothing_of_a_budget(tmp_path: Path) -> None:
    """Nor where it goes on after its server was ended."""
    options: dict[str, Any] = {
        "folder": tmp_path / "server",
        "budget": tmp_path / "budget",
        "max_epsilon": 50.0,
        "noise_only": True,
        "noise_seed": None,
    }
    with pytest.raises(EndedError):
        _study(**options).start(Ending("4"), num_rounds=5)
    study = _study(**options)
    study.start(LateGrid(), num_rounds=5)
    assert len(study.server.ledger) == 2
    with SpendingLedger.held(tmp_path / "budget") as ledger:
        assert ledger_charges(ledger) == []


def test_a_budget_that_others_spend_meanwhile_halts_the_releases(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Meanwhile(LateGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            if asked and asked[0].metadata.group_id == "4":
                with SpendingLedger.held(tmp_path) as ledger:
                    ledger.record(("tuning", "another"), 1, Charge(0.1))
            return super().send_and_receive(asked, timeout=timeout)

    study = _study(budget=tmp_path, max_epsilon=50.0, noise_seed=None)
    result = study.start(Meanwhile(), num_rounds=5)
    assert len(study.server.ledger) == 1
    assert len(result.rounds) == 5
    assert f"more by others with budget={tmp_path}" in caplog.text


@pytest.mark.gate
def test_the_lasting_budget_is_shown(tmp_path: Path) -> None:
    studies = [_spending(tmp_path, max_epsilon=50.0) for _ in range(2)]
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path)])
    assert "4 releases of all studies together: epsilon " in shown.output
    for study in studies:
        assert study.study.study_id in shown.output
    command = ["ledger", "show", str(tmp_path), "--json", "--delta", "0.001"]
    (values,) = json.loads(CliRunner().invoke(cli, command).stdout)
    with SpendingLedger.held(tmp_path) as ledger:
        spent = Spent.of(CLIENT, ledger.facts())
    assert values["spent"][0]["epsilon"] == pytest.approx(spent.epsilon(1e-3), rel=1e-9)
    wrong = CliRunner().invoke(cli, [*command[:-1], "2"])
    assert wrong.exit_code == 1
    assert "delta=2.0 is not allowed" in wrong.output


def test_names_of_a_study_are_no_markup(tmp_path: Path) -> None:
    space = {"[/b]": FloatDistribution(0.0, 1.0), "[link=x]": FloatDistribution(0, 1)}
    study = strategy(space=space, folder=tmp_path)
    study.start(InProcessGrid(tuning_app(lambda _: lambda trial: 1.0), 4), num_rounds=2)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path)])
    assert shown.exit_code == 0
    assert "[/b]" in shown.output
    assert "[link=x]" in shown.output


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: strategy(agent=FedVoteSettings(num_initial=4)),
            "it reads in each agent's message its exact best setting",
        ),
        (strategy, "message what it believes of its objective, and so about where its"),
        (
            lambda: FTS(SPACE, "maximize", num_agents=NUM_AGENTS),
            "message reaches the server and all others as it is, and says what it",
        ),
    ],
)
def test_the_log_says_what_the_server_reads(
    make: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    study = make()
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        study.start(InProcessGrid(numpy_app(), NUM_AGENTS), num_rounds=2)
    assert words in caplog.text


def test_a_budget_is_for_any_number_of_equal_releases(tmp_path: Path) -> None:
    options: dict[str, Any] = {"budget": tmp_path, "noise_multiplier": 50.0}
    study = strategy(
        release_after=range(1, 151), max_epsilon=8.0, noise_seed=None, **options
    )
    study.plan(151)
    assert study.server.num_allowed == 150
