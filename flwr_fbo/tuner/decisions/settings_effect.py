"""Evidence that settings matter, in the scores of a tuner's trials.

Two trainings with the same settings give two models, and one of them is better. A score
is about a model. That settings are better shows in other trials: those with settings
like the chosen ones do better than those with settings like the app's defaults.

That is tested by a permutation test (Fisher, 1935). The settings that are drawn come in
random order. So if no setting has an effect, it is chance which place got which of
them, whatever the places have in common: the clients that train there, turns, the noise
of training and of the release. All orders are as likely as the one that was drawn, and
the rate of errors is exact. Where other settings have an effect, and the chosen ones
and the defaults are alike, it is near to that: the orders differ by more than chance
then. The test is post-processing of what was released, and costs no epsilon.
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
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.space.search_space import Params, SearchSpace

# Of fewer settings there are too few orders for a small p-value.
MIN_DRAWN = 5
# The orders of so many settings are counted, of more a part of them is drawn.
_MOST_COUNTED, _NUM_ORDERS = 7, 10_000
# Settings are similar up to this part of the diagonal of the space.
_LENGTHSCALE = 0.3
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
        Distributions that they were drawn from.
    """

    settings: Sequence[Params]
    num_fixed: int
    space: SearchSpace


def settings_p_value(
    rows: Sequence[LedgerRow], trials: DrawnTrials, chosen: int
) -> float | None:
    """Return how often the chosen settings would do so well if none had an effect.

    Compared are the other trials: how much better those with settings like the chosen
    ones did than those with settings like the app's defaults. The scores of the chosen
    trial, and of the defaults, are no evidence of that.

    Parameters
    ----------
    rows : sequence of LedgerRow
        What each rung released; the first has the first trials, in their order.
    trials : DrawnTrials
        Settings of all trials.
    chosen : int
        A trial, not the first.

    Returns
    -------
    float or None
        The p-value; None if fewer than 5 settings were drawn.
    """
    # Scores compare the trials of one rung: in a later one that of the worst counts as
    # 0, as for the trials that ended before.
    outcomes: FloatArray = rows[0].vectors.copy()
    for row in rows[1:]:
        outcomes[row.facts["trials"]] += row.vectors - row.vectors.min()
    num_fixed, num_trials = trials.num_fixed, len(outcomes)
    if num_trials - num_fixed < MIN_DRAWN:
        return None
    # How similar settings are, from 0 to 1, by a Gaussian kernel.
    squares = np.zeros((num_trials, num_trials))
    for key, distribution in trials.space.distributions.items():
        at = [_place(key, distribution, p) for p in trials.settings[:num_trials]]
        squares += [[_distance(a, b) ** 2 for b in at] for a in at]
    width = 2 * _LENGTHSCALE**2 * trials.space.dim
    similar = np.exp(-squares / width)[:, num_fixed:].T
    # Each row is an order: the place at which each of the drawn settings is tried.
    places = _orders(num_trials - num_fixed)
    is_other = places != chosen - num_fixed
    # The chosen trial's own score is about its model, and no evidence of its settings.
    of_others = np.where(is_other, outcomes[num_fixed:][places], 0.0)
    nearby = (of_others @ similar) / (is_other @ similar)
    # What is tried at the place that was chosen.
    best = np.full(len(places), chosen)
    if chosen >= num_fixed:
        best = num_fixed + np.argmin(is_other, axis=1)
    leads = nearby[np.arange(len(places)), best] - nearby[:, 0]
    # The first order is the one that was drawn.
    least = leads[0] - _ROUNDING * abs(leads[0])
    return float(np.mean(leads >= least))


@lru_cache(maxsize=4)
def _orders(num: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return orders of so many settings; the first is the one that was drawn."""
    if num <= _MOST_COUNTED:
        return np.array(list(permutations(range(num))))
    rng = np.random.default_rng(0)  # so that the same record has the same p-value
    orders = np.tile(np.arange(num), (_NUM_ORDERS, 1))
    orders[1:] = rng.permuted(orders[1:], axis=1)
    return orders


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
