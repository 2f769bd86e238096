"""The client: it trains, and evaluates, on a site's digits."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_sgd import task
from flwr_fbo import tuner_mod

app = ClientApp(mods=[tuner_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model for some epochs."""
    model = message.content.array_records["arrays"].to_numpy_ndarrays()
    data, _ = task.load_site(context)
    rate = float(context.run_config["learning-rate"])
    epochs = int(context.run_config["local-epochs"])
    arrays = ArrayRecord(task.train(model, data, rate, epochs))
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = RecordDict({"arrays": arrays, "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the model's accuracy on digits that it was not trained on."""
    model = message.content.array_records["arrays"].to_numpy_ndarrays()
    _, data = task.load_site(context)
    accuracy = task.accuracy(model, data)
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
