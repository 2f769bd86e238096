"""Run an experiment: every method on every seed, in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo.lab.experiment_runner.base import Experiment, Run

_LOG = logging.getLogger("flwr.fbo")


def play(
    experiment: Experiment, todo: Sequence[tuple[str, int]], jobs: int
) -> Iterator[Run]:
    """Yield the runs as they end.

    Parameters
    ----------
    experiment : Experiment
        Experiment that is played.
    todo : sequence of (method, seed)
        Methods and seeds that are missing.
    jobs : int
        Worker processes, with one BLAS thread each.
    """
    from joblib import Parallel, delayed, parallel_config

    methods: dict[int, list[str]] = {}
    for method, seed in todo:
        methods.setdefault(seed, []).append(method)
    tasks = [
        delayed(_play)(experiment, batch, seed)
        for seed, names in methods.items()
        for batch in experiment.batches(names)
    ]
    # Workers that have lost their parent should not wait for minutes.
    with parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10):
        for runs in Parallel(jobs, return_as="generator_unordered")(tasks):
            yield from runs


@one_blas_thread  # here too, where there is one process, this one
def _play(experiment: Experiment, methods: list[str], seed: int) -> Sequence[Run]:
    """Play without what agents warn of: it is meant for whose objective it is."""
    level = _LOG.level
    _LOG.setLevel(logging.ERROR)
    try:
        return experiment.play(methods, seed)
    finally:
        _LOG.setLevel(level)
