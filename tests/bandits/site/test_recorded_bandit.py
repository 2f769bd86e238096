"""A policy that stays open reads what has changed: no less, and hardly more."""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.linear.settings import LocalData
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal import checksums, journal_file, parts
from flwr_fbo.journal.checksums import ARRAYS_IN_PART
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError
from flwr_fbo.journal.parts import Parts
from flwr_fbo.journal.tables import LedgerRow
from tests.support.killing import killed_after
from tests.support.policies import FILE_NAME

ACTIONS = np.eye(3)
# As far into a part of the journal, so that as many arrays are read with one.
MOST_RELEASES, FEW, MANY = 300, 20, 20 + 4 * ARRAYS_IN_PART - 1
SETTINGS = LinearUCBSettings(
    ContinualSettings(MOST_RELEASES, 3, epsilon=np.inf, delta=0.1),
    local_data="released",
)
RAW = replace(SETTINGS, local_data="raw")


def in_journal(
    folder: Path,
    change: Callable[[RecordedBandit], Any],
    settings: LinearUCBSettings = SETTINGS,
) -> None:
    """Change an agent's journal as Flower's client does, which holds it meanwhile."""
    study = LinearBanditStudy(settings, 2, study_id="kept")
    identity = RecordedBandit.identity_of(study)
    with Journal(identity, folder / FILE_NAME) as journal:
        bandit = RecordedBandit(journal, study)
        bandit.join(0, bandit.number)
        change(bandit)


def enrolled(
    folder: Path, settings: LinearUCBSettings = SETTINGS
) -> LinearBanditPolicy:
    in_journal(folder, lambda _: None, settings)
    return LinearBanditPolicy.open(folder)


def total_for(action: int) -> NDArray[np.float64]:
    """Return a total by which this action is by far the best."""
    total = 1e6 * np.eye(4)
    total[action, 3] = total[3, action] = 0.9e6
    return total


def receive(action: int) -> Callable[[RecordedBandit], None]:
    return lambda bandit: bandit.receive(total_for(action), 0)


def trial(policy: LinearBanditPolicy, value: float = 0.5) -> int:
    choice = policy.choose(ACTIONS)
    index, ticket = choice.index, choice.ticket
    policy.reward(ticket, value)
    return index


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the rows that are read or written, by table: each is digested."""
    counts: Counter[str] = Counter()
    digests_of = checksums.digests_of

    def counting(table: str, rows: Any) -> list[bytes]:
        digests = digests_of(table, rows)
        counts[table] += len(digests)
        return digests

    for module in (journal_file, checksums, parts):
        monkeypatch.setattr(module, "digests_of", counting)
    return counts


def release_all(bandit: RecordedBandit, last: int) -> None:
    """Make releases up to the last, all at once."""
    made, zero = bandit.num_releases, np.zeros(SETTINGS.releases.sum_shape)
    draws = {f"draw-{k}": np.zeros(10) for k in range(made + 1, last + 1)}
    windows = {f"window-{k}": zero for k in range(made, last)}
    releases = [LedgerRow(k, {}, zero) for k in range(made + 1, last + 1)]
    bandit.journal.change_state({**draws, **windows}, (), releases)


def test_a_policy_reads_no_more_for_more_releases(
    tmp_path: Path, rows: Counter[str]
) -> None:
    read = {}
    for releases in (FEW, MANY):
        # The first reward after a release closes a window.
        in_journal(tmp_path, partial(release_all, last=releases - 1))
        trial(LinearBanditPolicy.open(tmp_path))
        in_journal(tmp_path, partial(release_all, last=releases))
        policy = LinearBanditPolicy.open(tmp_path)
        for name in ("after another", "kept"):
            rows.clear()
            trial(policy)
            read[name, releases] = +rows
    for name in ("after another", "kept"):
        few, many = read[name, FEW], read[name, MANY]
        assert many["state"] <= few["state"], name
        assert many["ledger"] == few["ledger"] == 0
    # What changes: a new trial, its reward, and the window's sum and number of trials.
    assert read["kept", MANY]["state"] == 2
    assert read["kept", MANY]["part"] <= 3


def test_own_trials_are_read_by_their_sums(tmp_path: Path, rows: Counter[str]) -> None:
    """So that a policy that acts on them reads no more than another one."""
    read = {}
    for local_data in get_args(LocalData):
        folder = tmp_path / local_data
        folder.mkdir()
        settings = replace(RAW, local_data=local_data)
        policy, other = enrolled(folder, settings), LinearBanditPolicy.open(folder)
        for _ in range(20):
            trial(other)
        rows.clear()
        trial(policy)
        read[local_data] = rows["trial"]
    assert read["own"] == read["raw"] == read["released"]


def test_what_another_process_has_received_counts_at_once(tmp_path: Path) -> None:
    policy, action = enrolled(tmp_path), 2
    trial(policy)
    trial(policy)
    assert not killed_after(None, in_journal, tmp_path, receive(action))
    assert trial(policy) == action
    assert trial(policy) == action
    in_journal(tmp_path, receive(0))
    assert trial(policy) == 0


@pytest.mark.parametrize("local_data", ["raw", "own"])
def test_trials_of_another_process_are_the_policys_own(
    tmp_path: Path, local_data: LocalData
) -> None:
    settings = replace(RAW, local_data=local_data)
    policy, other = enrolled(tmp_path, settings), LinearBanditPolicy.open(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(8):
        actions = rng.normal(size=(20, 3))
        # No two of the same length: nobody would know which is better.
        actions /= 1.1 * np.linalg.norm(actions, axis=1).max()
        fresh = LinearBanditPolicy.open(tmp_path)
        chosen = [one.choose(actions) for one in (policy, other, fresh)]
        assert len({choice.index for choice in chosen}) == 1
        index, ticket = chosen[0].index, chosen[0].ticket
        one = policy if rng.random() < 0.5 else other
        one.reward(ticket, float(actions[index] @ [0.6, 0.0, 0.8]))
    assert policy.num_trials == other.num_trials == 24
    assert len(policy.awaited) == 16


def test_a_reward_counts_once_where_it_is_the_first_that_is_done(
    tmp_path: Path,
) -> None:
    """Its agent is made of a journal that has the trial already."""
    ticket = enrolled(tmp_path, RAW).choose(ACTIONS).ticket
    estimates: list[NDArray[np.float64]] = []

    def reward(bandit: RecordedBandit) -> None:
        bandit.reward({ticket: 0.5})
        estimates.append(bandit.belief.agents[0].estimate)

    in_journal(tmp_path, reward, RAW)
    in_journal(
        tmp_path, lambda bandit: estimates.append(bandit.belief.agents[0].estimate), RAW
    )
    np.testing.assert_array_equal(estimates[0], estimates[1])


def test_a_release_by_another_process_moves_the_window(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    trial(policy)
    in_journal(tmp_path, lambda bandit: bandit.release(1))
    trial(policy, 0.25)
    windows: list[float] = []

    def read(bandit: RecordedBandit) -> None:
        windows.extend(bandit.sums.window(k)[0][3, 3] for k in range(2))

    in_journal(tmp_path, read)
    assert windows == [0.25, 0.0625]


def test_a_journal_that_was_exchanged_is_read_anew(tmp_path: Path) -> None:
    policy = enrolled(tmp_path)
    path = tmp_path / FILE_NAME
    older = shutil.copy(path, tmp_path / "older")
    trial(policy)
    in_journal(tmp_path, receive(1))
    assert trial(policy) == 1
    shutil.copy(older, path)
    assert policy.num_trials == 0
    trial(policy)
    path.unlink()
    with pytest.raises(JournalError, match="no place in a study"):
        policy.choose(ACTIONS)
    in_journal(tmp_path, receive(2))
    assert trial(policy) == 2


@pytest.mark.parametrize("has_size", [False, True])
def test_a_file_that_a_client_has_not_written_yet_is_no_journal(
    has_size: bool, tmp_path: Path
) -> None:
    """Without tables it is as if it were not there, whatever its size."""
    policy = enrolled(tmp_path)
    path = tmp_path / FILE_NAME
    path.unlink()
    path.touch(mode=0o600)
    if has_size:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE gone (x)")
            connection.execute("DROP TABLE gone")
        assert path.stat().st_size
    with pytest.raises(JournalError, match="no place in a study"):
        policy.choose(ACTIONS)
    with pytest.raises(JournalError, match="no place in a study"):
        LinearBanditPolicy.open(tmp_path, patience=0.0)


def test_a_call_that_failed_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = enrolled(tmp_path, RAW)
    ticket = policy.choose(ACTIONS).ticket

    def fails(*_: Any) -> None:
        raise OSError("no space")

    with monkeypatch.context() as broken:
        broken.setattr(Parts, "write", fails)
        with pytest.raises(OSError, match="no space"):
            policy.reward(ticket, 1.0)
    assert [*policy.awaited] == [ticket]
    policy.reward(ticket, 0.5)
    assert policy.awaited == {}


def test_a_call_during_another_one_finds_the_journal_held(tmp_path: Path) -> None:
    """As another thread's would, with the same policy; neither harms the other."""
    enrolled(tmp_path)
    policy = LinearBanditPolicy.open(tmp_path, patience=0.0)
    refused = []

    class Meanwhile:
        def __array__(self, *_: Any, **__: Any) -> NDArray[np.float64]:
            with pytest.raises(JournalHeldError):
                policy.choose(ACTIONS)
            refused.append(True)
            return ACTIONS

    for _ in range(2):
        policy.choose(Meanwhile())
    assert refused
    assert policy.num_trials == 2


def play_on(folder: Path) -> None:
    """Play until killed."""
    policy = LinearBanditPolicy.open(folder)
    while True:
        trial(policy)


def test_a_policy_goes_on_beside_processes_that_are_killed(tmp_path: Path) -> None:
    policy, rng = enrolled(tmp_path, RAW), np.random.default_rng(0)
    made, longest = 0, 0.05
    while made < 20:  # however slow the machine is
        longest *= 1.5
        assert killed_after(rng.uniform(0, longest), play_on, tmp_path)
        actions = rng.normal(size=(20, 3))
        # No two of the same length: nobody would know which is better.
        actions /= 1.1 * np.linalg.norm(actions, axis=1).max()
        fresh = LinearBanditPolicy.open(tmp_path)
        assert policy.num_trials == fresh.num_trials >= made
        choice = policy.choose(actions)
        index, ticket = choice.index, choice.ticket
        assert fresh.choose(actions).index == index
        policy.reward(ticket, 0.5)
        made = policy.num_trials
