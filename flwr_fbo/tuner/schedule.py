"""Which trials there are, and how many of them go on: successive halving.

The trials are the app's own settings, those that the user gives, and a Latin hypercube.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.fields import check_fields, integer, ruled
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import (
    nearest,
    refuse,
    require,
    require_all,
    require_int,
    require_known,
)
from flwr_fbo.space.search_space import Params, SearchSpace

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


@dataclass(frozen=True)
class PlannedRung:
    """A rung before it is decided.

    Attributes
    ----------
    rounds : int
        Of training, at its end.
    num_trials : int
        That are compared.
    num_survivors : int
        That go on.
    """

    rounds: int
    num_trials: int
    num_survivors: int


def _check_rounds(name: str, rounds: Any) -> None:
    ok = isinstance(rounds, tuple) and len(rounds) > 0
    require(ok, name, rounds, "a tuple of at least one integer")
    for one in rounds:
        require_int(name, one, 1)
    grows = list(rounds) == sorted(set(rounds))
    require(grows, name, rounds, "growing from rung to rung")


@dataclass(frozen=True)
class Halving:
    """Successive halving (Jamieson & Talwalkar, 2016).

    All trials are trained for ``rounds[0]`` rounds. The best of them go on to
    ``rounds[1]`` rounds, and so on; the best after the last rung is the result. From
    one rung to the next the number of trials falls as the number of rounds grows.

    Examples
    --------
    >>> from flwr_fbo import Halving
    >>> for rung in Halving(trials=16, rounds=(3, 9, 27)).rungs:
    ...     print(rung.num_trials, "trials at round", rung.rounds)
    16 trials at round 3
    5 trials at round 9
    2 trials at round 27

    Attributes
    ----------
    trials : int
        K >= 2 at the first rung, from which the app's defaults are one.
    rounds : tuple of int
        Rounds of training at the end of each rung, growing, each >= 1. One number is
        one rung, after which the best trial is chosen.
    parallel : int
        Trials, >= 1, that share a send: each node gets one message for all of them.
        Results do not depend on it.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.

    Notes
    -----
    Fewer rungs share epsilon between fewer releases. ``Halving(18, (3, 27))`` trains
    for 102 rounds, all trials together, and ``Halving(16, (3, 9, 27))`` for 114. At
    epsilon 2 with 20 clients the best score of the former is as good: on two tasks on
    which nothing was chosen its loss of accuracy differs by 0.0001, with a standard
    error of 0.0001. Where the defaults are kept, they take one of the two places of the
    last rung, so that all others are compared after 3 rounds only. Then the former
    loses 0.0004 more. Printed by `python -m benchmarks.halving_variants`.
    """

    trials: int = field(metadata=integer(2))
    rounds: tuple[int, ...] = field(metadata=ruled(_check_rounds))
    parallel: int = field(default=4, metadata=integer(1))

    def __post_init__(self) -> None:
        check_fields(self)
        last = self._num_alive(self.rounds[-1])
        enough = f"two of {self.trials} trials are left at the last rung"
        require(last >= 2, "rounds", self.rounds, f"short enough that {enough}")

    @property
    def rungs(self) -> tuple[PlannedRung, ...]:
        """All rungs: one for each number of rounds."""
        alive = [self.trials, *map(self._num_alive, self.rounds[1:]), 1]
        return tuple(map(PlannedRung, self.rounds, alive, alive[1:]))

    def _num_alive(self, rounds: int) -> int:
        return round(self.trials * self.rounds[0] / rounds)


def app_defaults(space: SearchSpace, run_config: Mapping[str, Any]) -> Params:
    """Return what the app's run config has for the keys of the space.

    Raises
    ------
    ValueError
        If a key is not in the run config, or its value is not of a type that trials
        have: training with the others could not be what it is with this one.
    """
    missing = [key for key in space.distributions if key not in run_config]
    if missing:
        refuse("space", missing[0], _how_to_add(space, missing, run_config))
    for key, distribution in space.distributions.items():
        wanted = _kinds(distribution)
        value = run_config[key]
        allowed = f"{' or '.join(sorted(wanted))}, as in space[{key!r}]={distribution}"
        require(_kind(value) in wanted, f"run_config[{key!r}]", value, allowed)
    return {key: run_config[key] for key in space.distributions}


def _how_to_add(
    space: SearchSpace, missing: Sequence[str], run_config: Mapping[str, Any]
) -> str:
    """Return how keys get into the run config of an app whose code has the values."""
    center = space.from_unit(space.center)
    lines = ", ".join(f"`{key} = {_toml(center[key])}`" for key in missing)
    reads = ", ".join(f"`context.run_config[{json.dumps(key)}]`" for key in missing)
    return (
        f"a key of the app's run config, {nearest(missing[0], run_config)}. If the "
        "value is in the app's code: write below [tool.flwr.app.config] in "
        f"pyproject.toml {lines}, with the value that the code has, and in the code "
        f"{reads} in its place, in main as well as in train and evaluate (of a "
        "NumPyClient: in client_fn, which gets the context)"
    )


def _toml(value: float | str) -> str:
    """Return a value of a run config as TOML has it, short where it is a number."""
    return f"{value:.3g}" if isinstance(value, float) else json.dumps(value)


def check_keys(space: SearchSpace) -> None:
    """Raise ValueError if a key is the number of rounds, which the schedule sets."""
    for key in space.distributions:
        last = key.rpartition(".")[2].lower().replace("_", "-")
        allowed = (
            "a setting of the training: the number of rounds is set by the schedule, "
            "as in Halving(trials=16, rounds=(3, 9, 27))"
        )
        require(last not in _NUMBERS_OF_ROUNDS, "space", key, allowed)


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
    space: SearchSpace, enqueued: Sequence[Params], schedule: Halving
) -> None:
    """Raise ValueError if settings are too many, or outside the space."""
    most, known = schedule.trials - 1, space.distributions
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


def candidate_settings(
    space: SearchSpace,
    num_trials: int,
    defaults: Params,
    enqueued: Sequence[Params],
    seed: int,
) -> list[Params]:
    """Return the settings of all trials: defaults, enqueued ones, a Latin hypercube.

    Parameters
    ----------
    space : SearchSpace
    num_trials : int
        K.
    defaults : dict
        Of the app, inside the space or not.
    enqueued : sequence of dict
        At most K - 1; each may have some of the keys, and the rest are the defaults. An
        int is a float where the parameter is.
    seed : int
        Of the hypercube.
    """
    floats = {
        key
        for key, distribution in space.distributions.items()
        if isinstance(distribution, FloatDistribution)
    }
    known = [defaults]
    for params in enqueued:
        own = {k: float(v) if k in floats else v for k, v in params.items()}
        known.append({**defaults, **own})
    num_points = num_trials - len(known)
    points = []
    if num_points > 0:
        from scipy.stats import qmc

        rng = generator(seed, Purpose.INITIAL_POINTS)
        cube = qmc.LatinHypercube(space.dim, rng=rng)
        points = [space.from_unit(space.snap(x)) for x in cube.random(num_points)]
    return [*known, *points]
