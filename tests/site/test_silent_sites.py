"""Whether and how a site answers does not depend on its data."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, Network
from flwr_fbo.bandits.fed_go_ucb.study import (
    FedGOUCBInstruction,
    FedGOUCBStudy,
)
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)
from flwr_fbo.bandits.site.linear_bandit_site import LinearBanditSite
from flwr_fbo.bandits.site.neural_bandit_site import NeuralBanditSite
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.site.receipts import HEAD
from flwr_fbo.site.site import Answer
from flwr_fbo.site.study_journals import last_journal
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.support.private_agent import SETTINGS
from tests.support.site_budget import Node, asked_of, study_of


def _raises() -> Any:
    raise KeyError("patient 17")


class Ward:
    """Two actions, and what is wrong with one trial."""

    def __init__(self, contexts: Any = None, reward: Any = None) -> None:
        self._contexts, self._reward = contexts, reward

    def contexts(self, t: int) -> Any:
        if t == 1 and self._contexts is not None:
            return self._contexts()
        return np.eye(2) / 2

    def reward(self, x: Any) -> Any:
        return 0.3 if self._reward is None else self._reward()


UNFIT = {
    "a large reward": Ward(reward=lambda: 7.0),
    "a low reward": Ward(reward=lambda: -7.0),
    "an infinite reward": Ward(reward=lambda: math.inf),
    "no reward": Ward(reward=lambda: math.nan),
    "a reward that is none": Ward(reward=lambda: None),
    "a reward that fails": Ward(reward=_raises),
    "a reward that exits": Ward(reward=sys.exit),
    "no actions": Ward(contexts=lambda: np.zeros((0, 2))),
    "an empty list": Ward(contexts=list),
    "actions that fail": Ward(contexts=_raises),
    "a ragged table": Ward(contexts=lambda: [[1.0], [1.0, 2.0]]),
    "a missing value": Ward(contexts=lambda: np.full((2, 2), math.nan)),
    "an integer that no float holds": Ward(contexts=lambda: [[10**400, 0]]),
    "a text": Ward(contexts=lambda: [["a", "b"]]),
    "another dimension": Ward(contexts=lambda: np.eye(3)),
    "one action": Ward(contexts=lambda: np.ones(2) / 2),
}


def _linear(folder: Path | None, ward: Ward, **bounds: Any) -> list[Answer]:
    site, node = LinearBanditSite(None, lambda _: ward), Node(folder)
    releases = ContinualSettings(2, 2, epsilon=1.0, delta=1e-5, **bounds)
    study = LinearBanditStudy(LinearUCBSettings(releases, local_data="released"), 1)
    enrolled = node.ask(site, study.enrolment())
    number = int(enrolled.metrics["journal"])
    answers = []
    for k in (1, 2):
        asked = LinearBanditInstruction(
            "round", study, 0, number, 0, k == 2, num_trials=2 * k
        )
        answers.append(node.ask(site, asked.to_config()))
    return answers


def _neural(folder: Path | None, ward: Ward) -> list[Answer]:
    site, node = NeuralBanditSite(lambda _: ward), Node(folder)
    network = Network(2, width=3)
    about = SETTINGS, 2, network.num_parameters, network, 1
    study = FedGOUCBStudy(*about)
    number = int(node.ask(site, study.enrolment()).metrics["journal"])
    asked = FedGOUCBInstruction("round", study, 0, number, 4, send_sums=True, release=1)
    return [node.ask(site, asked.to_config())]


def _shapes(answers: list[Answer]) -> list[Any]:
    # A head is drawn at random: see `flwr_fbo.site.receipts`.
    return [
        (
            [(a.shape, a.dtype) for a in answer.arrays],
            {name: v for name, v in answer.metrics.items() if name != HEAD},
        )
        for answer in answers
    ]


@pytest.mark.parametrize("in_folder", [True, False])
@pytest.mark.parametrize("play", [_linear, _neural])
@pytest.mark.parametrize("name", UNFIT)
def test_a_trial_that_does_not_fit_shows_in_no_reply(
    name: str,
    play: Callable[..., list[Answer]],
    in_folder: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    usual = play(tmp_path / "usual" if in_folder else None, Ward())
    caplog.clear()
    found = play(tmp_path / "unfit" if in_folder else None, UNFIT[name])
    assert _shapes(found) == _shapes(usual)
    clips = play is _neural and name in ("a large reward", "a low reward")
    assert ("Trial 1" in caplog.text) != clips  # these are clipped anyway


@pytest.mark.parametrize("bound", [1e-6, 0.29, 0.31, 1e6])
@pytest.mark.parametrize("name", ["reward_range", "max_action_norm"])
def test_no_bound_of_the_server_is_an_oracle(name: str, bound: float) -> None:
    given = (-bound, bound) if name == "reward_range" else bound
    assert _shapes(_linear(None, Ward(), **{name: given})) == _shapes(
        _linear(None, Ward())
    )


@pytest.mark.parametrize("reward", [0.0, 300.0])
def test_no_end_of_a_narrow_range_is_an_oracle(reward: float) -> None:
    """The middle of the range is rounded, by more than its length allows for."""
    narrow = 227.91702867397473, 227.91703424198028
    found = _linear(None, Ward(reward=lambda: reward), reward_range=narrow)
    assert _shapes(found) == _shapes(_linear(None, Ward()))


@pytest.mark.parametrize(("size", "is_taken"), [(1e9, True), (1e11, False)])
def test_a_total_beyond_all_honest_ones_is_left_aside(
    size: float, is_taken: bool, tmp_path: Path
) -> None:
    """What overflows in it depends on the site's own data, and would be an error."""
    site, node = LinearBanditSite(None, lambda _: Ward()), Node(tmp_path)
    releases = ContinualSettings(2, 2, epsilon=1.0, delta=1e-5)
    study = LinearBanditStudy(LinearUCBSettings(releases, local_data="own"), 1)
    number = int(node.ask(site, study.enrolment()).metrics["journal"])
    asked = LinearBanditInstruction("round", study, 0, number, num_trials=2)
    node.ask(site, asked.to_config(), [size * np.eye(3)])
    with Journal(None, last_journal(tmp_path, "linear-bandit")) as journal:
        assert (journal.load_array("total") is not None) == is_taken


def test_what_is_left_out_is_in_no_sum(tmp_path: Path) -> None:
    for reward, expected in ((5.0, 1.0), (-5.0, -1.0), (math.nan, 0.0)):
        folder = tmp_path / str(expected)
        _linear(folder, Ward(reward=lambda reward=reward: reward))
        with Journal(None, last_journal(folder, "linear-bandit")) as journal:
            trials = journal.trials()
            windows = journal.load_array("open-window")
        values = [trial.value for trial in trials]
        assert len(trials) == 4
        if expected:
            assert values == [expected] * 4
            assert windows is not None
            assert windows[-1, -1] == pytest.approx(4.0)
        else:
            assert np.isnan(values).all()
            assert windows is None


def test_failed_trials_show_in_no_reply(caplog: pytest.LogCaptureFixture) -> None:
    """A server could find a value by a space of one point, study by study."""
    site = TuningSite(lambda _: lambda trial: math.nan)
    study = study_of((Charge(1.0),) * 2)
    assert not Node(None).ask(site, asked_of(study, 0, 0)).arrays
    usual = TuningSite(lambda _: lambda trial: 1.0)
    answers = [Node(None).ask(one, asked_of(study, 0, 1)) for one in (site, usual)]
    assert _shapes([answers[0]]) == _shapes([answers[1]])
    assert "trials so far failed" in caplog.text
