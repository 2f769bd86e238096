"""Options of strategies by their own names, put into the groups that they belong to."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from flwr_fbo import Host, Privacy, Seeds

_SEEDS = {"study_seed": "study", "feature_seed": "features", "noise_seed": "noise"}

StrategyT = TypeVar("StrategyT")


def hosted(kind: Callable[..., StrategyT], *args: Any, **options: Any) -> StrategyT:
    """Return a strategy whose `start` is given ``folder`` and the options of `Host`.

    So a test says in one place what its study is and where it is hosted.
    """
    chosen = _taken(options, [field.name for field in fields(Host)])
    given = _taken(options, ["folder", "host"])
    strategy: Any = kind(*args, **options)
    strategy.start = partial(strategy.start, **{"host": Host(**chosen), **given})
    found: StrategyT = strategy
    return found


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a tuning strategy, with its seeds and privacy in groups."""
    options = dict(options)
    seeds = _taken(options, list(_SEEDS))
    privacy = _taken(options, [field.name for field in fields(Privacy)])
    if "release_after" in privacy:
        privacy.pop("min_follow_probability", None)  # the default of a test
    if privacy:
        options["privacy"] = Privacy(**privacy)
    named = {_SEEDS[name]: seed for name, seed in seeds.items()}
    return {**options, "seeds": Seeds(**named)}


def _taken(options: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: options.pop(name) for name in names if name in options}
