"""A study whose server was ended goes on in a new run, from the server's folder."""

import json
import logging
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp.exception import AggregationError
from optuna.distributions import FloatDistribution

from flwr_fbo import DPFTSDE, InProcessGrid
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError, has_journal
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.lab.baselines.random_search import LocalServer, RandomSearchSettings
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.strategies.tuning_strategy import TuningStrategy
from flwr_fbo.tuning import TuningResult
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.study import TuningStudy
from tests.support.federation import (
    AGENT,
    NUM_AGENTS,
    SPACE,
    SilentGrid,
    assert_same,
    make_objective,
    numpy_app,
    objective_of,
    strategy,
)
from tests.support.killing import NUM_KILLS, killed_in

NUM_ROUNDS = 5
# Without coverage, which is faster: others run the same lines.
SLOW = [pytest.mark.slow, pytest.mark.no_cover]


class Ended(Exception):  # noqa: N818
    """Stands for whatever ends a ServerApp."""


class DyingGrid(InProcessGrid):
    """Raises in place of delivering the replies of one round."""

    dies_in = 0

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        round_ = replies[0].metadata.group_id if replies else ""
        if round_ == str(self.dies_in):
            raise Ended
        return replies


def _run(folder: Path, dies_in: int = 0, **options: Any) -> tuple[TuningResult, Any]:
    config = {"fbo-folder": str(folder / "clients")}
    grid = DyingGrid(numpy_app(), NUM_AGENTS, run_config=dict(config))
    grid.dies_in = dies_in
    study = strategy(folder=folder / "server", **options)
    result = study.start(grid, num_rounds=NUM_ROUNDS)
    return result, (study, grid)


def _agents(study: DPFTSDE, grid: InProcessGrid) -> list[Agent]:
    return grid.agents(study.study)


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TuningResult, list[Agent]]:
    result, (study, grid) = _run(tmp_path_factory.mktemp("whole"))
    return result, _agents(study, grid)


@pytest.mark.parametrize("dies_in", [1, 3, 5])
def test_it_goes_on_and_ends_like_an_uninterrupted_one(
    tmp_path: Path, dies_in: int, uninterrupted: tuple[TuningResult, list[Agent]]
) -> None:
    whole, expected = uninterrupted
    with pytest.raises(Ended):
        _run(tmp_path / "cut", dies_in=dies_in)
    result, (study, grid) = _run(tmp_path / "cut")
    assert_same(_agents(study, grid), expected)
    assert result.recommended == whole.recommended
    assert result.privacy_spent == whole.privacy_spent
    assert result.rounds == whole.rounds
    np.testing.assert_array_equal(result.arrays["0"].numpy(), whole.arrays["0"].numpy())


def test_an_older_copy_of_the_server_s_record_is_refused(tmp_path: Path) -> None:
    """It would draw new noise for messages that have been released."""
    with pytest.raises(Ended):
        _run(tmp_path, dies_in=3)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "server", copy)
    with pytest.raises(Ended):
        _run(tmp_path, dies_in=5)
    shutil.rmtree(tmp_path / "server")
    copy.rename(tmp_path / "server")
    with pytest.raises(AggregationError, match="The server's record is an older"):
        _run(tmp_path)


def test_drawn_seeds_are_those_of_the_study_that_goes_on(tmp_path: Path) -> None:
    seeds: dict[str, Any] = dict.fromkeys(("study_seed", "feature_seed", "noise_seed"))
    with pytest.raises(Ended):
        _run(tmp_path, dies_in=3, **seeds)
    (path,) = (tmp_path / "clients").glob("*-agent-0.sqlite")
    _, (study, _) = _run(tmp_path, **seeds)
    assert path.name == f"study-{study.study.study_id}-agent-0.sqlite"
    assert len(list((tmp_path / "clients").glob("study-*"))) == NUM_AGENTS


def test_a_complete_study_is_not_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result, _ = _run(tmp_path)

    def unwanted(context: Context) -> Any:
        raise AssertionError("a client was asked")

    grid = InProcessGrid(ClientApp(client_fn=unwanted), 1)
    again = strategy(folder=tmp_path / "server").start(grid, num_rounds=NUM_ROUNDS)
    assert again.recommended == result.recommended
    assert again.privacy_spent == result.privacy_spent
    assert again.rounds == result.rounds
    assert "is complete" in caplog.text


def test_methods_without_releases_go_on_too(tmp_path: Path) -> None:
    def run(folder: Path, dies_in: int = 0) -> list[Agent]:
        study = TuningStudy(
            SearchSpace(SPACE), "maximize", RandomSearchSettings(num_initial=2), 5
        )
        config = {"fbo-folder": str(folder)}
        grid = DyingGrid(numpy_app(), NUM_AGENTS, run_config=dict(config))
        grid.dies_in = dies_in
        method = TuningStrategy(LocalServer(NUM_AGENTS), study)
        method.start(grid, num_rounds=4, folder=folder)
        return grid.agents(method.study)

    with pytest.raises(Ended):
        run(tmp_path / "cut", dies_in=3)
    assert_same(run(tmp_path / "cut"), run(tmp_path / "whole"))


def test_a_changed_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Ended):
        _run(tmp_path, dies_in=3)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"noise_multiplier": 0.5}, "'noise_multiplier': (1.0, 0.5)"),
        ({"direction": "minimize"}, "'direction': ('maximize', 'minimize')"),
        ({"space": {"x": FloatDistribution(0, 1)}}, "'space'"),
        ({"delta": 1e-5}, "'delta': (0.001, 1e-05)"),
        ({"noise_seed": None}, "'noise_seed': (13, None)"),
        ({"feature_seed": 99}, "'feature_seed': (12, 99)"),
        ({"agent": replace(AGENT, num_initial=9)}, "'agent'"),
    ]
    for options, words in cases:
        with pytest.raises(JournalError, match="belongs to another study") as error:
            _run(tmp_path, **options)
        assert words in str(error.value)
    _run(tmp_path)  # nothing was spoilt


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    with pytest.raises(JournalError, match="cannot be written"):
        strategy(folder=tmp_path / "file").start(grid, num_rounds=2)


def test_two_servers_cannot_share_a_folder(tmp_path: Path) -> None:
    """The second is told so by the first one's client, while the first is running."""
    told: list[str] = []

    def make(context: Context) -> Any:
        if not told:
            grid = InProcessGrid(numpy_app(), NUM_AGENTS)
            with pytest.raises(JournalError) as error:
                strategy(folder=tmp_path).start(grid, num_rounds=2)
            told.append(str(error.value))
        return objective_of(0)

    grid = InProcessGrid(numpy_app(make), NUM_AGENTS)
    strategy(folder=tmp_path).start(grid, num_rounds=2)
    assert len(told) == 1
    assert "another process holds it" in told[0]


def test_a_folder_that_another_run_still_holds_is_waited_for(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ServerApp does not end at once when its SuperLink is killed."""
    with pytest.raises(Ended):
        _run(tmp_path, dies_in=3)
    holder = Journal(None, tmp_path / "server" / "server.sqlite")
    pauses: list[float] = []

    def sleep(pause: float) -> None:
        pauses.append(pause)
        if sum(pauses) > 5:
            holder.close()

    begun = time.monotonic()
    clock = "flwr_fbo.journal.journal.time"
    monkeypatch.setattr(f"{clock}.sleep", sleep)
    monkeypatch.setattr(f"{clock}.monotonic", lambda: begun + sum(pauses))
    result, _ = _run(tmp_path, patience=60.0)
    assert "another process holds it" in caplog.text
    assert "Waiting for it, 60 s at most" in caplog.text
    assert len(result.rounds) == NUM_ROUNDS


def test_empty_rounds_are_counted_anew_in_each_run(tmp_path: Path) -> None:
    """Otherwise a run that goes on would end in its first empty round."""

    def run(*silent: int) -> TuningResult:
        grid = SilentGrid(silent, {"fbo-folder": str(tmp_path / "clients")})
        study = strategy(folder=tmp_path / "server", max_empty_rounds=2)
        return study.start(grid, num_rounds=NUM_ROUNDS)

    with pytest.raises(AggregationError, match=r"Round 4.*after 2 such rounds"):
        run(3, 4)
    result = run(4)
    assert [r.answered for r in result.rounds] == [4, 4, 0, 0, 4]


def _study_of(folder: Path, num_rounds: int, noise_seed: int | None) -> None:
    """Run a study and note, as a client would see them, the vectors of each round."""

    class Noting(InProcessGrid):
        def push_messages(self, messages: Any) -> Any:
            sent = list(messages)
            number = sent[0].metadata.group_id if sent else ""  # none while enrolling
            name = f"seen-{number}.jsonl"
            for message in sent if number else ():
                arrays = message.content.array_records["arrays"]
                vectors = [array.numpy().tolist() for array in arrays.values()]
                if vectors:
                    with (folder / name).open("a") as file:
                        file.write(json.dumps(vectors[0]) + "\n")
            return super().push_messages(sent)

    config = {"fbo-folder": str(folder / "clients")}
    grid = Noting(numpy_app(make_objective), NUM_AGENTS, run_config=dict(config))
    study = strategy(folder=folder / "server", noise_seed=noise_seed)
    study.start(grid, num_rounds=num_rounds)


def _quiet_study_of(*arguments: Any) -> None:
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # of this process alone
    _study_of(*arguments)


def _check_what_left(folder: Path) -> list[LedgerRow]:
    """Whatever a client has seen is in the ledger, one release a round."""
    path = folder / "server" / "server.sqlite"
    if not has_journal(path):
        assert not list(folder.glob("seen-*"))
        return []
    with Journal(None, path) as journal:
        ledger = journal.ledger()
    released = {row.iteration + 2: row.vectors.tolist() for row in ledger}
    for seen in folder.glob("seen-*.jsonl"):
        round_ = int(seen.stem.removeprefix("seen-"))
        for line in seen.read_text().splitlines():
            assert json.loads(line) == released[round_], seen
    return ledger


@pytest.mark.parametrize(
    ("num_kills", "num_rounds", "noise_seed"),
    [
        (4, 4, None),  # real noise: a second draw would show
        (4, 4, 13),
        pytest.param(NUM_KILLS, 31, None, marks=SLOW),
        pytest.param(NUM_KILLS, 31, 13, marks=SLOW),
    ],
)
def test_a_killed_server_never_sends_two_vectors_for_one_round(
    tmp_path: Path, num_kills: int, num_rounds: int, noise_seed: int | None
) -> None:
    rng, kills, studies = random.Random(num_rounds), 0, 0
    whole = tmp_path / "whole"
    whole.mkdir()
    of_whole = whole, num_rounds, noise_seed
    statements = killed_in(None, _quiet_study_of, *of_whole)
    assert statements is not None
    expected = _check_what_left(whole)
    assert len(expected) == num_rounds - 1
    while kills < num_kills:
        folder = tmp_path / f"study-{studies}"
        folder.mkdir()
        studies += 1
        before: list[int | None] = [rng.randrange(statements) for _ in range(30)]
        for most in [*before, None]:  # at last it may end
            of_study = folder, num_rounds, noise_seed
            if killed_in(most, _quiet_study_of, *of_study) is not None:
                break
            kills += 1
            _check_what_left(folder)
        assert kills >= studies  # the first one is within the study's statements
        ledger = _check_what_left(folder)
        assert [row.facts for row in ledger] == [row.facts for row in expected]
        if noise_seed is not None:
            for row, other in zip(ledger, expected, strict=True):
                np.testing.assert_array_equal(row.vectors, other.vectors)
    print(f"{kills} kills in {studies} studies of {num_rounds - 1} releases")
