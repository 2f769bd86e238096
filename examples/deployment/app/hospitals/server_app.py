"""The server: search space, privacy and where the study is recorded."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedVote, Host, Seeds
from flwr_fbo.secure import SecureAggregation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begin the study, or go on with the one that is recorded."""
    config = context.run_config
    seeded = bool(config["experiment"])
    roster, colluding = str(config["roster"]), int(config["colluding"])
    secure = SecureAggregation(colluding, roster=roster) if roster else None
    strategy = FedVote(
        space={
            "C": FloatDistribution(1e-3, 1e3, log=True),
            "gamma": FloatDistribution(1e-6, 1e1, log=True),
        },
        direction="maximize",
        num_agents=int(config["num-agents"]),
        epsilon=8,
        delta=1e-3,
        aggregation=secure,
        seeds=Seeds(
            study=1 if seeded else None,
            features=2 if seeded else None,
            noise=3 if seeded else None,
        ),
    )
    result = strategy.start(
        grid,
        num_rounds=int(config["num-rounds"]),
        timeout=float(config["deadline"]),
        folder=str(config["record"]) or None,
        host=Host(
            authenticated=bool(config["authenticated"]),
            keys=dict(enumerate(str(config["keys"]).split())) or None,
            new=bool(config["new"]),
            max_empty_rounds=3,
            patience=float(config["patience"]),
        ),
    )
    print(result.recommendation)
    print(f"Spent: {result.privacy_spent}")
