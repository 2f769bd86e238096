"""The server: it averages the sites' models, tests the average, and saves it."""

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_private import task

app = ServerApp()


def test(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return how good the model is on digits that no site has."""
    net = task.Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = task.test(net, task.load_test())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
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
