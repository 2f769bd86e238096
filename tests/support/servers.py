"""Servers of Fed-GO-UCB without a strategy."""

from flwr_fbo.bandits.fed_go_ucb.server import FedGOUCBServer
from flwr_fbo.bandits.fed_go_ucb.settings import FedGOUCBSettings
from flwr_fbo.bandits.fed_go_ucb.study import FedGOUCBStudy
from flwr_fbo.models.network import RewardModel


def server_of(
    settings: FedGOUCBSettings, model: RewardModel, seed: int
) -> FedGOUCBServer:
    """Return the server of a study with more slots and trials than a test uses."""
    study = FedGOUCBStudy(settings, 100, model.num_parameters, None, seed)
    return FedGOUCBServer(study, model, num_evaluations=100)
