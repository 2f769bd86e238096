"""The server: it averages the sites' models, and tests the average."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution as Float

from digits_fedavg import task
from flwr_fbo import FedVote

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the model's accuracy on digits that no site has."""
    model = arrays.to_numpy_ndarrays()
    return MetricRecord({"accuracy": task.accuracy(model, *task.load_test())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for five rounds."""
    space = {"learning_rate": Float(1e-3, 1, log=True), "l2": Float(1e-6, 1, log=True)}
    tuning = FedVote(space, "maximize", num_agents=5, epsilon=6, delta=1e-3)
    tuning.start(grid, num_rounds=6)
    strategy = FedAvg(
        # The names that the `fit` of a NumPyClient expects.
        arrayrecord_key="fitins.parameters",
        configrecord_key="fitins.config",
        weighted_by_key="num_examples",
        fraction_evaluate=0.0,  # sites do not evaluate: the server does
    )
    arrays = ArrayRecord(task.INITIAL)
    strategy.start(grid, arrays, num_rounds=5, evaluate_fn=evaluate)
