"""The server: the search space and the privacy of the study."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedVote

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one study."""
    strategy = FedVote(
        space={
            "C": FloatDistribution(1e-3, 1e3, log=True),
            "gamma": FloatDistribution(1e-6, 1e1, log=True),
        },
        direction="maximize",
        num_agents=int(context.run_config["num-agents"]),
        epsilon=8,
        delta=1e-3,
    )
    num_rounds = int(context.run_config["num-rounds"])
    result = strategy.start(grid, num_rounds=num_rounds)
    print(result.recommendation)
