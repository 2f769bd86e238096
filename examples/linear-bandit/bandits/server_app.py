"""The server: what all sites have in common, and the privacy of each."""

from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_fbo import DecentralizedFedUCB, FedUCB
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, PeerGraph
from flwr_fbo.bandits.linear.settings import geometric_schedule

NUM_SYNCHRONISATIONS = 8
RELEASES = ContinualSettings(
    num_releases=NUM_SYNCHRONISATIONS, dimension=5, epsilon=8.0, delta=1e-3
)
SETTINGS = LinearUCBSettings(RELEASES, local_data="released")

app = ServerApp()


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return when the sites synchronise, and how often they play."""
    num_trials = int(config["num-trials"])
    return {
        # Sites that play at their own pace have interval=... in place of these two.
        "schedule": geometric_schedule(
            num_trials, NUM_SYNCHRONISATIONS, first=num_trials // 20
        ),
        "num_trials": num_trials,
        "noise_seed": 1 if config["experiment"] else None,
    }


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one study."""
    config = context.run_config
    num_agents = int(config["num-agents"])
    folder = str(config["server-folder"]) or None
    if config["graph"]:  # agents talk along it, and the server only carries
        graph = PeerGraph.named(
            str(config["graph"]), num_agents, pooling="neighbourhood"
        )
        peers = DecentralizedFedUCB(SETTINGS, graph, **options(config))
        peers.start(grid, folder=folder)
        return
    strategy = FedUCB(SETTINGS, num_agents, **options(config))
    result = strategy.start(grid, folder=folder)
    print(f"Estimate: {result.estimate}")
