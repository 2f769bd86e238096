"""What is lost by noise, before a tuner begins."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import how_sure
from benchmarks.tune_fedavg import SCHEDULE, read_trials
from flwr_fbo import Halving, PrivateChoice
from flwr_fbo.tuner.ballots.rank_ballots import ballot_entries
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.enough_voices import lost_if_all_agree, too_few_voices
from flwr_fbo.tuner.decisions.survivors import survivors_of
from tests.support.apps import in_process, main_of, server_context, tuner

TRAINED = Path(how_sure.__file__).parent / "trained"


def _chosen(
    schedule: Halving, num_agents: int, privacy: PrivateChoice, seed: int
) -> int:
    """Return the trial that is chosen where all order them alike, the defaults last."""
    chooser = PrivateChooser(privacy, num_agents, len(schedule.rungs), noise_seed=seed)
    choices, alive = [], list(range(schedule.trials))
    for number, rung in enumerate(schedule.rungs):
        ranks = np.argsort(np.argsort(alive))
        entries = np.array(ballot_entries(rung.num_trials))[ranks]
        ballots = dict.fromkeys(range(num_agents), entries)
        choices.append(chooser.choose(number, ballots, rung.num_trials))
        choices[-1].facts["trials"] = alive
        alive = [alive[place] for place in survivors_of(choices, rung.num_survivors)]
    return alive[0]


@pytest.mark.parametrize(
    ("schedule", "num_agents", "epsilon"),
    [
        (Halving(2, (5,)), 5, 0.5),
        (Halving(2, (5,)), 6, 0.5),
        (Halving(16, (1, 3, 9)), 5, 1.0),
        (Halving(16, (1, 3, 9)), 10, 0.5),
    ],
)
def test_what_is_lost_is_known_before(
    schedule: Halving, num_agents: int, epsilon: float
) -> None:
    """Of 400 tuners with real ballots; the tolerance is 4 standard errors and more."""
    privacy = PrivateChoice(epsilon=epsilon, delta=1e-3)
    lost, kept = lost_if_all_agree(schedule.sizes, num_agents, privacy)
    about = schedule, num_agents, privacy
    chosen = np.array([_chosen(*about, seed) for seed in range(400)])
    assert 0.1 < kept < 0.9
    assert np.mean(chosen == 0) == pytest.approx(kept, abs=0.1)
    best = schedule.trials - 1
    assert np.mean(best - chosen) / best == pytest.approx(lost, abs=0.1)


def test_what_would_be_enough_is_enough() -> None:
    sizes, few = Halving(16, (1, 3, 9)).sizes, PrivateChoice(1.0, 1e-3)
    said = too_few_voices(sizes, 5, few)
    assert "even if all 5 agree, and rank the app's defaults last" in said
    assert "about 64 % of what the best trial gains over them is lost" in said
    assert "With epsilon 3 per client (" in said
    assert ") or 10 clients at most 5 % would be lost." in said
    assert lost_if_all_agree(sizes, 5, PrivateChoice(3.0, 1e-3))[0] <= 0.05
    assert lost_if_all_agree(sizes, 10, few)[0] <= 0.05
    assert too_few_voices(sizes, 20, few) == ""


def test_of_real_trials_the_same_part_of_the_accuracy_is_lost() -> None:
    """Over six tasks, with defaults that are mostly bad: see the page on tuning."""
    for epsilon, most in ((1.0, 0.15), (2.0, 0.1)):
        expected = lost_if_all_agree(SCHEDULE.sizes, 5, PrivateChoice(epsilon, 1e-3))
        shares = [
            how_sure.share_lost(read_trials(path), epsilon, 5, 25)
            for path in sorted(TRAINED.glob("*.jsonl"))
        ]
        assert np.mean(shares) == pytest.approx(expected[0], abs=most)


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({}, True),
        ({"privacy": PrivateChoice(8.0, 1e-3)}, False),
        ({"privacy": None}, False),
    ],
)
def test_too_few_voices_are_warned_of_before_anything_is_sent(
    options: dict[str, Any], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Any] = []
    grid = in_process()
    send, grid.send_and_receive = grid.send_and_receive, None  # type: ignore[method-assign, assignment]

    def note(*args: Any, **kwargs: Any) -> Any:
        sent.append("Too few clients" in caplog.text)
        return send(*args, **kwargs)

    grid.send_and_receive = note  # type: ignore[method-assign]
    study = tuner(**{"privacy": PrivateChoice(0.1, 1e-3), **options})
    study.start(main_of(), grid, server_context())
    assert set(sent) == {warns}
