"""FedUCB over Flower: the same actions as the simulator, and records that are kept."""

import itertools
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError
from typer.testing import CliRunner

from flwr_fbo import FedUCB, InProcessGrid, linear_bandit_app
from flwr_fbo.bandits import BanditResult, LinearBanditClient
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.settings import DeterminantTrigger, LocalData
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import Trial
from flwr_fbo.lab.simulation.linear_bandits import BanditSimulation
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment
from flwr_fbo.site.site import SiteClient
from flwr_fbo.site.site_journal import record_name
from tests.support.bandit_sites import (
    ACTIONS,
    APP,
    CASES,
    NOISE_SEED,
    NOT_PRIVATE,
    OPEN,
    RELEASES,
    SCHEDULE,
    SEED,
    SETTINGS,
    TASK,
    UNKNOWN,
    M,
    Sites,
    T,
    fed_ucb,
    last_releases,
    lose_journal,
    make_environment,
    site_strategy,
)
from tests.support.federation import Unheard, shuffled
from tests.support.linear_bandits import play_objects

CLOCK = "flwr_fbo.strategies.linear_bandit_strategy.time"


def numpy_app() -> ClientApp:
    def client_fn(context: Context) -> Any:
        return LinearBanditClient(
            context, make_environment=make_environment
        ).to_client()

    return ClientApp(client_fn=client_fn)


def trials_of(context: Context) -> list[Trial]:
    content = context.state.config_records[record_name(LINEAR_SITE.name)]["journal"]
    assert isinstance(content, bytes)
    with Journal(None, content=content) as journal:
        return journal.trials()


def assert_as_simulated(
    grid: InProcessGrid, strategy: FedUCB, simulation: BanditSimulation
) -> None:
    """Assert identical actions, and equal statistics."""
    expected = simulation.run(SEED, NOISE_SEED)
    for slot, context in enumerate(grid.contexts.values()):
        bandit = LinearBanditEnvironment(TASK, SEED, slot)
        trials = trials_of(context)
        assert len(trials) == simulation.num_trials
        for t, trial in enumerate(trials):
            assert trial.state == "complete"
            action = bandit.contexts(t)[expected.actions[t, slot]]
            np.testing.assert_array_equal(action_of(trial), action)
        played = (
            [action_of(trial) for trial in trials],
            [trial.value for trial in trials],
        )
        total = simulation.settings.releases.gram(*played)
        np.testing.assert_allclose(
            total, expected.running_sums[slot], rtol=0, atol=1e-9
        )
    assert strategy.server.vectors is not None
    np.testing.assert_allclose(
        strategy.server.vectors, expected.total, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(
    "case",
    [
        "released",
        "paper",
        "non-private, raw",
        "sampling, raw",
        "unknown horizon",
        "sliding window, raw",
        "inverse gap",
    ],
)
def test_plays_as_the_simulator_does(case: str) -> None:
    strategy, grid = fed_ucb(CASES[case]), InProcessGrid(APP, M)
    result = strategy.start(grid)
    simulation = BanditSimulation(CASES[case], M, TASK, T, SCHEDULE)
    assert_as_simulated(grid, strategy, simulation)
    assert [r.answered for r in result.rounds] == [M] * 4
    assert strategy.server.num_releases == [3] * M


def test_plays_as_the_simulator_does_with_a_trigger() -> None:
    """With the schedule at which agents want to synchronise."""
    settings, trigger, num_trials = CASES["raw"], DeterminantTrigger(20.0), 16
    alone = BanditSimulation(settings, M, TASK, num_trials, ())
    synchronised = play_objects(alone, SEED, NOISE_SEED, trigger).synchronised
    simulation = replace(alone, schedule=synchronised)
    assert 1 <= len(synchronised) <= 3
    strategy = fed_ucb(settings, schedule=trigger, num_trials=None)
    grid = InProcessGrid(APP, M)
    result = strategy.start(grid, num_rounds=num_trials + len(synchronised))
    assert_as_simulated(grid, strategy, simulation)
    assert result.privacy_spent is not None
    assert result.privacy_spent.epsilon == np.inf


@pytest.mark.parametrize(
    ("app", "options"),
    [
        (numpy_app(), {"client_api": "numpy"}),
        (APP, {"client_api": "message"}),
    ],
)
def test_every_client_gives_the_same(app: ClientApp, options: dict[str, Any]) -> None:
    strategy, grid = fed_ucb(**options), shuffled(InProcessGrid(app, M), 3)
    strategy.start(grid)
    simulation = BanditSimulation(SETTINGS, M, TASK, T, SCHEDULE)
    assert_as_simulated(grid, strategy, simulation)


@pytest.mark.slow
def test_the_estimate_finds_theta() -> None:
    settings = replace(SETTINGS, releases=NOT_PRIVATE)
    strategy = fed_ucb(settings, schedule=[200, 400, 800], num_trials=None)
    result = strategy.start(InProcessGrid(APP, M))
    theta = LinearBanditEnvironment(TASK, SEED, 0)._bandits.theta
    assert isinstance(result, BanditResult)
    assert result.estimate is not None
    assert np.linalg.norm(result.estimate - theta) < 0.2


def test_a_site_that_was_away_is_in_the_total_with_its_last_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn() -> None:
        for slot in range(M):
            policy = sites.policy(slot)
            ticket = policy.choose(ACTIONS[:1]).ticket
            policy.reward(ticket, 1.0)

    def leave() -> None:
        learn()
        sites.silent = {2}

    def come_back() -> None:
        learn()
        sites.silent = set()

    sites = Sites(tmp_path, {2: learn, 4: leave, 6: come_back})
    strategy, releases = site_strategy(tmp_path), last_releases(monkeypatch)
    strategy.start(sites)
    rows = strategy.server.ledger
    assert [all_last[:, 3, 3].tolist() for all_last in releases] == [
        [1.0, 1.0, 1.0, 1.0],
        [2.0, 2.0, 1.0, 2.0],
        [3.0, 3.0, 3.0, 3.0],
    ]
    assert [row.facts["num_releases"] for row in rows] == [
        [1, 1, 1, 1],
        [2, 2, 1, 2],
        [3, 3, 2, 3],
    ]


def restart(sites: Sites, slot: int) -> None:
    """Give a site another node id."""
    [node] = [
        node for node, c in sites.contexts.items() if c.node_config["agent-id"] == slot
    ]
    context = sites.contexts.pop(node)
    context.node_id = 5000 + node
    sites.contexts[context.node_id] = context


def test_a_site_that_comes_back_without_its_journal_is_not_enrolled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Under another node id, as after a restart of its SuperNode."""

    def lose() -> None:
        lose_journal(sites)
        restart(sites, 1)

    sites = Sites(tmp_path)
    sites.after = {3: lose}
    strategy = site_strategy(tmp_path)
    strategy.start(sites)
    assert "agent-id=1 came without its journal, which has its releases" in caplog.text
    assert "Or another node took the slot first" in caplog.text
    assert strategy.server.num_releases == [3, 1, 3, 3]


def test_a_slot_that_was_issued_is_known_by_the_journal(tmp_path: Path) -> None:
    """To the server: a site that is restarted at once has not heard of it."""

    class Restarted(InProcessGrid):
        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            replies = list(super().send_and_receive(messages, timeout=timeout))
            if 1001 not in self.contexts:
                return replies
            self.contexts[5001] = self.contexts.pop(1001)
            self.contexts[5001].node_id = 5001
            return replies[:-1]  # one more is waited for

    configs: list[UserConfig] = [
        {"fbo-folder": str(tmp_path / f"site-{i}")} for i in range(M)
    ]
    grid = Restarted(OPEN, M, node_configs=configs)
    strategy = site_strategy(tmp_path, patience=5.0)
    strategy.start(grid)
    assert strategy.server.num_releases == [3] * M


@pytest.mark.parametrize("named", [True, False])
def test_two_agents_with_one_journal_are_not_enrolled(
    tmp_path: Path, named: bool
) -> None:
    """Both would release the same trials, each with noise of its own."""
    configs: list[UserConfig] = [{"agent-id": i} if named else {} for i in range(M)]
    shared: UserConfig = {"fbo-folder": str(tmp_path / "site")}
    grid = InProcessGrid(OPEN, M, node_configs=configs, run_config=shared)
    with pytest.raises(AggregationError, match="every agent needs a folder of its own"):
        site_strategy(tmp_path).start(grid)


def test_a_server_that_was_ended_goes_on(tmp_path: Path) -> None:
    def learn() -> None:
        for slot in range(M):
            policy = sites.policy(slot)
            ticket = policy.choose(ACTIONS[:1]).ticket
            policy.reward(ticket, 1.0)

    class EndedError(Exception):
        pass

    def end() -> None:
        raise EndedError

    sites = Sites(tmp_path, {2: learn, 5: end})
    with pytest.raises(EndedError):
        site_strategy(tmp_path).start(sites)
    sites.before = {6: learn}
    strategy = site_strategy(tmp_path)
    result = strategy.start(sites)
    assert [r.server_round for r in result.rounds] == list(range(1, 8))
    squares = [row.vectors[3, 3] for row in strategy.server.ledger]
    assert squares == [M, M, 2 * M]
    again = site_strategy(tmp_path).start(sites)
    np.testing.assert_array_equal(again.estimate, result.estimate)
    other = replace(SETTINGS, releases=NOT_PRIVATE, alpha=0.5)
    with pytest.raises(JournalError, match="alpha"):
        fed_ucb(other, interval=0.0, folder=tmp_path / "server").start(sites)


def test_a_study_of_unknown_length_goes_on_with_more_rounds(tmp_path: Path) -> None:
    """Its noise was calibrated for it, so epsilon stays."""
    settings = replace(SETTINGS, releases=UNKNOWN)

    def strategy() -> FedUCB:
        folder = tmp_path / "server"
        return fed_ucb(settings, interval=0.0, folder=folder, noise_seed=None)

    sites = Sites(tmp_path, app=OPEN)
    with pytest.raises(ValueError, match="num_rounds=None"):
        strategy().start(sites)
    first = strategy().start(sites, num_rounds=5)
    assert first.privacy_spent is not None
    more = strategy()
    result = more.start(sites, num_rounds=9)
    assert result.privacy_spent is not None
    assert more.server.num_releases == [4] * M
    assert result.privacy_spent.epsilon == first.privacy_spent.epsilon == 30.0
    summary = sites.policy(0).summary()
    assert summary.settings.releases.num_releases is None
    assert "4 made" in str(summary)
    with pytest.raises(ValueError, match=r"num_rounds=5 .* at least 9"):
        strategy().start(sites, num_rounds=5)


def test_a_known_length_stays(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    site_strategy(tmp_path).start(sites, num_rounds=3)
    with pytest.raises(JournalError, match="num_rounds"):
        site_strategy(tmp_path).start(sites, num_rounds=5)


def test_a_release_forgets_what_has_left_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise it shows: three trials, then two, then one a release."""

    def learn(count: int) -> Any:
        def play() -> None:
            policy = sites.policy(0)
            for _ in range(count):
                policy.reward(policy.choose(ACTIONS[:1]).ticket, 1.0)

        return play

    releases = replace(NOT_PRIVATE, num_releases=None, sliding_window=2)
    settings = replace(SETTINGS, releases=releases)
    sites = Sites(tmp_path, {2: learn(3), 4: learn(2), 6: learn(1), 8: learn(0)})
    strategy, made = fed_ucb(settings, interval=0.0), last_releases(monkeypatch)
    strategy.start(sites, num_rounds=9)
    counts = [all_last[0, 3, 3] for all_last in made]
    assert counts == [3, 5, 3, 1]


def test_the_ledger_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    fed_ucb(CASES["raw"], folder=folder).start(InProcessGrid(APP, M))
    show = partial(CliRunner().invoke, app, catch_exceptions=False)
    said = show(["ledger", "show", str(folder)]).output
    assert "3 releases of each agent: epsilon 30.0000" in said
    assert "NOT PRIVATE" in said  # the noise is seeded
    shown = show(["ledger", "show", str(folder), "--json"])
    (printed,) = json.loads(shown.output)
    assert [row["num_releases"] for row in printed["releases"]] == [
        [k] * M for k in (1, 2, 3)
    ]
    assert printed["spent"][0]["epsilon"] == 30.0
    sites = Sites(tmp_path)
    site_strategy(tmp_path / "open").start(sites)
    shown = show(["ledger", "show", str(tmp_path / "open" / "server"), "--json"])
    (printed,) = json.loads(shown.output)
    assert printed["spent"][0]["epsilon"] is None
    assert [row["round"] for row in printed["releases"]] == [2, 4, 6]
    own = show(["ledger", "show", str(sites.folders[2])]).output
    assert "3 releases of this agent: epsilon infinite" in own
    # Rounds are the server's: a site counts its releases.
    assert "\n release " in own
    assert re.findall(r"^ +(\d+)  \d{4}-", own, re.MULTILINE) == ["1", "2", "3"]
    assert "NOT PRIVATE" in own


def test_synchronisations_wait_for_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(f"{CLOCK}.sleep", pauses.append)
    settings = replace(SETTINGS, releases=NOT_PRIVATE)
    fed_ucb(settings, interval=3600.0).start(Sites(tmp_path))
    assert len(pauses) == 3  # one a release
    assert all(3590 < pause <= 3600 for pause in pauses)


def test_a_wait_that_was_cut_off_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first release, which would else hold next to nothing."""

    class EndedError(Exception):
        pass

    def end(pause: float) -> None:
        raise EndedError

    settings, sites = replace(SETTINGS, releases=NOT_PRIVATE), Sites(tmp_path)
    pauses: list[float] = []
    for sleep in (end, pauses.append):
        monkeypatch.setattr(f"{CLOCK}.sleep", sleep)
        strategy = fed_ucb(settings, interval=60.0, folder=tmp_path / "server")
        try:
            strategy.start(sites)
        except EndedError:
            continue
    assert len(pauses) == 3


def test_no_wait_is_longer_than_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the clock is set back."""
    times = itertools.count(2e9, -1e5)
    pauses: list[float] = []
    monkeypatch.setattr(f"{CLOCK}.time", lambda: next(times))
    monkeypatch.setattr(f"{CLOCK}.sleep", pauses.append)
    settings = replace(SETTINGS, releases=NOT_PRIVATE)
    fed_ucb(settings, interval=60.0).start(InProcessGrid(APP, M))
    assert pauses == [60.0] * 3


def test_who_is_asked_is_seen_after_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperNode that is restarted meanwhile has another node id."""
    sites = Sites(tmp_path)
    rename = partial(restart, sites, 0)
    monkeypatch.setattr(f"{CLOCK}.sleep", lambda _: rename())
    settings = replace(SETTINGS, releases=NOT_PRIVATE)
    strategy = fed_ucb(settings, interval=3600.0)
    strategy.start(sites)
    assert strategy.server.num_releases == [3] * M


def test_a_study_that_did_not_begin_begins_in_a_new_run(tmp_path: Path) -> None:
    """Sites that have enrolled in it know no other one."""
    sites = Sites(tmp_path)
    sites.silent = {3}
    with pytest.raises(AggregationError, match="3 enrolled"):
        site_strategy(tmp_path).start(sites)
    sites.silent = set()
    strategy = site_strategy(tmp_path)
    strategy.start(sites)
    assert strategy.server.num_releases == [3] * M


def test_what_a_strategy_refuses() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"interval": 1.0, "schedule": [1]}, "interval"),
        ({"interval": None, "schedule": None}, "interval"),
        ({"interval": -1.0}, "interval"),
        ({"interval": "daily"}, "interval"),
        ({"interval": np.inf}, "interval"),
        ({"interval": 1.0, "num_trials": 5}, "num_trials"),
        ({"schedule": []}, "schedule"),
        ({"schedule": [5, 5]}, "schedule"),
        ({"schedule": [0, 5]}, "schedule"),
        ({"schedule": np.array([5, 10]), "num_trials": None}, "a list of"),
        ({"schedule": [1, 2, 3, 4]}, "synchronisations"),
        ({"num_trials": 21}, "num_trials"),
        ({"schedule": DeterminantTrigger(1.0), "num_trials": None}, "local_data"),
        ({"noise_seed": -1}, "noise_seed"),
    ]
    for options, field in cases:
        with pytest.raises(ValueError, match=field):
            fed_ucb(**options)
    with pytest.raises(ValueError, match="settings"):
        FedUCB({}, M, interval=1.0)  # type: ignore[arg-type]
    grid = InProcessGrid(APP, M)
    with pytest.raises(ValueError, match="num_rounds"):
        fed_ucb().start(grid, num_rounds=3)
    with pytest.raises(ValueError, match=r"num_rounds=4 .* odd"):
        fed_ucb(interval=0.0).start(grid, num_rounds=4)
    with pytest.raises(ValueError, match="num_rounds=9"):
        fed_ucb(interval=0.0).start(grid, num_rounds=9)
    trigger = fed_ucb(CASES["raw"], schedule=DeterminantTrigger(1.0), num_trials=None)
    with pytest.raises(ValueError, match="num_rounds"):
        trigger.start(grid)


class Replaced(InProcessGrid):
    """Nobody has an agent-id; after its first release a site loses all that it had.

    It comes back under another node id, as SuperNodes do.
    """

    num_asked = 0

    def push_messages(self, messages: Any) -> Any:
        messages = list(messages)
        ids = super().push_messages(messages)
        configs = [m.content.config_records["config"] for m in messages]
        self.num_asked += any(config.get("fbo-send-release") for config in configs)
        if self.num_asked == 1 and 1001 in self.contexts:
            lost = self.contexts.pop(1001)
            self.contexts[2001] = Context(1, 2001, lost.node_config, RecordDict(), {})
        return ids


def test_an_agent_without_id_that_lost_its_journal_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where there is a free slot, too: it would release its first trials again."""
    played: list[tuple[int, int]] = []

    class Environment:
        def __init__(self, context: Context) -> None:
            self.node, self.t = context.node_id, -1

        def contexts(self, t: int) -> Any:
            self.t = t
            return ACTIONS

        def reward(self, x: Any) -> float:
            played.append((self.node, self.t))
            return 0.5

    app = linear_bandit_app(make_environment=Environment)
    strategy = fed_ucb(min_agents=2)
    strategy.start(Replaced(app, 2, node_configs=[{}, {}]))
    assert strategy.server.num_releases == [1, 3, 0, 0]
    assert {node for node, _ in played} == {1001, 1002}
    assert "no agent-id in the node config, and an unknown journal" in caplog.text


def test_a_release_that_was_asked_for_is_spent() -> None:
    strategy = fed_ucb(noise_seed=None, max_empty_rounds=9)
    grid = Unheard(APP, M)
    assert strategy.privacy_spent.epsilon == 0.0
    result = strategy.start(grid)
    assert grid.num_left == 3 * M
    assert strategy.server.num_releases == [0] * M
    assert result.privacy_spent == strategy.privacy_spent
    assert strategy.privacy_spent.epsilon == RELEASES.epsilon
    assert all(r.epsilon == RELEASES.epsilon for r in result.rounds)


def test_who_asks_for_a_synchronisation_does_not_get_one_without_a_trigger() -> None:
    """When to synchronise is public, and no agent that lies can spend the releases."""
    site = LinearBanditSite(make_environment=make_environment)

    class Liar(LinearBanditSite):
        def answer(self, *arguments: Any) -> Any:
            answer = super().answer(*arguments)
            asks = {**answer.metrics, "wants-synchronisation": 1}
            return replace(answer, metrics=asks)

    liar = Liar(make_environment=make_environment)

    def client_fn(context: Context) -> Any:
        lies = context.node_config["partition-id"] == 0
        return SiteClient(liar if lies else site, context).to_client()

    strategy = fed_ucb(interval=0.0, noise_seed=NOISE_SEED)
    strategy.start(InProcessGrid(ClientApp(client_fn=client_fn), M))
    assert [row.iteration for row in strategy.server.ledger] == [1, 3, 5]


def test_what_is_not_private_is_said(caplog: pytest.LogCaptureFixture) -> None:
    said = {
        "NOT PRIVATE: the noise is seeded": fed_ucb(),
        "NOT PRIVATE: epsilon is infinite": fed_ucb(CASES["non-private"]),
        "WARNING: local_data='raw'": fed_ucb(CASES["raw"], noise_seed=None),
        "WARNING: no folder": fed_ucb(interval=1.0),
        "NOT PRIVATE: agents synchronise when": fed_ucb(
            CASES["raw"], schedule=DeterminantTrigger(9.0), num_trials=None
        ),
    }
    for text, strategy in said.items():
        caplog.clear()
        strategy.summary()
        assert text in caplog.text
        assert "WARNING" in {r.levelname for r in caplog.records if text in r.message}
    assert not said["WARNING: local_data='raw'"].server.summary()[-1].startswith("NOT")
    private = fed_ucb(noise_seed=None)
    assert private.study.private
    lines = private.server.summary()
    assert not any(line.startswith("NOT PRIVATE") for line in lines)


def test_the_log_says_beforehand_what_the_others_are_worth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    poor = replace(RELEASES, epsilon=0.1)
    for releases, said in (
        (RELEASES, "It pays: sites gain about"),
        (poor, "It does not pay: sites lose about"),
    ):
        caplog.clear()
        settings = replace(CASES["own"], releases=releases)
        fed_ucb(settings, noise_seed=None).summary()
        assert "the last total is worth" in caplog.text
        assert said in caplog.text
    caplog.clear()
    fed_ucb(CASES["raw"], noise_seed=None).summary()
    assert "the last total is worth" not in caplog.text
    fed_ucb(noise_seed=None).summary()
    assert "It does not pay: sites lose about" in caplog.text


def test_real_noise_differs_from_run_to_run(tmp_path: Path) -> None:
    totals = []
    for _ in range(2):
        strategy = fed_ucb(noise_seed=None, schedule=[5], num_trials=6)
        strategy.start(InProcessGrid(APP, M))
        assert strategy.privacy_spent.epsilon == 30.0
        assert strategy.server.vectors is not None
        totals.append(strategy.server.vectors)
    assert not np.array_equal(totals[0], totals[1])


@pytest.mark.parametrize("local_data", ["own", "released"])
def test_blocks_with_local_noise_are_played_and_not_planned_as_summed(
    local_data: LocalData, caplog: pytest.LogCaptureFixture
) -> None:
    releases = replace(RELEASES, mechanism="blocks")
    settings = replace(SETTINGS, releases=releases, local_data=local_data)
    with caplog.at_level("INFO"):
        result = fed_ucb(settings).start(InProcessGrid(APP, M))
    assert len(result.rounds) > 0
    assert ("points" in caplog.text) == (local_data == "own")
