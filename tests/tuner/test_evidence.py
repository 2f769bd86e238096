"""What released scores say of noise, and of clients that have no scores."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError
from scipy.stats import kstest

from flwr_fbo import PrivateChoice
from flwr_fbo.tuner.ballots import make_ballot, no_scores
from flwr_fbo.tuner.choice import Choice, Chooser
from flwr_fbo.tuner.evidence import Evidence, check_evidence

N, K = 6, 8

Ballots = Callable[[int], Any]


def _choices(
    ballot_of: Ballots, num_draws: int, epsilon: float = 8.0, num_trials: int = K
) -> list[Choice]:
    """Return what the first of two rungs releases, with other noise each time."""
    settings = PrivateChoice(epsilon=epsilon, delta=1e-3)
    chooser = Chooser(settings, N, 2, noise_seed=0)
    messages = {slot: ballot_of(slot) for slot in range(N)}
    first = chooser.choose(0, messages, num_trials)
    without_noise = first.scores - chooser.choose(0, {}, num_trials).scores
    noise_std, rng = first.facts["noise_std"][0], np.random.default_rng(0)
    return [
        first._replace(scores=without_noise + rng.normal(0, noise_std, num_trials))
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
        return make_ballot(scores, scored, "ranks", rng)

    return ballot_of


def _found(choice: Choice) -> Evidence:
    return Evidence.of(choice.scores, choice.facts["noise_std"][0], N)


def _share_of_errors(choices: list[Choice], number: int = 0) -> float:
    errors = 0
    for choice in choices:
        try:
            check_evidence(number, choice.scores, choice.facts, N)
        except AggregationError:
            errors += 1
    return errors / len(choices)


@pytest.mark.parametrize("num_silent", [0, 3, 6])
def test_clients_without_scores_are_counted(num_silent: int) -> None:
    """Whatever the ballots of the others; the standard error is the noise's."""
    found = [_found(choice) for choice in _choices(_federation(num_silent), 400)]
    counts = np.array([one.num_silent for one in found])
    assert counts.mean() == pytest.approx(num_silent, abs=4 * found[0].std / 20)
    assert counts.std() == pytest.approx(found[0].std, rel=0.15)


def test_without_scores_the_p_value_is_that_of_noise() -> None:
    found = [_found(choice).p_value for choice in _choices(_federation(N), 400)]
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


@pytest.mark.parametrize(
    "facts", [{"noise_only": True}, {"mechanism": "noisy-max"}, {"mechanism": "exact"}]
)
def test_what_is_no_sum_of_ballots_says_nothing(
    facts: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    choices = _choices(_federation(N), 20)
    choices = [c._replace(facts={**c.facts, **facts}) for c in choices]
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _share_of_errors(choices) == 0.0
    assert caplog.messages == []


def test_ballots_that_cancel_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Three against three, in a comparison of two trials."""
    half = 0.5**0.5

    def ballot_of(slot: int) -> Any:
        return np.array([half, -half]) * (-1) ** slot

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _share_of_errors(_choices(ballot_of, 20, num_trials=2)) == 0.0
    assert "The scores that rung 1 released do not differ from noise" in caplog.text


def test_some_clients_without_scores_are_told_with_a_standard_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (choice,) = _choices(_federation(2, 4), 1, epsilon=1000.0)
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        check_evidence(0, choice.scores, choice.facts, N)
    (line,) = caplog.messages
    assert line.startswith("About 2 of 6 clients have no finite score in any trial")
    assert line.endswith("(standard error 0.0).")


def test_a_federation_that_agrees_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        for choice in _choices(_federation(0, N), 5, epsilon=100.0):
            check_evidence(0, choice.scores, choice.facts, N)
    assert caplog.messages == []
