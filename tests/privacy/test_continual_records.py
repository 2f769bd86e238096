"""The record of releases: noise is drawn once, and what was released is kept."""

import hashlib
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.gaussian import gaussian_delta
from flwr_fbo.privacy.noise import OsEntropy, SeededEntropy
from tests.support.connection import connection_of
from tests.support.killing import NUM_KILLS, killed_after
from tests.support.small_release import SMALL, random_trials


def _open(folder: Path) -> Journal:
    return Journal({"kind": "releases"}, folder / "releases.sqlite")


def _sum_to(k: int) -> FloatArray:
    """Return the running sum at release k, of three trials a window."""
    x, y = random_trials(3 * SMALL.max_releases)
    return SMALL.gram(x[: 3 * k], y[: 3 * k])


def _ask(folder: Path, k: int) -> FloatArray:
    """Ask for a release as a message does: in a process that knows nothing else."""
    with _open(folder) as journal:
        return ContinualRelease(SMALL, OsEntropy(), journal).release(k, _sum_to(k))


def test_a_repeated_request_gets_what_is_on_record(tmp_path: Path) -> None:
    released = [_ask(tmp_path, k) for k in (1, 2, 3)]
    for k in (3, 1, 2):
        assert _ask(tmp_path, k).tobytes() == released[k - 1].tobytes()
    with _open(tmp_path) as journal:
        mechanism = ContinualRelease(SMALL, OsEntropy(), journal)
        repeated = mechanism.release(2, _sum_to(5))  # whatever the sum is by now
        np.testing.assert_array_equal(repeated, released[1])
        repeated[:] = 0.0
        np.testing.assert_array_equal(mechanism.release(2, _sum_to(2)), released[1])


def test_the_noise_goes_on_where_it_was(tmp_path: Path) -> None:
    """Process by process, the same as in one: the draws are what is recorded."""
    seeded = SeededEntropy(3)
    at_once = ContinualRelease(SMALL, seeded)
    for k in range(1, SMALL.max_releases + 1):
        with _open(tmp_path) as journal:
            released = ContinualRelease(SMALL, seeded, journal).release(k, _sum_to(k))
        np.testing.assert_array_equal(released, at_once.release(k, _sum_to(k)))


@pytest.mark.parametrize("k", [2, 6])
def test_an_agent_whose_record_is_lost_stops(tmp_path: Path, k: int) -> None:
    with pytest.raises(JournalError, match=f"Release {k} is asked for") as error:
        _ask(tmp_path, k)
    assert "ends with release 0" in str(error.value)


def test_an_agent_with_an_old_record_stops(tmp_path: Path) -> None:
    _ask(tmp_path, 1)
    with pytest.raises(JournalError, match="ends with release 1"):
        _ask(tmp_path, 3)


@pytest.mark.parametrize(
    ("k", "words"), [(7, "k=7"), (0, "k=0"), (-1, "k=-1"), (1.0, "k=1.0")]
)
def test_a_release_that_is_not_planned_is_refused(k: Any, words: str) -> None:
    mechanism = ContinualRelease(SMALL, SeededEntropy(0))
    for earlier in range(1, 7):
        mechanism.release(earlier, _sum_to(earlier))
    with pytest.raises(ValueError, match="is not allowed") as error:
        mechanism.release(k, _sum_to(6))
    assert words in str(error.value)


def test_the_papers_noise_is_refused_where_it_does_not_keep_its_promise() -> None:
    kept = replace(SMALL, mechanism="tree", calibration="paper", epsilon=200.0)
    assert gaussian_delta(200.0, kept.mu) <= SMALL.delta
    with pytest.raises(ValueError, match=r"epsilon=400.0 .* paper's noise"):
        replace(kept, epsilon=400.0)


def test_the_record_of_other_settings_is_refused(tmp_path: Path) -> None:
    _ask(tmp_path, 1)
    with _open(tmp_path) as journal, pytest.raises(JournalError, match="other"):
        ContinualRelease(replace(SMALL, epsilon=2.0), OsEntropy(), journal)


def test_a_record_without_its_noise_is_refused(tmp_path: Path) -> None:
    _ask(tmp_path, 1)
    with _open(tmp_path) as journal:
        journal.change_state({}, ["draw-1"], [])
        with pytest.raises(JournalError, match="release 1, or its noise"):
            ContinualRelease(SMALL, OsEntropy(), journal)


def test_a_record_that_lacks_a_release_is_refused(tmp_path: Path) -> None:
    """Release 3 would be taken for release 2."""
    _ask(tmp_path, 1)
    with _open(tmp_path) as journal:
        [first] = journal.ledger()
        draw = journal.load_state()["draw-1"]
        row = replace(first, iteration=3)
        journal.add_release(row, {"draw-2": draw, "draw-3": draw})
        with pytest.raises(JournalError, match="release 2, or its noise"):
            ContinualRelease(SMALL, OsEntropy(), journal)


def test_nothing_is_released_that_could_not_be_recorded(tmp_path: Path) -> None:
    with _open(tmp_path) as journal:
        mechanism = ContinualRelease(SMALL, OsEntropy(), journal)
        connection_of(journal).execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError, match="cannot be used"):
            mechanism.release(1, _sum_to(1))
        assert mechanism.num_released == 0
        connection_of(journal).execute("PRAGMA query_only = OFF")
        first = mechanism.release(1, _sum_to(1))
    np.testing.assert_array_equal(_ask(tmp_path, 1), first)


def _play(folder: Path, replies: Path) -> None:
    """Answer all requests, from the first; note each reply on disk as it leaves."""
    with replies.open("a") as file:
        for k in range(1, SMALL.max_releases + 1):
            reply = hashlib.sha256(_ask(folder, k).tobytes()).hexdigest()
            file.write(f"{k} {reply}\n")
            file.flush()


def _recorded(folder: Path) -> list[str]:
    with _open(folder) as journal:
        rows = journal.ledger()
    return [hashlib.sha256(row.vectors.tobytes()).hexdigest() for row in rows]


@pytest.mark.gate
def test_an_agent_that_is_killed_draws_no_release_twice(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = tmp_path / "whole"
    whole.mkdir()
    OsEntropy()  # loads OpenDP, which takes long
    began = time.monotonic()
    assert not killed_after(None, _play, whole, whole / "replies")
    longest = 0.8 * (time.monotonic() - began)
    kills = studies = 0
    killed_at: set[int] = set()
    enough = SMALL.max_releases // 2
    # More, if they hit too few releases.
    while kills < NUM_KILLS or (len(killed_at) < enough and kills < 10 * NUM_KILLS):
        folder = tmp_path / f"study-{studies}"
        folder.mkdir()
        studies += 1
        recorded: list[str] = []
        while len(recorded) < SMALL.max_releases and kills < 10 * NUM_KILLS:
            delay = rng.uniform(0.0, longest)
            kills += killed_after(delay, _play, folder, folder / f"replies-{kills}")
            now = _recorded(folder)
            # However slow machine and fork are by now: kills come after some releases.
            longest *= 1.2 if len(now) == len(recorded) else 0.9
            assert now[: len(recorded)] == recorded, "a recorded release changed"
            recorded = now
            killed_at.add(len(recorded))
        for replies in folder.glob("replies-*"):
            for line in replies.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # the last one may be cut off
                    k, reply = line.split()
                    assert reply == recorded[int(k) - 1], "a release was drawn twice"
    assert len(killed_at) >= enough, "the kills hit nothing"
    print(f"{kills} kills, {studies} studies, after {sorted(killed_at)} releases")
