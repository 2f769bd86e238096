"""The server: it averages the sites' models, and tests the average."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_sgd import task

app = ServerApp()


def test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the model's accuracy on digits that no site has."""
    model = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": task.accuracy(model, task.load_test())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model."""
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(task.initial_model()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=test,
    )
