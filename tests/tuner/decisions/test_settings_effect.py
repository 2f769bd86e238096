"""That settings are better is claimed as rarely as it is said, where none is."""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.stats import binom

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.candidates.candidates import Candidates, candidate_settings
from flwr_fbo.tuner.candidates.trial_space import TrialSpace
from flwr_fbo.tuner.decisions.settings_effect import DrawnTrials, settings_p_value
from flwr_fbo.tuning import SearchSpace

SPACE: dict[str, BaseDistribution] = {
    "learning-rate": FloatDistribution(1e-4, 1.0, log=True),
    "local-epochs": IntDistribution(1, 4),
    "optimizer": CategoricalDistribution(["sgd", "adam", "lion"]),
}
RATE: dict[str, BaseDistribution] = {"rate": FloatDistribution(0.0, 1.0)}
DEFAULTS = {"learning-rate": 0.01, "local-epochs": 1, "optimizer": "sgd"}
# Chance of a test to fail where what it tests holds.
SURE = 1e-6


def _row(scores: FloatArray, trials: Sequence[int] | None = None) -> LedgerRow:
    trials = range(len(scores)) if trials is None else trials
    return LedgerRow(0, {"trials": list(trials)}, scores)


def _trials(values: Sequence[float], num_fixed: int = 1) -> DrawnTrials:
    settings = [{"rate": value} for value in values]
    return DrawnTrials(settings, num_fixed, SearchSpace(RATE))


def _p(scores: Any, values: Sequence[float], chosen: int, num_fixed: int = 1) -> Any:
    rows = [_row(np.array(scores, dtype=np.float64))]
    return settings_p_value(rows, _trials(values, num_fixed), chosen)


@pytest.mark.parametrize("chosen", [1, 3])
def test_over_all_orders_the_rate_of_errors_is_exact(chosen: int) -> None:
    """Whatever the places have: the settings come there in one of 120 orders."""
    scores = [0.3, 0.9, -1.0, 2.0, 0.4, 0.5]
    values = [0.1, 0.35, 0.5, 0.77, 0.93]
    found = np.array([_p(scores, [0.2, *v], chosen) for v in permutations(values)])
    np.testing.assert_allclose(np.sort(found), np.arange(1, 121) / 120)


@pytest.mark.parametrize("epochs", [4, 40])
def test_nor_is_it_larger_where_turns_and_groups_differ(epochs: int) -> None:
    """Trials of a group are alike, and turns become better; the best is chosen."""
    num_draws, errors = 250, 0
    space = SearchSpace({**SPACE, "local-epochs": IntDistribution(1, epochs)})
    for seed in range(num_draws):
        rng = np.random.default_rng([seed, 7])
        settings = candidate_settings(space, 16, DEFAULTS, [], seed)
        groups, turns = np.arange(16) % 4, np.arange(16) // 4
        scores = 3 * rng.normal(size=4)[groups] + turns + rng.normal(size=16)
        going_on = np.argsort(-scores)[:4]
        rows = [_row(scores), _row(rng.normal(size=4), going_on.tolist())]
        chosen = int(going_on[np.argmax(rows[1].vectors)])
        if chosen != 0:
            p = settings_p_value(rows, DrawnTrials(settings, 1, space), chosen)
            errors += p is not None and p <= 0.02
    assert errors <= binom.isf(SURE, num_draws, 0.02)


def test_a_setting_that_matters_is_found_and_only_where_it_is_better() -> None:
    values = [0.02, *np.linspace(0.0, 1.0, 15)]
    scores = np.array(values)
    assert _p(scores, values, chosen=15) < 0.001
    assert _p(-scores, values, chosen=15) > 0.999
    away = [0.9, *values[1:]]
    assert _p(-np.abs(scores - 0.3), away, chosen=6) < 0.02


def test_settings_that_matter_elsewhere_do_not_make_the_defaults_worse() -> None:
    """High rates diverge. The chosen one has the best score by chance alone."""
    errors, num_draws, values = 0, 250, [0.35, *np.linspace(0.0, 1.0, 15)]
    for seed in range(num_draws):
        rng = np.random.default_rng(seed)
        scores = np.where(np.array(values) > 0.7, -3.0, rng.normal(size=16))
        errors += _p(scores, values, chosen=1 + int(np.argmax(scores[1:]))) <= 0.02
    assert errors <= binom.isf(SURE, num_draws, 0.02)


def test_later_rungs_count_for_the_trials_that_are_in_them() -> None:
    values = [0.1, *np.linspace(0.0, 1.0, 15)]
    rng = np.random.default_rng(1)
    first = _row(0.3 * rng.normal(size=16))
    second = _row(np.array([0.0, 1.0, 1.2, 1.1]), [1, 13, 14, 15])
    alone = settings_p_value([first], _trials(values), 15)
    both = settings_p_value([first, second], _trials(values), 15)
    assert alone is not None
    assert both is not None
    assert both < alone


def test_of_few_settings_that_were_drawn_nothing_is_said() -> None:
    values = [0.1, 0.2, 0.4, 0.6, 0.8, 0.9]
    assert _p(values, values, 5) == 1 / 120
    assert _p(values[:5], values[:5], 4) is None
    assert _p(values, values, 5, num_fixed=2) is None


def test_a_setting_that_was_given_may_be_chosen_and_has_no_order() -> None:
    """The others are permuted; its own score says nothing of its neighbours."""
    values = [0.1, 0.95, *np.linspace(0.0, 1.0, 9)]
    assert _p(values, values, 1, num_fixed=2) < 0.02
    lonely = [0.0, 9.0, *[0.5] * 9]
    assert _p(lonely, values, 1, num_fixed=2) == 1.0


@pytest.mark.parametrize(("default", "is_better"), [(-3.0, True), (9.0, False)])
def test_defaults_outside_the_space_are_at_its_border(
    default: float, is_better: bool
) -> None:
    values = np.linspace(0.0, 1.0, 15)
    p = _p([0.0, *values], [default, *values], chosen=15)
    assert p < 0.001 if is_better else p > 0.1


def test_or_they_are_like_no_other() -> None:
    """A category that is no choice, and a number between two integers."""
    space = SearchSpace(SPACE)
    odd = {"learning-rate": 1e-4, "local-epochs": 2.5, "optimizer": "mine"}
    settings = candidate_settings(space, 16, odd, [], seed=1)
    rates = np.array([np.log10(one["learning-rate"]) for one in settings])
    best = int(np.argmax(rates))
    p = settings_p_value([_row(rates)], DrawnTrials(settings, 1, space), best)
    assert p is not None
    assert p < 0.02


def test_what_is_drawn_late_may_be_anywhere() -> None:
    """Of 12 settings some are drawn again, and the last are taken as they are left."""
    space = SearchSpace({"rounds": IntDistribution(1, 12)})
    places = []
    for seed in range(400):
        found = Candidates(TrialSpace(space), 12, {"rounds": 1}, [], seed)
        found.fill()
        places.append([one["rounds"] for one in found.settings].index(2))
    # Of uniform places from 1 to 11: mean 6, standard error 0.16.
    assert np.mean(places) == pytest.approx(6.0, abs=0.8)
    assert set(places) == set(range(1, 12))
