"""What `tests/tuner/test_server_scores.py` and others share."""

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flwr_fbo.tuner.trials.trial_grid import Main
from flwr_fbo.tuning import server_score
from tests.support.apps import (
    TARGET,
)


def distance_of(arrays: ArrayRecord) -> float:
    return float(np.linalg.norm(arrays["w"].numpy() - TARGET))


def score_main(
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None],
    *,
    fraction_evaluate: float = 0.0,
    returns: Callable[[ArrayRecord], Any] = lambda arrays: None,
) -> Main:
    """Return the `main` of an app that evaluates at the server."""

    def main(grid: Grid, context: Context) -> Any:
        config = context.run_config
        result = FedAvg(fraction_evaluate=fraction_evaluate).start(
            grid=grid,
            initial_arrays=ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=int(config["num-server-rounds"]),
            train_config=ConfigRecord({"learning-rate": config["learning-rate"]}),
            evaluate_fn=server_score(grid, evaluate_fn),
        )
        return returns(result.arrays)

    return main


def by_distance(_: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"distance": distance_of(arrays)})
