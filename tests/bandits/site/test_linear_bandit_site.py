"""A linear bandit's client: what it records, refuses, and tells nobody."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict, UserConfig
from flwr.serverapp.exception import AggregationError
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid, Limits, LinearBanditPolicy, linear_bandit_app
from flwr_fbo._common.errors import RefusedError
from flwr_fbo.bandits import (
    EllipsoidSampling,
    InverseGapWeighting,
    LinearUCBSettings,
    Optimism,
)
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.exploration import Exploration
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.site.study_journals import last_journal
from tests.support.bandit_sites import (
    ACTIONS,
    CASES,
    NOISE_SEED,
    NOT_PRIVATE,
    OPEN,
    RELEASES,
    SETTINGS,
    M,
    Sites,
    begin_anew,
    fed_ucb,
    last_releases,
    lose_journal,
    site_strategy,
)
from tests.support.federation import charges_in
from tests.support.killing import NUM_KILLS, killed_in

# Takes part in any study.
ANY = Limits(max_epsilon_per_example=math.inf)


def test_rewards_are_in_the_next_release_however_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 1 enrols, even rounds have a release, odd ones hand out the total."""
    tickets: list[int] = []

    def first() -> None:
        for slot in range(M):
            policy = sites.policy(slot)
            choice = policy.choose(ACTIONS)
            policy.reward(choice.ticket, 0.5)
        ticket = sites.policy(0).choose(ACTIONS).ticket
        tickets.append(ticket)

    def late() -> None:
        sites.policy(0).reward(tickets[0], 1.0)

    sites = Sites(tmp_path, {2: first, 4: late})
    strategy, releases = site_strategy(tmp_path), last_releases(monkeypatch)
    result = strategy.start(sites)
    assert len(result.rounds) == 7
    rewards = [all_last[:, 3, 3].tolist() for all_last in releases]
    assert rewards[0] == [0.25] * M  # y^2
    assert rewards[1] == [1.25] + [0.25] * (M - 1)
    assert rewards[2] == rewards[1]
    assert sites.policy(0).awaited == {}


def test_a_site_acts_on_the_total(tmp_path: Path) -> None:
    def others_learn() -> None:
        for slot in range(1, M):
            policy = sites.policy(slot)
            for value in (0.0, 0.0, 1.0) * 10:
                ticket = policy.choose(ACTIONS[[int(value) * 2]]).ticket
                policy.reward(ticket, value)

    sites = Sites(tmp_path, {2: others_learn})
    site_strategy(tmp_path).start(sites, num_rounds=3)
    index = sites.policy(0).choose(ACTIONS[[0, 2]]).index
    assert index == 1


def test_a_policy_refuses_what_would_not_be_protected(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="has no place in a study"):
        LinearBanditPolicy.open(tmp_path, patience=0)
    sites = Sites(tmp_path)
    site_strategy(tmp_path).start(sites, num_rounds=3)
    policy = sites.policy(1)
    ticket = policy.choose(ACTIONS).ticket
    for value in (1.1, -2.0, np.nan, "much"):
        with pytest.raises(ValueError, match=r"rewards\[0\]|value"):
            policy.reward(ticket, value)  # type: ignore[arg-type]
    for unknown in (ticket + 1, -1, 2**70, str(ticket), float(ticket), True):
        with pytest.raises(ValueError, match="ticket"):
            policy.reward(unknown, 0.5)  # type: ignore[arg-type]
    for actions in (
        2 * ACTIONS,
        np.zeros((0, 3)),
        np.zeros(3),
        np.full((2, 3), np.nan),
    ):
        with pytest.raises(ValueError, match="actions"):
            policy.choose(actions)
    assert list(policy.awaited) == [ticket]
    policy.reward(ticket, 1.0)
    policy.reward(ticket, 1.0)  # a retry
    with pytest.raises(ValueError, match="not come yet"):
        policy.reward(ticket, 0.5)
    assert policy.num_trials == 1


def test_a_reply_that_was_lost_is_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the recorded release, whatever was rewarded since."""

    def learn() -> None:
        policy = sites.policy(1)
        ticket = policy.choose(ACTIONS[:1]).ticket
        policy.reward(ticket, 1.0)

    def lose() -> None:
        learn()
        sites.lost = {1}

    def find() -> None:
        learn()
        sites.lost = set()

    sites = Sites(tmp_path, {2: lose, 3: find})
    settings = replace(RELEASES, num_releases=3)
    strategy = fed_ucb(replace(SETTINGS, releases=settings), interval=0.0, noise_seed=5)
    releases = last_releases(monkeypatch)
    strategy.start(sites)
    first, second, third = (all_last[1] for all_last in releases)
    with Journal(None, last_journal(sites.folders[1], LINEAR_SITE.name)) as journal:
        made = [row.vectors for row in journal.ledger()]
    assert not first.any()
    assert np.array_equal(second, made[0])
    assert np.array_equal(third, made[1])
    assert len(made) == 2


@pytest.mark.parametrize(
    ("harm", "before"), [(lose_journal, 3), (begin_anew, 2), (begin_anew, 4)]
)
def test_a_site_without_its_journal_stops(
    tmp_path: Path, harm: Any, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Before its first release too: the reply of one may have been lost."""
    sites = Sites(tmp_path)
    sites.before = {before: lambda: harm(sites)}
    strategy = site_strategy(tmp_path)
    strategy.start(sites)
    [error] = sites.errors(before)
    assert "journal" in error.splitlines()[-1]
    assert "begin another study" in error.splitlines()[-1]
    assert "agent 1:" in caplog.text
    releases = 0 if before == 2 else 1
    assert strategy.server.num_releases == [3, releases, 3, 3]


def test_a_release_out_of_the_blue_is_refused_at_once(tmp_path: Path) -> None:
    """Whatever the server says: it is neither made nor prepared for."""
    site = LinearBanditSite(tmp_path, limits=ANY)
    context = Context(1, 1, {"agent-id": 0}, RecordDict(), {})
    study = LinearBanditStudy(SETTINGS, M, noise_seed=NOISE_SEED)
    journal = int(site.answer(context, [], study.enrolment()).metrics["journal"])
    for included in (-(2**62), -1, 1, 2, 3, 2**62):
        asked = LinearBanditInstruction(
            "round", study, 0, journal, included, send_release=True
        )
        with pytest.raises((ValueError, JournalError), match=r"k=|Release|included="):
            site.answer(context, [], asked.to_config())
    with Journal(None, last_journal(tmp_path, LINEAR_SITE.name)) as record:
        assert record.ledger() == []


def test_an_older_copy_of_the_journal_stops_the_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sites = Sites(tmp_path)
    path = partial(last_journal, sites.folders[1], LINEAR_SITE.name)
    copies: list[bytes] = []

    def restore() -> None:
        path().write_bytes(copies[0])
        for context in sites.contexts.values():  # as in another run
            context.state.config_records.clear()

    sites.before = {2: lambda: copies.append(path().read_bytes()), 4: restore}
    strategy = site_strategy(tmp_path)
    strategy.start(sites)
    [error] = sites.errors(4)
    assert "This agent's journal is an older copy, or another one" in error
    assert "lacks release 1 of this site" in caplog.text
    assert strategy.server.num_releases == [3, 1, 3, 3]


def test_the_ledger_of_a_site_promises_nothing_with_a_trigger(tmp_path: Path) -> None:
    """No more than the server's does."""
    study = LinearBanditStudy(CASES["raw"], M, DeterminantTrigger(9.0))
    site = LinearBanditSite(tmp_path, limits=ANY)
    context = Context(1, 1, {"agent-id": 0}, RecordDict(), {})
    metrics = site.answer(context, [], study.enrolment()).metrics
    asked = LinearBanditInstruction(
        "round", study, 0, int(metrics["journal"]), send_release=True
    )
    site.answer(context, [], asked.to_config())
    said = CliRunner().invoke(app, ["ledger", "show", str(tmp_path)]).output
    assert "1 release of this agent: epsilon infinite per example" in said


def _most(epsilon: float, delta: float = 0.1) -> Limits:
    return Limits(max_epsilon_per_example=epsilon, max_delta=delta)


LIMITS: list[tuple[Limits | None, LinearUCBSettings, int | None, str]] = [
    (None, replace(SETTINGS, releases=NOT_PRIVATE), None, "not private"),
    (None, SETTINGS, None, ""),
    (
        _most(29),
        SETTINGS,
        None,
        r"epsilon 30 per example \(.*0\.1; .*\), and max_epsil",
    ),
    (_most(30), SETTINGS, None, ""),
    (_most(30), CASES["raw"], None, "promises less"),
    (
        _most(30, 0.01),
        SETTINGS,
        None,
        r"epsilon 3\d\.\d+ per example \(.* delta 0.01; ",
    ),
    (_most(30), SETTINGS, NOISE_SEED, "not private"),
    (
        Limits(max_epsilon_per_client=30, max_delta=0.1),
        SETTINGS,
        None,
        "a client alone",
    ),
    (ANY, replace(SETTINGS, releases=NOT_PRIVATE), None, ""),
]


@pytest.mark.parametrize(("limits", "settings", "noise_seed", "refusal"), LIMITS)
def test_a_site_takes_part_in_what_it_wants(
    tmp_path: Path,
    limits: Limits | None,
    settings: LinearUCBSettings,
    noise_seed: int | None,
    refusal: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever the server says."""
    sites = Sites(tmp_path, app=linear_bandit_app(limits=limits))
    strategy = fed_ucb(settings, interval=0.0, noise_seed=noise_seed)
    if not refusal:
        strategy.start(sites)
        return
    with pytest.raises(AggregationError, match="RefusedError: This site takes"):
        strategy.start(sites)
    assert re.search(refusal, caplog.text)
    assert not any(map(charges_in, sites.folders))


@pytest.mark.parametrize(
    ("exploration", "most", "refused", "by_node"),
    [
        (Optimism(), 0.0, "", False),
        (EllipsoidSampling(uniform_share=0.05), 0.05, "", True),
        (EllipsoidSampling(uniform_share=0.06), 0.05, "share of 0.06 of all", True),
        (InverseGapWeighting(), 0.99, "share of 1 of all", False),
        (InverseGapWeighting(), 1.0, "", False),
    ],
)
def test_a_site_says_how_much_may_be_left_to_chance(
    tmp_path: Path, exploration: Exploration, most: float, refused: str, by_node: bool
) -> None:
    limits = None if by_node else Limits(max_uniform_share=most)
    node_config: UserConfig = {"fbo-max-uniform-share": most} if by_node else {}
    site = LinearBanditSite(tmp_path, limits=limits)
    study = LinearBanditStudy(replace(SETTINGS, exploration=exploration), M)
    context = Context(1, 1, {"agent-id": 0, **node_config}, RecordDict(), {})
    if not refused:
        site.answer(context, [], study.enrolment())
        return
    with pytest.raises(RefusedError, match=refused) as error:
        site.answer(context, [], study.enrolment())
    assert error.value.public == "This site takes no part: max_uniform_share."


def test_an_older_copy_is_noticed_by_the_site_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the server has not got the release that is missing in it."""
    sites = Sites(tmp_path)
    path = partial(last_journal, sites.folders[1], LINEAR_SITE.name)
    copies: list[bytes] = []

    def lose() -> None:
        copies.append(path().read_bytes())
        sites.lost = {1}

    def restore() -> None:
        path().write_bytes(copies[0])
        sites.lost = set()

    sites.before = {2: lose, 3: restore}
    site_strategy(tmp_path).start(sites)
    [error] = sites.errors(4)
    assert "This agent's journal is an older copy" in error
    assert "has 0 releases and had 1: it is an older copy" in caplog.text


def test_a_site_that_was_not_taken_has_no_policy(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.before = {3: lambda: begin_anew(sites)}
    site_strategy(tmp_path).start(sites)
    with pytest.raises(JournalError, match="no place in a study"):
        LinearBanditPolicy.open(sites.folders[1], patience=0.0)


def test_what_a_client_refuses() -> None:
    with pytest.raises(ValueError, match="limits=4"):
        linear_bandit_app(limits=4.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="folder"):
        linear_bandit_app(folder="somewhere")
    with pytest.raises(ValueError, match="make_environment"):
        linear_bandit_app(make_environment=3)  # type: ignore[arg-type]
    with pytest.raises(AggregationError, match="no folder for its policy"):
        fed_ucb(interval=0.0).start(InProcessGrid(OPEN, M))


class Harmful:
    """An environment with something in it that nobody else may see."""

    def __init__(self, action: float, reward: float) -> None:
        self._actions, self._reward = action * ACTIONS, reward

    def contexts(self, t: int) -> Any:
        return self._actions

    def reward(self, x: Any) -> float:
        if np.isnan(self._reward):
            raise RuntimeError("glucose 17.25")
        return self._reward


@pytest.mark.parametrize("bandit", [(17.25, 0.5), (1.0, 17.25), (1.0, np.nan)])
def test_a_trial_that_does_not_fit_makes_no_error(
    tmp_path: Path, bandit: tuple[float, float], caplog: pytest.LogCaptureFixture
) -> None:
    """Nor whether there is one: what does not fit is left out, or clipped."""
    app = linear_bandit_app(make_environment=lambda context: Harmful(*bandit))
    site = Sites(tmp_path, app=app)
    fed_ucb(noise_seed=None).start(site)
    assert site.errors(1) == []
    quoted = "17.25" if bandit[1] != 0.5 else "an action is longer than 1"
    assert quoted in caplog.text  # at the client


def test_an_error_quotes_no_sum() -> None:
    privatiser = ContinualRelease(RELEASES, SeededEntropy(0))
    size = RELEASES.dimension + 1
    for entry in (2.0**25, 1.2345678e-13, np.inf):
        with pytest.raises(ValueError, match="running_sum") as error:
            privatiser.release(1, np.full((size, size), entry))
        assert str(entry)[:6] not in str(error.value)


def _site(folder: Path, replies: Path) -> None:
    """Play, five trials a release, and answer a server that asks from the start."""
    site = LinearBanditSite(folder, limits=ANY)
    context = Context(1, 1, {"agent-id": 0}, RecordDict(), {})
    study = LinearBanditStudy(SETTINGS, M, noise_seed=NOISE_SEED, study_id="killed")
    metrics = site.answer(context, [], study.enrolment()).metrics
    number = int(metrics["journal"])
    taken = LinearBanditInstruction("round", study, 0, number)
    site.answer(context, [], taken.to_config())
    policy = LinearBanditPolicy.open(folder)
    for k in range(1, 4):
        while policy.num_trials < 5 * k or policy.awaited:
            for ticket in policy.awaited:
                policy.reward(ticket, (ticket % 7) / 7)
            if policy.num_trials < 5 * k:
                policy.choose(np.roll(ACTIONS, policy.num_trials, axis=0))
        asked = LinearBanditInstruction(
            "round", study, 0, number, k - 1, send_release=True
        )
        [release] = site.answer(context, [], asked.to_config()).arrays
        with (replies / f"{k}.jsonl").open("a") as file:
            file.write(json.dumps(release.tolist()) + "\n")


@pytest.mark.slow
@pytest.mark.no_cover  # faster; others run the same lines
def test_a_site_that_is_killed_repeats_its_releases(tmp_path: Path) -> None:
    """Whatever is killed, what it had recorded is neither lost nor done twice."""

    def history(folder: Path) -> tuple[list[Any], list[Any]]:
        with Journal(None, last_journal(folder, LINEAR_SITE.name)) as journal:
            trials = [
                (action_of(t).tolist(), t.value, t.iteration) for t in journal.trials()
            ]
            return trials, [row.vectors.tolist() for row in journal.ledger()]

    rng, kills, runs = np.random.default_rng(0), 0, 0
    expected = None  # of the first, which is not killed
    statements: int | None = None
    while kills < NUM_KILLS:
        folder, replies = tmp_path / f"{runs}", tmp_path / f"replies-{runs}"
        replies.mkdir()
        made = None
        while made is None:
            most = None if statements is None else int(rng.integers(statements))
            made = killed_in(most, _site, folder, replies)
            kills += made is None
        statements = statements or made
        trials, releases = history(folder)
        expected = expected or (trials, releases)
        assert (trials, releases) == expected
        assert len(trials) == 15
        for k, release in enumerate(releases, 1):
            said = (replies / f"{k}.jsonl").read_text().splitlines()
            assert all(
                json.loads(line) == release for line in said if line.endswith("]")
            )
        runs += 1
    assert runs > 1
