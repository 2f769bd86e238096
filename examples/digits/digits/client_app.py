"""The client: it evaluates the settings that its agent chooses, and trains with one."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits import task
from flwr_fbo import add_tuning, best_params

app = add_tuning(ClientApp(), task.make_objective, task.compare)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the accuracy of the site's models, with the default and after tuning."""
    train, _ = task.load_site(context)
    best = best_params(context, default=task.DEFAULT)
    test = task.load_test()
    metrics = MetricRecord(
        {
            "before": task.accuracy(task.DEFAULT, train, test),
            "after": task.accuracy(best, train, test),
        }
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
