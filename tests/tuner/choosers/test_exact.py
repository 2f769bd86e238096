"""Exact means of the clients' scores."""

from typing import Any

import numpy as np
import pytest

from flwr_fbo.tuner.choosers.exact import ExactChooser, exact_scores
from flwr_fbo.tuner.decisions.survivors import survivors

N = 30


def test_exact_means_are_weighted() -> None:
    messages = {
        0: np.array([[1.0, 5.0, np.nan], [1.0, 0.0, 1.0]]),
        1: np.array([[4.0, 2.0, 1.0], [2.0, 1.0, 1.0]]),
    }
    # The failure counts as the worst score of the rung.
    assert exact_scores(messages, 3).tolist() == [3.0, 2.0, 1.0]
    choice = ExactChooser(N).choose(0, messages, 3)
    assert choice.vectors.tolist() == [3.0, 2.0, 1.0]
    assert choice.facts["private"] is False


@pytest.mark.parametrize("failure", [np.nan, np.inf, -np.inf])
def test_a_client_without_a_finite_score_changes_no_mean(failure: float) -> None:
    honest = {slot: np.array([[0.1, 0.2], [10.0, 20.0]]) for slot in range(3)}
    wanted = exact_scores(honest, 2).tolist()
    mute = np.array([[failure, np.nan], [5.0, 5.0]])
    found = exact_scores({**honest, 3: mute}, 2)
    assert found.tolist() == wanted


@pytest.mark.parametrize("failure", [np.nan, np.inf, -np.inf])
def test_a_failure_at_some_clients_is_no_profit(failure: float) -> None:
    """The first trial is best where it works, but fails at two of three clients."""
    good = np.array([[0.91, 0.9, 0.5], [10.0, 10.0, 10.0]])
    # A raised error comes with the weight 1; the client's own is 10.
    bad = np.array([[failure, 0.9, 0.5], [1.0, 10.0, 10.0]])
    scores = exact_scores({0: good, 1: bad, 2: bad}, 3)
    assert scores.tolist() == pytest.approx([(0.91 + 0.5 + 0.5) / 3, 0.9, 0.5])


def test_a_failure_is_bad_between_two_finalists_too() -> None:
    """A client's own worst score would be that of the other finalist: neutral."""
    good = np.array([[0.8, 0.7], [1.0, 1.0]])
    bad = np.array([[np.nan, 0.9], [1.0, 1.0]])
    scores = exact_scores({0: good, 1: bad, 2: bad}, 2)
    assert survivors(scores, 1) == [1]


def test_a_trial_that_fails_everywhere_is_below_the_worst_mean() -> None:
    rows = np.array([[np.nan, 0.9, 0.9], [1.0, 1.0, 1.0]])
    scores = exact_scores({0: rows, 1: rows}, 3)
    assert scores.tolist() == [-np.inf, 0.9, 0.9]


def test_clients_without_any_score_give_no_mean() -> None:
    nothing = np.array([[np.nan, np.nan], [1.0, 0.0]])
    for messages in ({}, {0: nothing}, {0: nothing, 1: np.zeros((2, 2))}):
        scores = exact_scores(messages, 2)
        assert scores.tolist() == [-np.inf, -np.inf]


def test_a_trial_without_any_score_is_worst() -> None:
    messages = {0: np.array([[1.0, 0.0], [1.0, 0.0]])}
    assert exact_scores(messages, 2).tolist() == [1.0, -np.inf]


@pytest.mark.parametrize(
    ("weight", "score"),
    [(np.nan, 0.9), (np.inf, 0.9), (-20.0, 0.9), (0.0, 0.9), (0.0, np.nan)],
)
def test_an_exact_score_of_no_weight_is_no_score(weight: float, score: float) -> None:
    """And poisons no mean of those of others."""
    honest = {slot: np.array([[0.1, 0.2], [10.0, 20.0]]) for slot in range(3)}
    bad = np.array([[score, 0.8], [weight, 60.0]])
    scores = exact_scores({**honest, 3: bad}, 2)
    assert scores.tolist() == pytest.approx([0.1, 0.5])
    alone = exact_scores({0: bad}, 2)
    assert alone.tolist() == [-np.inf, 0.8]


@pytest.mark.parametrize("message", [None, np.ones((2, 3)), [[1.0] * 2] * 2])
def test_exact_scores_that_are_none_are_left_out(message: Any) -> None:
    honest = {0: np.array([[0.1, 0.2], [10.0, 20.0]])}
    wanted = exact_scores(honest, 2).tolist()
    for one in (message, np.array([["a"] * 2] * 2), np.ones((2, 2), dtype=complex)):
        found = exact_scores({**honest, 1: one}, 2).tolist()
        assert found == wanted
