"""The server: a private tuning stage, then federated averaging."""

from flwr.app import ArrayRecord, Context, MetricRecord, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution as Float

from digits_cnn import task
from flwr_fbo import FedVote, Privacy, Seeds

SPACE = {
    "learning_rate": Float(1e-4, 1, log=True),
    "weight_decay": Float(1e-6, 1e-1, log=True),
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Tune, train, and say how good the model is."""
    validation, test = tune_and_train(grid, context.run_config)
    print(f"Accuracy: {validation:.4f} validation, {test:.4f} test")


def tune_and_train(grid: Grid, config: UserConfig) -> tuple[float, float]:
    """Return the accuracy on the sites' validation digits, and on those no site has."""
    seed, num_rounds = int(config["seed"]), int(config["num-server-rounds"])
    if config["tuning-rounds"]:
        drawn_from = seed if config["experiment"] else None
        tuning = FedVote(
            SPACE,
            "maximize",
            num_agents=int(config["num-sites"]),
            epsilon=6,
            delta=1e-3,
            privacy=Privacy(noise_only=bool(config["noise-only"])),
            client_api="action",  # the clients' `add_tuning`
            seeds=Seeds(study=drawn_from, features=drawn_from, noise=drawn_from),
        )
        tuning.start(grid, num_rounds=int(config["tuning-rounds"]))
    model, digits = task.make_model(seed), task.load_test(seed)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": task.accuracy(model, digits)})

    arrays = ArrayRecord(model.state_dict())
    result = FedAvg().start(grid, arrays, num_rounds, evaluate_fn=evaluate)
    accuracies = (
        result.evaluate_metrics_clientapp[num_rounds]["accuracy"],
        result.evaluate_metrics_serverapp[num_rounds]["accuracy"],
    )
    validation, test = (float(a) for a in accuracies if isinstance(a, float))
    return validation, test
