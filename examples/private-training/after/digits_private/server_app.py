"""The server: it averages the sites' models, tests the average, and saves it."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution as Float

from digits_private import task
from flwr_fbo import FederationTuner, PrivateChoice

app = ServerApp()


def test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return how good the model is on digits that no site has."""
    net = task.Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = task.test(net, task.load_test())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def tuned(grid: Grid, context: Context) -> None:
    """Train the model, and tune its settings in the first rounds."""
    space = {
        "learning-rate": Float(0.01, 3, log=True),
        "clip-norm": Float(0.1, 3, log=True),
    }
    privacy = PrivateChoice(epsilon=2, delta=1e-5, protects="example")
    tuner = FederationTuner(space, "accuracy", "maximize", 10, privacy=privacy)
    print(tuner.start(main, grid, context))


def main(grid: Grid, context: Context) -> None:
    """Train the model, and save it."""
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=float(config["fraction-evaluate"]))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.Net().state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=test,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
