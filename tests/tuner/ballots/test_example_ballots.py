"""Ballots that protect one example: how far it moves them, and what they bound."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.tuner.ballots.example_ballots import ExampleBallots

ACCURACY = ExampleBallots(0.0, 1.0, 10_000)
EXACT = 1 + 1e-9


def _ballot(
    ballots: ExampleBallots, values: FloatArray, is_asked: NDArray[Any]
) -> FloatArray:
    """Return the ballot of a client whose app keeps to the contract.

    ``values`` are those of its examples in each trial, shape (n, K). In some trials no
    example has one, as where a model cannot be evaluated at all.
    """
    weights = np.where(is_asked, float(len(values)), 0.0)
    return ballots.vector(values.mean(axis=0), weights)


def _largest_change(ballots: ExampleBallots, num_trials: int, seed: int) -> float:
    """Return how far replacing one example moves a ballot, at most, in random draws."""
    rng, largest = np.random.default_rng([num_trials, seed]), 0.0
    for _ in range(60):
        num = int(rng.integers(1, 40))
        kinds: list[Callable[[tuple[int, ...]], FloatArray]] = [
            lambda shape: rng.uniform(ballots.low, ballots.high, shape),
            lambda shape: rng.choice([ballots.low, ballots.high], shape),
        ]
        draw = kinds[rng.integers(2)]
        values, is_asked = draw((num, num_trials)), rng.random(num_trials) < 0.8
        values[:, rng.random(num_trials) < 0.2] = np.nan
        other = values.copy()
        other[rng.integers(num)] = np.where(
            np.isnan(values[0]), np.nan, draw((num_trials,))
        )
        pair = _ballot(ballots, values, is_asked), _ballot(ballots, other, is_asked)
        largest = max(largest, float(np.linalg.norm(pair[0] - pair[1])))
    return largest


@pytest.mark.parametrize("num_trials", [*range(2, 18), 33])
@pytest.mark.parametrize(
    "ballots",
    [ACCURACY, ExampleBallots(-3.0, 5.0, 10_000), ExampleBallots(-1.0, 0.0, 7)],
)
def test_one_example_moves_a_ballot_by_its_distance_at_most(
    ballots: ExampleBallots, num_trials: int
) -> None:
    """Whatever the range, the cap on examples, failures, and trials not asked about."""
    assert _largest_change(ballots, num_trials, 0) <= (
        ballots.distance(num_trials) * EXACT
    )


@pytest.mark.parametrize("num_trials", range(2, 18))
def test_the_distance_is_attained(num_trials: int) -> None:
    """By an example that is right in half of the trials, then in the others only."""
    rest = np.full((9, num_trials), 0.5)
    right = (np.arange(num_trials) < num_trials // 2).astype(float)
    everything = np.ones(num_trials)
    pair = [
        _ballot(ACCURACY, np.vstack([one, rest]), everything)
        for one in (right, 1 - right)
    ]
    moved = np.linalg.norm(pair[0] - pair[1])
    assert moved == pytest.approx(ACCURACY.distance(num_trials))


class _HalfDistance(ExampleBallots):
    """A mutant: the distance for an example that is left out."""

    def distance(self, num_trials: int) -> float:
        return super().distance(num_trials) / 2


class _NotProjected(ExampleBallots):
    """A mutant: the sums as they are."""

    def vector(self, scores: FloatArray, weights: FloatArray) -> FloatArray:
        return np.where(np.isfinite(scores), weights * scores, 0.0)


class _SilentOnFailure(ExampleBallots):
    """A mutant: a client says nothing if it takes a score for a failure."""

    def vector(self, scores: FloatArray, weights: FloatArray) -> FloatArray:
        if (scores < 0.4).any():
            return np.zeros(len(scores))
        return super().vector(scores, weights)


def test_a_wrong_distance_is_found() -> None:
    mutant = _HalfDistance(0.0, 1.0, 10_000)
    assert _largest_change(mutant, 8, 0) > mutant.distance(8) * EXACT


def test_a_reaction_to_single_examples_is_found() -> None:
    mutant = _SilentOnFailure(0.0, 1.0, 10_000)
    changes = [_largest_change(mutant, 8, seed) for seed in range(5)]
    assert max(changes) > mutant.distance(8) * EXACT


def _is_within_bounds(ballots: ExampleBallots, num_trials: int = 5) -> bool:
    """Return whether honest ballots keep to norm and sum, as others may rely on."""
    rng, num = np.random.default_rng(0), 20
    for _ in range(50):
        values = rng.choice([0.0, 1.0], (1, num_trials)).repeat(num, axis=0)
        ballot = _ballot(ballots, values, np.ones(num_trials))
        if np.linalg.norm(ballot) > num * num_trials**0.5 / 2 * EXACT:
            return False
        if abs(ballot.sum()) > 1e-6:
            return False
    return True


def test_a_ballot_that_is_not_projected_is_found() -> None:
    """It is longer, and moves the sum, as only clients without scores may."""
    assert _is_within_bounds(ACCURACY)
    assert not _is_within_bounds(_NotProjected(0.0, 1.0, 10_000))


@pytest.mark.parametrize("num_trials", [2, 3, 16])
def test_an_honest_ballot_is_neither_capped_nor_clipped(num_trials: int) -> None:
    rng, num = np.random.default_rng(1), 30
    for ballots in (ACCURACY, ExampleBallots(0.0, 1.0, 12)):
        count = min(num, ballots.max_examples)
        for draw in range(40):
            scores = rng.choice([0.0, 1.0], num_trials)
            if draw == 0:
                scores[:] = np.nan
            ballot = ballots.vector(scores, np.full(num_trials, float(num)))
            same = ballots.capped(ballot, num_trials, num)
            np.testing.assert_allclose(same, ballot, rtol=1e-12)
            longest = ballots.norm(num_trials) * count / ballots.max_examples
            assert np.linalg.norm(ballot) < longest


@pytest.mark.parametrize("claimed", [-5, 0, 80, 10**9])
@pytest.mark.parametrize("lie", [1e9, np.inf, -np.inf])
def test_a_lie_says_no_more_than_the_examples_that_it_claims(
    claimed: int, lie: float
) -> None:
    count = min(max(claimed, 0), ACCURACY.max_examples)
    capped = ACCURACY.capped(np.array([lie, 0.0, 0.0, 0.0]), 4, claimed)
    assert np.abs(capped).max() <= count * 3 / 4
    assert np.linalg.norm(ACCURACY.capped(np.full(4, lie), 4, claimed)) <= (
        count * EXACT
    )


def test_what_is_no_ballot_stays_what_it_is() -> None:
    for message in (None, np.ones(3), np.ones(4, dtype=np.int64), [1.0] * 4):
        assert ACCURACY.capped(message, 4, 10) is message


def test_a_failure_is_the_worst_value_of_all_examples() -> None:
    weights = np.full(3, 10.0)
    for invalid in (np.nan, np.inf, -np.inf, -0.5, 1.5):
        ballot = ACCURACY.vector(np.array([invalid, 0.4, 0.8]), weights)
        np.testing.assert_allclose(ballot, [-4.0, 0.0, 4.0], atol=1e-12)


def test_without_any_valid_mean_the_ballot_counts_the_examples() -> None:
    ballot = ACCURACY.vector(np.array([np.nan, 7.0]), np.array([10.0, 10.0]))
    assert ballot.tolist() == [5.0, 5.0]
    found, std = ACCURACY.silent(ballot / 40, 0.01, 40)
    assert found == pytest.approx(10.0)
    assert std == pytest.approx(0.8 / 2**0.5)


def test_of_trials_that_it_was_not_asked_about_it_says_nothing() -> None:
    scores, weights = np.array([0.2, 0.9, 0.6]), np.array([10.0, 0.0, 10.0])
    np.testing.assert_allclose(ACCURACY.vector(scores, weights), [-2.0, 0.0, 2.0])


def test_a_client_counts_with_its_fewest_examples_and_with_the_most_at_most() -> None:
    scores = np.array([0.0, 1.0])
    ballot = ACCURACY.vector(scores, np.array([10.0, 20.0]))
    assert ballot.tolist() == [-5.0, 5.0]
    capped = ExampleBallots(0.0, 1.0, 4).vector(scores, np.array([10.0, 10.0]))
    assert capped.tolist() == [-2.0, 2.0]


def test_rounding_of_a_mean_is_no_failure() -> None:
    ballot = ACCURACY.vector(np.array([1 + 1e-7, -1e-7]), np.full(2, 10.0))
    assert ballot.tolist() == [5.0, -5.0]


def test_a_loss_is_turned_around() -> None:
    loss = ExampleBallots(0.0, 10.0, 100).negated()
    ballot = loss.vector(-np.array([2.0, 7.0]), np.full(2, 10.0))
    np.testing.assert_allclose(ballot, [2.5, -2.5])
