"""The server: it averages the sites' models, and tests the average."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_fedavg import task

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the model's accuracy on digits that no site has."""
    model = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": task.accuracy(model, *task.load_test())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for five rounds."""
    strategy = FedAvg(
        # The names that the `fit` of a NumPyClient expects.
        arrayrecord_key="fitins.parameters",
        configrecord_key="fitins.config",
        weighted_by_key="num_examples",
        fraction_evaluate=0.0,  # sites do not evaluate: the server does
    )
    arrays = ArrayRecord(task.INITIAL)
    strategy.start(grid, arrays, num_rounds=5, evaluate_fn=evaluate)
