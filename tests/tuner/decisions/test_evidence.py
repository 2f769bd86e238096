"""What released scores say of noise, and of clients that have no scores."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError
from scipy.stats import kstest

from benchmarks import how_sure
from benchmarks.tune_fedavg import SCHEDULE, read_trials
from flwr_fbo import Halving, PrivateChoice
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.leads import (
    check_evidence,
    lost_if_all_agree,
    rung_evidence,
    too_few_clients,
)
from flwr_fbo.tuner.decisions.survivors import survivors_of
from flwr_fbo.tuner.site.ballots import ballot_entries, make_ballot, no_scores
from tests.tuner.apps import in_process, main_of, server_context, tuner

N, K = 6, 8
TRAINED = Path(how_sure.__file__).parent / "trained"

Ballots = Callable[[int], Any]


def _choices(
    ballot_of: Ballots, num_draws: int, epsilon: float = 8.0, num_trials: int = K
) -> list[LedgerRow]:
    """Return what the first of two rungs releases, with other noise each time."""
    settings = PrivateChoice(epsilon=epsilon, delta=1e-3)
    chooser = PrivateChooser(settings, N, 2, noise_seed=0)
    messages = {slot: ballot_of(slot) for slot in range(N)}
    first = chooser.choose(0, messages, num_trials)
    without_noise = first.vectors - chooser.choose(0, {}, num_trials).vectors
    noise_std, rng = first.facts["noise_std"][0], np.random.default_rng(0)
    return [
        replace(first, vectors=without_noise + rng.normal(0, noise_std, num_trials))
        for _ in range(num_draws)
    ]


def _federation(num_silent: int, num_alike: int = 0, num_trials: int = K) -> Ballots:
    """Return ballots: of clients without scores, that agree, and drawn at random."""
    rng, scored = np.random.default_rng(3), np.ones(num_trials, dtype=np.bool_)

    def ballot_of(slot: int) -> Any:
        if slot < num_silent:
            return no_scores(num_trials)
        scores = np.arange(num_trials, dtype=np.float64)
        scores = scores if slot < num_silent + num_alike else rng.random(num_trials)
        return make_ballot(scores, scored)

    return ballot_of


def _found(choice: LedgerRow) -> tuple[float, float, float]:
    return rung_evidence(choice.vectors, choice.facts["noise_std"][0], N)


def _share_of_errors(choices: list[LedgerRow]) -> float:
    errors = 0
    for choice in choices:
        try:
            check_evidence(choice, N)
        except AggregationError:
            errors += 1
    return errors / len(choices)


@pytest.mark.parametrize("num_silent", [0, 3, 6])
def test_clients_without_scores_are_counted(num_silent: int) -> None:
    """Whatever the ballots of the others; the standard error is the noise's."""
    found = [_found(choice)[1:] for choice in _choices(_federation(num_silent), 400)]
    std = found[0][1]
    counts = np.array([num_silent for num_silent, _ in found])
    assert counts.mean() == pytest.approx(num_silent, abs=4 * std / 20)
    assert counts.std() == pytest.approx(std, rel=0.15)


def test_without_scores_the_p_value_is_that_of_noise() -> None:
    found = [_found(choice)[0] for choice in _choices(_federation(N), 400)]
    assert kstest(found, "uniform").pvalue > 1e-3


def test_a_federation_without_scores_is_an_error() -> None:
    assert _share_of_errors(_choices(_federation(N), 400)) > 0.95


@pytest.mark.parametrize("num_alike", [0, 3])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_a_federation_with_scores_is_not(num_alike: int, epsilon: float) -> None:
    """Half of its clients may have none, and the others may agree or not."""
    for num_silent in (0, 3):
        ballot_of = _federation(num_silent, num_alike)
        assert _share_of_errors(_choices(ballot_of, 400, epsilon)) <= 0.02


def test_trials_that_differ_are_no_error_for_a_few_clients_alone() -> None:
    """Four of six have no score, and the noise is small."""
    choices = _choices(_federation(4, 2), 50, epsilon=100.0)
    assert _share_of_errors(choices) == 0.0


@pytest.mark.parametrize("facts", [{"noise_only": True}, {"mechanism": "exact"}])
def test_what_is_no_sum_of_ballots_says_nothing(
    facts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    choices = _choices(_federation(N), 20)
    choices = [replace(c, facts={**c.facts, **facts}) for c in choices]
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _share_of_errors(choices) == 0.0
    assert caplog.messages == []


def test_ballots_that_cancel_are_no_error_and_the_result_says_how_sure_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three against three, in a comparison of two trials: nothing is said twice."""
    half = 0.5**0.5

    def ballot_of(slot: int) -> Any:
        return np.array([half, -half]) * (-1) ** slot

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _share_of_errors(_choices(ballot_of, 20, num_trials=2)) == 0.0
    assert "noise" not in caplog.text


def test_some_clients_without_scores_are_told_with_a_standard_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (choice,) = _choices(_federation(2, 4), 1, epsilon=1000.0)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        check_evidence(choice, N)
    (line,) = caplog.messages
    assert line.startswith("About 2 of 6 clients have no finite score in any trial")
    assert line.endswith("(standard error 0.0).")


def test_a_federation_that_agrees_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        for choice in _choices(_federation(0, N), 5, epsilon=100.0):
            check_evidence(choice, N)
    assert caplog.messages == []


# -------------------------------------------------------------------- before a tuner


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
    said = too_few_clients(sizes, 5, few)
    assert "even if all 5 agree, and rank the app's defaults last" in said
    assert "about 64 % of what the best trial gains over them is lost" in said
    assert "With epsilon 3 or 10 clients at most 5 % would be lost." in said
    assert lost_if_all_agree(sizes, 5, PrivateChoice(3.0, 1e-3))[0] <= 0.05
    assert lost_if_all_agree(sizes, 10, few)[0] <= 0.05
    assert too_few_clients(sizes, 20, few) == ""


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
def test_too_few_clients_are_warned_of_before_anything_is_sent(
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
