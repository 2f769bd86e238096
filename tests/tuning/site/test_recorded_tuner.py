"""A message is a function of its agent's record: made again, it is the same."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.lab.baselines.random_search import RandomSearchSettings
from flwr_fbo.lab.baselines.transfer import RGPESettings, TAFSettings
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuning import DPFTSDESettings, FedVoteSettings, FTSSettings
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_warm_start.settings import FedWarmStartSettings
from flwr_fbo.tuning.search.agent_journal import agent_identity
from flwr_fbo.tuning.search.settings import SearchSettings
from flwr_fbo.tuning.search.study import TuningStudy
from flwr_fbo.tuning.site.recorded_tuner import RecordedTuner
from tests.support.federation import SPACE, objective_of

AGENTS: dict[str, SearchSettings] = {
    "thompson": DPFTSDESettings(num_features=20, num_initial=2, num_candidates=30),
    "voting": FedVoteSettings(num_features=20, num_initial=2),
    "warm-start": FedWarmStartSettings(num_features=20),
    "fts": FTSSettings(num_features=20, num_initial=2, num_candidates=30),
    "rgpe": RGPESettings(num_features=20, num_initial=2),
    "taf": TAFSettings(num_features=20, num_initial=2),
    "random": RandomSearchSettings(num_sub_regions=2, num_initial=1),
}


@pytest.mark.parametrize("name", AGENTS)
def test_a_message_is_made_again_from_the_record(tmp_path: Path, name: str) -> None:
    """By another process, after more trials, with other vectors, and drawn seeds."""
    study = TuningStudy(
        SearchSpace(SPACE),
        "maximize",
        AGENTS[name],
        feature_seed=3,
        facts=VoteCount(3) if name == "voting" else None,
    )
    identity, path = agent_identity(study, 1), tmp_path / "agent.sqlite"
    sent = []
    for release in (1, 2, 3):
        with Journal(identity, path) as journal:
            recorded = RecordedTuner(journal, study, 1)
            assert release not in recorded.made_after
            recorded.play(objective_of(1), 2 * release, None, release)
            sent.append(recorded.message(release))
    with Journal(identity, path) as journal:
        recorded = RecordedTuner(journal, study, 1)
        recorded.play(objective_of(1), 9, None, 0)
        for release, message in enumerate(sent, 1):
            assert release in recorded.made_after
            np.testing.assert_array_equal(recorded.message(release), message)


@pytest.mark.parametrize("name", ["thompson", "voting", "random"])
def test_an_interrupted_trial_keeps_its_source(tmp_path: Path, name: str) -> None:
    """Each evaluation is cut off, and goes on in the same round or in the next."""
    study = TuningStudy(
        SearchSpace(SPACE),
        "maximize",
        AGENTS[name],
        study_seed=2,
        feature_seed=3,
        facts=VoteCount(3) if name == "voting" else None,
    )
    identity, path = agent_identity(study, 1), tmp_path / "agent.sqlite"
    known = [{"x": 0.25, "C": 1.0, "depth": 3}]

    def play(iteration: int, killed: bool, file: Path | None) -> list[str | None]:
        def objective(params: Params) -> float:
            if killed:
                raise KeyboardInterrupt
            return objective_of(1)(params)

        with Journal(identity, file) as journal:
            recorded = RecordedTuner(journal, study, 1, known)
            with suppress(KeyboardInterrupt):
                recorded.play(objective, iteration, None, 0)
            return [trial.source for trial in journal.trials()]

    whole = tmp_path / "whole.sqlite"
    for iteration in range(4):
        sources = play(iteration, False, whole)
        cut_off = play(iteration, True, path)
        assert play(iteration, False, path) == sources
        assert cut_off == sources[: len(cut_off)]
    assert sources[0] == "enqueued"
    assert play(4, True, path)[-1] == "own search"
    assert play(5, False, path)[-2:] == ["own search", "own search"]


def test_a_server_that_has_forgotten_one_release_is_refused(tmp_path: Path) -> None:
    """It would draw new noise for that one's messages."""
    study = TuningStudy(SearchSpace(SPACE), "maximize", AGENTS["random"])
    identity, path = agent_identity(study, 1), tmp_path / "agent.sqlite"

    def hear(num_released: int) -> None:
        with Journal(identity, path) as journal:
            RecordedTuner(journal, study, 1, num_released=num_released)

    for num_released in (0, 1, 3, 3):
        hear(num_released)
    with pytest.raises(JournalError, match="has 2 releases and had 3") as error:
        hear(2)
    assert error.value.public == "The server's record is an older copy."
    hear(3)
