"""The server: the search space and the privacy of the study."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedWarmStart, Seeds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one study."""
    config = context.run_config
    seeded = bool(config["experiment"])
    strategy = FedWarmStart(
        space={
            "C": FloatDistribution(1e-3, 1e3, log=True),
            "gamma": FloatDistribution(1e-6, 1e1, log=True),
        },
        direction="maximize",
        num_agents=int(config["num-agents"]) or len(list(grid.get_node_ids())),
        epsilon=2,
        delta=1e-3,
        seeds=Seeds(
            study=1 if seeded else None,
            features=2 if seeded else None,
            noise=3 if seeded else None,
        ),
    )
    result = strategy.start(grid, num_rounds=int(config["num-rounds"]))
    print(result.recommendation)
