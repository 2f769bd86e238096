"""The settings that are tried: the app's own, those that are given, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_known
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuner.schedule import Halving


def app_defaults(space: SearchSpace, run_config: Mapping[str, Any]) -> Params:
    """Return what the app's run config has for the keys of the space.

    Raises
    ------
    ValueError
        If a key is not in the run config, or its value is not of a type that trials
        have: training with the others could not be what it is with this one.
    """
    for key, distribution in space.distributions.items():
        require_known("space", key, run_config)
        wanted = _kinds(distribution)
        value = run_config[key]
        allowed = f"{' or '.join(sorted(wanted))}, as in space[{key!r}]={distribution}"
        require(_kind(value) in wanted, f"run_config[{key!r}]", value, allowed)
    return {key: run_config[key] for key in space.distributions}


def _kinds(distribution: BaseDistribution) -> set[str]:
    """Return the kinds of value that a parameter may take."""
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
    most = schedule.trials - 1
    allowed = f"at most {most}: the app's defaults are a trial, too"
    require(len(enqueued) <= most, "len(enqueue)", len(enqueued), allowed)
    for params in enqueued:
        require(isinstance(params, Mapping), "enqueue", params, "a dict a setting")
        for key, value in params.items():
            known = space.distributions
            require_known("enqueue", key, known)
            SearchSpace({key: known[key]}).to_unit({key: value})


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
        At most K - 1; each may have some of the keys, and the rest are the defaults.
    seed : int
        Of the hypercube.
    """
    known = [defaults, *({**defaults, **params} for params in enqueued)]
    num_points = num_trials - len(known)
    points = []
    if num_points > 0:
        from scipy.stats import qmc

        rng = generator(seed, Purpose.INITIAL_POINTS)
        cube = qmc.LatinHypercube(space.dim, rng=rng)
        points = [space.from_unit(space.snap(x)) for x in cube.random(num_points)]
    return [*known, *points]
