"""The server: it adds up what the sites release, every ten weeks."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_fbo import FedUCB
from triage.study import WEEK, settings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the study, or go on with it."""
    config = context.run_config
    strategy = FedUCB(
        settings(float(config["epsilon"]), int(config["num-releases"])),
        num_agents=int(config["num-agents"]),
        interval=float(config["interval-weeks"]) * WEEK,
    )
    result = strategy.start(grid, folder=str(config["server-folder"]) or None)
    print(f"Spent: {result.privacy_spent}")
