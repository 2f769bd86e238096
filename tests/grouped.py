"""Options of strategies by their own names, put into the groups that they belong to."""

from dataclasses import fields
from typing import Any

from flwr_fbo import Durability, Privacy, Seeds

_SEEDS = {"study_seed": "study", "feature_seed": "features", "noise_seed": "noise"}


def waiting(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a strategy, those of `Durability` in one of its values."""
    options = dict(options)
    chosen = _taken(options, [field.name for field in fields(Durability)])
    return {**options, "durability": Durability(**chosen)}


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a tuning strategy, with its seeds and privacy in groups."""
    options = waiting(options)
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
