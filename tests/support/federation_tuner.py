"""What `tests/tuner/test_federation_tuner.py` and others share."""

from typing import Any

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient

from tests.support.apps import (
    distance,
    trained,
)


class NumpyDistances(NumPyClient):
    """Reads the rate from its config, and the epochs from the run config."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def get_parameters(self, config: Any) -> Any:
        return [np.zeros(3)]

    def fit(self, parameters: Any, config: Any) -> Any:
        new = trained(parameters[0], self._context, float(config["learning-rate"]))
        return [new], 10, {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return distance(parameters[0], self._context), 10, {"rate": 1.0}
