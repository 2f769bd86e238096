"""The server: a private tuning stage, a comparison, then federated averaging."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import CategoricalDistribution
from optuna.distributions import FloatDistribution as Float

from digits_cnn import task
from flwr_fbo import (
    FederationTuner,
    FedVote,
    Halving,
    Host,
    Privacy,
    PrivateChoice,
    Seeds,
)

SPACE = {
    "learning_rate": Float(1e-4, 1, log=True),
    "weight_decay": Float(1e-6, 1e-1, log=True),
}

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Tune, train, and say how good the model is."""
    validation, test = tune_and_train(grid, context)
    print(f"Accuracy: {validation:.4f} validation, {test:.4f} test")


def tune_and_train(grid: Grid, context: Context) -> tuple[float, float]:
    """Return what `train` returns, after the tuning."""
    if context.run_config["tuning-rounds"]:
        tune(grid, context)
        grid, context = with_better_average(grid, context)
    return train(grid, context)


def tune(grid: Grid, context: Context) -> None:
    """Have each site find its own best setting."""
    config, seed = context.run_config, _noise_seed(context)
    strategy = FedVote(
        SPACE,
        "maximize",
        num_agents=int(config["num-sites"]),
        epsilon=6,
        delta=1e-3,
        privacy=Privacy(noise_only=bool(config["noise-only"])),
        seeds=Seeds(study=seed, features=seed, noise=seed),
    )
    host = Host(client_api="action")  # the clients' `add_tuning`
    strategy.start(grid, num_rounds=int(config["tuning-rounds"]), host=host)


def with_better_average(grid: Grid, context: Context) -> tuple[Grid, Context]:
    """Train once with the defaults and once as tuned; have the better one used."""
    config, seed = context.run_config, _noise_seed(context)
    tuner = FederationTuner(
        {"fbo-tuned": CategoricalDistribution([False, True])},
        "accuracy",
        "maximize",
        num_agents=int(config["num-sites"]),
        schedule=Halving(2, (int(config["num-server-rounds"]),)),
        privacy=PrivateChoice(epsilon=2, delta=1e-3),
        enqueue=[{"fbo-tuned": True}],
        seeds=Seeds(study=seed, noise=seed),
    )
    result = tuner.start(train, grid, context)
    # `train` returns the sites' validation accuracy: exact, and in no epsilon.
    return result.apply(grid, context, exact_metrics=True)


def _noise_seed(context: Context) -> int | None:
    config = context.run_config
    return int(config["seed"]) if config["experiment"] else None


def train(grid: Grid, context: Context) -> tuple[float, float]:
    """Return the accuracy on the sites' validation digits, and on those no site has."""
    config = context.run_config
    seed, num_rounds = int(config["seed"]), int(config["num-server-rounds"])
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
