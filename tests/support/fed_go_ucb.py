"""What `tests/strategies/test_fed_go_ucb.py` and others share."""

from typing import Any

from flwr.app import Context

from flwr_fbo import FedGOUCB
from flwr_fbo.bandits import FedGOUCBSettings, Network, neural_bandit_app
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    FunctionBanditTask,
    NonlinearBanditEnvironment,
)
from flwr_fbo.models.langevin_regression import LangevinSettings
from tests.support.grouped import hosted

TASK = FunctionBanditTask(num_actions=12)


N, T0, STEPS, T, SEED = 3, 2, 4, 9, 5


MODEL = Network(6, width=3)


D_W = MODEL.num_parameters


REGRESSION = LangevinSettings(num_iterations=STEPS)


SETTINGS = FedGOUCBSettings(num_exploration=T0, regression=REGRESSION, threshold=3.0)


def make_environment(context: Context) -> BanditEnvironment:
    slot = int(context.node_config["partition-id"])
    return NonlinearBanditEnvironment(TASK, SEED, slot)


APP = neural_bandit_app(make_environment)


def strategy_of(settings: FedGOUCBSettings = SETTINGS, **options: Any) -> FedGOUCB:
    defaults = {"num_evaluations": T, "seed": SEED, "patience": 0.0, "model": MODEL}
    options = {**defaults, "num_agents": N, **options}
    return hosted(FedGOUCB, settings, **options)
