"""Runs of a Flower app on the simulation engine, judged on data that are held out.

    python -m benchmarks.flower_engine APP --seeds 3 [--run-config JSON] [--in-process]

APP is a folder that `benchmarks.flower_examples` has prepared. For each seed it runs
``main``, which trains with the app's defaults, and then the ServerApp, which tunes
first. Each prints a JSON object on a line of its own:

- ``metrics``: what the app's own ``evaluate`` says about its last model, at a client
  that has what is held out (`benchmarks.flower_data`).
- ``chosen``, ``lead``: the settings that `FederationTuner` has chosen, and by how many
  standard deviations the best trial is ahead of the defaults.
- ``seconds``: of the run, without the engine's start.

Both start with the same random states at the server. Clients are not seeded. No client
keeps its state from one run to the next.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import random
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flwr_fbo import FederationTuner, InProcessGrid, Seeds
from flwr_fbo.tuner.federation_result import FederationResult

_RUN = "benchmarks.run"


class ConfiguredApp(ClientApp):
    """A module's ClientApp with a run config, which `run_simulation` cannot give it.

    It forgets its clients' states when another run begins.

    Parameters
    ----------
    module, name : str
        Where it is.
    config : dict
    """

    def __init__(self, module: str, name: str, config: UserConfig) -> None:
        super().__init__()
        self._where = module, name
        self._config = config

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        module, name = self._where
        app: ClientApp = getattr(importlib.import_module(module), name)
        run = message.content.pop(_RUN, ConfigRecord())
        if context.state.get(_RUN) != run:
            context.state.clear()
            context.state[_RUN] = run
        given, context.run_config = context.run_config, dict(self._config)
        try:
            return app(message, context)
        finally:
            context.run_config = given  # the engine checks


def play(
    folder: Path,
    num_seeds: int,
    num_clients: int,
    config: UserConfig,
    is_in_process: bool = False,
) -> None:
    """Print what came of all runs.

    Parameters
    ----------
    folder : Path
        Of the app's ``pyproject.toml``; on the path of this process and its children.
    num_seeds : int
    num_clients : int
    config : dict
        Values in place of those of the app's run config.
    is_in_process : bool
        Whether clients run in this process, without the engine.
    """
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]
    config = {**_flat(settings["config"]), **config}
    parts = settings["components"]
    server_module, _, server_name = parts["serverapp"].partition(":")
    client_module, _, client_name = parts["clientapp"].partition(":")
    client = ConfiguredApp(client_module, client_name, config)
    server = importlib.import_module(server_module)
    tuners = _seed_tuners(server)
    runs = {"before": server.main, "after": getattr(server, server_name)}

    def each_run(grid: Grid, _: Context) -> None:
        send = grid.send_and_receive
        list(grid.get_node_ids())
        for seed in range(num_seeds):
            for version, run in runs.items():
                _seed(seed)
                tuners.seed = seed
                tuners.results.clear()
                evaluated = _watch(grid, send, f"{version} {seed}")
                began = time.perf_counter()
                run(grid, Context(1, 1, {}, RecordDict(), dict(config)))
                row = {
                    "seed": seed,
                    "version": version,
                    "metrics": _judge(client, evaluated[-1], num_clients),
                    "seconds": round(time.perf_counter() - began, 1),
                    **_told(tuners.results),
                }
                print(json.dumps(row), flush=True)

    if is_in_process:
        each_run(
            InProcessGrid(client, num_clients), Context(1, 1, {}, RecordDict(), {})
        )
        return
    from flwr.simulation import run_simulation

    app = ServerApp()
    app.main()(each_run)
    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, client, num_clients, backend_config=backend)


def _flat(config: dict[str, Any]) -> UserConfig:
    """Return a run config as Flower has it: nested keys with dots."""
    found: UserConfig = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": v for inner, v in _flat(value).items()}
        else:
            found[key] = value
    return found


class _Tuners:
    """The seed of the next tuner, and the results of those before."""

    def __init__(self) -> None:
        self.seed = 0
        self.results: list[FederationResult] = []


def _seed_tuners(server: Any) -> _Tuners:
    """Give a module's `FederationTuner` seeds, and note its results."""
    tuners = _Tuners()

    class SeededTuner(FederationTuner):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            seeds = Seeds(study=tuners.seed, noise=tuners.seed)
            if kwargs["privacy"] is None:
                seeds = Seeds(study=tuners.seed)
            if "folder" in kwargs:  # one a tuner
                kwargs["folder"] = Path.cwd() / f"tuner-{tuners.seed}"
            super().__init__(*args, **kwargs, seeds=seeds)

        def start(self, *args: Any, **kwargs: Any) -> FederationResult:
            tuners.results.append(super().start(*args, **kwargs))
            return tuners.results[-1]

    server.FederationTuner = SeededTuner
    return tuners


def _told(results: list[FederationResult]) -> dict[str, Any]:
    if not results:
        return {}
    lead = results[0].over_defaults
    deviations = None if lead is None else round(lead.deviations, 1)
    return {"chosen": results[0].best, "lead": deviations}


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  (what the examples draw from)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)
        torch.set_num_threads(1)


def _watch(
    grid: Grid, send: Callable[..., Iterable[Message]], run: str
) -> list[Message]:
    """Tell the clients which run it is; return a list with the last ``evaluate``.

    Its message has the last model.
    """
    noted: list[Message] = []
    record = ConfigRecord({"run": run})

    def told(messages: Iterable[Message], **options: Any) -> Iterable[Message]:
        asked = list(messages)
        for message in asked:
            message.content = RecordDict({**message.content, _RUN: record})
        if asked and asked[0].metadata.message_type == MessageType.EVALUATE:
            noted[:] = [copy.deepcopy(asked[0])]
        return send(asked, **options)

    setattr(grid, "send_and_receive", told)  # noqa: B010  (a method, for mypy)
    return noted


def _judge(client: ClientApp, message: Message, num_clients: int) -> dict[str, Any]:
    """Return what a client that has the data held out says about a model."""
    node: UserConfig = {"partition-id": num_clients, "num-partitions": num_clients}
    content = client(message, Context(1, 1, node, RecordDict(), {})).content
    # A NumPyClient's metrics are in a ConfigRecord.
    records: list[Any] = [*content.metric_records.values()]
    records += content.config_records.values()
    return {name: value for record in records for name, value in record.items()}


def main() -> None:
    """Print what came of all runs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("app", type=Path, metavar="APP")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--run-config", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--in-process", action="store_true", help="no engine")
    options = parser.parse_args()
    config = options.run_config
    play(options.app, options.seeds, options.clients, config, options.in_process)


if __name__ == "__main__":
    main()
