"""How large a message may be: looked at before anything of it is built.

A server writes the study that a site plays, and a number in it can be worth hours or
gigabytes. So each integer of a study is below a limit, by its name (`CAPPED_BY`); one
whose name is not known here is below ``max_points``. What is costly only together, as
many candidates of many features are, shows in `Study.steps`, once the study is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo.clients.limits import Limits, refused
from flwr_fbo.study.codec import STUDY_ENTRY, Study, read_json

# The limit of each integer of a study, by its field.
CAPPED_BY = {
    "num_agents": "max_agents",
    "graph.num_agents": "max_peers",
    "graph.edges": "max_peers",
    "graph.hops": "max_peers",
    "graph.num_estimators": "max_dimension",
    "num_features": "max_features",
    "num_points": "max_features",
    "num_surrogate_features": "max_features",
    "num_parameters": "max_features",
    "width": "max_features",
    "num_initial": "max_points",
    "num_candidates": "max_points",
    "num_starts": "max_points",
    "num_samples": "max_points",
    "num_refinements": "max_points",
    "max_tries": "max_points",
    "num_draws": "max_points",
    "num_led": "max_points",
    "cohort_sizes": "max_agents",
    "num_sites": "max_agents",
    "num_slots": "max_agents",
    "dimension": "max_dimension",
    "num_sub_regions": "max_dimension",
    "num_streams": "max_dimension",
    "num_releases": "max_synchronisations",
    "num_synchronisations": "max_synchronisations",
    "sliding_window": "max_synchronisations",
    "num_exploration": "max_trials",
}
# Integers that cost neither time nor memory, and numbers that JSON may write as one.
FREE = {
    "alpha",
    "bandwidth",
    "beta",
    "bound",
    "charges",
    "clip_norm",
    "colluding",
    "delta",
    "epsilon",
    "feature_seed",
    "first_slot",
    "high",
    "honest",
    "inverse_temperature",
    "lengthscale",
    "low",
    "max_action_norm",
    "max_reward",
    "max_similarity",
    "noise_floor",
    "noise_multiplier",
    "noise_scale",
    "noise_seed",
    "noise_std",
    "num_cells",
    "num_constant_rounds",
    "num_decay_rounds",
    "num_iterations",
    "parameter_norm",
    "patience",
    "peak",
    "points",
    "radius",
    "refit_every",
    "regularization",
    "reward",
    "reward_range",
    "ridge",
    "sampling_probability",
    "scale",
    "seconds",
    "seed",
    "share_after",
    "spread",
    "step",
    "study_seed",
    "threshold",
    "uniform_share",
    "vector",
}
# What no study needs: lists within lists, entries of a config, characters of one.
_MOST_LEVELS, _MOST_ENTRIES, _LONGEST_ENTRY = 8, 100, 1_000
_NO_STUDY = "the study is not JSON that a strategy writes"
# Arrays of a message: as many as an agent has peers, a few times over.
_ARRAYS_A_PEER = 4


def check_config(limits: Limits, config: Mapping[str, Any]) -> None:
    """Raise `StudyRefusedError` if a config, or the study in it, is too large.

    Parameters
    ----------
    limits : Limits
        With every size: see `size_limits`.
    config : mapping
        What `Instruction.to_config` wrote, or whatever else was sent.
    """
    _check_count("entries of the config", len(config), _MOST_ENTRIES)
    for name, value in config.items():
        if name != STUDY_ENTRY and hasattr(value, "__len__"):
            _check_count("an entry of the config", len(value), _LONGEST_ENTRY)
    text = config.get(STUDY_ENTRY, "{}")
    if not isinstance(text, str):
        raise refused(_NO_STUDY)
    limits.check_size("max_characters", len(text), "len(study)")
    _check_study(limits, text)


@lru_cache(maxsize=8)  # every message brings the whole study again
def _check_study(limits: Limits, text: str) -> None:
    fields = _read(text)
    if not isinstance(fields, dict):
        raise refused(_NO_STUDY)
    if isinstance(fields.get("space"), str):
        _check_space(limits, fields["space"])
    _check_sizes(limits, fields)


def _check_sizes(
    limits: Limits, value: Any, name: str = "", parent: str = "", level: int = 0
) -> None:
    """Look at each integer of a study, whatever is in what."""
    _check_count("lists within lists", level, _MOST_LEVELS)
    if isinstance(value, dict):
        for field, below in value.items():
            _check_sizes(limits, below, field, name, level + 1)
    elif isinstance(value, list):
        for below in value:
            _check_sizes(limits, below, name, parent, level + 1)
    elif isinstance(value, int) and name not in FREE:
        limit = CAPPED_BY.get(f"{parent}.{name}") or CAPPED_BY.get(name, "max_points")
        limits.check_size(limit, value, name[:_LONGEST_ENTRY])


def _check_space(limits: Limits, text: str) -> None:
    """Look at a space, which is JSON of pairs of a name and a distribution's JSON."""
    pairs = _read(text)
    if not isinstance(pairs, list):
        raise refused(_NO_STUDY)
    limits.check_size("max_dimension", len(pairs), "len(space)")
    choices = sum(_choices_of(pair) for pair in pairs)
    limits.check_size("max_choices", choices, "choices of the space")


def _choices_of(pair: Any) -> int:
    """Return how many choices a distribution has, in either format of Optuna's."""
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str)):
        raise refused(_NO_STUDY)
    content = _read(pair[1])
    if not isinstance(content, dict):
        raise refused(_NO_STUDY)
    holders = [content, content.get("attributes")]
    found: list[Any] = [one.get("choices") for one in holders if isinstance(one, dict)]
    return sum(len(choices) for choices in found if isinstance(choices, list | str))


def _read(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        raise refused(_NO_STUDY) from None


def check_numbers(limits: Limits, sizes: Sequence[float]) -> None:
    """Raise `StudyRefusedError` if arrays are too many, or have too many numbers.

    Parameters
    ----------
    limits : Limits
        With every size.
    sizes : sequence of float
        Of each array, in numbers of eight bytes.
    """
    assert limits.max_peers is not None
    _check_count("arrays", len(sizes), _ARRAYS_A_PEER * limits.max_peers)
    limits.check_size("max_numbers", sum(sizes), "numbers in arrays")


def check_arrays(limits: Limits, arrays: Sequence[NDArray[Any]]) -> None:
    """Raise `StudyRefusedError` unless arrays are of numbers, and not too many."""
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise refused("an array that came along is not of numbers")
    check_numbers(limits, [array.nbytes / 8 for array in arrays])


def check_steps(
    limits: Limits, study: Study, arrays: Sequence[NDArray[Any]] = ()
) -> None:
    """Raise `StudyRefusedError` if a message of a study would take too long."""
    num_rows = len(arrays[0]) if len(arrays) and np.ndim(arrays[0]) else 0
    assert limits.max_steps is not None
    steps = study.steps(num_rows)
    total, most = sum(steps.values()), max(steps, key=steps.__getitem__)
    if total > limits.max_steps:
        steps_text = f"a message takes about {total:.2g} steps, most of them for {most}"
        raise refused(
            f"{steps_text}, and max_steps={limits.max_steps}",
            public=f"{steps_text}: more than max_steps",
        )


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise refused(f"{what}: {count} are more than {most}")
