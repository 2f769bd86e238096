"""The settings that trials may have: a search space, and which keys are in force.

A key may have an effect only where others have certain values, as the decay of a
learning rate with some schedules. Elsewhere it has the app's default: settings that
differ only there are one setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from flwr_fbo._common.validation import refuse, require, require_known
from flwr_fbo.space.search_space import Params, SearchSpace

# The keys that a key needs, and the values that they may have.
Condition = Mapping[str, list[Any] | tuple[Any, ...]]
# What a user writes: a distribution for each key, or a pair of one and a condition.
ConditionalSpace = Mapping[str, BaseDistribution | tuple[BaseDistribution, Condition]]

# Which parts of a pair are distributions.
_PAIR = [True, False]
_FORM = "a dict as {'schedule': ['exponential']}"


class TrialSpace:
    """A search space some of whose keys are in force under conditions only.

    Examples
    --------
    >>> from optuna.distributions import CategoricalDistribution, FloatDistribution
    >>> from flwr_fbo.tuning import SearchSpace
    >>> space = SearchSpace({
    ...     "schedule": CategoricalDistribution(["constant", "exponential"]),
    ...     "decay": FloatDistribution(0.8, 0.99),
    ... })
    >>> trials = TrialSpace(space, {"decay": {"schedule": ["exponential"]}})
    >>> trials.in_force({"schedule": "constant", "decay": 0.9})
    ['schedule']
    >>> defaults = {"schedule": "constant", "decay": 1.0}
    >>> trials.applied({"schedule": "constant", "decay": 0.9}, defaults)
    {'schedule': 'constant', 'decay': 1.0}

    Parameters
    ----------
    space : SearchSpace
        Distributions of all keys.
    conditions : mapping of str to mapping
        Mapping from a key to the keys that it needs, each with the values that it may
        have. A key is in force if all that it needs are in force and have such a value.

    Attributes
    ----------
    space : SearchSpace
        Distributions of all keys.
    conditions : dict of str to dict of str to list
        Keys that a key needs, with their values in the order of the choices.

    Raises
    ------
    ValueError
        If a condition is not about keys of the space and their choices, if keys need
        one another, or if a key would never be in force.
    """

    def __init__(
        self, space: SearchSpace, conditions: Mapping[str, Condition] | None = None
    ) -> None:
        self.space = space
        self._axes = {
            key: SearchSpace({key: distribution})
            for key, distribution in space.distributions.items()
        }
        conditions = {} if conditions is None else conditions
        self.conditions: dict[str, dict[str, list[Any]]] = {
            # The field of an error is where the user has written the condition.
            key: self._checked(f"space[{key!r}][1]", needed)
            for key, needed in conditions.items()
        }
        for key in self.conditions:
            self._check_cycle(key, ())
        self._parents = [
            key for key in self._axes if any(key in c for c in self.conditions.values())
        ]
        # A key that is never in force would be tuned for nothing.
        found = {key for branch in self._branches() for key in self.in_force(branch)}
        for key, condition in conditions.items():
            allowed = "a condition that holds in some setting"
            require(key in found, f"space[{key!r}][1]", condition, allowed)

    @classmethod
    def of(cls, space: ConditionalSpace) -> TrialSpace:
        """Return the space of what a user has written: see `FederationTuner`.

        Raises
        ------
        ValueError
            If it is not allowed; the message names the key.
        """
        if not isinstance(space, Mapping):
            return cls(SearchSpace(space))  # which says what is allowed
        distributions: dict[str, Any] = dict(space)
        conditions = {}
        for key, value in space.items():
            # A tuple of another kind is refused with the distributions.
            if (
                isinstance(value, tuple)
                and [isinstance(part, BaseDistribution) for part in value] == _PAIR
            ):
                distributions[key], conditions[key] = value
        return cls(SearchSpace(distributions), conditions)

    def in_force(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the keys that have an effect in a setting, in the space's order.

        Of the settings only those need be there that others depend on.
        """
        return [key for key in self._axes if self._holds(key, settings)]

    def applied(self, settings: Params, defaults: Params) -> Params:
        """Return settings that have the app's default where a key is not in force."""
        found = self.in_force(settings)
        return {k: settings[k] if k in found else defaults[k] for k in self._axes}

    def inside(self, settings: Params) -> dict[str, BaseDistribution]:
        """Return the keys in force whose value is in the space: with distributions."""
        inside = {}
        for key in self.in_force(settings):
            with suppress(ValueError):
                self._axes[key].to_unit({key: settings[key]})
                inside[key] = self.space.distributions[key]
        return inside

    def outside(self, settings: Params) -> list[str]:
        """Return the keys in force whose value is outside the space."""
        inside = self.inside(settings)
        return [key for key in self.in_force(settings) if key not in inside]

    def place(self, settings: Params) -> tuple[Any, ...]:
        """Return what tells settings apart: 1 and 1.0 are the same learning rate."""
        inside, found = self.inside(settings), self.in_force(settings)
        return tuple(
            None
            if key not in found
            else float(axis.to_unit({key: settings[key]})[0])
            if key in inside
            else (isinstance(settings[key], bool), settings[key])
            for key, axis in self._axes.items()
        )

    @property
    def num_settings(self) -> float:
        """Number of settings that differ in what is in force; may be infinite."""
        return sum(
            math.prod(self._axes[key].num_settings for key in self._free(branch))
            for branch in self._branches()
        )

    def all_settings(self, defaults: Params) -> list[Params]:
        """Return all settings of a space where these are finitely many."""
        return [
            {**defaults, **branch, **dict(zip(free, values, strict=True))}
            for branch in self._branches()
            for free in [self._free(branch)]
            for values in product(*(self._values(key) for key in free))
        ]

    def _branches(self) -> Iterator[Params]:
        """Yield all values of the keys that others depend on, as far as in force."""
        seen = set()
        for values in product(*(self._values(key) for key in self._parents)):
            settings = dict(zip(self._parents, values, strict=True))
            branch = {k: v for k, v in settings.items() if self._holds(k, settings)}
            # Parents that are not in force have no value: several products are one
            # branch.
            if (place := tuple(branch.items())) not in seen:
                seen.add(place)
                yield branch

    def _free(self, branch: Params) -> list[str]:
        """Return the other keys that are in force."""
        return [key for key in self.in_force(branch) if key not in branch]

    def _values(self, key: str) -> list[Any]:
        return [settings[key] for settings in self._axes[key].all_settings()]

    def _holds(self, key: str, settings: Mapping[str, Any]) -> bool:
        return all(
            parent in settings
            and _is_among(settings[parent], values)
            and self._holds(parent, settings)
            for parent, values in self.conditions.get(key, {}).items()
        )

    def _checked(self, field: str, needed: Any) -> dict[str, list[Any]]:
        """Return what a key needs, once it is known to be of the right form."""
        if not isinstance(needed, Mapping) or not needed:
            refuse(field, needed, f"keys of the space with values: {_FORM}")
        found = {}
        for parent, values in needed.items():
            require_known(field, parent, self._axes)
            distribution = self.space.distributions[parent]
            if not isinstance(distribution, CategoricalDistribution):
                refuse(field, parent, "a key with choices: a CategoricalDistribution")
            name = f"{field}[{parent!r}]"
            if not isinstance(values, list | tuple) or not values:
                refuse(name, values, f"a list of some of {list(distribution.choices)}")
            for value in values:
                is_choice = _is_among(value, distribution.choices)
                require(is_choice, name, value, f"one of {list(distribution.choices)}")
            found[parent] = [c for c in distribution.choices if _is_among(c, values)]
        return found

    def _check_cycle(self, key: str, path: tuple[str, ...]) -> None:
        """Raise ValueError if a key needs itself."""
        if key in path:
            circle = " needs ".join((*path[path.index(key) :], key))
            refuse("space", circle, "keys that do not need one another")
        for parent in self.conditions.get(key, {}):
            self._check_cycle(parent, (*path, key))


def _is_among(value: Any, values: Any) -> bool:
    """Return whether it is one of them: 1 is not True."""
    return any(type(value) is type(other) and value == other for other in values)
