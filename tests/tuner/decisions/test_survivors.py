"""The private choice among the trials of a rung."""

import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.tuner.choosers.exact import ExactChooser, exact_scores
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.survivors import decision_scores, survivors
from flwr_fbo.tuner.private_choice import PrivateChoice
from flwr_fbo.tuner.site.ballots import ballot_entries

N, K, DELTA = 30, 4, 1e-3


def _chooser(num_rungs: int = 1, **options: Any) -> PrivateChooser:
    seed = options.pop("noise_seed", 0)
    options = {"epsilon": 2.0, "delta": DELTA, **options}
    return PrivateChooser(PrivateChoice(**options), N, num_rungs, noise_seed=seed)


def _spent(chooser: PrivateChooser, num_rungs: int) -> PrivacySpent:
    accountant = ReleaseAccountant(1.0, DELTA)
    for rung in range(num_rungs):
        facts = chooser.choose(rung, _ballots(0), K).facts
        accountant.charge(facts["noise_multiplier"])
    return accountant.spent()


def _ballots(best: int, num_ballots: int = N) -> dict[int, Any]:
    entries = np.roll(ballot_entries(K)[::-1], best)
    return dict.fromkeys(range(num_ballots), entries)


def test_the_best_is_found() -> None:
    found = [
        survivors(_chooser(noise_seed=seed).choose(0, _ballots(2), K).vectors, 1)
        for seed in range(20)
    ]
    assert found == [[2]] * 20


def test_survivors_are_in_order_and_ties_go_to_the_first() -> None:
    assert survivors(np.array([0.1, 0.5, 0.5, 0.9]), 3) == [3, 1, 2]
    assert survivors(np.array([-np.inf, -np.inf]), 1) == [0]


def _released(
    trials: list[int], *scores: float, mechanism: str = "gaussian"
) -> LedgerRow:
    return LedgerRow(0, {"mechanism": mechanism, "trials": trials}, np.array(scores))


def test_half_of_what_decided_a_rung_is_carried_into_the_next() -> None:
    rows = [
        _released([0, 1, 2, 3], 0.0, 5.0, 0.4, 0.8),
        _released([3, 0, 2], 0.1, 0.2, 0.3),
        _released([2, 3], 1.0, 2.0),
    ]
    found = [decision_scores(rows[:n]).tolist() for n in (1, 2, 3)]
    assert found[0] == [0.0, 5.0, 0.4, 0.8]
    assert found[1] == pytest.approx([0.1 + 0.4, 0.2, 0.3 + 0.2])
    assert found[2] == pytest.approx([1.0 + 0.25, 2.0 + 0.25])
    assert rows[2].vectors.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mechanism", ["exact", "server"])
def test_exact_scores_are_taken_as_they_are(mechanism: str) -> None:
    rows = [
        _released([0, 1, 2], -np.inf, 9.0, 8.0, mechanism=mechanism),
        _released([1, 2], 0.0, 1.0, mechanism=mechanism),
    ]
    assert decision_scores(rows).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("num_rungs", [1, 3])
def test_rungs_share_epsilon(num_rungs: int) -> None:
    chooser = _chooser(num_rungs)
    spent = _spent(chooser, num_rungs)
    assert 1.99 < spent.epsilon <= 2.0
    assert (spent.delta, spent.num_releases) == (DELTA, num_rungs)
    assert _spent(chooser, 0).epsilon == 0.0
    if num_rungs > 1:
        assert 0 < _spent(chooser, 1).epsilon < spent.epsilon


def test_the_noise_is_that_of_its_epsilon() -> None:
    """Measured: noise over what one client can change, which is 1 / N."""
    chooser = _chooser()
    std = chooser.choose(0, {}, 2000).vectors.std() * N
    assert gaussian_epsilon(DELTA, 1.0 / std) == pytest.approx(2.0, rel=0.1)


def test_noise_does_not_grow_with_the_number_of_trials() -> None:
    facts = _chooser().choose(0, {}, 100).facts
    assert facts["noise_std"] == _chooser().choose(0, {}, 2).facts["noise_std"]
    assert facts["sensitivity"] == pytest.approx(1.0 / N)


@pytest.mark.parametrize("lie", [1e9, np.inf, np.nan])
def test_one_client_changes_the_sum_by_its_bound_at_most(lie: float) -> None:
    chooser = _chooser()
    honest = _ballots(2)
    with_lie = chooser.choose(0, {**honest, 0: np.full(K, lie)}, K).vectors
    without = chooser.choose(0, {**honest, 0: np.zeros(K)}, K).vectors
    assert np.linalg.norm(with_lie - without) <= (1.0 + 1e-9) / N


@pytest.mark.parametrize("message", [None, np.ones(K + 1), [1.0] * K])
def test_a_malformed_ballot_counts_as_none(message: Any) -> None:
    chooser, honest = _chooser(), _ballots(2, N - 1)
    with_it = chooser.choose(0, {**honest, N - 1: message}, K)
    assert with_it.vectors.tolist() == chooser.choose(0, honest, K).vectors.tolist()


def test_noise_only_chooses_as_random_choice_does() -> None:
    """All clients are for one trial, and it wins one time in K."""
    draws = 600
    wins = 0
    for seed in range(draws):
        chooser = _chooser(noise_only=True, noise_seed=seed)
        wins += survivors(chooser.choose(0, _ballots(2), K).vectors, 1) == [2]
    error = math.sqrt(draws * (1 / K) * (1 - 1 / K))
    assert abs(wins - draws / K) < 4 * error


def test_real_noise_does_not_repeat_and_is_private() -> None:
    chooser = _chooser(noise_seed=None)
    assert chooser.private
    assert chooser.choose(0, {}, K).facts["private"] is True
    assert len({tuple(chooser.choose(0, {}, K).vectors) for _ in range(2)}) == 2
    assert not _chooser().private


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


def test_more_clients_than_the_release_is_for_are_refused() -> None:
    with pytest.raises(ValueError, match=f"^num_agents={N}"):
        _chooser().choose(0, _ballots(2, N + 1), K)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", math.inf),
        ("delta", 0.0),
        ("noise_only", 1),
    ],
)
def test_bad_settings_are_named(field: str, value: Any) -> None:
    options: dict[str, Any] = {"epsilon": 1.0, "delta": DELTA, field: value}
    with pytest.raises(ValueError, match=f"^{field}="):
        PrivateChoice(**options)


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
