"""End an evaluation that takes too long, in a process of its own.

A thread cannot be ended and a signal does not interrupt a library's inner loop, so an
objective with a time limit runs in a worker process, which is killed at the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any

from flwr_fbo.algorithms.search.trial import Objective, Trial


class TrialTimeoutError(RuntimeError):
    """An evaluation took longer than it may."""


_held: dict[str, Objective] = {}  # in the worker: what it evaluates


def _hold(objective: Objective) -> None:
    _held["objective"] = objective


def _evaluate(trial: Trial) -> float:
    return _held["objective"](trial)


class _Worker:
    """One process, begun when it is needed and begun again after it was killed.

    It gets the objective and its data once, as it begins. It is no worker of joblib's
    own pool, which the objective may use itself.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._executor: Any = None

    def run(self, trial: Trial, seconds: float) -> float:
        if self._executor is None:
            from joblib.externals.loky import ProcessPoolExecutor

            self._executor = ProcessPoolExecutor(
                max_workers=1, initializer=_hold, initargs=(self._objective,)
            )
            self._executor.submit(int).result()  # the time starts once it is ready
        future = self._executor.submit(_evaluate, trial)
        try:
            return float(future.result(timeout=seconds))
        except FutureTimeout:
            self.kill()
            raise TrialTimeoutError(
                f"ended after {seconds:g} s (trial_timeout)"
            ) from None
        except BrokenExecutor:
            self.kill()  # the next trial gets a new one
            raise RuntimeError("the trial ended its process, or was killed") from None

    def kill(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(kill_workers=True)
            self._executor = None


@contextmanager
def time_limit(objective: Objective, seconds: float | None) -> Iterator[Objective]:
    """Give ``objective`` as one that raises `TrialTimeoutError` after ``seconds``.

    Without a limit it is given as it is. With one, the objective and its data are sent
    to the worker by pickling (cloudpickle, so that closures will do), before the time
    starts. The worker ends with the block.
    """
    if seconds is None:
        yield objective
        return
    worker = _Worker(objective)
    try:
        yield lambda trial: worker.run(trial, seconds)
    finally:
        worker.kill()
