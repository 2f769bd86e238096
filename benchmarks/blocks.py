"""Agents of one process without Flower, computed as blocks: growth with their number.

    python -m benchmarks.blocks N [--rounds R]

plays one study of N agents in a process of its own and prints what it took. Agents
search by expected improvement after one initial point; the objective is one line, and
each iteration has a release.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.measure import Bar, Row, Section, compare
from benchmarks.scale import peak_memory
from benchmarks.study import SPACE, objective
from flwr_fbo import FedVote, Privacy
from flwr_fbo.lab.simulation.loop import run_loop
from flwr_fbo.study.server import Step
from flwr_fbo.tuning import FedVoteSettings
from flwr_fbo.tuning.search.study import create_agent

NUM_AGENTS = (10, 100, 1000, 10_000, 100_000)
STUDY = (1000, 60)
MOST_OF_AN_ITERATION, MOST_GROWTH = 2e-3, 1.05
LONGEST_ROUND, LARGEST_MEMORY = 240.0, 2e9
_MB = 1e6


@dataclass(frozen=True)
class Reading:
    """What a study took.

    Attributes
    ----------
    num_agents, num_iterations : int
        N, and the iterations played, that of the initial points included.
    cpu, wall : float
        Seconds of all iterations.
    peak : int
        Bytes: the process's largest memory.
    sent : int
        Bytes of the agents' messages, and of the vectors that they received.
    """

    num_agents: int
    num_iterations: int
    cpu: float
    wall: float
    peak: int
    sent: int

    @property
    def each(self) -> float:
        """CPU seconds of an agent's iteration."""
        return self.cpu / (self.num_agents * self.num_iterations)


def play(num_agents: int, num_rounds: int) -> Reading:
    """Play one study in this process."""
    agent = FedVoteSettings()
    privacy = Privacy(noise_multiplier=1.0, min_follow_probability=0.0)
    strategy = FedVote(
        SPACE, "maximize", num_agents, agent=agent, privacy=privacy, delta=1e-6
    )
    strategy.plan(num_rounds)
    agents = [create_agent(strategy.study, slot, 1) for slot in range(num_agents)]
    server, sent = strategy.server, 0
    receive = server.receive

    def counted(step: Step, messages: Mapping[int, Any]) -> None:
        nonlocal sent
        known = server.vectors
        sent += sum(m.nbytes for m in messages.values() if m is not None)
        sent += 0 if known is None else num_agents * known.nbytes
        receive(step, messages)

    server.receive = counted  # type: ignore[method-assign]
    began, passed = time.process_time(), time.perf_counter()
    run_loop(server, agents, [objective] * num_agents, num_rounds)
    cpu, wall = time.process_time() - began, time.perf_counter() - passed
    return Reading(num_agents, num_rounds + 1, cpu, wall, peak_memory(), sent)


def read(num_agents: int, num_rounds: int) -> Reading:
    """Play one study in a new process, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.blocks", str(num_agents)]
    command += ["--rounds", str(num_rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Reading(**json.loads(done.stdout))


def measure(quick: bool) -> list[Section]:
    """Return the section."""
    readings = [read(number, 1) for number in (NUM_AGENTS[:3] if quick else NUM_AGENTS)]
    study = read(*((20, 5) if quick else STUDY))
    text = (
        "Agents in one process, without Flower, each alone in its own history; those "
        "with equally many trials are computed as a block. A round: the initial point, "
        "a message and a release, then a point by expected improvement. *Growth*: the "
        "exponent of N fitted to all sizes, of CPU time, of the memory of the process, "
        "and of bytes sent."
    )
    return [
        Section("Many agents in a process", text, [*_growth(readings), _study(study)])
    ]


def _growth(readings: list[Reading]) -> list[Row]:
    """Return how time, memory and messages grow, and the largest study."""
    few, *_, fewer, many = readings
    logs = np.log([one.num_agents for one in readings])
    quantities: dict[str, list[float]] = {
        "time": [one.cpu for one in readings],
        "memory": [one.peak for one in readings],
        "messages": [one.sent for one in readings],
    }
    names = [f"N = {one.num_agents:,}" for one in (many, few)]
    ends = dict(zip(names, (np.array([many.cpu]), np.array([few.cpu])), strict=True))
    rows = []
    for what, values in quantities.items():
        exponent = float(np.polyfit(logs, np.log(np.array(values)), 1)[0])
        bar = Bar.at_most(exponent, MOST_GROWTH)
        quality = f"exponent {exponent:.2f}"
        row = compare(f"growth of {what}", ends, *names, quality=quality)
        rows.append(replace(row, bar=bar))
    used = max(many.wall / LONGEST_ROUND, many.peak / LARGEST_MEMORY)
    limit = f"at most {LONGEST_ROUND:g} s and {LARGEST_MEMORY / _MB:g} MB"
    more = (many.peak - fewer.peak) / (many.num_agents - fewer.num_agents)
    quality = f"memory {many.peak / _MB:.0f} MB, {more / 1e3:.0f} kB for one agent more"
    largest = _beside_cpu(f"a round, {names[0]}", many, quality)
    return [*rows, replace(largest, bar=Bar(limit, used <= 1, used))]


def _beside_cpu(what: str, reading: Reading, quality: str) -> Row:
    seconds = {"passed": np.array([reading.wall]), "CPU": np.array([reading.cpu])}
    return compare(what, seconds, "passed", "CPU", quality=quality)


def _study(study: Reading) -> Row:
    what = f"{study.num_agents:,} agents x {study.num_iterations - 1} rounds"
    each = 1e3 * study.each
    quality = f"{each:.2f} ms of CPU an agent-iteration"
    bar = Bar.at_most(each, 1e3 * MOST_OF_AN_ITERATION, " ms of CPU each")
    return replace(_beside_cpu(what, study, quality), bar=bar)


def main() -> None:
    """Play one study, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("num_agents", type=int, metavar="N")
    parser.add_argument("--rounds", type=int, default=1, metavar="R")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(json.dumps(asdict(play(options.num_agents, options.rounds))))


if __name__ == "__main__":
    main()
