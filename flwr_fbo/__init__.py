"""Federated black-box optimisation under differential privacy, for Flower.

The public names are resolved on first use, so that ``import flwr_fbo`` loads neither
Flower nor any of the heavy optional libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_fbo.agents.graph import PeerGraph as PeerGraph
    from flwr_fbo.agents.linear_ucb import LinearUCBSettings as LinearUCBSettings
    from flwr_fbo.agents.neural_ucb import NeuralUCBSettings as NeuralUCBSettings
    from flwr_fbo.agents.policy import LinearBanditPolicy as LinearBanditPolicy
    from flwr_fbo.agents.sampler import FederatedSampler as FederatedSampler
    from flwr_fbo.agents.thompson import ThompsonSettings as ThompsonSettings
    from flwr_fbo.agents.trial import Objective as Objective
    from flwr_fbo.agents.trial import Trial as Trial
    from flwr_fbo.agents.voting import VotingSettings as VotingSettings
    from flwr_fbo.clients.app import add_tuning as add_tuning
    from flwr_fbo.clients.app import tuning_app as tuning_app
    from flwr_fbo.clients.app import with_tuning as with_tuning
    from flwr_fbo.clients.linear_bandit import LinearBanditClient as LinearBanditClient
    from flwr_fbo.clients.linear_bandit import linear_bandit_app as linear_bandit_app
    from flwr_fbo.clients.neural_bandit import NeuralBanditClient as NeuralBanditClient
    from flwr_fbo.clients.neural_bandit import neural_bandit_app as neural_bandit_app
    from flwr_fbo.clients.session import best_params as best_params
    from flwr_fbo.clients.thompson import ThompsonClient as ThompsonClient
    from flwr_fbo.models.network import Network as Network
    from flwr_fbo.models.network import TorchModel as TorchModel
    from flwr_fbo.privacy.continual import ContinualSettings as ContinualSettings
    from flwr_fbo.privacy.neural_bandit import NeuralPrivacy as NeuralPrivacy
    from flwr_fbo.simulation.grid import InProcessGrid as InProcessGrid
    from flwr_fbo.space import SearchSpace as SearchSpace
    from flwr_fbo.strategies.decentralized_fed_ucb import (
        DecentralizedFedUCB as DecentralizedFedUCB,
    )
    from flwr_fbo.strategies.dp_fts_de import DPFTSDE as DPFTSDE
    from flwr_fbo.strategies.fed_go_ucb import FedGOUCB as FedGOUCB
    from flwr_fbo.strategies.fed_ucb import FedUCB as FedUCB
    from flwr_fbo.strategies.fts import FTS as FTS
    from flwr_fbo.strategies.result import BanditResult as BanditResult
    from flwr_fbo.strategies.result import TuningResult as TuningResult

__version__ = "0.1.0"

_EXPORTS = {
    "BanditResult": "flwr_fbo.strategies.result",
    "ContinualSettings": "flwr_fbo.privacy.continual",
    "DPFTSDE": "flwr_fbo.strategies.dp_fts_de",
    "DecentralizedFedUCB": "flwr_fbo.strategies.decentralized_fed_ucb",
    "FTS": "flwr_fbo.strategies.fts",
    "FTSSettings": "flwr_fbo.agents.fts",
    "FedGOUCB": "flwr_fbo.strategies.fed_go_ucb",
    "Network": "flwr_fbo.models.network",
    "NeuralBanditClient": "flwr_fbo.clients.neural_bandit",
    "NeuralPrivacy": "flwr_fbo.privacy.neural_bandit",
    "NeuralUCBSettings": "flwr_fbo.agents.neural_ucb",
    "TorchModel": "flwr_fbo.models.network",
    "neural_bandit_app": "flwr_fbo.clients.neural_bandit",
    "FedUCB": "flwr_fbo.strategies.fed_ucb",
    "LinearBanditClient": "flwr_fbo.clients.linear_bandit",
    "LinearBanditPolicy": "flwr_fbo.agents.policy",
    "LinearUCBSettings": "flwr_fbo.agents.linear_ucb",
    "linear_bandit_app": "flwr_fbo.clients.linear_bandit",
    "add_tuning": "flwr_fbo.clients.app",
    "best_params": "flwr_fbo.clients.session",
    "with_tuning": "flwr_fbo.clients.app",
    "FederatedSampler": "flwr_fbo.agents.sampler",
    "InProcessGrid": "flwr_fbo.simulation.grid",
    "PeerGraph": "flwr_fbo.agents.graph",
    "SearchSpace": "flwr_fbo.space",
    "Objective": "flwr_fbo.agents.trial",
    "ThompsonClient": "flwr_fbo.clients.thompson",
    "ThompsonSettings": "flwr_fbo.agents.thompson",
    "VotingSettings": "flwr_fbo.agents.voting",
    "Trial": "flwr_fbo.agents.trial",
    "TuningResult": "flwr_fbo.strategies.result",
    "tuning_app": "flwr_fbo.clients.app",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    """Import a public name from the room that owns it, on first use."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
