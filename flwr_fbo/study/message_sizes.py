"""How large a message may be: looked at before anything of it is built.

A server writes the study that a site plays, and a number in it can be worth hours or
gigabytes. So each integer of a study is below a limit, which its field names (see
`flwr_fbo._common.fields`); one that no field is known for is below ``max_points``. What
is costly only together, such as many candidates of many features, shows in
`Study.steps`, once the study is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.fields import (
    DEFAULT_CAP,
    FREE,
    cap_of,
    fields_by_name,
    part_of,
)
from flwr_fbo.study.codec import STUDY_ENTRY, Study, read_json
from flwr_fbo.study.limits import Limits, refused

# What no study needs: lists within lists, entries of a config, characters of one.
_MOST_LEVELS, _MOST_ENTRIES, _LONGEST_ENTRY = 8, 100, 1_000
_NO_STUDY = "the study is not JSON that a strategy writes"
# Arrays of a message: as many as an agent has peers, a few times over.
_ARRAYS_A_PEER = 4


def check_config(limits: Limits, config: Mapping[str, Any], study: type[Study]) -> None:
    """Raise `StudyRefusedError` if a config, or the study in it, is too large.

    Parameters
    ----------
    limits : Limits
        With every size: see `size_limits`.
    config : mapping
        What `Instruction.to_config` wrote, or whatever else was sent.
    study : type
        Dataclass of the site's kind of study.
    """
    _check_count("entries of the config", len(config), _MOST_ENTRIES)
    for name, value in config.items():
        if name != STUDY_ENTRY and hasattr(value, "__len__"):
            _check_count("an entry of the config", len(value), _LONGEST_ENTRY)
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
    value : JSON value
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
            one = known.get(key)
            if one is None:  # no strategy writes it
                _check_sizes(limits, below, None, DEFAULT_CAP, key, level + 1)
            else:
                _check_sizes(limits, below, part_of(one), cap_of(one), key, level + 1)
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
