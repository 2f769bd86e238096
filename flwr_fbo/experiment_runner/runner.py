"""Run an experiment: every method on every seed, in worker processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from joblib import Parallel, delayed, parallel_config

from flwr_fbo.experiment_runner.base import Experiment, Run
from flwr_fbo.models.threads import one_blas_thread

_LOG = logging.getLogger("flwr.fbo")


def run_all(
    experiment: Experiment, todo: Sequence[tuple[str, int]], jobs: int
) -> Iterator[Run]:
    """Yield the runs as they end.

    Parameters
    ----------
    experiment : Experiment
    todo : sequence of (method, seed)
    jobs : int
        Worker processes, with one BLAS thread each.
    """
    tasks = [delayed(_play)(experiment, *one) for one in _batches(experiment, todo)]
    # Workers that have lost their parent should not wait for minutes.
    with parallel_config("loky", inner_max_num_threads=1, idle_worker_timeout=10):
        done = Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks)
        for runs in done:
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
