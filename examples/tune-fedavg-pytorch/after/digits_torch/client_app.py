"""The client: it trains, and evaluates, on a site's digits."""

from typing import Any, cast

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_torch import task
from flwr_fbo import tuner_mod

app = ClientApp(mods=[tuner_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model for some epochs."""
    net, (loader, _) = _load(message, context)
    epochs = int(context.run_config["local-epochs"])
    rate = cast(float, message.content.config_records["config"]["lr"])
    loss = task.train(net, loader, epochs, rate)
    arrays = ArrayRecord(net.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return how good the model is on digits that it was not trained on."""
    net, (_, loader) = _load(message, context)
    loss, accuracy = task.test(net, loader)
    n = len(loader.dataset)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": n})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _load(message: Message, context: Context) -> tuple[task.Net, tuple[Any, Any]]:
    """Return the model that the server has sent, and the site's digits."""
    net = task.Net()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    data = task.load_data(
        int(context.node_config["partition-id"]),
        int(context.node_config["num-partitions"]),
        int(context.run_config["batch-size"]),
    )
    return net, data
