"""What a client says about the trials of a rung."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_fbo.tuner.ballots.rank_ballots import (
    ballot_entries,
    capped,
    make_ballot,
    no_scores,
)


def _ballot(scores: list[float]) -> list[float]:
    values = np.array(scores)
    scored = np.ones(len(scores), dtype=np.bool_)
    ballot = make_ballot(values, scored)
    return [float(entry) for entry in ballot]


@pytest.mark.parametrize("num_trials", [2, 200])
def test_a_ballot_is_centred_and_has_norm_1(num_trials: int) -> None:
    entries = np.array(ballot_entries(num_trials))
    assert np.linalg.norm(entries) == pytest.approx(1.0)
    assert entries.sum() == pytest.approx(0.0, abs=1e-12)
    assert list(entries) == sorted(entries)


def test_of_two_trials_it_is_a_centred_vote() -> None:
    half = 0.5**0.5
    assert ballot_entries(2) == pytest.approx((-half, half))
    assert ballot_entries(1) == (0.0,)


def test_the_cap_keeps_ranks_below_a_vote() -> None:
    assert ballot_entries(16)[-1] < 0.7 < (15 / 16) ** 0.5


def test_ranks_follow_scores_and_nan_is_worst() -> None:
    entries = ballot_entries(4)
    assert _ballot([0.2, np.nan, 0.9, 0.5]) == pytest.approx(
        [entries[1], entries[0], entries[3], entries[2]]
    )


def test_ties_share_the_mean_of_their_ranks() -> None:
    entries = np.array(ballot_entries(5))
    low, high = entries[1:3].mean(), entries[3:].mean()
    found = _ballot([0.9, 0.5, 0.9, 0.1, 0.5])
    assert found == pytest.approx([high, low, high, entries[0], low])
    assert np.linalg.norm(found) < 1.0
    assert _ballot([0.3] * 5) == pytest.approx([0.0] * 5)


@pytest.mark.parametrize("failure", [np.nan, np.inf, -np.inf])
def test_failures_tie_below_all_finite_scores(failure: float) -> None:
    """Whatever their number; and a ballot is never longer than one without them."""
    for num_failed in range(1, 4):
        scores = np.array([failure] * num_failed + [-1e300, -5.0])
        ballot = _ballot(scores.tolist())
        assert len(set(ballot[:num_failed])) == 1  # no order among failures is drawn
        assert ballot[-1] == max(ballot) > ballot[0]
        assert ballot[-2] >= ballot[0]
        assert sum(ballot) == pytest.approx(0.0, abs=1e-12)
        assert np.linalg.norm(ballot) <= 1.0 + 1e-12
        kept = capped(np.array(ballot), len(ballot))
        assert kept.tolist() == ballot


@pytest.mark.parametrize("num_trials", [1, 2, 3, 16])
def test_a_client_without_a_finite_score_says_nothing(
    num_trials: int,
) -> None:
    ballot = _ballot([np.nan, -np.inf, *[np.inf] * 14][:num_trials])
    assert ballot == [0.0] * num_trials


@pytest.mark.parametrize("num_trials", [2, 3, 16, 300])
def test_the_ballot_of_a_client_without_scores_ranks_nothing(
    num_trials: int,
) -> None:
    """It is as long as others at most, and no cap changes it."""
    ballot = no_scores(num_trials)
    assert np.linalg.norm(ballot) == pytest.approx(1.0)
    assert np.ptp(ballot) == 0.0
    assert capped(ballot, num_trials) == pytest.approx(ballot)


def test_the_only_finite_score_is_a_vote() -> None:
    ballot = _ballot([np.nan, -9.0, np.nan])
    assert np.argmax(ballot) == 1
    assert ballot[0] == ballot[2] < 0


def test_trials_without_a_score_share_what_is_left() -> None:
    scored = np.array([True, False, True, False])
    ballot = make_ballot(np.array([1.0, 9.0, 2.0, 9.0]), scored)
    lowest, highest = ballot_entries(4)[0], ballot_entries(2)[-1]
    rest = -(lowest + highest) / 2
    assert ballot.tolist() == pytest.approx([lowest, rest, highest, rest])
    assert make_ballot(np.ones(4), scored).tolist() == [0.0] * 4
    nothing = make_ballot(np.ones(3), np.zeros(3, dtype=np.bool_))
    assert nothing.tolist() == [0.0, 0.0, 0.0]


@given(st.lists(st.floats(-1e9, 1e9), min_size=4, max_size=4))
def test_a_lie_is_capped_to_what_an_honest_ballot_may_say(lie: list[float]) -> None:
    entries = ballot_entries(4)
    bounded = capped(np.array(lie), 4)
    assert entries[0] <= bounded.min() <= bounded.max() <= entries[-1]


@pytest.mark.parametrize("num_trials", [2, 3, 16, 50])
def test_an_honest_ballot_stays_as_it_is(num_trials: int) -> None:
    """However many of the trials the client has scored: within norm 1, and centred."""
    rng = np.random.default_rng(num_trials)
    norms = []
    for num_scored in range(num_trials + 1):
        scored = np.zeros(num_trials, dtype=np.bool_)
        scored[rng.choice(num_trials, num_scored, replace=False)] = True
        honest = make_ballot(rng.random(num_trials), scored)
        assert capped(honest, num_trials).tolist() == honest.tolist()
        assert honest.sum() == pytest.approx(0.0, abs=1e-12)
        norms.append(float(np.linalg.norm(honest)))
    assert norms[:2] == [0.0, 0.0]
    assert all(norm < 1.0 for norm in norms[:-1])
    assert norms[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("num_trials", [3, 16])
def test_a_liar_says_least_where_partial_ballots_are_as_bounded(
    num_trials: int,
) -> None:
    """A ballot about two trials alone would be bounded by its norm only."""
    lie = np.zeros(num_trials)
    lie[:2] = ballot_entries(2)
    against_the_best = capped(lie, num_trials)[0]
    assert against_the_best == ballot_entries(num_trials)[0] > lie[0]


@pytest.mark.parametrize("message", [None, np.ones(3), np.ones(4, dtype=complex)])
def test_what_is_no_ballot_stays_as_it_is(message: object) -> None:
    assert capped(message, 4) is message
