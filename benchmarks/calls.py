"""How many function calls the package makes in one round of a study.

    python -m benchmarks.calls [--json]

Three rounds of short seeded studies are traced, each with three agents on an in-process
grid: from the entry of the strategy's ``configure_train`` to the return of its
``aggregate_train``, so with the agents' work. Each study is played once before, which
fills all caches. Counts are of this process, and the same each time.

*Calls* are entries of functions that are defined in ``flwr_fbo/``. A generator counts
once, however often it is resumed; comprehensions and generator expressions do not
count, nor do methods that ``dataclass`` generates. Not counted either: Flower, the
libraries, the objective and the environment.

*Jumps* are the calls which the package makes from another of its files: the file of the
nearest caller in ``flwr_fbo/`` is not the function's own.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from flwr.app import Context
from optuna.distributions import FloatDistribution

import flwr_fbo
from flwr_fbo import (
    ContinualSettings,
    FedUCB,
    FedVote,
    InProcessGrid,
    Limits,
    LinearUCBSettings,
    Privacy,
    Seeds,
    linear_bandit_app,
    tuning_app,
)
from flwr_fbo._arrays import FloatArray

NUM_AGENTS = 3
_PACKAGE = str(Path(flwr_fbo.__file__).parent) + "/"
_VOTING_ROUND, _LINEAR_ROUND = 6, 3


@dataclass
class Count:
    """What one round takes.

    Attributes
    ----------
    calls : int
        Of functions in the package.
    jumps : int
        Those from another file of the package.
    """

    calls: int = 0
    jumps: int = 0


class _Tracer:
    """Counts calls between `begin` and `end`."""

    def __init__(self) -> None:
        self.count = Count()
        self._generators: set[FrameType] = set()

    def begin(self) -> None:
        gc.disable()  # a finaliser would run where it happens to
        sys.setprofile(self._see)

    def end(self) -> None:
        sys.setprofile(None)
        gc.enable()
        self._generators.clear()

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        if code.co_name.startswith("<") and code.co_name != "<lambda>":
            return
        if code.co_flags & inspect.CO_GENERATOR:
            if frame in self._generators:
                return
            self._generators.add(frame)
        self.count.calls += 1
        self.count.jumps += _caller(frame) not in (None, code.co_filename)


def _caller(frame: FrameType) -> str | None:
    """Return the file of the nearest caller in the package."""
    above = frame.f_back
    while above is not None:
        if above.f_code.co_filename.startswith(_PACKAGE):
            return above.f_code.co_filename
        above = above.f_back
    return None


def count_round(strategy: Any, grid: InProcessGrid, num_rounds: int, nth: int) -> Count:
    """Play a study; return what its round ``nth`` took."""
    tracer = _Tracer()
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    def configure_train(server_round: int, *args: Any) -> Any:
        if server_round == nth:
            tracer.begin()
        return configure(server_round, *args)

    def aggregate_train(server_round: int, *args: Any) -> Any:
        try:
            return aggregate(server_round, *args)
        finally:
            if server_round == nth:
                tracer.end()

    strategy.configure_train = configure_train
    strategy.aggregate_train = aggregate_train
    strategy.start(grid, num_rounds=num_rounds)
    return tracer.count


# Tuning


def _make_objective(context: Context) -> Callable[[Mapping[str, Any]], float]:
    return lambda trial: -float((trial["x"] - 0.3) ** 2 + (trial["y"] - 0.6) ** 2)


def _fed_vote(last_release: int) -> FedVote:
    return FedVote(
        space={"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)},
        direction="maximize",
        num_agents=NUM_AGENTS,
        epsilon=8.0,
        delta=1e-3,
        privacy=Privacy(release_after=(1, last_release)),
        seeds=Seeds(study=11, features=12, noise=13),
    )


def _voting_round(releases: bool) -> Count:
    last_release = _VOTING_ROUND - 1 if releases else _VOTING_ROUND
    grid = InProcessGrid(tuning_app(_make_objective), NUM_AGENTS)
    return count_round(
        _fed_vote(last_release), grid, _VOTING_ROUND + 2, nth=_VOTING_ROUND
    )


# Linear bandits


class _Environment:
    """Two actions in the plane; the first is better."""

    def contexts(self, t: int) -> FloatArray:
        return np.eye(2)

    def reward(self, x: FloatArray) -> float:
        return float(0.8 * x[0] + 0.2 * x[1])


def _fed_ucb() -> FedUCB:
    releases = ContinualSettings(
        num_releases=_LINEAR_ROUND + 1, dimension=2, epsilon=8.0, delta=1e-3
    )
    return FedUCB(
        LinearUCBSettings(releases),
        NUM_AGENTS,
        schedule=range(1, _LINEAR_ROUND + 2),
        noise_seed=13,
    )


def _synchronisation() -> Count:
    app = linear_bandit_app(
        make_environment=lambda context: _Environment(),
        limits=Limits(max_epsilon=math.inf),
    )
    grid = InProcessGrid(app, NUM_AGENTS)
    return count_round(_fed_ucb(), grid, _LINEAR_ROUND + 2, nth=_LINEAR_ROUND)


ROUNDS: dict[str, Callable[[], Count]] = {
    "FedVote, with a release": lambda: _voting_round(releases=True),
    "FedVote, without a release": lambda: _voting_round(releases=False),
    "FedUCB, one trial and a release": _synchronisation,
}


@contextmanager
def _quietly() -> Iterator[None]:
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def counts() -> dict[str, Count]:
    """Return what each round takes."""
    found = {}
    with _quietly():
        for name, play in ROUNDS.items():
            play()
            found[name] = play()
    return found


def main() -> None:
    """Print the counts, as a table or as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = counts()
    if options.json:
        print(json.dumps({name: asdict(count) for name, count in found.items()}))
        return
    width = max(map(len, found))
    print(f"{f'{NUM_AGENTS} agents':{width}}  {'calls':>7}  {'jumps':>7}")
    for name, count in found.items():
        print(f"{name:{width}}  {count.calls:7,}  {count.jumps:7,}")


if __name__ == "__main__":
    main()
