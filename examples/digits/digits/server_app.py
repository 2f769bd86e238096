"""The server: the search space and the privacy of the study."""

from pathlib import Path

import numpy as np
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from optuna.distributions import FloatDistribution

from flwr_fbo import FedWarmStart, Host, Seeds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one study, and show what it gave."""
    config = context.run_config
    seeded = bool(config["experiment"])
    default = Path.home() / "flwr-fbo" / f"digits-{context.run_id}"
    folder = str(config["folder"]) or str(default)
    print(f"The server's record is in {folder}.")
    num_agents = int(config["num-agents"]) or len(list(grid.get_node_ids()))
    strategy = FedWarmStart(
        space={
            "C": FloatDistribution(1e-3, 1e3, log=True),
            "gamma": FloatDistribution(1e-6, 1e1, log=True),
        },
        direction="maximize",
        num_agents=num_agents,
        epsilon=2,
        delta=1e-3,
        # Sites that search alone, and send a message. The default, as few as the noise
        # allows, often finds no start that it can tell from chance.
        cohorts=[2 * num_agents // 3] if num_agents >= 15 else None,
        seeds=Seeds(
            study=1 if seeded else None,
            features=2 if seeded else None,
            noise=3 if seeded else None,
        ),
    )
    result = strategy.start(
        grid,
        num_rounds=int(config["num-rounds"]),
        folder=folder,
        host=Host(client_api="action"),  # the clients' `add_tuning`
    )
    print(result.recommendation)
    if config["report-accuracy"]:
        print_accuracy(grid)
    print(f"As a web page: flwr-fbo report {folder}")


def print_accuracy(grid: Grid) -> None:
    """Print the mean of what sites report; epsilon does not cover it."""
    messages = [
        Message(RecordDict(), node, MessageType.EVALUATE)
        for node in grid.get_node_ids()
    ]
    replies = grid.send_and_receive(messages)
    metrics = [r.content.metric_records["metrics"] for r in replies if r.has_content()]
    before, after = (np.mean([m[key] for m in metrics]) for key in ("before", "after"))
    print(
        f"Accuracy on test data, mean of {len(metrics)} sites: {before:.3f} before "
        f"tuning, {after:.3f} after. Epsilon does not cover these reports."
    )
