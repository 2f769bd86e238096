"""The client: one site trains the model on its own digits, with its own settings."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_cnn import task
from flwr_fbo import add_tuning, best_params, tuner_mod

app = ClientApp(mods=[tuner_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that the server sent."""
    config, (data, _) = context.run_config, task.load_site(context)
    params = best_params(context, default=default_params(context))
    model = _received(message)
    epochs, batch_size = int(config["local-epochs"]), int(config["batch-size"])
    task.train(model, data, epochs, batch_size, params)
    metrics = MetricRecord({"num-examples": len(data.y)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the accuracy of the server's model on this site's validation digits."""
    _, data = task.load_site(context)
    accuracy = task.accuracy(_received(message), data)
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(data.y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _received(message: Message) -> Any:
    model = task.make_model(seed=0)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    return model


def default_params(context: Context) -> dict[str, Any]:
    """Return the setting that the app has had all along."""
    config = context.run_config
    learning_rate, weight_decay = config["learning-rate"], config["weight-decay"]
    return {"learning_rate": learning_rate, "weight_decay": weight_decay}


def make_objective(context: Context) -> Callable[[Mapping[str, Any]], float]:
    """Return the validation accuracy of a model of this site's own, to be maximised."""
    data, validation = task.load_site(context)
    to_train, _ = task.hold_out(data)
    return _own_accuracy(context, to_train, validation)


def compare(context: Context) -> tuple[dict[str, Any], Callable[..., float]]:
    """Return the default, and the accuracy of a setting on held-out training digits."""
    data, _ = task.load_site(context)
    return default_params(context), _own_accuracy(context, *task.hold_out(data))


def _own_accuracy(
    context: Context, data: task.Digits, held_out: task.Digits
) -> Callable[[Mapping[str, Any]], float]:
    """Return the accuracy of a model of this site's own, by its setting.

    It is trained for as many epochs as the federation trains.
    """
    config = context.run_config
    epochs = int(config["num-server-rounds"]) * int(config["local-epochs"])

    def accuracy(params: Mapping[str, Any]) -> float:
        model = task.make_model(int(config["seed"]))
        task.train(model, data, epochs, int(config["batch-size"]), params)
        return task.accuracy(model, held_out)

    return accuracy


add_tuning(app, make_objective, compare=compare)
