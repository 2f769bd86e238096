"""Tune the training of a convolutional network on handwritten digits, by writer.

From the experiments of Dai, Low & Jaillet, Differentially Private Federated Bayesian
Optimization with Distributed Exploration (NeurIPS 2021). They give the three ranges,
but no scales; the rest is chosen here, and said below and in `flwr_fbo.lab.tasks._cnn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
from optuna.distributions import BaseDistribution, FloatDistribution

from flwr_fbo._common.fields import flag
from flwr_fbo._common.random import Purpose, generator
from flwr_fbo._common.validation import require, require_int
from flwr_fbo.lab.datasets.emnist import num_partitions, partition
from flwr_fbo.lab.tasks.base import Objective, Task, require_clients
from flwr_fbo.lab.tasks.surface import SurfaceSource, compute_missing

# Of the surface, settings of learning rate, decay and l2: the rate matters most.
GRID_SHAPE = (9, 4, 4)


@dataclass(frozen=True)
class EmnistTask(Task):
    """Validation error, in [0, 1], of a small network on one writer's digits.

    The network, two convolutions and a linear layer, is trained by Adam in 10 epochs of
    batches of 16 on the writer's training digits, about 105, and validated on the
    others, about 12: values are multiples of 1/12 or so, and a client's best soon is 0.
    Methods can differ in how soon. Rates from 1e-3 up reach 0.05 on average; at 1e-5
    nothing is learned.

    Initial weights and batches are decided by the run's seed and the client, for all
    settings alike, so that the objective has no noise; the data are the same in every
    run. Needs PyTorch, the extra ``torch``.

    Attributes
    ----------
    log : bool
        True: log scales. False: linear ones, our reading of the paper, on which hardly
        a setting has too small a learning rate.
    surface : bool
        True, on linear scales only: in place of the error, its
        `flwr_fbo.lab.tasks.surface` with 9 learning rates, 4 decays and 4 l2, trained
        with seed 0 in every run. It costs nothing to ask for, once these 144 trainings
        are done, in a minute a client. On 50 writers it differs by 0.010 in the mean
        over 200 settings, whose mean error is 0.033, and by up to 0.16.
    """

    name: Literal["emnist"] = "emnist"
    log: bool = field(default=True, metadata=flag())
    surface: bool = field(default=False, metadata=flag())
    direction: ClassVar[Literal["minimize"]] = "minimize"
    unit: ClassVar[str] = "validation error"

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "False, where scales are logarithmic"
        require(not (self.log and self.surface), "surface", self.surface, expected)

    @property
    def space(self) -> Mapping[str, BaseDistribution]:
        """learning_rate, its decay and l2, each in [1e-7, 0.02]."""
        names = ("learning_rate", "decay", "l2")
        return {name: FloatDistribution(1e-7, 0.02, log=self.log) for name in names}

    def check(self, num_clients: int) -> None:
        """Raise ValueError unless each client has a writer; DataError without the data.

        Computes the surfaces if they are wanted and have never been computed.
        """
        require_int("num_agents", num_clients, 1)
        _cnn()
        require_clients(num_clients, num_partitions(), "writer")
        if self.surface:
            compute_missing([self.source(client) for client in range(num_clients)])

    def objective(self, client: int, num_clients: int, seed: int) -> Objective:
        """Return the error on the client's digits; ``seed`` decides the training."""
        if self.surface:
            return self.source(client).surface()
        cnn, data = _cnn(), partition(client)
        start = cnn.Start.draw(
            generator(seed, client, Purpose.TRAINING), len(data.y_train)
        )
        X, X_validation = (x.astype("f4") for x in (data.X_train, data.X_validation))

        def error(params: dict[str, Any]) -> float:
            network = cnn.Network(X, data.y_train, start, **params)
            return float(np.mean(network.predict(X_validation) != data.y_validation))

        return error

    def source(self, client: int) -> SurfaceSource:
        """Return what a client's surface is made from."""
        exact = EmnistTask(log=False).objective(client, num_partitions(), 0)
        name, data = f"emnist-writer-{client}", partition(client)
        return SurfaceSource(name, exact, self.space, GRID_SHAPE, data)


def _cnn() -> ModuleType:
    """Return the module that needs PyTorch."""
    try:
        from flwr_fbo.lab.tasks import _cnn as cnn
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            "The emnist task needs PyTorch, which is not installed: "
            "pip install 'flwr-fbo[torch]'."
        ) from error
    return cnn
