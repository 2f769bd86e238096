"""Bandit studies whose sites sum their blocks, and what the sites put into sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, UserConfig

from flwr_fbo import FedUCB, linear_bandit_app
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings
from flwr_fbo.bandits.kind import LINEAR_SITE
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.bandits.site.decision import action_of
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.bandits.site.recorded_bandit import RecordedBandit
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.tasks.linear_bandit import LinearBanditEnvironment, LinearBanditTask
from flwr_fbo.secure.block_noise import BlockNoise
from flwr_fbo.site.study_journals import last_journal
from tests.support.grouped import hosted
from tests.support.secure_studies import AGGREGATION, Keys, N, node_configs

TASK = LinearBanditTask(dimension=3, num_actions=6)
SCHEDULE, T = [4, 9, 16], 20
RELEASES = ContinualSettings(
    num_releases=3, dimension=3, epsilon=30.0, delta=0.1, mechanism="blocks"
)
SETTINGS = LinearUCBSettings(RELEASES, local_data="released")


def make_environment(context: Context) -> BanditEnvironment:
    return LinearBanditEnvironment(TASK, 7, int(context.node_config["partition-id"]))


APP = linear_bandit_app(make_environment=make_environment)


def fed_ucb(**options: Any) -> FedUCB:
    """Return a study of five sites: four must agree, and one may be absent."""
    defaults = {
        "schedule": SCHEDULE,
        "num_trials": T,
        "aggregation": AGGREGATION,
        "patience": 0.0,
        "allow_large_delta": True,
        "max_empty_rounds": 100,
    }
    if "interval" in options:
        del defaults["schedule"], defaults["num_trials"]
    settings = options.pop("settings", SETTINGS)
    return hosted(FedUCB, settings, N, **{**defaults, **options})


def in_folders(tmp_path: Path, keys: Keys | None = None) -> list[UserConfig]:
    """Return node configs of sites with a folder each, with keys if they are given."""
    configs = node_configs() if keys is None else keys.node_configs()
    for slot, config in enumerate(configs):
        folder = tmp_path / f"site-{slot}"
        folder.mkdir()
        config["fbo-folder"] = str(folder)
    return configs


def journal_of(folder: Path) -> Journal:
    return Journal.snapshot(last_journal(folder, LINEAR_SITE.name))


class Given:
    """Blocks that sites have put into sums, by release and slot; without noise.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocks: dict[tuple[int, int], np.ndarray] = {}
        self.num_shares = 0
        block = RecordedBandit.block

        def noted(bandit: RecordedBandit, release: int) -> np.ndarray:
            given = block(bandit, release)
            known = self.blocks.setdefault((release, bandit.slot), given)
            np.testing.assert_array_equal(given, known)
            return given

        def share(noise: BlockNoise) -> np.ndarray:
            self.num_shares += 1
            return np.zeros(noise.length, np.int64)

        monkeypatch.setattr(RecordedBandit, "block", noted)
        monkeypatch.setattr(BlockNoise, "draw_share", share)

    def assert_right(self, strategy: FedUCB, tmp_path: Path | None = None) -> None:
        """Assert that each total is the sum of its blocks, exactly.

        And, where sites have folders, that each trial is in one block.
        """
        for row in strategy.server.ledger:
            release, slots = row.facts["release"], row.facts["summed"]
            assert len(slots) >= AGGREGATION.group(range(N)).min_summed
            total = sum(self.blocks[release, slot] for slot in slots)
            np.testing.assert_array_equal(row.vectors, total)
        for slot in range(N if tmp_path is not None else 0):
            assert tmp_path is not None
            with journal_of(tmp_path / f"site-{slot}") as journal:
                self._assert_of_site(journal, strategy.study, slot)

    def _assert_of_site(
        self, journal: Journal, study: LinearBanditStudy, slot: int
    ) -> None:
        """Assert that a block has the trials of its window, each of which is one's."""
        rows, settings = journal.ledger(), study.settings.releases
        assert [row.facts["window"] for row in rows] == [*range(len(rows))]
        left = RecordedBandit(journal, study).left
        for row in rows:
            window = row.facts["window"]
            trials = [
                trial
                for trial in journal.trials()
                if trial.iteration == window and trial.state == "complete"
            ]
            expected = np.zeros((4, 4))
            if trials and (left is None or window <= left.window):
                actions = np.stack([action_of(trial) for trial in trials])
                expected = settings.gram(actions, [trial.value for trial in trials])
            np.testing.assert_array_equal(self.blocks[row.iteration, slot], expected)


def unlikely_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep sites from leaving, so that their blocks say something."""
    from flwr_fbo.bandits.linear.blocks_belief import BlocksBelief
    from flwr_fbo.bandits.linear.leaving_the_sums import Misfit

    monkeypatch.setattr(BlocksBelief, "worth", 2.0)
    monkeypatch.setattr(Misfit, "leaves", lambda *_: False)


def with_times(times: list[int], **options: Any) -> FedUCB:
    """Return a study with as many releases as times."""
    releases = replace(RELEASES, num_releases=len(times))
    settings = replace(SETTINGS, releases=releases)
    return fed_ucb(schedule=times, num_trials=times[-1], settings=settings, **options)
