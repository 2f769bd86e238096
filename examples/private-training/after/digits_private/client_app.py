"""The client: it trains by DP-SGD, and evaluates, on a site's digits."""

from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_private import task
from flwr_fbo import charge_training, tuner_mod
from flwr_fbo.privacy import DPSGD

# Rounds that a site trains, trials included: num-server-rounds, and one to spare.
NUM_ROUNDS = 21

app = ClientApp(mods=[tuner_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model for a round of DP-SGD."""
    net, (loader, _) = _load(message, context)
    config: Any = context.run_config
    rate, clip_norm = float(config["learning-rate"]), float(config["clip-norm"])
    noise = float(config["noise-multiplier"])
    q, steps = 1 / task.NUM_STEPS, task.NUM_STEPS
    all_rounds = DPSGD(noise, q, NUM_ROUNDS * steps)
    charge_training(context, DPSGD(noise, q, steps), plan=all_rounds)
    task.train(net, loader, rate, clip_norm, noise)
    arrays = ArrayRecord(net.state_dict())
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return how good the model is on digits that it was not trained on."""
    net, (_, loader) = _load(message, context)
    _, accuracy = task.test(net, loader)
    n = len(loader.dataset)
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": n})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _load(message: Message, context: Context) -> tuple[task.Net, tuple[Any, Any]]:
    """Return the model that the server has sent, and the site's digits."""
    net = task.Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    data = task.load_data(
        int(context.node_config["partition-id"]),
        int(context.node_config["num-partitions"]),
    )
    return net, data
