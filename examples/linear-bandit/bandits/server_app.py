"""The server: what all sites have in common, and the privacy of each."""

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_fbo import DecentralizedFedUCB, FedUCB
from flwr_fbo.bandits import ContinualSettings, LinearUCBSettings, PeerGraph
from flwr_fbo.bandits.linear.settings import geometric_schedule

NUM_SYNCHRONISATIONS = 8

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one study."""
    config = context.run_config
    num_trials = int(config["num-trials"])
    releases = ContinualSettings(
        num_releases=NUM_SYNCHRONISATIONS, dimension=5, epsilon=8.0, delta=1e-3
    )
    settings, num_agents = (
        LinearUCBSettings(releases, local_data="released"),
        int(config["num-agents"]),
    )
    options: dict[str, Any] = {
        # Sites that play at their own pace have interval=... in place of these two.
        "schedule": geometric_schedule(
            num_trials, NUM_SYNCHRONISATIONS, first=num_trials // 20
        ),
        "num_trials": num_trials,
        "noise_seed": 1 if config["experiment"] else None,
    }
    folder = str(config["server-folder"]) or None
    if config["graph"]:  # agents talk along it, and the server only carries
        graph = PeerGraph.named(
            str(config["graph"]), num_agents, pooling="neighbourhood"
        )
        DecentralizedFedUCB(settings, graph, **options).start(grid, folder=folder)
        return
    result = FedUCB(settings, num_agents, **options).start(grid, folder=folder)
    print(f"Estimate: {result.estimate}")
