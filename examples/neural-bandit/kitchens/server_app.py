"""The server: what all sites have in common."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_fbo import FedGOUCB
from flwr_fbo.bandits import FedGOUCBSettings, Network, NeuralPrivacy
from flwr_fbo.models.langevin_regression import LangevinSettings

app = ServerApp()


def strategy(config: Mapping[str, Any], num_agents: int) -> FedGOUCB:
    """Return the study of so many sites."""
    epsilon = float(config["epsilon"])
    settings = FedGOUCBSettings(
        regression=LangevinSettings(num_iterations=10),
        privacy=NeuralPrivacy(epsilon, delta=1e-3) if epsilon else None,
    )
    return FedGOUCB(
        settings,
        Network(dimension=6, width=int(config["width"])),
        num_agents=num_agents,
        num_evaluations=int(config["num-evaluations"]),
        seed=1 if config["experiment"] else None,
        noise_seed=1 if config["experiment"] else None,
    )


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one study."""
    config = context.run_config
    study = strategy(config, int(config["num-agents"]))
    result = study.start(grid, folder=str(config["server-folder"]) or None)
    print(f"Synchronisations: {result.num_synchronisations}")
