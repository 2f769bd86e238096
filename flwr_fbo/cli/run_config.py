"""Values of a run config: as an option of ``flwr run``, and in a pyproject.toml."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr_fbo._common.text import write_whole

_TABLE = ("tool", "flwr", "app", "config")
_HEADER = re.compile(r"\s*\[\s*(?P<name>[^\[\]]+?)\s*\]\s*(#.*)?")
_ENTRY = re.compile(
    r"(?P<before>\s*(?P<key>[^=#\[\]]+?)\s*=\s*)(?P<rest>.*)", re.DOTALL
)


def toml_value(value: Any) -> str:
    """Return a value as TOML has it.

    Examples
    --------
    >>> toml_value(True), toml_value(0.1), toml_value("a b")
    ('true', '0.1', '"a b"')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        text = repr(value)  # TOML wants a digit on both sides of a point
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    return json.dumps(value, ensure_ascii=False)


def short_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with four significant digits, as a run config may have them.

    Numbers just below 1 stay exact: of a momentum it matters what is missing to 1.
    """
    return {
        key: float(f"{value:.4g}")
        if isinstance(value, float) and not 0.9 < value < 1
        else value
        for key, value in values.items()
    }


def run_config_option(values: Mapping[str, Any]) -> str:
    """Return the option of ``flwr run`` that sets values, for a shell.

    Examples
    --------
    >>> print(run_config_option({"learning-rate": 0.11, "local-epochs": 7}))
    --run-config "learning-rate=0.11 local-epochs=7"
    """
    text = " ".join(f"{key}={_quoted(value)}" for key, value in values.items())
    is_plain = not {'"', "$", "`", "\\", "!"} & {*text}
    return (
        f"--run-config {f'{chr(34)}{text}{chr(34)}' if is_plain else shlex.quote(text)}"
    )


def _quoted(value: Any) -> str:
    """Return a value as ``flwr run`` reads it: texts in one kind of quotes."""
    if isinstance(value, str) and not {"'", "\\"} & {*value}:
        return f"'{value}'"
    return toml_value(value)


def write_run_config(file: Path, values: Mapping[str, Any]) -> None:
    """Replace values of the run config in a pyproject.toml; the rest stays as it is.

    Raises
    ------
    ValueError
        If a value is not on a line of its own that can be replaced; nothing is written.
    """
    text = file.read_bytes().decode()  # with the ends of lines that it has
    wanted = replaced(text, {f"{'.'.join(_TABLE)}.{k}": v for k, v in values.items()})
    mode = file.stat().st_mode
    write_whole(file, wanted)
    file.chmod(mode)


def replaced(text: str, values: Mapping[str, Any]) -> str:
    """Return a TOML document with other values of some keys, by their whole names.

    Raises
    ------
    ValueError
        If it cannot be done without touching anything else.
    """
    left = dict(values)
    lines, table = list[str](), tuple[str, ...]()
    for line in text.splitlines(keepends=True):
        header, entry = _HEADER.fullmatch(line.rstrip("\r\n")), _ENTRY.fullmatch(line)
        if header is not None:
            table = tuple(_names(header["name"]))
        elif entry is not None:
            name = ".".join((*table, *_names(entry["key"])))
            if name in left:
                line = entry["before"] + _with_value(entry["rest"], left.pop(name))
        lines.append(line)
    new = "".join(lines)
    before, after = flat(tomllib.loads(text)), flat(tomllib.loads(new))
    if left or after != {**before, **values}:
        names = sorted(left) or sorted(values)
        raise ValueError(
            f"{names} cannot be replaced in pyproject.toml: each needs a line of its "
            "own. Nothing was written"
        )
    return new


def _names(key: str) -> Iterator[str]:
    for part in key.split("."):
        yield part.strip().strip("\"'")


def _with_value(rest: str, value: Any) -> str:
    """Return what follows an equals sign with another value; comments stay."""
    for end in range(1, len(rest) + 1):
        after = rest[end:].strip()
        if after and not after.startswith("#"):
            continue
        try:
            tomllib.loads(f"x = {rest[:end]}")
        except tomllib.TOMLDecodeError:
            continue
        is_whole = rest[:end].strip() != ""
        if is_whole:
            return toml_value(value) + rest[len(rest[:end].rstrip()) :]
    return rest  # over several lines: the check of the whole document says so


def flat(values: Any, before: str = "") -> dict[str, Any]:
    """Return the values of nested tables, by their whole names."""
    if not isinstance(values, dict):
        return {before: values}
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{before}.{key}" if before else key)
    return found
