"""What ``flwr-fbo tune`` tries: ``KEY=LOW..HIGH[:log]`` and ``KEY=a,b,c``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo._common.validation import nearest, refuse, require
from flwr_fbo.tuner.candidates.candidates import rounds_keys

_RANGE = re.compile(r"(?P<low>[^\s:]+?)\.\.(?P<high>[^\s:]+?)(?P<log>:log)?")
_FORMS = "LOW..HIGH, LOW..HIGH:log for a log scale, or a list: a,b,c"
_BOOLS = {"true": True, "false": False}
# Keys that are no setting of a training, though their values are numbers.
_NOT_SETTINGS = re.compile(
    r"seed|round|partition|client|node|num-?gpus|num-?cpus|port|verbose|dim|classes"
    r"|worker|version|every|interval|frequency|fraction-(fit|train|eval)",
)
_IS_LOG = re.compile(r"lr|rate|eta|decay|lambda|alpha|reg|eps|mu\b|temperature|noise")
_IS_SHARE = re.compile(r"momentum|dropout|beta|fraction|ratio")


def search_space(
    search: Mapping[str, str], run_config: Mapping[str, Any]
) -> dict[str, BaseDistribution]:
    """Return the distributions that a search names, by key of the run config.

    Raises
    ------
    ValueError
        If a key is not in the run config, or its values are not of the default's type.
    """
    space = {}
    for key, text in search.items():
        field = f"search {key}"
        if key not in run_config:
            raise ValueError(
                f"--search {key}: {key!r} is no key of the app's run config, "
                f"{_near(key, run_config)}."
            )
        if key in rounds_keys(run_config):
            allowed = (
                "a setting of the training: the number of rounds is not searched. "
                "Candidates share the app's own rounds; for more or fewer of them pass "
                f"--run-config {key}={run_config[key]}"
            )
            refuse("search", key, allowed)
        space[key] = _distribution(field, text.strip(), run_config[key])
    return space


def _near(key: str, run_config: Mapping[str, Any]) -> str:
    if not run_config:
        return "which is empty: [tool.flwr.app.config] of pyproject.toml"
    said = nearest(key, run_config)
    if "did you mean" in said:
        return said
    for known in run_config:  # LR, or learning-rate, for lr; and the reverse
        words = {known.lower(), _initials(known)}
        if len(words & {key.lower(), _initials(key)} - {""}) > 0:
            return f"{said} (did you mean {known!r}?)"
    return said


def _initials(key: str) -> str:
    parts = re.split(r"[-_.]", key.lower())
    return "".join(part[:1] for part in parts) if len(parts) > 1 else ""


def _distribution(field: str, text: str, default: Any) -> BaseDistribution:
    found = _RANGE.fullmatch(text)
    option = f"--search {field.removeprefix('search ')}={text}"
    if "=" in text and not isinstance(default, str):
        raise ValueError(f"{option}: --search must be given once for each key.")
    if found is None and "," not in text:
        raise ValueError(f"{option}: one value is no search; it must be {_FORMS}.")
    if found is None:
        values = [one.strip() for one in text.split(",")]
        require(len(values) >= 2 and all(values), field, text, _FORMS)
        return CategoricalDistribution([_value(field, one, default) for one in values])
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    allowed = f"a list such as a,b: its default {default!r} is not a number"
    require(is_number, field, text, allowed)
    low, high = (_number(field, text, found[name]) for name in ("low", "high"))
    require(low < high, field, text, f"{_FORMS}, LOW below HIGH")
    is_log = found["log"] is not None
    require(low > 0 or not is_log, field, text, "LOW above 0 with :log")
    if isinstance(default, int):
        is_int = isinstance(low, int) and isinstance(high, int)
        allowed = f"whole numbers, as its default {default} is one"
        require(is_int, field, text, allowed)
        return IntDistribution(int(low), int(high), log=is_log)
    return FloatDistribution(low, high, log=is_log)


def _number(field: str, text: str, word: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    refuse(field, text, f"{_FORMS}, of numbers")


def _value(field: str, word: str, default: Any) -> Any:
    """Return one of a list, of the type of the default."""
    if isinstance(default, bool):
        require(word.lower() in _BOOLS, field, word, "true or false, as its default")
        return _BOOLS[word.lower()]
    if isinstance(default, str):
        return word
    number = _number(field, word, word)
    if isinstance(default, int):
        require(isinstance(number, int), field, word, "a whole number, as its default")
        return number
    return float(number)


def proposed_search(run_config: Mapping[str, Any]) -> dict[str, str]:
    """Return ranges for the numbers of a run config that look like settings.

    Around the default: a hundredth to a hundred times it on a log scale for rates, 0 to
    1 for shares, and 1 to four times it for whole numbers.
    """
    rounds = rounds_keys(run_config)
    found = {}
    for key, value in run_config.items():
        name = key.lower().replace("_", "-")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or key in rounds or _NOT_SETTINGS.search(name):
            continue
        if isinstance(value, int):
            if value > 0:
                is_large, high = value >= 16, max(8, 4 * value)
                low = max(1, value // 4) if is_large else 1
                found[key] = f"{low}..{high}{':log' if is_large else ''}"
        elif _IS_SHARE.search(name) and 0 <= value <= 1:
            found[key] = "0.1..1.0" if value == 1 else "0.0..0.99"
        elif value > 0 and (_IS_LOG.search(name) or value < 0.1):
            low, high = value / 100, value * 100
            found[key] = f"{low:.1g}..{min(high, 1.0) if value < 1 else high:.1g}:log"
        elif value > 0:
            found[key] = f"{value / 4:.2g}..{4 * value:.2g}"
    return found


def left_out(run_config: Mapping[str, Any]) -> dict[str, str]:
    """Return lists for the texts and bools of a run config, to be completed.

    A text's other values are not known, and a bool need not be a setting.
    """
    return {
        key: "true,false" if isinstance(value, bool) else f"{value},OTHER"
        for key, value in run_config.items()
        if isinstance(value, bool | str)
    }
