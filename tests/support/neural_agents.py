"""An agent of Fed-GO-UCB at small size."""

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.models.network import Network

N, T0, STEPS = 3, 2, 4


MODEL = Network(6, 5)


SETTINGS = FedGOUCBSettings(
    num_exploration=T0,
    regression=LangevinSettings(STEPS, 0.1, 1e4),
    ridge=0.5,
    beta=0.3,
    threshold=2.0,
    exploration="optimism",
)


def points(count: int, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(count, 6)), rng.standard_normal(count)


def _agent(slot: int = 0, settings: FedGOUCBSettings = SETTINGS) -> FedGOUCBAgent:
    return FedGOUCBAgent(settings, MODEL, 7, slot)
