"""The server: it averages the sites' models, and tests the average."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution as Float
from optuna.distributions import IntDistribution as Int

from digits_sgd import task
from flwr_fbo import FederationTuner, PrivateChoice

app = ServerApp()


def test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the model's accuracy on digits that no site has."""
    model = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": task.accuracy(model, task.load_test())})


@app.main()
def tuned(grid: Grid, context: Context) -> None:
    """Train the model, and tune its settings in the first rounds."""
    space = {"learning-rate": Float(1e-4, 1, log=True), "local-epochs": Int(1, 8)}
    privacy = PrivateChoice(epsilon=2, delta=1e-3)
    tuner = FederationTuner(space, "accuracy", "maximize", 20, privacy=privacy)
    tuner.start(main, grid, context)


def main(grid: Grid, context: Context) -> None:
    """Train the model."""
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial_model()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=test,
    )
