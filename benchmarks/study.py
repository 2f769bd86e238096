"""Where the time of a study goes: agents, server, transport; beside FedAvg.

30 agents of the default preset, 60 rounds, journals and the server's record on disk,
real noise. The objective is one line, so what is measured is all that comes with it.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from joblib import Parallel, delayed, parallel_config
from optuna.distributions import FloatDistribution

from benchmarks.measure import Bar, Row, Section, alternate, compare
from flwr_fbo import FedVote, Host, InProcessGrid, Privacy, Seeds, tuning_app
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._compat import to_array_record
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.tuning import DPFTSDESettings
from flwr_fbo.tuning.fed_vote.vote_schedule import GUIDING
from flwr_fbo.tuning.search import own_search as search
from flwr_fbo.tuning.search.agent import Agent, play_round
from flwr_fbo.tuning.search.study import TuningStudy, create_agent
from flwr_fbo.tuning.site.tuning_site import TuningSite

NUM_AGENTS, NUM_ROUNDS = 30, 60
N_OF_FEDAVG, ROUNDS_OF_FEDAVG, MOST_OVERHEAD = 50, 60, 1.05
MOST_OF_AN_ITERATION = 6e-3
SPACE = {name: FloatDistribution(0.0, 1.0) for name in "xy"}


def measure(quick: bool) -> list[Section]:
    """Return the sections."""
    return [
        parts(1 if quick else 3),
        iterations(*((2, 20) if quick else (16, 60))),
        beside_fedavg(3 if quick else 15),
    ]


class Clock:
    """Adds up the CPU time of functions, that of functions within them taken off."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, its own time added to that of ``part``."""

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._within.append(0.0)
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                passed = time.process_time() - began
                self.seconds[part] += passed - self._within.pop()
                self._within[-1] += passed

        return timed

    def read(self) -> dict[str, float]:
        """Return the seconds since the last reading."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds


def objective(params: dict[str, float]) -> float:
    """Return a smooth function of two variables."""
    x, y = params["x"], params["y"]
    return float(0.7 + 0.1 * np.sin(6.0 * x) * np.cos(4.0 * y))


def play(
    num_agents: int = NUM_AGENTS, num_rounds: int = NUM_ROUNDS
) -> dict[str, float]:
    """Run one study in the in-process grid; return the seconds of its parts."""
    clock = Clock()

    def make_objective(_: Context) -> Any:
        return clock.timed("objective", objective)

    def strategy_part(name: str) -> Any:
        return patch.object(
            FedVote, name, clock.timed("server", getattr(FedVote, name))
        )

    answer = clock.timed("agent", TuningSite.answer)
    with ExitStack() as stack:
        stack.enter_context(patch.object(TuningSite, "answer", answer))
        stack.enter_context(strategy_part("aggregate_train"))
        stack.enter_context(strategy_part("configure_train"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        strategy = FedVote(
            SPACE,
            "maximize",
            num_agents,
            epsilon=2,
            delta=1e-3,
        )
        grid = InProcessGrid(
            tuning_app(make_objective),
            num_agents,
            run_config={"fbo-folder": str(folder / "clients")},
        )
        start = clock.timed("transport", strategy.start)
        start(grid, num_rounds=num_rounds, folder=folder / "record")
    return clock.read()


def parts(repeats: int) -> Section:
    """Return a study's parts, and two studies in worker processes."""
    play(num_rounds=3)  # warms up
    readings = [play() for _ in range(repeats)]
    seconds = {
        name: np.array([reading[name] for reading in readings]) for name in readings[0]
    }
    seconds["whole"] = np.sum(list(seconds.values()), axis=0)
    names = ("agent", "server", "transport", "objective")
    what = f"{NUM_AGENTS} agents x {NUM_ROUNDS} rounds, in-process grid"
    rows = [compare(what, seconds, "whole", name) for name in names]
    with parallel_config("loky", inner_max_num_threads=1):
        works = {
            f"{jobs} process{'es' if jobs > 1 else ''}": partial(_two, jobs)
            for jobs in (1, 2)
        }
        wall = alternate(works, max(1, repeats // 2), time.perf_counter)
    rows.append(compare("two such studies, passed time", wall, *works))
    text = (
        "CPU time. *Agent*: a client's answer but for its objective; *server*: what "
        "the strategy does; *transport*: all else, Flower's records, messages and "
        "loop, and enrolment. Worker processes run a whole study each, as `flwr-fbo "
        "run --jobs` does: no grid divides one study's agents among processes."
    )
    return Section("A whole study", text, rows)


def _two(jobs: int) -> None:
    Parallel(n_jobs=jobs)(delayed(_play_quietly)() for _ in range(2))


def _play_quietly() -> None:
    logging.disable(logging.WARNING)  # a worker does not know that it is disabled
    play()


def iterations(num_agents: int, num_iterations: int) -> Section:
    """Return the parts of an agent's iteration, with the published settings."""
    clock, rng = Clock(), np.random.default_rng(0)
    settings = DPFTSDESettings()
    space = SearchSpace(SPACE)
    study = TuningStudy(space, "maximize", settings, study_seed=1, feature_seed=2)
    shape = (settings.num_sub_regions, settings.num_features)
    timed_objective = clock.timed("objective", objective)
    names = {
        "fit_hyperparameters": "hyperparameter fit",
        "sample_function": "sample of the own GP",
        "maximize": "acquisition",
    }
    readings = []
    with ExitStack() as stack:
        for name, part in names.items():
            timed = clock.timed(part, getattr(search, name))
            stack.enter_context(patch.object(search, name, timed))
        for slot in range(num_agents):
            agent = create_agent(study, slot, 1)
            for iteration in range(num_iterations + 1):
                # What a server releases is mostly noise: this is as hard to maximise.
                vectors = rng.standard_normal(shape) if iteration else None
                _timed_round(clock, agent, timed_objective, iteration, vectors)
                reading = clock.read()
                if iteration > 0:
                    readings.append(reading)
    parts = ("message", *names.values(), "the rest")
    seconds = {
        part: np.array([reading.get(part, 0.0) for reading in readings])
        for part in parts
    }
    whole = {"whole": np.sum(list(seconds.values()), axis=0)}
    median = float(np.median(whole["whole"]))
    rows = []
    for part in parts:
        ran = seconds[part] > 0
        share = float(np.sum(seconds[part]) / np.sum(whole["whole"]))
        both = {part: seconds[part][ran], "whole": whole["whole"][ran]}
        quality = f"runs in {np.mean(ran):.0%}, {share:.0%} of all time"
        rows.append(compare("iteration", both, part, "whole", quality=quality))
    bar = Bar.at_most(median * 1e3, MOST_OF_AN_ITERATION * 1e3, " ms")
    rows.append(compare("iteration", whole, "whole", "whole", bar=lambda _: bar))
    text = (
        f"CPU time of an agent's iteration without its objective: {num_agents} agents, "
        f"{num_iterations} iterations after {settings.num_initial} initial points, D = "
        "2. Of each part: over the iterations it runs in. The bar: the median."
    )
    return Section("An agent's iteration", text, rows)


def _timed_round(
    clock: Clock,
    agent: Agent,
    timed_objective: Any,
    iteration: int,
    vectors: FloatArray | None,
) -> None:
    message = clock.timed("message", agent.message)
    with patch.object(agent, "message", message):
        timed = clock.timed("the rest", play_round)
        timed(agent, timed_objective, iteration, vectors, True)


def beside_fedavg(repeats: int) -> Section:
    """Return rounds of ours and of FedAvg, with clients that only echo."""
    rows = [
        _beside_fedavg(f"N = {N_OF_FEDAVG}, {what}", repeats, releases)
        for what, releases in (
            ("two releases in the study, the default", GUIDING),
            ("a release every round", range(1, ROUNDS_OF_FEDAVG + 1)),
        )
    ]
    text = (
        f"CPU time of a round, mean of {ROUNDS_OF_FEDAVG}, in the in-process grid. The "
        "clients answer at once with an array of the length that is asked for, 512 "
        "numbers, so that all that is timed is Flower, its records and the strategies. "
        "FedAvg gets as many in every round. The noise is seeded: what secure noise "
        "costs is in the table of the server."
    )
    return Section("Beside FedAvg", text, rows)


def _beside_fedavg(what: str, repeats: int, releases: Collection[int]) -> Row:
    works: dict[str, Callable[[], object]] = {
        "FedVote": lambda: _study_of_echoes(releases),
        "FedAvg": _fedavg_of_echoes,
    }
    seconds = alternate(works, repeats)
    per_round = {name: v / ROUNDS_OF_FEDAVG for name, v in seconds.items()}
    return compare(
        what, per_round, *works, bar=lambda row: Bar.at_most(row.ratio, MOST_OVERHEAD)
    )


def echo(message: Message, context: Context) -> Message:
    """Answer anybody's instruction without any work."""
    config = message.content.config_records["config"]
    metrics = {"num-examples": 1, "agent-id": int(context.node_config["partition-id"])}
    wanted = config.get("fbo-send-message", "fbo-protocol" not in config)
    arrays = to_array_record([ECHO] if wanted else [])
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(dict(metrics))})
    return Message(content, reply_to=message)


ECHO = np.full(512, 1e-3)


def _grid() -> InProcessGrid:
    app = ClientApp()
    app.train()(echo)
    return InProcessGrid(app, N_OF_FEDAVG)


def _study_of_echoes(releases: Collection[int]) -> None:
    strategy = FedVote(
        SPACE,
        "maximize",
        N_OF_FEDAVG,
        privacy=Privacy(noise_multiplier=1.0, release_after=releases),
        delta=1e-3,
        seeds=Seeds(noise=1),
    )
    host = Host(client_api="message")
    strategy.start(_grid(), num_rounds=ROUNDS_OF_FEDAVG, host=host)


def _fedavg_of_echoes() -> None:
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=N_OF_FEDAVG,
        min_available_nodes=N_OF_FEDAVG,
    )
    arrays = ArrayRecord([ECHO])
    strategy.start(_grid(), arrays, num_rounds=ROUNDS_OF_FEDAVG)
