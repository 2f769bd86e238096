"""Run an experiment: every method on every seed, in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.lab.experiment_runner.base import Experiment, Run
from flwr_fbo.lab.simulation.progress import told

_LOG = logging.getLogger("flwr.fbo")
_FINEST = 1e-3  # a share that has grown by less is not written


class Runs:
    """Runs to be done, and how far they are.

    Parameters
    ----------
    experiment : Experiment
    todo : sequence of (method, seed)
    """

    def __init__(self, experiment: Experiment, todo: Sequence[tuple[str, int]]) -> None:
        self._experiment = experiment
        self._batches = _batches(experiment, todo)
        self._shares = np.zeros(len(self._batches))

    @property
    def num_done(self) -> float:
        """How many runs are done, with what is done of those that are not."""
        sizes = [len(methods) for methods, _ in self._batches]
        return float(np.dot(self._shares, sizes))

    def play(self, jobs: int) -> Iterator[Run]:
        """Yield the runs as they end.

        Parameters
        ----------
        jobs : int
            Worker processes, with one BLAS thread each.
        """
        from joblib import Parallel, delayed, parallel_config

        # A file: workers are other processes, and there is no other way to all of them.
        with TemporaryDirectory() as folder:
            path = Path(folder) / "shares"
            shape = self._shares.shape
            self._shares = np.memmap(path, np.float64, "w+", shape=shape)
            tasks = [
                delayed(_play)(self._experiment, *batch, path, i)
                for i, batch in enumerate(self._batches)
            ]
            # Workers that have lost their parent should not wait for minutes.
            with parallel_config(
                "loky", inner_max_num_threads=1, idle_worker_timeout=10
            ):
                for runs in Parallel(jobs, return_as="generator_unordered")(tasks):
                    yield from runs
            self._shares = np.array(self._shares)


@one_blas_thread  # here too, where there is one process, this one
def _play(
    experiment: Experiment, methods: list[str], seed: int, path: Path, batch: int
) -> Sequence[Run]:
    """Play without what agents warn of: it is meant for whose objective it is."""
    shares = np.memmap(path, np.float64, "r+")

    def note(share: float) -> None:
        if share - shares[batch] > _FINEST:
            shares[batch] = share

    level = _LOG.level
    _LOG.setLevel(logging.ERROR)
    try:
        with told(note):
            runs = experiment.play(methods, seed)
        shares[batch] = 1.0
        return runs
    finally:
        _LOG.setLevel(level)


def _batches(
    experiment: Experiment, todo: Sequence[tuple[str, int]]
) -> list[tuple[list[str], int]]:
    """Return what one process does at a time: methods, and their seed."""
    methods: dict[int, list[str]] = {}
    for method, seed in todo:
        methods.setdefault(seed, []).append(method)
    return [
        (batch, seed)
        for seed, names in methods.items()
        for batch in experiment.batches(names)
    ]
