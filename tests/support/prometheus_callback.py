"""What `tests/integrations/test_prometheus_callback.py` and others share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

LINE = re.compile(r"([a-z_]+)\{([^{}]*)\} (-?[0-9.e+-]+)")


LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


Values = dict[tuple[str, str], float]


def read(folder: Path) -> tuple[Values, Mapping[str, str]]:
    """Return the values by metric and last label, and the labels of all of them."""
    [file] = folder.iterdir()
    assert file.suffix == ".prom"
    values: Values = {}
    common: dict[str, str] = {}
    typed = set()
    for line in file.read_text().splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
        if line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        assert found is not None, line
        assert found[1] in typed
        labels = dict(LABEL.findall(found[2]))
        common = {name: labels.pop(name) for name in ("study", "method")}
        if found[1] == "flwr_fbo_epsilon":  # its terms
            assert labels.keys() >= {"unit", "adjacency", "delta", "trust"}
            labels = {}
        [last] = labels.values() or [""]
        values[found[1], last] = float(found[3])
    return values, common


def states(values: Values) -> list[str]:
    return [of for (name, of), v in values.items() if name == "flwr_fbo_state" and v]
