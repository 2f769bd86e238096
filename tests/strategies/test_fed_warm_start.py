"""FedWarmStart over Flower: cohorts, one message a site, and going on."""

import logging
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError
from numpy.typing import NDArray
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid, Limits, Privacy, Seeds, tuning_app
from flwr_fbo._compat import reply_arrays
from flwr_fbo.cli import app as cli
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.spending_ledger import Charge, SpendingLedger
from flwr_fbo.strategies.fed_warm_start import FedWarmStart
from flwr_fbo.strategies.tuning_result import TuningResult
from flwr_fbo.tuning.fed_warm_start.head_start import head_start
from flwr_fbo.tuning.fed_warm_start.server import FedWarmStartServer, verdict
from flwr_fbo.tuning.fed_warm_start.settings import (
    Cohorts,
    FedWarmStartSettings,
    WarmStartFacts,
)
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.study import create_agent
from tests.support.fed_warm_start import (
    AGENT,
    ROUNDS,
    SIZES,
    LateGrid,
    N,
    make_objective,
    objective_of,
    round_of,
    strategy,
)
from tests.support.federation import assert_same
from tests.support.ledgers import ledger_charges


def recording() -> tuple[ClientApp, list[tuple[int, int, int]]]:
    """Return an app, and a list of (slot, round, arrays sent), a message each."""
    inner, app = tuning_app(make_objective), ClientApp()
    seen: list[tuple[int, int, int]] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply = inner(message, context)
        slot = int(context.node_config["partition-id"])
        sent = len(reply_arrays(reply.content)) if not reply.has_error() else 0
        number = round_of(message)
        if number:
            seen.append((slot, number, sent))
        return reply

    return app, seen


def run(**options: Any) -> tuple[FedWarmStart, list[Agent]]:
    study = strategy(**options)
    grid = InProcessGrid(tuning_app(make_objective), N)
    study.start(grid, num_rounds=ROUNDS)
    return study, grid.agents(study.study)


@pytest.fixture(scope="module")
def played() -> tuple[FedWarmStart, list[Agent]]:
    """The default study."""
    return run()


def test_each_site_sends_once_and_plays_once_its_cohort_has_begun() -> None:
    app, seen = recording()
    study = strategy()
    study.start(InProcessGrid(app, N), num_rounds=ROUNDS)
    sent = [(slot, number) for slot, number, arrays in seen if arrays]
    assert sorted(sent) == [(0, 3), (1, 3), (2, 3), (3, 6), (4, 6)]
    first = {slot: min(r for s, r, _ in seen if s == slot) for slot in range(N)}
    assert first == {0: 1, 1: 1, 2: 1, 3: 4, 4: 4, 5: 7, 6: 7}
    assert [len(row.vectors) for row in study.server.ledger] == [1, 1]
    assert released(study.server).shape == (2, 16)


def test_a_verdict_sets_followers_beside_pioneers() -> None:
    """By hand: means of three rounds, (1, 2, 3) of pioneers and (0, 0.2) of others."""
    facts = WarmStartFacts(Cohorts(N, SIZES))
    study = replace(strategy().study, facts=facts)
    own = {0: [1.0, 1.0, 1.0], 1: [1.0, 2.0, 3.0], 2: [3.0, 3.0, 3.0]}
    others = {3: [0.0, 0.0, 0.0], 6: [0.2, 0.2, 0.2], 5: [9.0]}  # one is not done
    told = verdict(study, own | others)
    assert told.startswith("Sites that started from releases cannot be told from")
    # Variances 1 / 3 and .02 / 2; by Welch 2.12 degrees of freedom, t 4.08.
    low, high = -1.9 - 4.08 * 0.586, -1.9 + 4.08 * 0.586
    found = re.search(r"alone: (\S+) \(95 % interval (\S+) to ([^;]+);", told)
    assert found is not None
    assert [float(one) for one in found.groups()] == pytest.approx(
        [-1.9, low, high], abs=0.02
    )
    worse = verdict(study, own | {slot: [-9.0] * 3 for slot in (3, 4)})
    assert "did worse than the pioneers, who searched alone: -11" in worse
    upside = replace(study, direction="minimize")
    assert "did better than" in verdict(upside, own | {s: [-9.0] * 3 for s in (3, 4)})
    assert verdict(study, own | {3: [1.0] * 3}) == ""
    assert verdict(study, {}) == ""


@pytest.mark.gate
def test_a_result_and_a_report_say_the_verdict(tmp_path: Path) -> None:
    def start(num_rounds: int = ROUNDS, **more: Any) -> TuningResult:
        study = strategy(folder=tmp_path / "server", **more)
        grid = InProcessGrid(tuning_app(make_objective), N)
        result = study.start(grid, num_rounds=num_rounds)
        assert isinstance(result, TuningResult)
        return result

    told = start(metrics=["best-value"])
    assert "the pioneers, who searched alone: " in told.verdict
    assert told.verdict in repr(told)
    assert start(metrics=["best-value"]).verdict == told.verdict  # from its record
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "server")]).exit_code == 0
    page = " ".join((tmp_path / "server" / "report.html").read_text().split())
    assert told.verdict in page
    shutil.rmtree(tmp_path / "server")
    assert start().verdict == ""


def test_a_study_costs_what_one_release_costs(
    played: tuple[FedWarmStart, list[Agent]],
) -> None:
    study, _ = played
    spent = study.privacy_spent
    assert len(study.server.ledger) == 2
    assert spent.num_releases == 1
    z = study.server.release.settings.noise_multiplier
    # One Gaussian mechanism of sensitivity 1, exactly.
    assert spent.epsilon == pytest.approx(gaussian_epsilon(1e-3, 1 / z), rel=1e-3)
    assert 7.9 < spent.epsilon <= 8.0
    assert study.study.promise.charges == (Charge(z),)
    assert isinstance(study.study.facts, WarmStartFacts)
    told = study.study.facts.cohorts
    assert told is not None
    assert told == Cohorts(N, SIZES, told.noise_multiplier)
    assert told.noise_multiplier == pytest.approx(z)
    # Of the mean over all N slots.
    assert study.server.release.noise_std(0)[0] == pytest.approx(z / N)


def test_the_ledger_on_disk_counts_as_the_server_does(tmp_path: Path) -> None:
    study, _ = run(folder=tmp_path)
    shown = CliRunner().invoke(cli, ["ledger", "show", str(tmp_path)]).output
    epsilon = study.privacy_spent.epsilon
    said = f"1 release: epsilon {epsilon:.4f} per client (message or zeros, delta 0.001"
    assert said in shown.replace("\n", " ")


def looped(num_rounds: int, **options: Any) -> tuple[FedWarmStart, list[Agent]]:
    """Play the same study without Flower."""
    study = strategy(**options)
    study.plan(num_rounds - 1)
    agents = [create_agent(study.study, slot, 1) for slot in range(N)]
    objectives = [objective_of(slot) for slot in range(N)]
    run_loop(study.server, agents, objectives, num_rounds - 1)
    return study, agents


def test_a_grid_equals_a_loop(played: tuple[FedWarmStart, list[Agent]]) -> None:
    """Array for array: trials, what agents keep, and both releases."""
    study, agents = played
    other, alike = looped(ROUNDS)
    assert_same(agents, alike)
    assert [len(one.values) for one in agents] == [9, 9, 9, 6, 6, 3, 3]
    np.testing.assert_array_equal(released(study.server), released(other.server))
    assert [r.facts["made_after"] for r in other.server.ledger] == [2, 5]


def test_noise_only_is_alone_array_for_array() -> None:
    study, agents = run(privacy=Privacy(noise_only=True), epsilon=2.0, cohorts=(4, 2))
    assert study.recommendation.params is None
    assert study.privacy_spent.epsilon == 0.0
    for one in agents:
        alone = create_agent(study.study, one.slot, 1)
        nobody = FedWarmStartServer(study.server.release, 16, 1e-3, ())
        run_loop(nobody, [alone], [objective_of(one.slot)], len(one.values) - 1)
        np.testing.assert_array_equal(one.points, alone.points)


def test_an_open_gate_says_where_to_start() -> None:
    agent = FedWarmStartSettings(num_features=64, share_after=8)
    study = strategy(privacy=Privacy(noise_multiplier=0.02), epsilon=None, agent=agent)
    grid = InProcessGrid(tuning_app(make_objective), N)
    result = study.start(grid, num_rounds=18)
    assert result.warm_start is not None
    agents = grid.agents(study.study)
    assert study.study.space.from_unit(agents[6].points[0]) == result.warm_start
    assert agents[0].values[0] < agents[6].values[0]


def test_it_goes_on_from_its_folder(
    tmp_path: Path, played: tuple[FedWarmStart, list[Agent]]
) -> None:
    whole, agents = played

    class StoppedError(Exception):
        pass

    class StoppingGrid(InProcessGrid):
        rounds = 0

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            asked = list(messages)
            if asked and "config" in asked[0].content:
                self.rounds += "server-round" in asked[0].content["config"]
            if self.rounds == stop:
                raise StoppedError
            return super().send_and_receive(asked, timeout=timeout)

    app = tuning_app(make_objective)
    for stop in (3, 2, 3, 99):  # within rounds 3, 4, 6; to the end
        folder: UserConfig = {"fbo-folder": str(tmp_path / "sites")}
        grid = StoppingGrid(app, N, run_config=folder)
        study = strategy(folder=tmp_path / "server")
        if stop < 99:
            with pytest.raises(StoppedError):
                study.start(grid, num_rounds=ROUNDS)
    study_again = strategy(folder=tmp_path / "server")
    result = study_again.start(grid, num_rounds=ROUNDS)
    assert len(result.rounds) == ROUNDS
    np.testing.assert_array_equal(released(study_again.server), released(whole.server))
    for one, other in zip(agents, grid.agents(study_again.study), strict=True):
        np.testing.assert_array_equal(one.points, other.points)
    assert study_again.privacy_spent == whole.privacy_spent
    with pytest.raises(JournalError, match="cohort"):
        strategy(folder=tmp_path / "server", cohorts=(3, 3)).start(
            grid, num_rounds=ROUNDS
        )


def test_a_sites_ledger_has_one_release(tmp_path: Path) -> None:
    limits = Limits(max_epsilon_per_client=8.0, max_delta=1e-3, max_releases=1)
    app = tuning_app(make_objective, limits=limits)

    def sites() -> InProcessGrid:
        return InProcessGrid(app, N, run_config={"fbo-folder": str(tmp_path)})

    study = strategy(seeds=Seeds(study=1, features=2))
    study.start(sites(), num_rounds=ROUNDS)
    z = study.server.release.settings.noise_multiplier
    with SpendingLedger.held(tmp_path) as ledger:
        for slot in range(N):
            sends = slot < sum(SIZES)
            assert ledger_charges(ledger, owner=slot) == ([Charge(z)] if sends else [])
    # Whoever sends again would pay again, and these limits forbid it.
    again = strategy(seeds=Seeds(study=4, features=5))
    with pytest.raises(AggregationError, match="its limits"):
        again.start(sites(), num_rounds=ROUNDS)


def released(server: FedWarmStartServer) -> NDArray[np.float64]:
    vectors = server.vectors
    assert vectors is not None
    return vectors


def test_a_silent_cohort_is_waited_for_and_late_messages_are_not_asked_for() -> None:
    inner, app = tuning_app(make_objective), ClientApp()
    asked: list[tuple[int, int]] = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        slot = int(context.node_config["partition-id"])
        number = round_of(message)
        asked.append((number, slot))
        if number in (3, 4) and slot in (0, 1):
            raise RuntimeError("away")
        return inner(message, context)

    study = strategy()
    study.start(InProcessGrid(app, N), num_rounds=ROUNDS)
    made = [row.facts["made_after"] for row in study.server.ledger]
    assert made == [4, 7]
    assert min(number for number, slot in asked if number and slot == 3) == 6


def late_grid(looks: int, away: tuple[int, ...] = (0, 1, 2)) -> LateGrid:
    grid = LateGrid(tuning_app(make_objective), N)
    grid.looks, grid.away = looks, away
    return grid


@pytest.fixture
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr_fbo.strategies.enrolment.time.sleep", lambda _: None)


OPEN: dict[str, Any] = {
    "agent": FedWarmStartSettings(num_candidates=60, share_after=4),
    "privacy": Privacy(noise_multiplier=0.02),
    "epsilon": None,
}


@pytest.mark.usefixtures("no_naps")
def test_a_site_that_joins_when_the_others_have_finished_has_their_head_start() -> None:
    """Its trials are the loop's, the first of them h's maximiser."""
    num_rounds = 14
    study = strategy(min_agents=6, patience=60.0, **OPEN)
    grid = late_grid(looks=10, away=(6,))
    study.start(grid, num_rounds=num_rounds)
    late = grid.agents(study.study)[6]
    assert min(late.iterations) > study.server.ledger[-1].facts["made_after"] + 1
    assert len(late.values) >= 3
    other, agents = looped(num_rounds, **OPEN)
    np.testing.assert_array_equal(released(study.server), released(other.server))
    np.testing.assert_array_equal(late.points, agents[6].points[: len(late.values)])
    told = other.study
    assert isinstance(told.agent, FedWarmStartSettings)
    about = told.agent, other.server.cohorts, told.space, told.feature_seed
    start = head_start(*about, released(other.server).tobytes())
    assert start.is_followed
    np.testing.assert_array_equal(late.points[0], told.space.snap(start.tops[0]))


@pytest.mark.usefixtures("no_naps")
def test_sites_that_only_wait_do_not_begin_a_study() -> None:
    """Those of the first cohort come later than the others."""
    study = strategy(min_agents=3, patience=60.0)
    study.start(late_grid(looks=6), num_rounds=ROUNDS)
    assert len(study.server.ledger) == 2


@pytest.mark.usefixtures("no_naps")
def test_a_study_of_sites_that_only_wait_ends_with_the_reason() -> None:
    study = strategy(min_agents=3, patience=0.2)
    with pytest.raises(AggregationError, match="the release of a cohort that is abs"):
        study.start(late_grid(looks=10**9), num_rounds=ROUNDS)


@pytest.mark.usefixtures("no_naps")
def test_a_cohort_of_which_most_never_joined_is_not_spent() -> None:
    """One of three pioneers is there: its release waits."""
    study = strategy(min_agents=1, patience=0.2)
    study.start(late_grid(looks=10**9, away=(1, 2)), num_rounds=ROUNDS)
    assert study.server.ledger == []


def test_too_few_sites_search_alone_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    study, agents = run(cohorts=None, epsilon=2.0)
    assert study.server.ledger == []
    assert [len(one.values) for one in agents] == [ROUNDS] * N
    assert study.privacy_spent.epsilon == 0.0
    assert study.study.promise.charges == ()
    assert "every agent searches alone, and nothing is shared" in caplog.text


def test_the_log_says_who_are_pioneers_and_who_follow(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")
    study = strategy()
    study.plan(ROUNDS)
    study.summary()
    said = "pioneers: agents 0 to 2; then agents 3 to 4; then, without a message, "
    assert f"{said}agents 5 to 6" in caplog.text


def test_rounds_that_are_too_few_leave_cohorts_out() -> None:
    study = strategy()
    study.plan(4)
    assert study.server.cohorts.cohort_sizes == (3,)
    assert study.study.facts == WarmStartFacts(study.server.cohorts)
    study = strategy()
    study.plan(2)
    assert study.server.cohorts.cohort_sizes == ()
    assert all(study.server.plays(slot) for slot in range(N))


def test_a_budget_is_for_all_cohorts_or_none() -> None:
    options = {"epsilon": None, "agent": AGENT}
    enough = Privacy(noise_multiplier=1.0, max_epsilon=4.0)
    study = strategy(privacy=enough, **options)
    study.plan(8)
    assert study.server.num_allowed == 2
    little = Privacy(noise_multiplier=1.0, max_epsilon=1.0)
    study = strategy(privacy=little, **options)
    study.plan(8)
    assert study.server.num_allowed == 0
    assert study.study.promise.charges == ()
    assert all(study.server.plays(slot) for slot in range(N))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"privacy": Privacy(clip_norm=2.0)}, "clip_norm=2.0"),
        ({"privacy": Privacy(sampling_probability=0.5)}, "sampling_probability=0.5"),
        ({"privacy": Privacy(release_after=(1,))}, "release_after="),
        ({"privacy": Privacy(min_answers=2)}, "min_answers=2"),
        ({"privacy": Privacy(sampling="fixed-size")}, "sampling='fixed-size'"),
        ({"cohorts": (4, 3)}, "cohort_sizes="),
        ({"cohorts": 5}, "cohorts=5"),
        ({"delta": None}, "delta=None"),
        ({"privacy": Privacy(noise_multiplier=1.0)}, "epsilon=8.0"),
        ({"agent": 3}, "agent=3"),
    ],
)
def test_what_is_not_allowed_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        strategy(**options)
