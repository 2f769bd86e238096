"""How long the command and the package take to start, warm."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import Bar, Row, Section, alternate, compare

LIMITS = {"flwr-fbo --help": 0.7, "import flwr_fbo": 0.3}
HEAVY = ("flwr", "ray", "torch", "matplotlib", "optuna")


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    works: dict[str, Callable[[], object]] = {
        "flwr-fbo --help": partial(_run, str(_command()), "--help"),
        "import flwr_fbo": partial(_run, sys.executable, "-c", "import flwr_fbo"),
        "import flwr": partial(_run, sys.executable, "-c", "import flwr.serverapp"),
        "Python alone": partial(_run, sys.executable, "-c", "pass"),
    }
    seconds = alternate(works, 3 if quick else 11, _children)
    rows = []
    for name, limit in LIMITS.items():

        def bar(row: Row, limit: float = limit) -> Bar:
            return Bar.at_most(row.seconds[0], limit, " s")

        loaded = _loaded(name)
        quality = f"loads {', '.join(loaded)}" if loaded else "loads nothing heavy"
        rows.append(
            compare("start", seconds, name, "Python alone", quality=quality, bar=bar)
        )
    rows.append(compare("start", seconds, "import flwr", "Python alone"))
    text = (
        "CPU time of a whole process, its files in the cache. Quality: which of "
        f"{', '.join(HEAVY)} it imports. The bar is for A, not for the ratio."
    )
    return [Section("Start", text, rows)]


def _command() -> Path:
    return Path(sys.executable).with_name("flwr-fbo")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _loaded(name: str) -> list[str]:
    statement = name if name.startswith("import") else "import flwr_fbo.cli"
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    modules = set(done.stdout.split())
    return [module for module in HEAVY if module in modules]
