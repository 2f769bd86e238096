"""Size limits of a site: what one message may cost, whatever the server says.

Sizes are looked at before anything of a message is built. A server writes the study
that a site plays, and a number in it can be worth hours or gigabytes. So each integer
of a study is below a limit, which its field names (see `flwr_fbo._common.fields`); one
that no field is known for is below ``max_points``. What is costly only together, such
as many candidates of many features, shows in `Study.steps`, once the study is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.errors import refused
from flwr_fbo._common.fields import DEFAULT_CAP, FREE, cap_of, fields_by_name, part_of
from flwr_fbo.site.limits import Limits
from flwr_fbo.study.codec import (
    LONGEST_RECEIPT,
    RECEIPT_ENTRY,
    STUDY_ENTRY,
    Study,
    read_json,
)

# What one message may cost, where neither the app nor the node config says it.
DEFAULT_SIZES: dict[str, float] = {
    "max_agents": 100_000,
    "max_peers": 1_000,
    "max_features": 2_048,
    "max_points": 10_000,
    "max_choices": 1_000,
    "max_dimension": 256,
    "max_synchronisations": 20_000,
    "max_steps": 50_000_000,
    "max_characters": 2**19,
    "max_numbers": 2**21,
    "max_trials": 10_000,
    "max_questions": 10,
    "max_seconds": 86_400,
}


# What no study needs: lists within lists, entries of a config, characters of one.
_MOST_LEVELS, _MOST_ENTRIES, _LONGEST_ENTRY = 8, 100, 1_000
_NO_STUDY = "the study is not JSON that a strategy writes"
# Arrays of a message: as many as an agent has peers, a few times over.
_ARRAYS_A_PEER = 4


@lru_cache(maxsize=8)  # the same with every message
def size_limits(limits: tuple[Limits, ...]) -> Limits:
    """Return the sizes that all limits allow; the default of what none of them says."""
    sizes: dict[str, Any] = {}
    for name, default in DEFAULT_SIZES.items():
        values = [
            value for each in limits if (value := getattr(each, name)) is not None
        ]
        sizes[name] = min(values, default=default)
    return Limits(**sizes)


def check_config(limits: Limits, config: Mapping[str, Any], study: type[Study]) -> None:
    """Raise `RefusedError` if a config, or the study in it, is too large.

    Parameters
    ----------
    limits : Limits
        With every size: see `size_limits`.
    config : mapping
        Config of a message: of `Instruction.to_config`, or anything else.
    study : type
        Dataclass of the site's kind of study.
    """
    _check_count("entries of the config", len(config), _MOST_ENTRIES)
    for name, value in config.items():
        if name != STUDY_ENTRY and hasattr(value, "__len__"):
            most = LONGEST_RECEIPT if name == RECEIPT_ENTRY else _LONGEST_ENTRY
            _check_count("an entry of the config", len(value), most)
    text = config.get(STUDY_ENTRY, "{}")
    if not isinstance(text, str):
        raise refused(_NO_STUDY)
    limits.check_size("max_characters", len(text), "len(study)")
    _check_study(limits, text, study)


@lru_cache(maxsize=8)  # every message brings the whole study again
def _check_study(limits: Limits, text: str, study: type[Study]) -> None:
    values = _read(text)
    if not isinstance(values, dict):
        raise refused(_NO_STUDY)
    if isinstance(values.get("space"), str):
        _check_space(limits, values["space"])
    _check_sizes(limits, values, study)


def _check_sizes(
    limits: Limits,
    value: Any,
    part: Any,
    cap: str = DEFAULT_CAP,
    name: str = "",
    level: int = 0,
) -> None:
    """Look at each integer of a study, whatever is in what.

    Parameters
    ----------
    limits : Limits
        Limits that the integers are compared with.
    value : JSON value
        A study, or a part of one.
    part : type or callable, optional
        Dataclass of the objects in the value: see `flwr_fbo._common.fields.ruled`.
    cap : str
        Limit of the integers in the value; or ``FREE``.
    name : str
        Field that has the value.
    level : int
        In how many lists and objects the value is.
    """
    _check_count("lists within lists", level, _MOST_LEVELS)
    if isinstance(value, dict):
        known = _fields_of(part, value)
        for key, below in value.items():
            field = known.get(key)
            if field is None:  # no strategy writes it
                _check_sizes(limits, below, None, DEFAULT_CAP, key, level + 1)
            else:
                _check_sizes(
                    limits, below, part_of(field), cap_of(field), key, level + 1
                )
    elif isinstance(value, list):
        for below in value:
            _check_sizes(limits, below, part, cap, name, level + 1)
    elif isinstance(value, int) and cap != FREE:
        limits.check_size(cap, value, name[:_LONGEST_ENTRY])


def _fields_of(part: Any, value: Mapping[str, Any]) -> Mapping[str, Field[Any]]:
    """Return the fields of a JSON object: none of one that no strategy writes."""
    if part is None:
        return {}
    if not isinstance(part, type):
        try:
            part = part(value)
        except (KeyError, TypeError, ValueError):
            return {}
    return fields_by_name(part)


def _check_space(limits: Limits, text: str) -> None:
    """Look at a space, which is JSON of pairs of a name and a distribution's JSON."""
    pairs = _read(text)
    if not isinstance(pairs, list):
        raise refused(_NO_STUDY)
    limits.check_size("max_dimension", len(pairs), "len(space)")
    choices = 0
    for pair in pairs:
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], str)):
            raise refused(_NO_STUDY)
        content = _read(pair[1])
        if not isinstance(content, dict):
            raise refused(_NO_STUDY)
        # In either format of Optuna's.
        for holder in (content, content.get("attributes")):
            listed = holder.get("choices") if isinstance(holder, dict) else None
            choices += len(listed) if isinstance(listed, list | str) else 0
    limits.check_size("max_choices", choices, "choices of the space")


def _read(text: str) -> Any:
    try:
        return read_json(text)
    except (ValueError, RecursionError):
        raise refused(_NO_STUDY) from None


def check_numbers(limits: Limits, sizes: Sequence[float]) -> None:
    """Raise `RefusedError` if arrays are too many, or have too many numbers.

    Parameters
    ----------
    limits : Limits
        With every size.
    sizes : sequence of float
        Size of each array, in numbers of eight bytes.
    """
    assert limits.max_peers is not None
    _check_count("arrays", len(sizes), _ARRAYS_A_PEER * limits.max_peers)
    limits.check_size("max_numbers", sum(sizes), "numbers in arrays")


def check_arrays(limits: Limits, arrays: Sequence[NDArray[Any]]) -> None:
    """Raise `RefusedError` unless arrays are of numbers, and not too many."""
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise refused("an array that came along is not of numbers")
    check_numbers(limits, [array.nbytes / 8 for array in arrays])


def check_steps(
    limits: Limits, study: Study, arrays: Sequence[NDArray[Any]] = ()
) -> None:
    """Raise `RefusedError` if a message of a study would take too long."""
    num_rows = len(arrays[0]) if len(arrays) and np.ndim(arrays[0]) else 0
    assert limits.max_steps is not None
    steps = study.steps(num_rows)
    total = sum(steps.values())
    # A study of another package may name no steps: it has no largest one.
    if total > limits.max_steps:
        most = max(steps, key=steps.__getitem__)
        steps_text = f"a message takes about {total:.2g} steps, most of them for {most}"
        raise refused(
            f"{steps_text}, and max_steps={limits.max_steps}",
            public=f"{steps_text}: more than max_steps",
        )


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise refused(f"{what}: {count} are more than {most}")
