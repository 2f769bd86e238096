"""The settings that are tried: the app's own, those that the user gives, and others.

No two are the same: one setting in two trials would be trained twice, and could be
"better" than itself.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import (
    nearest,
    refuse,
    require,
    require_all,
    require_known,
)
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuner.candidates.trial_space import TrialSpace

_log = logging.getLogger("flwr.fbo")

# Latin hypercubes that are drawn for points that are new.
_MOST_CUBES = 8

# What apps call the number of rounds of the whole training, with "-" for "_".
_NUMBERS_OF_ROUNDS = {
    "max-rounds",
    "n-rounds",
    "num-fl-rounds",
    "num-rounds",
    "num-server-rounds",
    "rounds",
    "server-rounds",
    "total-rounds",
}


def app_defaults(space: SearchSpace, run_config: Mapping[str, Any]) -> Params:
    """Return what the app's run config has for the keys of the space.

    Raises
    ------
    ValueError
        If a key is not in the run config, or its value is not of a type that trials
        have: training with the others could not be what it is with this one.
    """
    missing = [key for key in space.distributions if key not in run_config]
    # A trial could not be what the training with these settings is later.
    if missing:
        center = space.from_unit(space.center)
        lines = ", ".join(f"`{key} = {_toml(center[key])}`" for key in missing)
        reads = ", ".join(f"`context.run_config[{json.dumps(key)}]`" for key in missing)
        # The app's code may have the values.
        allowed = (
            f"a key of the app's run config, {nearest(missing[0], run_config)}. If the "
            "value is in the app's code: write below [tool.flwr.app.config] in "
            f"pyproject.toml {lines}, with the value that the code has, and in the "
            f"code {reads} in its place, at the server as well as in train and "
            "evaluate (of a NumPyClient: in client_fn, which gets the context)"
        )
        refuse("space", missing[0], allowed)
    for key, distribution in space.distributions.items():
        wanted = _kinds(distribution)
        value = run_config[key]
        allowed = f"{' or '.join(sorted(wanted))}, as in space[{key!r}]={distribution}"
        require(_kind(value) in wanted, f"run_config[{key!r}]", value, allowed)
    return {key: run_config[key] for key in space.distributions}


def warn_outside(space: TrialSpace, defaults: Params) -> None:
    """Log which of the app's own values are outside the space."""
    if outside := space.outside(defaults):
        values = ", ".join(f"{key}={defaults[key]!r}" for key in outside)
        _log.warning(
            "Outside of the space that is searched: the app's own %s. It is trial 0 "
            "all the same, and no other trial is near it.",
            values,
        )


def _toml(value: float | str) -> str:
    """Return a value of a run config as TOML has it, short where it is a number."""
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value)


def _is_number_of_rounds(key: str) -> bool:
    return key.rpartition(".")[2].lower().replace("_", "-") in _NUMBERS_OF_ROUNDS


def rounds_keys(run_config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a run config that have the number of rounds, by their name."""
    return [
        key
        for key, value in run_config.items()
        if _is_number_of_rounds(key) and type(value) is int and value > 0
    ]


def check_keys(space: SearchSpace) -> None:
    """Raise ValueError if a key is the number of rounds, which the schedule sets."""
    for key in space.distributions:
        allowed = (
            "a setting of the training: the number of rounds is not searched. The run "
            "config says how long the app trains, and the schedule when trials end"
        )
        require(not _is_number_of_rounds(key), "space", key, allowed)


def _kinds(distribution: BaseDistribution) -> set[str]:
    """Return of which kinds a parameter's values are."""
    if isinstance(distribution, CategoricalDistribution):
        return set(map(_kind, distribution.choices))
    return {"a number"}


def _kind(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number"
    return f"a {type(value).__name__}"


def check_enqueued(
    space: SearchSpace, enqueued: Sequence[Params], num_trials: int
) -> None:
    """Raise ValueError if settings are too many, or outside the space."""
    most, known = num_trials - 1, space.distributions
    allowed = "a list of dicts: one for each trial"
    require_all("enqueue", enqueued, Mapping, allowed=allowed)
    allowed = f"at most {most}: the app's defaults are a trial, too"
    require(len(enqueued) <= most, "len(enqueue)", len(enqueued), allowed)
    for number, params in enumerate(enqueued):
        field = f"enqueue[{number}]"
        for key, value in params.items():
            require_known(field, key, known)
            wanted = _kinds(known[key])
            if isinstance(known[key], IntDistribution) and not isinstance(value, int):
                wanted = {"an integer"}
            name, allowed = f"{field}[{key!r}]", " or ".join(sorted(wanted))
            require(_kind(value) in wanted, name, value, allowed)
            SearchSpace({key: known[key]}).to_unit({key: value}, field)


class Candidates:
    """The settings of all trials, no two of which are the same in what is in force.

    Examples
    --------
    >>> from optuna.distributions import IntDistribution
    >>> from flwr_fbo.tuning import SearchSpace
    >>> from flwr_fbo.tuner.candidates.trial_space import TrialSpace
    >>> space = TrialSpace(SearchSpace({"local-epochs": IntDistribution(1, 3)}))
    >>> found = Candidates(space, 16, {"local-epochs": 2}, [], seed=1)
    >>> found.fill()
    >>> sorted(settings["local-epochs"] for settings in found.settings)
    [1, 2, 3]

    Parameters
    ----------
    space : TrialSpace
        The settings that are possible, and which keys are in force.
    num_trials : int
        K, at most: where the space has fewer settings, so many are tried.
    defaults : dict
        Settings of the app itself, inside the space or not.
    enqueued : sequence of dict
        At most K - 1; each may have some of the keys, and the rest are the defaults. An
        int is a float where the parameter is. One that is there already is left out. So
        is the value of a key that is not in force, which the log says.
    seed : int
        Seed of the Latin hypercube.

    Attributes
    ----------
    settings : list of dict
        So far: the defaults, and those that are enqueued.
    """

    def __init__(
        self,
        space: TrialSpace,
        num_trials: int,
        defaults: Params,
        enqueued: Sequence[Params],
        seed: int,
    ) -> None:
        self.settings: list[Params] = []
        self._space = space
        self._defaults = defaults
        self._rng = generator(seed, Purpose.INITIAL_POINTS)
        self._places: set[tuple[Any, ...]] = set()
        # Trial 0, so that every choice is also one against the app as it is.
        self.add(defaults)
        floats = {
            key
            for key, distribution in space.space.distributions.items()
            if isinstance(distribution, FloatDistribution)
        }
        for number, params in enumerate(enqueued):
            own = {k: float(v) if k in floats else v for k, v in params.items()}
            settings = {**defaults, **own}
            self.add(settings)
            for key in sorted(own.keys() - set(space.in_force(settings))):
                _log.warning(
                    "enqueue[%d][%r]=%r has no effect: %r is in force only with %s.",
                    number,
                    key,
                    own[key],
                    key,
                    space.conditions[key],
                )
        # Defaults and settings that were given may be outside: they are trials besides.
        outside = sum(bool(space.outside(settings)) for settings in self.settings)
        self.num_trials = int(min(num_trials, outside + space.num_settings))

    @property
    def keys(self) -> set[str]:
        """The keys that are in force in any setting so far."""
        keys = (self._space.in_force(settings) for settings in self.settings)
        return set[str]().union(*keys)

    def add(self, settings: Params) -> bool:
        """Add settings unless they are there; return whether they are new.

        With the app's defaults where a key is not in force.
        """
        settings = self._space.applied(settings, self._defaults)
        # A key without an effect has the default: it tells no two settings apart.
        place = self._space.place(settings)
        is_new = place not in self._places
        if is_new:
            self._places.add(place)
            self.settings.append(settings)
        return is_new

    def fill(self, most: int | None = None) -> None:
        """Add points of a Latin hypercube until there are so many, or all.

        They come in random order, so that nothing but chance decides which clients
        train which of them: see `settings_effect`.
        """
        num = self.num_trials if most is None else min(most, self.num_trials)
        if len(self.settings) >= num:
            return
        from scipy.stats import qmc

        space, first = self._space.space, len(self.settings)
        cube = qmc.LatinHypercube(space.dim, rng=self._rng)
        for number in range(_MOST_CUBES):
            for x in cube.random(num - len(self.settings)):
                self.add(space.from_unit(space.snap(x)))
            if len(self.settings) == num:
                if number > 0:  # a cube alone has no order
                    self._shuffle(first)
                return
        # Few draws are new where the key with many values is rarely in force.
        is_endless = math.isinf(self._space.num_settings)
        while is_endless and len(self.settings) < num:
            self.add(space.from_unit(space.snap(self._rng.random(space.dim))))
        if is_endless:
            self._shuffle(first)
            return
        # A space that is tried nearly whole is small.
        left = self._space.all_settings(self._defaults)
        for index in self._rng.permutation(len(left)):
            if len(self.settings) < num:
                self.add(left[index])
        self._shuffle(first)

    def _shuffle(self, first: int) -> None:
        """Put the settings from one on into random order."""
        drawn = self.settings[first:]
        order = self._rng.permutation(len(drawn))
        self.settings[first:] = [drawn[place] for place in order]


def candidate_settings(
    space: SearchSpace,
    num_trials: int,
    defaults: Params,
    enqueued: Sequence[Params],
    seed: int,
) -> list[Params]:
    """Return the settings of all trials; see `Candidates`."""
    candidates = Candidates(TrialSpace(space), num_trials, defaults, enqueued, seed)
    candidates.fill()
    return candidates.settings
