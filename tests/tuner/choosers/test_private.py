"""The private choice among the trials of a rung."""

import math
from typing import Any

import numpy as np
import pytest

from flwr_fbo.privacy.accounting import PrivacySpent, ReleaseAccountant
from flwr_fbo.privacy.gaussian import gaussian_epsilon
from flwr_fbo.privacy.guarantee import CLIENT, Guarantee
from flwr_fbo.tuner.ballots.rank_ballots import ballot_entries
from flwr_fbo.tuner.choosers.private import PrivateChooser
from flwr_fbo.tuner.decisions.survivors import survivors
from flwr_fbo.tuner.private_choice import PrivateChoice

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
    return accountant.spent(Guarantee(CLIENT, "server"))


def _ballots(best: int, num_ballots: int = N) -> dict[int, Any]:
    entries = np.roll(ballot_entries(K)[::-1], best)
    return dict.fromkeys(range(num_ballots), entries)


def test_the_best_is_found() -> None:
    found = [
        survivors(_chooser(noise_seed=seed).choose(0, _ballots(2), K).vectors, 1)
        for seed in range(20)
    ]
    assert found == [[2]] * 20


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


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_lie_about_one_trial_says_no_more_than_an_honest_ballot(side: float) -> None:
    """Of norm 1, all of it for or against a single trial: the server caps it too."""
    chooser, lie, entries = _chooser(), np.zeros(K), ballot_entries(K)
    lie[1] = side
    with_lie = chooser.choose(0, {0: lie}, K).vectors
    moved = N * (with_lie - chooser.choose(0, {}, K).vectors)
    most = entries[-1] if side > 0 else entries[0]
    assert abs(most) < 1
    np.testing.assert_allclose(moved, np.abs(lie) * most, atol=1e-9)


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
