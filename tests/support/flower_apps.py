"""What `tests/tuner/test_flower_apps.py` and others share."""

from typing import Any

import numpy as np
from flwr.app import (
    Context,
)
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid

ROUNDS = 3


def legacy_main(has_initial: bool = True) -> Any:
    """Return a `main` that runs Flower's legacy workflow."""

    def main(grid: Grid, context: Context) -> None:
        initial = ndarrays_to_parameters([np.zeros(3)]) if has_initial else None
        config = {"learning-rate": float(context.run_config["learning-rate"])}
        strategy = LegacyFedAvg(
            initial_parameters=initial, on_fit_config_fn=lambda _: {**config}
        )
        legacy = LegacyContext(context, ServerConfig(num_rounds=ROUNDS), strategy)
        DefaultWorkflow()(grid, legacy)

    return main
