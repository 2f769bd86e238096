"""Whether released scores differ from noise alone, and what is done if they do not."""

import logging
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError
from scipy.stats import kstest

from flwr_fbo import PrivateChoice
from flwr_fbo.tuner.ballots import make_ballot
from flwr_fbo.tuner.choice import PrivateChooser
from flwr_fbo.tuner.evidence import Evidence, check_evidence

N, K = 6, 8


def _choices(
    ballots: Any, num_draws: int, epsilon: float = 8.0, num_trials: int = K
) -> list[Any]:
    """Return what the first of two rungs releases, with other noise each time."""
    settings = PrivateChoice(epsilon=epsilon, delta=1e-3)
    chooser = PrivateChooser(settings, N, 2, noise_seed=0)
    messages = {slot: ballots(slot) for slot in range(N)}
    # The noise is another in each rung.
    first = chooser.choose(0, messages, num_trials)
    noise_std = first.facts["noise_std"][0]
    without = first.scores - chooser.choose(0, {}, num_trials).scores
    rng = np.random.default_rng(0)
    return [
        first._replace(scores=without + rng.normal(0, noise_std, num_trials))
        for _ in range(num_draws)
    ]


def _zeros(slot: int) -> Any:
    return np.zeros(K)


def _alike(num_alike: int, num_trials: int = K) -> Any:
    """Return ballots, of which some are the same and others drawn at random."""
    rng, scored = np.random.default_rng(3), np.ones(num_trials, dtype=np.bool_)

    def ballot(slot: int) -> Any:
        scores = np.arange(num_trials, dtype=np.float64)
        scores = scores if slot < num_alike else rng.random(num_trials)
        return make_ballot(scores, scored, "ranks", rng)

    return ballot


def _share_of_errors(choices: list[Any], number: int = 0) -> float:
    errors = 0
    for choice in choices:
        try:
            check_evidence(number, choice.scores, choice.facts, N)
        except AggregationError:
            errors += 1
    return errors / len(choices)


def test_noise_alone_has_a_uniform_p_value() -> None:
    found = [
        Evidence.of(c.scores, c.facts["noise_std"][0], 1.0).p_value
        for c in _choices(_zeros, 400)
    ]
    assert kstest(found, "uniform").pvalue > 1e-3


def test_ballots_of_zeros_are_an_error_in_95_percent() -> None:
    assert 0.9 < _share_of_errors(_choices(_zeros, 400)) < 0.99


@pytest.mark.parametrize("num_alike", [6, 5])
def test_clients_that_agree_are_hardly_ever_an_error(num_alike: int) -> None:
    assert _share_of_errors(_choices(_alike(num_alike), 400)) <= 0.01


@pytest.mark.parametrize("num_alike", [0, 6])
def test_a_weak_release_is_no_error_whoever_agrees(num_alike: int) -> None:
    choices = _choices(_alike(num_alike), 50, epsilon=1.0)
    assert _share_of_errors(choices) == 0.0


@pytest.mark.parametrize(
    ("number", "facts"),
    [
        (1, {}),
        (0, {"noise_only": True}),
        (0, {"mechanism": "noisy-max"}),
        (0, {"mechanism": "exact"}),
        (0, {"num_ballots": 2}),
    ],
)
def test_it_is_an_error_in_the_first_sum_only(
    number: int, facts: dict[str, Any]
) -> None:
    """Also where few clients gave a ballot, and none if the control zeroed them."""
    choices = [c._replace(facts={**c.facts, **facts}) for c in _choices(_zeros, 20)]
    assert _share_of_errors(choices, number) == 0.0


def test_of_few_trials_ballots_that_cancel_are_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Three against three, in a comparison of two trials."""
    half = 0.5**0.5

    def ballot(slot: int) -> Any:
        return np.array([half, -half]) * (-1) ** slot

    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        assert _share_of_errors(_choices(ballot, 20, num_trials=2)) == 0.0
    assert "The scores that rung 1 released do not differ" in caplog.text


def test_scores_that_differ_are_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "flwr.fbo"):
        for choice in _choices(_alike(6), 5):
            check_evidence(0, choice.scores, choice.facts, N)
    assert caplog.messages == []
