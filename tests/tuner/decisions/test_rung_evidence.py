"""What released scores say of noise, and of clients that have no scores."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError
from scipy.stats import kstest

from flwr_fbo import PrivateChoice
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.ballots.rank_ballots import make_ballot, no_scores
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.rung_evidence import check_evidence, rung_evidence

N, K = 6, 8

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


def test_where_nobody_has_scores_noise_is_never_taken_for_a_difference() -> None:
    """One draw in a hundred differs at level 0.01; the count alone is sure."""
    choices = _choices(_federation(N), 1000, epsilon=1000.0)
    p_values = [_found(choice)[0] for choice in choices]
    assert min(p_values) < 0.01
    assert _share_of_errors(choices) == 1.0


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
