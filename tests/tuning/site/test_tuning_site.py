"""A tuning site: what it repeats, refuses and gives up, also if it is killed."""

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, JournalHeldError
from flwr_fbo.journal.tables import Trial as Recorded
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.codec import StudyMismatchError
from flwr_fbo.tuning.dp_fts_de.settings import DPFTSDESettings
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy
from flwr_fbo.tuning.search.trial import Trial
from flwr_fbo.tuning.site.tuning_journals import agent_id, journal_path, kept_agent
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.support.begun_journals import begin_journal
from tests.support.federation import SPACE, objective_of
from tests.support.killing import NUM_KILLS, killed_after

NUM_TRIALS = 20
SETTINGS = DPFTSDESettings(num_initial=4, num_features=30, num_candidates=50)
STUDY = TuningStudy(SearchSpace(SPACE), "maximize", SETTINGS, 1, 2, "killed")


def _context(folder: Path) -> Context:
    # A fresh one each time: a restarted SuperNode remembers nothing.
    return Context(1, 1, {"fbo-folder": str(folder)}, RecordDict(), {})


def _asked(iteration: int) -> dict[str, Any]:
    instruction = TuningInstruction("round", STUDY, 0, iteration, release=iteration + 1)
    return instruction.to_config()


def _play(folder: Path) -> None:
    """Play a client's rounds of a study of 20 trials, from whatever is recorded.

    Each evaluation that ends is noted, on disk, before the journal hears of it.
    """

    def objective(trial: Trial) -> float:
        time.sleep(0.02)  # long enough to be hit by a kill
        value = objective_of(0)(trial)
        with (folder / "evaluated").open("a") as file:
            file.write(f"{value!r}\n")
            file.flush()
            os.fsync(file.fileno())
        return value

    site = TuningSite(lambda context: objective)
    for iteration in range(NUM_TRIALS - SETTINGS.num_initial + 1):
        vectors = np.random.default_rng(iteration).standard_normal((4, 30))
        asked = _asked(iteration)
        reply = site.answer(_context(folder), [vectors] if iteration else [], asked)
        np.save(folder / f"reply-{iteration}.npy", reply.arrays[0])


def _journal(folder: Path, slot: int = 0) -> Path:
    path = journal_path(folder, STUDY, slot)
    assert path is not None
    return path


def _trials(folder: Path) -> list[Recorded]:
    if not _journal(folder).is_file() or not _journal(folder).stat().st_size:
        return []
    with Journal(None, _journal(folder)) as journal:
        return journal.trials()


def _recorded(folder: Path) -> list[tuple[int, float]]:
    return [(t.number, t.value) for t in _trials(folder) if t.state == "complete"]


@pytest.mark.gate
@pytest.mark.parametrize(
    "num_kills",
    [8, pytest.param(NUM_KILLS, marks=[pytest.mark.slow, pytest.mark.no_cover])],
)
def test_a_client_that_is_killed_repeats_and_loses_nothing(
    tmp_path: Path, num_kills: int
) -> None:
    rng = random.Random(0)
    whole = tmp_path / "whole"
    whole.mkdir()
    began = time.monotonic()
    _play(whole)
    longest = 0.5 * (time.monotonic() - began)  # however slow the machine is
    kills = studies = interruptions = repeated = 0
    # More, if a busy machine let none of them hit an evaluation.
    while kills < num_kills or (not interruptions and kills < 100 * num_kills):
        folder = tmp_path / f"study-{studies}"
        folder.mkdir()
        studies += 1
        recorded: list[tuple[int, float]] = []
        delays: list[float | None] = [
            rng.uniform(0.0, longest) for _ in range(num_kills)
        ]
        for delay in [*delays, None]:  # at last it may end, however long it takes
            if not killed_after(delay, _play, folder):
                break
            kills += 1
            now = _recorded(folder)
            assert now[: len(recorded)] == recorded, "a recorded trial was lost"
            recorded = now
        trials = _trials(folder)
        assert _recorded(folder) == _recorded(whole)
        assert len(trials) == NUM_TRIALS
        # What was evaluated more than once was cut off, and is marked.
        evaluated = (folder / "evaluated").read_text().splitlines()
        cut_off = sum(trial.interruptions for trial in trials)
        assert NUM_TRIALS <= len(evaluated) <= NUM_TRIALS + cut_off
        interruptions += cut_off
        repeated += len(evaluated) - NUM_TRIALS
        for iteration in range(NUM_TRIALS - SETTINGS.num_initial + 1):
            name = f"reply-{iteration}.npy"
            np.testing.assert_array_equal(np.load(folder / name), np.load(whole / name))
    assert interruptions > 0, "no kill hit an evaluation: this tests nothing"
    print(
        f"{kills} kills, {studies} studies, {interruptions} cut off, {repeated} twice"
    )


def test_a_lost_reply_is_answered_from_the_record(tmp_path: Path) -> None:
    """The server asks for an old round again: same answer, nothing evaluated."""
    _play(tmp_path)
    before = (tmp_path / "evaluated").read_text()

    def unwanted(trial: Trial) -> float:
        raise AssertionError("evaluated again")

    site = TuningSite(lambda context: unwanted)
    for iteration in (0, 3, NUM_TRIALS - SETTINGS.num_initial):
        vectors = np.random.default_rng(iteration).standard_normal((4, 30))
        asked = _asked(iteration)
        reply = site.answer(_context(tmp_path), [vectors] if iteration else [], asked)
        first = np.load(tmp_path / f"reply-{iteration}.npy")
        np.testing.assert_array_equal(reply.arrays[0], first)
    assert (tmp_path / "evaluated").read_text() == before


def test_a_restarted_client_finds_its_slot_in_its_folder(tmp_path: Path) -> None:
    context = _context(tmp_path)
    assert agent_id(context, STUDY) == -1
    begin_journal(_journal(tmp_path, 7))
    assert agent_id(_context(tmp_path), STUDY) == 7
    begin_journal(_journal(tmp_path, 8))
    assert agent_id(_context(tmp_path), STUDY) == -1  # whose is which?


def _cut_off(folder: Path, iteration: int) -> None:
    """Leave an evaluation of ``iteration`` begun, as SIGKILL would."""

    class Killed(BaseException):
        pass

    def objective(trial: Trial) -> float:
        raise Killed

    asked = _asked(iteration)
    with pytest.raises(Killed):
        TuningSite(lambda context: objective).answer(_context(folder), [], asked)


def _answer(folder: Path, iteration: int) -> None:
    asked = _asked(iteration)
    TuningSite(lambda context: objective_of(0)).answer(_context(folder), [], asked)


def test_a_query_that_was_cut_off_is_run_again_in_a_later_round(tmp_path: Path) -> None:
    _answer(tmp_path, 0)
    _answer(tmp_path, 1)
    _cut_off(tmp_path, 2)
    (pending,) = (t for t in _trials(tmp_path) if t.state == "running")
    _answer(tmp_path, 3)  # the server has gone on
    trials = _trials(tmp_path)
    assert [t.iteration for t in trials] == [0, 0, 0, 0, 1, 2, 3]
    assert all(t.state == "complete" for t in trials)
    assert trials[5].params == pending.params
    assert [t.interruptions for t in trials] == [0, 0, 0, 0, 0, 1, 0]


def test_a_fault_of_the_app_is_no_trial(tmp_path: Path) -> None:
    def wrong(trial: Trial) -> float:
        return trial.suggest_float("unknown", 0.0, 1.0)

    asked = _asked(0)
    for _ in range(6):
        with pytest.raises(StudyMismatchError):
            TuningSite(lambda context: wrong).answer(_context(tmp_path), [], asked)
    assert not _trials(tmp_path)
    _answer(tmp_path, 0)
    assert [t.state for t in _trials(tmp_path)] == ["complete"] * 4


@pytest.mark.parametrize("first", [0, 1])
def test_an_evaluation_that_ends_the_client_each_time_is_given_up(
    tmp_path: Path, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be an initial point or a query; the agent must go on some day."""
    if first:
        _answer(tmp_path, 0)
    for iteration in range(first, first + 5):
        _cut_off(tmp_path, iteration)
    _answer(tmp_path, first + 5)
    assert "was cut off 5 times: it counts as failed" in caplog.text
    states = [t.state for t in _trials(tmp_path)]
    assert states.count("failed") == 1
    assert "running" not in states
    assert states[-1] == "complete"


def _vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 30))


def _asked_for(iteration: int, release: int) -> dict[str, Any]:
    return TuningInstruction("round", STUDY, 0, iteration, release=release).to_config()


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_release_that_is_asked_for_again_is_on_record(
    tmp_path: Path, in_folder: bool
) -> None:
    """In a later round: the same message, no trial, and the vectors are kept."""
    own = _context(tmp_path)
    if not in_folder:
        own.run_config.clear()
        own.node_config.clear()
    played: list[int] = []

    def make_objective(context: Context) -> Any:
        played.append(1)
        return objective_of(0)

    site = TuningSite(make_objective)

    def agent() -> Any:
        return kept_agent(own, STUDY)

    [first] = site.answer(own, [], _asked_for(0, 1)).arrays
    for late, seed in ((1, 1), (7, 2)):
        [again] = site.answer(own, [_vectors(seed)], _asked_for(late, 1)).arrays
        np.testing.assert_array_equal(again, first)
        assert len(played) == 1
        assert len(agent().values) == SETTINGS.num_initial
        np.testing.assert_array_equal(agent().state_dict()["vectors"], _vectors(seed))
    assert not site.answer(own, [], _asked_for(8, 0)).arrays
    [second] = site.answer(own, [], _asked_for(9, 2)).arrays
    assert agent().iterations == [0] * 4 + [8, 9]
    assert not np.array_equal(second, first)
    [again] = site.answer(own, [], _asked_for(10, 1)).arrays
    np.testing.assert_array_equal(again, first)
    assert len(played) == 3


def test_an_earlier_release_that_was_left_out_comes_too_late(tmp_path: Path) -> None:
    site = TuningSite(lambda context: objective_of(0))
    site.answer(_context(tmp_path), [], _asked_for(0, 2))
    with pytest.raises(JournalError, match="Release 1 comes too late: 2 is on record"):
        site.answer(_context(tmp_path), [], _asked_for(1, 1))
    assert len(_trials(tmp_path)) == 4


def test_a_message_that_was_cut_off_is_of_the_round_that_ended(tmp_path: Path) -> None:
    """It is charged when it is asked for first, and made when the trial is over."""
    _answer(tmp_path, 0)
    _cut_off(tmp_path, 1)
    site = TuningSite(lambda context: objective_of(0))
    [late] = site.answer(_context(tmp_path), [], _asked_for(2, 2)).arrays
    assert [t.iteration for t in _trials(tmp_path)] == [0, 0, 0, 0, 1, 2]
    [again] = site.answer(_context(tmp_path), [], _asked_for(3, 2)).arrays
    np.testing.assert_array_equal(again, late)
    with SpendingLedger.held(tmp_path) as ledger:
        assert [row.facts["release"] for row in ledger.rows] == [1, 2]


def test_a_trial_that_outlasts_its_round_is_answered_in_a_later_one(
    tmp_path: Path,
) -> None:
    """Until then the site is busy, which is said in a sentence."""
    begun, over = threading.Event(), threading.Event()

    def slow(trial: Trial) -> float:
        begun.set()
        assert over.wait(30)
        return objective_of(0)(trial)

    def play() -> None:
        context = _context(tmp_path)
        answers.append(TuningSite(lambda _: slow).answer(context, [], _asked_for(0, 1)))

    answers: list[Any] = []
    running = threading.Thread(target=play)
    running.start()
    assert begun.wait(30)
    site = TuningSite(lambda context: objective_of(0))
    with pytest.raises(JournalHeldError, match="This site is busy") as error:
        site.answer(_context(tmp_path), [], _asked_for(1, 1))
    assert str(tmp_path) not in str(error.value)
    over.set()
    running.join()
    [late] = site.answer(_context(tmp_path), [_vectors(1)], _asked_for(2, 1)).arrays
    np.testing.assert_array_equal(late, answers[0].arrays[0])
    assert len(_trials(tmp_path)) == 4
