"""What `tests/bandits/fed_go_ucb/test_agent_with_privacy.py` and others share."""

from flwr.app import Context

from flwr_fbo.bandits import FedGOUCBSettings, Network, NeuralPrivacy
from flwr_fbo.bandits.site.environment import BanditEnvironment
from flwr_fbo.lab.tasks.nonlinear_bandit import (
    FunctionBanditTask,
    NonlinearBanditEnvironment,
)

TASK = FunctionBanditTask(num_actions=12)


N, T, SEED = 3, 9, 5


MODEL = Network(6, width=3)


K = 5


PRIVACY = NeuralPrivacy(epsilon=4.0, delta=1e-3, num_synchronisations=2, num_features=K)


SETTINGS = FedGOUCBSettings(beta=1.0, privacy=PRIVACY)


def make_environment(context: Context) -> BanditEnvironment:
    slot = int(context.node_config["partition-id"])
    return NonlinearBanditEnvironment(TASK, SEED, slot)
