"""How long the command, the package, and a client's process take to start, warm."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from optuna.distributions import FloatDistribution

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo.lab.datasets.digits import partition
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.codec import Phase
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.search.study import TuningInstruction, TuningStudy

LIMITS = {"flwr-fbo --help": 0.7, "import flwr_fbo": 0.3}
HEAVY = ("flwr", "ray", "torch", "matplotlib", "optuna")
ROOT = Path(__file__).parents[1]
APP = ROOT / "examples" / "deployment" / "app"
# Seconds that importing a client may take beyond Flower and what it imports itself; and
# the CPU time of a message over that of an app that only echoes.
MOST_TO_IMPORT, MOST_OF_A_MESSAGE = 0.3, 1.25
_OWN = "import flwr.clientapp, sklearn.datasets, sklearn.model_selection, sklearn.svm"


def measure(quick: bool) -> list[Section]:
    """Return the sections."""
    repeats = 3 if quick else 11
    return [_start(repeats), _client(repeats)]


def _start(repeats: int) -> Section:
    works: dict[str, Callable[[], object]] = {
        "flwr-fbo --help": partial(_run, str(_command()), "--help"),
        "flwr-fbo privacy --help": partial(_run, str(_command()), "privacy", "--help"),
        "import flwr_fbo": partial(_run, sys.executable, "-c", "import flwr_fbo"),
        "import flwr": partial(_run, sys.executable, "-c", "import flwr.serverapp"),
        "Python alone": partial(_run, sys.executable, "-c", "pass"),
    }
    seconds = alternate(works, repeats, _children)
    rows = []
    for name, limit in LIMITS.items():

        def bar(row: Row, limit: float = limit) -> Bar:
            return Bar.at_most(row.seconds[0], limit, " s")

        loaded = _loaded(name)
        quality = f"loads {', '.join(loaded)}" if loaded else "loads nothing heavy"
        rows.append(
            compare("start", seconds, name, "Python alone", quality=quality, bar=bar)
        )
    for name in ("flwr-fbo privacy --help", "import flwr"):
        rows.append(compare("start", seconds, name, "Python alone"))
    text = (
        "CPU time of a whole process, its files in the cache. Quality: which of "
        f"{', '.join(HEAVY)} it imports. The bar is for A, not for the ratio."
    )
    return Section("Start", text, rows)


def _client(repeats: int) -> Section:
    """Measure the processes that a deployment begins, one for each message."""
    with TemporaryDirectory() as folder:
        site = Path(folder) / "site.npz"
        np.savez(site, allow_pickle=False, **vars(partition(0, 3, 0)))
        messages: dict[str, Phase] = {"enrolment": "enrol", "round": "round"}
        works: dict[str, Callable[[], object]] = {
            "the libraries alone": partial(_run, sys.executable, "-c", _OWN),
            "digits.client_app": partial(_import, "digits.client_app"),
        }
        for name, phase in messages.items():
            works[f"{name}, echoed"] = partial(_echoed, phase, site)
            works[f"{name}, flwr_fbo"] = partial(_answered, phase, site)
        seconds = alternate(works, repeats, _children)

    def more(row: Row) -> Bar:
        return Bar.at_most(row.seconds[0] - row.seconds[1], MOST_TO_IMPORT, " s more")

    def ratio(row: Row) -> Bar:
        return Bar.at_most(row.ratio, MOST_OF_A_MESSAGE)

    pair = "digits.client_app", "the libraries alone"
    rows = [compare("import a client", seconds, *pair, bar=more)]
    for name in messages:
        pair = f"{name}, flwr_fbo", f"{name}, echoed"
        rows.append(compare(f"a message: {name}", seconds, *pair, bar=ratio))
    text = (
        "CPU time of a whole process, its files in the cache. Importing: the client of "
        "`examples/digits`, against Flower and scikit-learn. A message: what "
        "`flwr-clientapp` does with one of the client of `examples/deployment`, but "
        "for the network, against an app that imports the same libraries, evaluates "
        "as many settings (none at the enrolment, one in the round) and echoes."
    )
    return Section("A client's process", text, rows)


def instruction(phase: Phase) -> Mapping[str, Any]:
    """Return what the server of a new study of the deployment example asks for."""
    space = SearchSpace(
        {
            "C": FloatDistribution(1e-3, 1e3, log=True),
            "gamma": FloatDistribution(1e-6, 1e1, log=True),
        }
    )
    study = TuningStudy(space, "maximize", FedVoteSettings())
    slot, iteration = (-1, 0) if phase == "enrol" else (0, 1)
    return TuningInstruction(phase, study, slot, iteration=iteration).to_config()


def asked(config: Mapping[str, Any], site: Path) -> dict[str, Any]:
    """Return what is asked of a site with its data in a file, its journal beside it."""
    node = {"data": str(site), "fbo-folder": str(site.parent)}
    return {"config": {**config}, "node_config": node}


def answer(module: str, messages: list[dict[str, Any]], folder: Path) -> set[str]:
    """Have a process of a client answer; return what it loads beyond Flower.

    Parameters
    ----------
    module : str
        With ``app``, in the folder or in ours.
    messages : list of dict
        Of `asked`.
    folder : Path
    """
    path = os.pathsep.join(map(str, (ROOT, folder)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.client_process", module],
        env={**os.environ, "PYTHONPATH": path},
        input=json.dumps(messages),
        check=True,
        capture_output=True,
        text=True,
    )
    return set(done.stdout.split())


def _echoed(phase: Phase, site: Path) -> None:
    evaluates = {"evaluates": phase == "round"}
    answer("benchmarks.echo", [asked(evaluates, site)], APP)


def _answered(phase: Phase, site: Path) -> None:
    # Of a new study: a message that was answered would only be sent again.
    answer("hospitals.client_app", [asked(instruction(phase), site)], APP)


def _import(module: str) -> None:
    code = f"import flwr.clientapp, {module}"
    _run(sys.executable, "-c", code, cwd=ROOT / "examples" / module.split(".")[0])


def _command() -> Path:
    return Path(sys.executable).with_name("flwr-fbo")


def _run(*command: str, cwd: Path = ROOT) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=cwd)


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
