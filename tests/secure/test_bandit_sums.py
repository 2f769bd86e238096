"""Secure sums of bandits: whoever drops out or lies, a trial is in one sum."""

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from typer.testing import CliRunner

from flwr_fbo import FedUCB, Limits, LinearBanditPolicy, linear_bandit_app
from flwr_fbo.bandits import BanditResult
from flwr_fbo.bandits.linear.blocks_belief import BlocksBelief
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.leaving_the_sums import Misfit
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.secure import SecureAggregation
from flwr_fbo.secure.block_noise import BlockNoise
from flwr_fbo.site.gate import Gate
from tests.secure.test_drop_outs import EXCHANGES, Killed, assert_asked_once
from tests.support.secure_bandits import (
    APP,
    RELEASES,
    SETTINGS,
    Given,
    fed_ucb,
    in_folders,
    journal_of,
    unlikely_to_leave,
    with_times,
)
from tests.support.secure_studies import (
    AGGREGATION,
    Heard,
    N,
    SumGrid,
    configs_of,
    make_keys,
    node_configs,
)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    unlikely_to_leave(monkeypatch)
    return Given(monkeypatch)


def test_totals_are_the_sums_of_new_trials(given: Given, tmp_path: Path) -> None:
    grid, strategy = SumGrid(in_folders(tmp_path), APP), fed_ucb()
    result = strategy.start(grid)
    given.assert_right(strategy, tmp_path)
    assert [row.facts["summed"] for row in strategy.server.ledger] == [[*range(N)]] * 3
    # y^2 of rewards is at most 1: at most as many trials as were played.
    assert strategy.server.vectors is not None
    assert 0 < strategy.server.vectors[-1, -1] <= N * 16
    assert (_epsilon(result), result.num_synchronisations) == (30.0, 3)
    assert result.estimate is not None
    assert result.estimate.shape == (3,)
    # A round carries nothing of a site, and an exchange one array of bytes.
    assert all(h.replies == [] for h in grid.of("round"))
    totals, summed = strategy.server.arrays
    with journal_of(tmp_path / "site-2") as journal:
        state = journal.load_state()
    np.testing.assert_array_equal(state["block-totals"], totals)
    np.testing.assert_array_equal(state["block-sites"], summed)


def _epsilon(result: BanditResult) -> float:
    assert result.privacy_spent is not None
    return result.privacy_spent.epsilon


def test_the_noise_is_that_of_one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of each site, and the rest of mu^2 is a misfit's."""
    strategy = fed_ucb()
    study = strategy.study
    assert study.secure is not None
    [std] = study.block_stds(np.ones((1, N), np.uint8))
    assert std == pytest.approx(study.secure.releases.noise_std * math.sqrt(N / 4))
    assert std < study.settings.releases.noise_std * math.sqrt(N)
    mus = study.secure.releases.mu, study.misfit.mu
    assert math.hypot(*mus) == pytest.approx(RELEASES.mu, rel=1e-12)
    strategy.start(SumGrid(node_configs(), APP))
    spread = [row.facts["noise_std"] for row in strategy.server.ledger]
    assert spread == pytest.approx([std] * 3)


@pytest.mark.parametrize(
    ("exchange", "arrives_there"),
    [(1, True), (2, False), (3, True), (4, True), (5, True)],
)
def test_sites_that_drop_out_of_an_exchange(
    exchange: int, arrives_there: bool, given: Given, tmp_path: Path
) -> None:
    rng = random.Random(exchange)

    def kept(heard: Heard) -> bool:
        is_lossy = heard.phase == "sum" and heard.exchange == exchange
        return not is_lossy or rng.random() >= 0.2

    grid = SumGrid(
        in_folders(tmp_path),
        APP,
        tamper=lambda heard, _: arrives_there or kept(heard),
        arrives=lambda heard: not arrives_there or kept(heard),
    )
    strategy = with_times([3, 6, 9, 12, 15])
    strategy.start(grid)
    assert strategy.server.ledger
    given.assert_right(strategy, tmp_path)
    assert_asked_once(grid)


def test_too_few_sites_postpone_a_release(given: Given, tmp_path: Path) -> None:
    """Their blocks wait; what they had sent masked stays as it was."""

    def arrives(heard: Heard) -> bool:
        early = heard.phase == "sum" and int(heard.config["fbo-iteration"]) < 1
        return not (early and heard.exchange == 3 and heard.slot in (1, 3))

    strategy = fed_ucb()
    grid = SumGrid(in_folders(tmp_path), APP, arrives=arrives)
    result = strategy.start(grid)
    # It was made after the second time, and the second one after the third; the round
    # that plays on to the end makes the third.
    assert [row.iteration for row in strategy.server.ledger] == [1, 2, 3]
    first = [h for h in grid.of("sum", 3) if h.config["fbo-release"] == 1]
    assert len(first) == 2 * N
    given.assert_right(strategy, tmp_path)
    # All sites had sent a block of four trials masked, and no other ever.
    assert 0 < strategy.server.ledger[0].vectors[-1, -1] <= 4 * N
    assert _epsilon(result) == 30.0


def test_a_release_that_is_never_made_unmasks_nothing(given: Given) -> None:
    grid = SumGrid(node_configs(), APP, tamper=lambda h, _: h.slot < 3)
    strategy = fed_ucb(min_agents=3)
    result = strategy.start(grid)
    assert strategy.server.ledger == []
    assert grid.of("sum", 3) == grid.of("sum", 5) == []
    assert result.estimate is None


def test_an_interval_s_release_is_tried_again_at_once(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)

    def tamper(heard: Heard, message: Message) -> bool:
        late = heard.phase != "sum" or int(heard.config["fbo-iteration"]) > 1
        return late or heard.slot < 3

    strategy = fed_ucb(interval=5.0)
    strategy.start(SumGrid(node_configs(), APP, tamper=tamper))
    assert [row.iteration for row in strategy.server.ledger] == [2, 3, 5]
    # Three planned ones are waited for.
    assert len([pause for pause in waited if pause > 1]) == 3


@EXCHANGES
def test_a_server_that_is_killed_makes_the_release_once(
    exchange: int, arrives_there: bool, tmp_path: Path, given: Given
) -> None:
    """Whether the sites have answered, or were not asked: by files alone."""
    keys = make_keys(tmp_path)
    configs = in_folders(tmp_path, keys)
    aggregation = replace(AGGREGATION, roster=keys.roster_path)

    def stop(heard: Heard) -> bool:
        if heard.exchange == exchange and heard.slot == 2:
            raise Killed
        return True

    grids = [
        SumGrid(
            configs,
            APP,
            tamper=lambda heard, _: arrives_there or stop(heard),
            arrives=lambda heard: not arrives_there or stop(heard),
        ),
        SumGrid(configs, APP),
    ]
    folder = tmp_path / "server"
    with pytest.raises(Killed):
        fed_ucb(aggregation=aggregation, folder=folder).start(grids[0])
    resumed = fed_ucb(aggregation=aggregation, folder=folder)
    resumed.start(grids[1])
    assert len(resumed.server.ledger) == 3
    assert resumed.server.num_releases == [3] * N
    given.assert_right(resumed, tmp_path)
    # Each site drew its noise for a release once, before and after.
    assert given.num_shares == 3 * N
    grids[0].heard += grids[1].heard
    assert_asked_once(grids[0])


@pytest.mark.parametrize("exchange", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_site_that_is_killed_in_an_exchange(
    exchange: int,
    is_recorded: bool,
    given: Given,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before or after its journal has the reply, which never leaves; it comes back."""
    put, killed = Journal.put, [0]
    asked: list[Heard] = []

    def note(heard: Heard, message: Message) -> bool:
        asked.append(heard)
        return True

    def dying(journal: Journal, arrays: Any) -> None:
        it = next((h for h in asked if h.exchange == exchange), None)
        if it is None or "sum-member" not in arrays or killed[0] >= 1:
            put(journal, arrays)
            return
        killed[0] += 1
        if is_recorded:
            put(journal, arrays)
        raise RuntimeError("killed")  # as a client whose process ended

    monkeypatch.setattr(Journal, "put", dying)
    strategy = fed_ucb()
    strategy.start(SumGrid(in_folders(tmp_path), APP, tamper=note))
    assert killed == [1]
    assert len(strategy.server.ledger) == 3
    given.assert_right(strategy, tmp_path)


def test_a_site_that_restarts_between_exchanges_goes_on(
    given: Given, tmp_path: Path
) -> None:
    grid = SumGrid(in_folders(tmp_path), APP)

    def forget(heard: Heard) -> bool:
        for context in grid.contexts.values():
            context.state.config_records.clear()
        return True

    grid._arrives = forget
    strategy = fed_ucb(max_empty_rounds=1)
    strategy.start(grid)
    assert len(strategy.server.ledger) == 3
    given.assert_right(strategy, tmp_path)


def test_twenty_releases_of_four_sites_one_of_which_is_lost(
    given: Given, tmp_path: Path
) -> None:
    times = [*range(2, 42, 2)]
    gone: list[bool] = []

    def tamper(heard: Heard, message: Message) -> bool:
        gone.append(heard.phase == "sum" and int(heard.config["fbo-release"]) > 7)
        return not (any(gone) and heard.slot == 3)

    releases = replace(RELEASES, num_releases=20)
    aggregation = SecureAggregation(threshold=3)
    strategy = FedUCB(
        replace(SETTINGS, releases=releases),
        4,
        schedule=times,
        aggregation=aggregation,
        allow_large_delta=True,
    )
    result = strategy.start(SumGrid(in_folders(tmp_path)[:4], APP, tamper=tamper))
    assert strategy.server.num_releases == [20, 20, 20, 7]
    assert _epsilon(result) == 30.0
    summed = [len(row.facts["summed"]) for row in strategy.server.ledger]
    assert summed == [4] * 7 + [3] * 13


@pytest.mark.parametrize(
    ("folder", "text"), [("server", "norm of total"), ("site-0", "masked")]
)
def test_the_ledgers_are_shown(folder: str, text: str, tmp_path: Path) -> None:
    strategy = fed_ucb(folder=tmp_path / "server")
    strategy.start(SumGrid(in_folders(tmp_path), APP))
    command = ["ledger", "show", str(tmp_path / folder)]
    shown = CliRunner().invoke(app, command, env={"COLUMNS": "100"})
    assert shown.exit_code == 0, shown.output
    said = "epsilon 30.0000 per example (replaced by another, delta 0.1)"
    assert said in shown.output
    assert text in shown.output


def test_blocks_with_the_noise_of_each_site(tmp_path: Path) -> None:
    """Sites act on the same kind of totals; each has added the whole noise."""
    strategy = fed_ucb(aggregation=None, noise_seed=3)
    strategy.start(SumGrid(in_folders(tmp_path), APP))
    totals, summed = strategy.server.arrays
    assert strategy.server.vectors is not None
    np.testing.assert_allclose(totals.sum(axis=0), strategy.server.vectors)
    assert summed.tolist() == [[1] * N] * 3
    stds = strategy.study.block_stds(summed)
    assert stds == pytest.approx([RELEASES.noise_std * math.sqrt(N)] * 3)
    with journal_of(tmp_path / "site-1") as journal:
        np.testing.assert_array_equal(journal.load_state()["block-totals"], totals)
        [agent] = RecordedBandit(journal, strategy.study).belief.agents
        assert agent.blocks is not None


# Servers that lie


@pytest.fixture
def finished(
    tmp_path: Path, given: Given
) -> tuple[SumGrid, dict[int, list[Message]], FedUCB]:
    """A grid whose sites have unmasked release 1, and what they were asked for it."""
    asked: dict[int, list[Message]] = {exchange: [] for exchange in range(6)}

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.exchange:
            asked[heard.exchange].append(message)
        return True

    keys = make_keys(tmp_path)
    grid = SumGrid(in_folders(tmp_path, keys), APP, tamper=tamper)
    aggregation = replace(AGGREGATION, roster=keys.roster_path)
    strategy = with_times([4], aggregation=aggregation)
    strategy.start(grid)
    assert len(strategy.server.ledger) == 1
    grid._tamper = lambda heard, message: True
    return grid, {exchange: list(sent) for exchange, sent in asked.items()}, strategy


def _again(grid: SumGrid, sent: list[Message], **entries: Any) -> list[Heard]:
    before = len(grid.heard)
    messages = [
        Message(m.content, m.metadata.dst_node_id, m.metadata.message_type)
        for m in sent
    ]
    for message in messages:
        for record in configs_of(message):
            for name, value in entries.items():
                record[f"fbo-{name}"] = value
    grid.send_and_receive(messages)
    return grid.heard[before:]


@pytest.mark.parametrize(
    ("exchange", "entries", "text"),
    [
        (3, {}, "it is already answered"),
        (1, {"attempt": 99}, "there can be no other"),
        (5, {"attempt": 99}, "there can be no other"),
        (3, {"release": 0}, "cannot be summed"),
        (1, {"release": 2}, "cannot be summed"),
        (1, {"slot": 3}, "another agent"),
        (1, {"journal": 5}, "another journal"),
        (1, {"included": 9}, "older copy"),
    ],
)
def test_what_no_honest_server_asks_is_refused(
    exchange: int, entries: dict[str, Any], text: str, finished: Any
) -> None:
    grid, asked, _ = finished
    messages = [m for m in asked[exchange] if _slot(m) != 3]
    replies = _again(grid, messages, **entries)
    assert [text in heard.refusal for heard in replies] == [True] * (N - 1)
    assert [heard.replies for heard in replies] == [[]] * (N - 1)


def _slot(message: Message) -> int:
    return int(str(configs_of(message)[0]["fbo-slot"]))


def test_the_last_request_again_has_the_same_reply(finished: Any) -> None:
    grid, asked, _ = finished
    first = [heard.replies[0].tobytes() for heard in grid.of("sum", 5)]
    again = _again(grid, asked[5])
    assert [heard.replies[0].tobytes() for heard in again] == first


def test_release_numbers_ahead_and_behind(given: Given, tmp_path: Path) -> None:
    """One ahead is a block of all new trials; those that it skipped are over."""
    asked: list[Message] = []

    def tamper(heard: Heard, message: Message) -> bool:
        if heard.exchange == 1 and heard.config["fbo-release"] == 1:
            asked.append(message)
        return True

    grid, strategy = SumGrid(in_folders(tmp_path), APP, tamper=tamper), fed_ucb()
    strategy.start(grid)
    replies = _again(grid, list(asked), attempt=99)
    text = "The sum of release 1 is over: release 3 began"
    assert [text in heard.refusal for heard in replies] == [True] * N


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"fbo-min-agents": N + 1}, "min_agents"),
        ({"fbo-min-colluding": 1}, "min_colluding"),
        ({"fbo-max-epsilon-per-example": 29.0, "fbo-max-delta": 0.1}, "limits"),
    ],
)
def test_sites_have_the_limits_of_tuning(
    limits: dict[str, Any], text: str, tmp_path: Path
) -> None:
    configs = in_folders(tmp_path)
    for config in configs:
        config.update(limits)
    with pytest.raises(Exception, match=text):
        fed_ucb(max_empty_rounds=1).start(SumGrid(configs, APP))


def test_a_site_that_pins_a_roster_sums_under_no_other(tmp_path: Path) -> None:
    configs = in_folders(tmp_path, make_keys(tmp_path))
    with pytest.raises(Exception, match="roster"):
        fed_ucb(max_empty_rounds=1).start(SumGrid(configs, APP))


def test_a_study_is_charged_once_before_anything_leaves(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[Any] = []
    record = Gate._record

    def noted(gate: Gate, ledger: Any, key: Any, facts: Any, agent: Any) -> None:
        charged.append((facts["release"], facts["charge"][0]))
        assert not given.blocks
        record(gate, ledger, key, facts, agent)

    monkeypatch.setattr(Gate, "_record", noted)
    configs = in_folders(tmp_path)
    for config in configs:
        config |= {"fbo-max-epsilon-per-example": 30.0, "fbo-max-delta": 0.1}
    fed_ucb().start(SumGrid(configs, APP))
    assert charged == [(1, pytest.approx(1 / RELEASES.mu))] * N


# Sites that leave


def test_who_has_left_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site 1 leaves after its second block: its replies look like those of others."""
    calls: list[int] = []

    def leaves(measure: Misfit, misfit: float, num_trials: int) -> bool:
        calls.append(num_trials)
        return len(calls) == 2  # sites are asked in the order of their slots

    monkeypatch.setattr(BlocksBelief, "worth", 2.0)
    monkeypatch.setattr(Misfit, "leaves", leaves)
    given = Given(monkeypatch)
    grid, strategy = SumGrid(in_folders(tmp_path), APP), with_times([3, 6, 9, 12])
    strategy.start(grid)
    # In the first block nothing was promised yet; who has left is not measured again.
    assert len(calls) == 3 * N - 2
    given.assert_right(strategy, tmp_path)
    assert given.blocks[2, 1].any()
    assert not given.blocks[3, 1].any()
    assert not given.blocks[4, 1].any()
    assert given.num_shares == 4 * N
    for exchange in range(6):
        heard = grid.of("sum" if exchange else "round", exchange)
        forms = {_form(h) for h in heard if h.slot != 1}
        assert {_form(h) for h in heard if h.slot == 1} == forms
    policy = LinearBanditPolicy.open(tmp_path / "site-1")
    summary = policy.summary()
    assert "after release 2, as its rewards were below" in summary.left
    assert summary.left in str(summary)
    assert summary.worth_of_others is not None
    policy = LinearBanditPolicy.open(tmp_path / "site-2")
    assert policy.summary().left == ""


def _form(heard: Heard) -> Any:
    """Return what a reply looks like, to whoever cannot read it."""
    arrays = tuple((array.dtype, array.shape) for array in heard.replies)
    iteration = heard.config["fbo-iteration"]
    return iteration, arrays, tuple(sorted(heard.metrics)), heard.refusal


def test_a_misfit_is_what_rewards_were_below_the_totals_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept as rewards come: to leave or not, no trial is read."""
    found: list[tuple[float, int]] = []
    leaving = RecordedBandit._leaving

    def unread(bandit: RecordedBandit, *given: int) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "trials", None)
            return leaving(bandit, *given)

    monkeypatch.setattr(RecordedBandit, "_leaving", unread)

    def leaves(measure: Misfit, misfit: float, num_trials: int) -> bool:
        found.append((misfit, num_trials))
        return False

    monkeypatch.setattr(BlocksBelief, "worth", 2.0)
    monkeypatch.setattr(Misfit, "leaves", leaves)
    monkeypatch.setattr(Misfit, "std", 0.0)
    strategy = with_times([3, 6, 9, 12])
    strategy.start(SumGrid(in_folders(tmp_path), APP))
    expected: list[tuple[float, int]] = []
    totals, summed = strategy.server.arrays
    study = strategy.study
    confidence = Confidence.of(study.released_by, N)
    for k in (1, 2, 3):
        stds = study.block_stds(summed[:k])
        believed = BlocksBelief(confidence, totals[:k], stds, N)
        for slot in range(N):
            with journal_of(tmp_path / f"site-{slot}") as journal:
                trials = [trial for trial in journal.trials() if trial.iteration == k]
            actions = np.stack([action_of(trial) for trial in trials])
            below = believed.expected(actions) - [trial.value for trial in trials]
            expected.append((float(below.sum()), len(trials)))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_all_leave_where_the_totals_tell_less_than_a_site_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlocksBelief, "worth", 0.5)
    monkeypatch.setattr(Misfit, "leaves", lambda *_: False)
    given = Given(monkeypatch)
    strategy = with_times([3, 6, 9, 12])
    strategy.start(SumGrid(in_folders(tmp_path), APP))
    given.assert_right(strategy, tmp_path)
    assert strategy.server.ledger[0].vectors.any()
    for row in strategy.server.ledger[1:]:
        assert not row.vectors.any()
    for slot in range(N):
        policy = LinearBanditPolicy.open(tmp_path / f"site-{slot}")
        assert "the totals tell too little" in policy.summary().left


def test_who_has_left_acts_on_all_its_own_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in totals are counted once, those that never are, too."""
    monkeypatch.setattr(BlocksBelief, "worth", 0.5)
    monkeypatch.setattr(BlockNoise, "draw_share", lambda n: np.zeros(n.length, int))
    strategy = with_times([3, 6, 9])
    strategy.start(SumGrid(in_folders(tmp_path), APP))
    with journal_of(tmp_path / "site-0") as journal:
        bandit = RecordedBandit(journal, strategy.study)
        [agent] = bandit.belief.agents
        assert agent._own is not None
        np.testing.assert_array_equal(agent._own._own, bandit.sums.total(0, 9))
        assert int(agent._own._num_own) == 9
        shared, count = bandit.belief._shared(bandit.belief.received)
        assert count == 3
        np.testing.assert_array_equal(shared, bandit.sums.total(0, 1))


def test_what_a_strategy_refuses() -> None:
    own = replace(SETTINGS, local_data="own")
    with pytest.raises(ValueError, match="local_data='own' is not allowed: 'released'"):
        fed_ucb(settings=own)
    toeplitz = replace(SETTINGS, releases=replace(RELEASES, mechanism="toeplitz"))
    with pytest.raises(ValueError, match="mechanism='toeplitz' is not allowed: 'bl"):
        fed_ucb(settings=toeplitz)
    open_sums = replace(SETTINGS, releases=replace(RELEASES, epsilon=math.inf))
    with pytest.raises(ValueError, match="epsilon"):
        fed_ucb(settings=open_sums)
    with pytest.raises(ValueError, match="noise_seed=3 is not allowed"):
        fed_ucb(noise_seed=3)
    raw = replace(toeplitz, local_data="raw")
    with pytest.raises(ValueError, match="schedule"):
        fed_ucb(settings=raw, schedule=DeterminantTrigger(1.0), num_trials=None)
    with pytest.raises(ValueError, match="aggregation='no' is not allowed"):
        fed_ucb(aggregation="no")


def test_an_app_of_sites_at_their_own_pace(given: Given, tmp_path: Path) -> None:
    """What arrives between releases is in the next block, logs included."""
    app = linear_bandit_app(limits=Limits(max_epsilon_per_example=30.0, max_delta=0.1))
    configs = in_folders(tmp_path)

    def play(slot: int) -> None:
        policy = LinearBanditPolicy.open(tmp_path / f"site-{slot}")
        choices = [policy.choose(np.eye(3)) for _ in range(2)]
        policy.reward(choices[0].ticket, 0.5)

    def tamper(heard: Heard, message: Message) -> bool:
        first_of_sum = heard.exchange == 1 and heard.slot == 0
        if first_of_sum:
            for slot in range(N):
                play(slot)
            policy = LinearBanditPolicy.open(tmp_path / "site-0")
            if heard.config["fbo-release"] == 2:
                policy.add_history(np.eye(3), [0.5, 0.5, 0.5])
        return True

    strategy = fed_ucb(interval=0.0)
    strategy.start(SumGrid(configs, app, tamper=tamper), num_rounds=7)
    squares = [row.vectors[-1, -1] for row in strategy.server.ledger]
    assert squares == [0.25 * N, 0.25 * (N + 3), 0.25 * N]
