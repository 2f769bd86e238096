"""Whether settings matter: what the scores of a tuner's trials say of their settings.

Two trainings with the same setting give two models, and one of them is better. A score
is about a model. That one setting is better than another shows in several trials: those
with similar settings have similar scores.

That is tested by a permutation test (Fisher, 1935). The settings that are drawn come in
random order. So if no setting has an effect, it is chance which place got which of
them, whatever the places have in common: the clients that train there, turns, the noise
of training and of the release. All orders are as likely as the one that was drawn, and
the rate of errors is exact. The test is post-processing of what was released, and costs
no epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.space.search_space import Params, SearchSpace

# Of fewer settings there are too few orders for a small p-value.
MIN_DRAWN = 5
# The orders of so many settings are counted, of more a part of them is drawn.
_MOST_COUNTED, _NUM_ORDERS = 7, 10_000
# Settings are similar up to this part of the diagonal of the space.
_LENGTHSCALE = 0.25
# Statistics that differ by rounding only are the same.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class DrawnTrials:
    """The settings of a tuner's trials, and which of them were drawn at random.

    Attributes
    ----------
    settings : sequence of dict
        The app's defaults, settings that were given, and those that were drawn.
    num_fixed : int
        Number of settings, >= 1, that were not drawn: the first ones.
    space : SearchSpace
    """

    settings: Sequence[Params]
    num_fixed: int
    space: SearchSpace


def settings_p_value(
    scores: FloatArray, trials: DrawnTrials, chosen: int
) -> float | None:
    """Return how often scores would follow the settings so well if none had an effect.

    And in favour of the chosen one: the statistic is how alike the scores of trials
    with similar settings are, with a minus sign unless the others with settings like
    the chosen one's have better scores than those like the defaults.

    Parameters
    ----------
    scores : ndarray of shape (K,)
        Of the first K trials, after the same training; larger is better.
    trials : DrawnTrials
        At least K.
    chosen : int
        A trial, not the first.

    Returns
    -------
    float or None
        The p-value, exact; None if fewer than 5 settings were drawn.
    """
    num_fixed, num_trials = trials.num_fixed, len(scores)
    num_drawn = num_trials - num_fixed
    if num_drawn < MIN_DRAWN:
        return None
    similar = _similarities(trials.space, trials.settings[:num_trials])[:, num_fixed:]
    # Each row is an order: which place's score a setting has.
    places = _orders(num_drawn)
    drawn = scores[num_fixed:]
    values = (drawn - drawn.mean())[places]
    alike = np.sum((values @ similar[num_fixed:]) * values, axis=1)
    # The chosen trial's own score is no evidence for its neighbourhood.
    is_other = places != chosen - num_fixed
    nearby = (values * is_other) @ similar.T / (is_other @ similar.T)
    best = np.full(len(places), chosen)
    if chosen >= num_fixed:
        best = num_fixed + np.argmin(is_other, axis=1)
    lead = nearby[np.arange(len(places)), best] - nearby[:, 0]
    statistics = np.sign(lead) * alike
    least = statistics[0] - _ROUNDING * abs(statistics[0])
    return float(np.mean(statistics >= least))


@lru_cache(maxsize=4)
def _orders(num: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return orders of so many settings; the first is the one that was drawn."""
    if num <= _MOST_COUNTED:
        return np.array(list(permutations(range(num))))
    rng = np.random.default_rng(0)  # so that the same record has the same p-value
    orders = np.tile(np.arange(num), (_NUM_ORDERS, 1))
    orders[1:] = rng.permuted(orders[1:], axis=1)
    return orders


def _similarities(space: SearchSpace, settings: Sequence[Params]) -> FloatArray:
    """Return how similar settings are, shape (K, K), from 0 to 1: a Gaussian kernel."""
    squares = np.zeros((len(settings), len(settings)))
    for key, distribution in space.distributions.items():
        places = [_place(key, distribution, one) for one in settings]
        squares += [[_distance(a, b) ** 2 for b in places] for a in places]
    width = 2 * _LENGTHSCALE**2 * space.dim
    similar: FloatArray = np.exp(-squares / width)
    return similar


def _place(
    key: str, distribution: BaseDistribution, settings: Mapping[str, Any]
) -> tuple[str, Any]:
    """Return where a setting is on an axis: a number, or what it has in common."""
    value = settings.get(key)
    is_category = isinstance(distribution, CategoricalDistribution)
    if is_category or not isinstance(value, int | float):
        return "category", value
    # The app's defaults may be outside.
    ends = getattr(distribution, "low", value), getattr(distribution, "high", value)
    try:
        inside = {key: min(max(value, ends[0]), ends[1])}
        return "number", float(SearchSpace({key: distribution}).to_unit(inside)[0])
    except ValueError:  # between two steps
        return "category", value


def _distance(place: tuple[str, Any], other: tuple[str, Any]) -> float:
    """Return the distance on an axis: of two categories, 0 or 1."""
    if place[0] == other[0] == "number":
        return float(place[1] - other[1])
    return float(place != other)
