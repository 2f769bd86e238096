"""The client: one site trains the model on its own digits, with its own settings."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_cnn import task
from flwr_fbo import add_tuning, best_params

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model that the server sent."""
    config, (data, _) = context.run_config, task.load_site(context)
    default = {
        "learning_rate": config["learning-rate"],
        "weight_decay": config["weight-decay"],
    }
    params = best_params(context, default=default)
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


def make_objective(context: Context) -> Callable[[Mapping[str, Any]], float]:
    """Return the validation accuracy of a model of this site's own, to be maximised.

    It is trained for as many epochs as the federation trains.
    """
    config, (data, validation) = context.run_config, task.load_site(context)
    epochs = int(config["num-server-rounds"]) * int(config["local-epochs"])

    def objective(params: Mapping[str, Any]) -> float:
        model = task.make_model(int(config["seed"]))
        task.train(model, data, epochs, int(config["batch-size"]), params)
        return task.accuracy(model, validation)

    return objective


add_tuning(app, make_objective)
