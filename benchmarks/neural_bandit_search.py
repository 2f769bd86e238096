"""The search for constants that the paper of Fed-GO-UCB leaves out.

    python -m benchmarks.neural_bandit_search fed-go-ucb/fig2-hartmann --results FILE

Every method has the same budget: 12 settings, the code's defaults and eleven that are
drawn log-uniformly from the ranges below, each on 2 seeds from 1000 on, of which no
figure has any; the lowest mean regret after T = 100 rounds is the best. One-GO-UCB,
N-GO-UCB and the control without phase I have the constants of Fed-GO-UCB. The best
constants are written into the experiment's file, before its claims. A search that was
ended goes on where it was.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config

from flwr_fbo._common.text import humanised
from flwr_fbo.lab.baselines.glm_ucb import GLMUCBSettings
from flwr_fbo.lab.baselines.kernel_ucb import KernelUCBSettings
from flwr_fbo.lab.experiment_runner.config import experiment_of, load_experiment
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.nonlinear_bandit_experiment import (
    Constants,
    LinearConstants,
    NonlinearBanditExperiment,
)
from flwr_fbo.lab.tasks.nonlinear_bandit import ClusterBanditTask, FunctionBanditTask

Line = dict[str, Any]

HEADING = "# Constants of benchmarks/neural_bandit_search.py, of seeds 1000 and 1001."
NUM_SETTINGS, NUM_SEEDS, FIRST_SEED = 12, 2, 1000

# Of each method: table.field of an experiment's file, and the ends of its range. Where
# both are whole numbers the values are.
RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "fed-go-ucb": {
        "settings.ridge": (1e-6, 1e-1),  # lambda
        "settings.beta": (1e-3, 1e1),
        "settings.regression.step": (1e-2, 1e0),  # tau1
        "settings.regression.inverse_temperature": (1e1, 1e8),  # tau2
        "settings.regression.num_iterations": (100, 500),  # n
        "settings.threshold": (1e-1, 1e2),  # gamma
    },
    "dislinucb": {
        "linear.ridge": (1e-3, 1e1),
        "linear.beta": (1e-3, 1e1),
        "linear.threshold": (1e-1, 1e2),
    },
    "fed-glb-ucb": {
        "glm.ridge": (1e-3, 1e1),
        "glm.beta": (1e-3, 1e1),
        "glm.threshold": (1e-1, 1e2),
        "glm.curvature": (5e-2, 2.5e-1),  # of the logistic link; 1 of the identity
    },
    "approx-dis-kernel-ucb": {
        "kernel.lengthscale": (1e-1, 2e0),  # times the root of D / 6
        "kernel.ridge": (1e-4, 1e-1),
        "kernel.beta": (1e-4, 1e0),  # its variance is at most 1 / ridge
        "kernel.threshold": (1e0, 1e2),
        "kernel.oversampling": (1e-1, 1e1),
    },
}
_CHOSEN = {"fed-glb-ucb": ("glm.reward_range",)}
_DEFAULTS = {
    "settings": Constants(),
    "linear": LinearConstants(),
    "glm": GLMUCBSettings(),
    "kernel": KernelUCBSettings(),
}
# Between which mean rewards lie: the logistic link of every other setting.
REWARDS = {
    "hartmann": (0.0, 3.4),
    "cosine": (-9.0, 1.0),
    "magic": (0.0, 1.0),
    "shuttle": (0.0, 1.0),
}


def settings_of(method: str, experiment: NonlinearBanditExperiment) -> Iterator[Any]:
    """Yield the settings of a method: what the experiment's fields are to be."""
    fields = [*RANGES[method], *_CHOSEN.get(method, ())]
    yield {name: _default(name) for name in fields}
    rng = np.random.default_rng(sorted(RANGES).index(method))
    task = experiment.task
    for i in range(NUM_SETTINGS - 1):
        values: dict[str, Any] = {}
        for name, (low, high) in RANGES[method].items():
            value = np.exp(rng.uniform(np.log(low), np.log(high)))
            whole = isinstance(low, int) and isinstance(high, int)
            values[name] = round(value) if whole else float(f"{value:.3g}")
        if method == "fed-glb-ucb" and i % 2:
            assert isinstance(task, FunctionBanditTask | ClusterBanditTask)
            name = task.function if isinstance(task, FunctionBanditTask) else task.table
            values["glm.reward_range"] = REWARDS[name]
        elif method == "fed-glb-ucb":
            values["glm.reward_range"], values["glm.curvature"] = None, 1.0
        if method == "approx-dis-kernel-ucb":
            scaled = values["kernel.lengthscale"] * np.sqrt(task.dimension / 6)
            values["kernel.lengthscale"] = float(f"{scaled:.3g}")
        yield values


def _default(name: str) -> Any:
    """Return what a field is in the code."""
    table, *path = name.split(".")
    value: Any = _DEFAULTS[table]
    for key in path:
        value = getattr(value, key)
    return value


def with_values(
    experiment: NonlinearBanditExperiment, values: dict[str, Any], rounds: int
) -> NonlinearBanditExperiment:
    """Return the experiment with other constants, and another number of rounds."""
    tables = {**experiment.to_dict(), "num_iterations": rounds}
    for name, value in values.items():
        *path, key = name.split(".")
        table = tables
        for part in path:
            table = table[part]
        table[key] = value
    changed = experiment_of(tables)
    assert isinstance(changed, NonlinearBanditExperiment)
    return changed


def played(experiment: NonlinearBanditExperiment, line: Line) -> Line:
    """Add to a line what came out; a regression that diverges has infinite regret."""
    rounds = line["experiment"]["num_rounds"]
    changed = with_values(experiment, line["values"], rounds)
    try:
        (run,) = changed.play([line["method"]], line["seed"])
    except FloatingPointError:
        return {**line, "regret": np.inf, "scalars": 0, "seconds": 0.0}
    last = {"regret": run.regret[-1], "scalars": run.num_scalars[-1]}
    return {**line, **last, "seconds": run.seconds}


def key_of(line: Line) -> str:
    """Return what tells one run of a search from all others.

    But for the code, and for constants of the experiment's file that have no range.
    """
    return json.dumps([line[k] for k in ("experiment", "method", "values", "seed")])


def wanted_lines(
    experiment: NonlinearBanditExperiment, methods: list[str], rounds: int
) -> Iterator[Line]:
    """Yield what is to be played."""
    values = experiment.to_dict()
    where = {name: values[name] for name in ("task", "num_agents", "width")}
    where["num_rounds"] = rounds
    for method in methods:
        for values in settings_of(method, experiment):
            for seed in range(FIRST_SEED, FIRST_SEED + NUM_SEEDS):
                run = {"method": method, "values": values, "seed": seed}
                yield {"experiment": where, **run}


def search(
    experiment: NonlinearBanditExperiment, wanted: list[Line], path: Path
) -> list[Line]:
    """Play what is not in the file yet, and return all that was wanted."""
    known = path.read_text().splitlines() if path.exists() else []
    done = {key_of(line): line for line in map(json.loads, known)}
    todo = [line for line in wanted if key_of(line) not in done]
    # Idle workers end soon, or the search would wait for them.
    config = parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10)
    with config, path.open("a") as file:
        workers = Parallel(n_jobs=2, return_as="generator_unordered")
        for line in workers(delayed(played)(experiment, line) for line in todo):
            file.write(json.dumps(line) + "\n")
            file.flush()
            done[key_of(line)] = line
    return [done[key_of(line)] for line in wanted]


def print_table(method: str, lines: list[Line]) -> Line:
    """Print a method's settings in Markdown, the best first, and return the best."""
    settings: dict[str, list[Line]] = {}
    for line in lines:
        settings.setdefault(json.dumps(line["values"]), []).append(line)
    ranked = sorted(
        settings.items(), key=lambda s: np.mean([r["regret"] for r in s[1]])
    )
    names = list(dict.fromkeys(n for text in settings for n in json.loads(text)))
    print(f"\n## {method}\n\n| {' | '.join(names)} | regret | scalars | seconds |")
    print("| --- " * (len(names) + 3) + "|")
    for text, runs in ranked:
        values = json.loads(text)
        cells = [str(values.get(name, "-")) for name in names]
        regret = Estimate.of(np.array([run["regret"] for run in runs]))
        scalars = float(np.mean([run["scalars"] for run in runs]))
        seconds = np.mean([run["seconds"] for run in runs])
        cells += [f"{regret.mean:.1f} ± {regret.standard_error:.1f}"]
        cells += [humanised(scalars), f"{seconds:.1f}"]
        print(f"| {' | '.join(cells)} |")
    best: Line = json.loads(ranked[0][0])
    return best


def write_constants(path: Path, best: Line) -> None:
    """Replace the constants that stand in an experiment's file before its claims."""
    text = path.read_text()
    tables: dict[str, dict[str, Any]] = tomllib.loads(text)
    constants: dict[str, dict[str, Any]] = {
        name: dict(tables[name]) for name in _DEFAULTS if name in tables
    }
    for name, value in best.items():
        first, *path_in_table, key = name.split(".")
        table = constants.setdefault(first, {})
        for part in path_in_table:
            table = table.setdefault(part, {})
        table[key] = value
        if value is None:  # TOML says so by leaving it out
            del table[key]
    before = text[: text.index("\n[task]")]
    task = text[len(before) :].split("\n\n")[0]
    claims = text[text.index("\n[[claims]]") :]
    path.write_text(f"{before}{task}\n\n{HEADING}\n{_toml(constants)}{claims}")


def _toml(tables: dict[str, Any], above: str = "") -> str:
    """Return tables of numbers, words and lists of numbers as TOML."""
    blocks = []
    for name, table in tables.items():
        plain = {k: v for k, v in table.items() if not isinstance(v, dict)}
        inner = {k: v for k, v in table.items() if isinstance(v, dict)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
        blocks.append("\n".join([f"[{above}{name}]", *lines, ""]))
        blocks += [_toml(inner, f"{above}{name}.")] if inner else []
    return "\n".join(blocks)


def main() -> None:
    """Search, and print a table a method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", help="of experiments/, without .toml")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines")
    parser.add_argument("--methods", nargs="+", choices=RANGES, default=list(RANGES))
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    folder = Path(__file__).parents[1] / "experiments"
    path = folder / f"{options.experiment}.toml"
    experiment = load_experiment(path)
    assert isinstance(experiment, NonlinearBanditExperiment)
    experiment.check()
    wanted = list(wanted_lines(experiment, options.methods, options.rounds))
    lines = search(experiment, wanted, options.results)
    best: Line = {}
    for method in options.methods:
        own = [line for line in lines if line["method"] == method]
        best |= print_table(method, own)
    write_constants(path, best)


if __name__ == "__main__":
    main()
