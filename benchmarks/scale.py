"""A study of up to 10,000 agents on one machine: time, memory and bytes against N.

    python -m benchmarks.scale N [--rounds R] [--workers W] [--folder FOLDER]

runs one study in a process of its own and prints what its rounds took. Clients answer
in worker processes; the objective is one line; the server's record is on disk, and so
are the agents' journals where a folder is given.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message, UserConfig

from benchmarks.measure import Bar, Row, Section, compare, figure
from benchmarks.study import SPACE, objective
from flwr_fbo import FedVote, Host, InProcessGrid, Privacy, tuning_app
from flwr_fbo.tuning import FedVoteSettings

NUM_AGENTS = (100, 1000, 10_000)
NUM_ROUNDS, NUM_WORKERS = 4, 2
LONGEST_ROUND, MOST_MEMORY = 60.0, 1e9
STUDY, LONGEST_STUDY = (1000, 60), 120.0
PARTS = ("wall", "server", "transport", "workers")
_MB = 1e6


@dataclass(frozen=True)
class Reading:
    """What a study took.

    Attributes
    ----------
    num_agents : int
    wall, server, transport, workers : list of float
        Seconds of each round: passed; CPU of the strategy; CPU of all else in the
        server's process; CPU of the workers.
    wire : list of int
        Bytes of the records of each round, there and back.
    peak : int
        Bytes: the server process's largest memory, Python and libraries included.
    """

    num_agents: int
    wall: list[float]
    server: list[float]
    transport: list[float]
    workers: list[float]
    wire: list[int]
    peak: int


class _Meter:
    """Adds up since the study began, and takes a mark as each round begins."""

    def __init__(self) -> None:
        self.server = self.counting = self.pause = 0.0
        self.wire = 0
        self.marks: list[tuple[float, ...]] = []

    def mark(self) -> None:
        """Note wall, server, transport, workers and bytes so far."""
        own = time.process_time() - self.server - self.counting
        passed = time.perf_counter() - self.pause
        self.marks.append((passed, self.server, own, _workers_cpu(), self.wire))

    def count(self, messages: Iterable[Message]) -> None:
        """Add the bytes of the messages' records; the time it takes is left out."""
        began, passed = time.process_time(), time.perf_counter()
        records = (r for m in messages if m.has_content() for r in m.content.values())
        self.wire += sum(record.count_bytes() for record in records)
        self.counting += time.process_time() - began
        self.pause += time.perf_counter() - passed


def _workers_cpu() -> float:
    """Return the CPU seconds of the live workers, as Linux counts them."""
    ticks = 0
    for process in multiprocessing.active_children():
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        ticks += sum(int(field) for field in stat.rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


class _MeteredStrategy(FedVote):
    meter: _Meter

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        self.meter.mark()
        return list(self._timed(super().configure_train, *args, **kwargs))

    def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
        return self._timed(super().aggregate_train, *args, **kwargs)

    def _timed(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            self.meter.server += time.process_time() - began


class _MeteredGrid(InProcessGrid):
    meter: _Meter

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        asked = list(messages)
        self.meter.count(asked)
        return super().push_messages(asked)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(super().pull_messages(message_ids))
        self.meter.count(replies)
        return replies


def make_objective(_: Context) -> Any:
    """Return an objective that costs nothing."""
    return objective


def play(num_agents: int, num_rounds: int, num_workers: int, folder: str) -> Reading:
    """Run one study in this process and its workers.

    Every round has a release, the most that can travel, with secure noise. The first
    round enrols the agents, and each of them evaluates its ten initial points.
    """
    meter = _Meter()
    with tempfile.TemporaryDirectory() as record:
        strategy = _MeteredStrategy(
            SPACE,
            "maximize",
            num_agents,
            agent=FedVoteSettings(),
            privacy=Privacy(noise_multiplier=1.0, min_follow_probability=0.0),
            delta=1e-6,
        )
        config: UserConfig | None = {"fbo-folder": folder} if folder else None
        app = tuning_app(make_objective)
        grid = _MeteredGrid(app, num_agents, run_config=config, num_workers=num_workers)
        strategy.meter = grid.meter = meter
        host, kept = Host(client_api="message"), Path(record) / "record"
        strategy.start(grid, num_rounds=num_rounds, folder=kept, host=host)
    meter.mark()
    wall, server, transport, workers, wire = np.diff(np.array(meter.marks), axis=0).T
    peak = peak_memory()
    return Reading(
        num_agents,
        wall.tolist(),
        server.tolist(),
        transport.tolist(),
        workers.tolist(),
        wire.astype(int).tolist(),
        peak,
    )


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    few, *more = NUM_AGENTS[:2] if quick else NUM_AGENTS
    first = read(few, NUM_ROUNDS)
    rows = []
    for num_agents in more:
        reading = read(num_agents, NUM_ROUNDS)
        rows += [_row(part, reading, first) for part in PARTS]
        first = reading
    num_agents, num_rounds = (100, 10) if quick else STUDY
    rows.append(_study(read(num_agents, num_rounds)))
    text = (
        f"One study in the in-process grid, its clients in {NUM_WORKERS} worker "
        "processes: what a round takes after the first, in passed time and in CPU time "
        "of the strategy (*server*), of all else in its process (*transport*) and of "
        "the *workers*. Every round has a release, with secure noise; agents search by "
        "expected improvement after one initial point. N to the power of the "
        "*exponent* is how it grows. *Memory*: the peak of the server's process; "
        "*sent*: the bytes of records, there and back."
    )
    return [Section("Many agents", text, rows)]


def _study(reading: Reading) -> Row:
    """Return how long a whole study takes, beside the workers' own time."""
    names = ("passed", "CPU of workers, by their number")
    workers = sum(reading.workers) / NUM_WORKERS
    values = zip(names, (sum(reading.wall), workers), strict=True)
    seconds = {name: np.array([value]) for name, value in values}
    what = f"{reading.num_agents:,} agents x {len(reading.wall)} rounds"
    passed = sum(reading.wall)
    bar = Bar.at_most(passed, LONGEST_STUDY, " s")
    return compare(what, seconds, *names, bar=lambda _: bar)


def _row(part: str, many: Reading, few: Reading) -> Row:
    seconds = {
        f"N = {one.num_agents:,}": np.array(getattr(one, part)[1:])
        for one in (many, few)
    }
    # Times of a few hundredths of a second are zero by some clocks.
    seconds = {name: np.maximum(values, 1e-3) for name, values in seconds.items()}
    medians = [float(np.median(values)) for values in seconds.values()]
    growth = math.log(many.num_agents / few.num_agents)
    quality = f"exponent {math.log(medians[0] / medians[1]) / growth:.2f}"
    bar: Callable[[Row], Bar] | None = None
    if part == "wall":
        sent = [float(np.median(one.wire[1:])) for one in (many, few)]
        exponent = math.log(sent[0] / sent[1]) / growth
        quality += (
            f"; memory {many.peak / _MB:.0f} MB and {few.peak / _MB:.0f} MB; "
            f"sent {figure(sent[0] / _MB)} MB, exponent {exponent:.2f}"
        )
        used = max(medians[0] / LONGEST_ROUND, many.peak / MOST_MEMORY)
        text = f"at most {LONGEST_ROUND:g} s, less than {MOST_MEMORY / _MB:g} MB"
        bar = partial(_bar, text, used)
    slower, faster = seconds
    return compare(
        f"a round, {part}", seconds, slower, faster, quality=quality, bar=bar
    )


def _bar(text: str, used: float, row: Row) -> Bar:
    """Return a bar that is about other numbers than the row's."""
    return Bar(text, used <= 1, used)


def peak_memory() -> int:
    """Return the bytes of the largest memory that this program has had.

    ``ru_maxrss`` may be that of the process which started it.
    """
    status = Path("/proc/self/status").read_text()
    [line] = [row for row in status.splitlines() if row.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


def read(num_agents: int, num_rounds: int, folder: str = "") -> Reading:
    """Run one study in a new process, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.scale", str(num_agents), "--json"]
    command += ["--rounds", str(num_rounds), "--folder", folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Reading(**json.loads(done.stdout))


def main() -> None:
    """Run one study, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("num_agents", type=int, metavar="N")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS, metavar="R")
    parser.add_argument("--workers", type=int, default=NUM_WORKERS, metavar="W")
    parser.add_argument("--folder", default="", help="of the agents' journals")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    reading = play(options.num_agents, options.rounds, options.workers, options.folder)
    print(json.dumps(asdict(reading)) if options.json else _text(reading))


def _text(reading: Reading) -> str:
    """Return a line a round."""
    lines = [f"{reading.num_agents:,} agents, peak {reading.peak / _MB:.0f} MB"]
    lines.append(" ".join(f"{part:>10}" for part in ("round", *PARTS, "MB sent")))
    for i, wire in enumerate(reading.wire):
        seconds = [f"{getattr(reading, part)[i]:10.2f}" for part in PARTS]
        lines.append(" ".join([f"{i + 1:10}", *seconds, f"{wire / _MB:10.2f}"]))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
