"""The client: one site trains the model on its own digits."""

from typing import Any

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

from digits_fedavg import task


class DigitsClient(NumPyClient):
    """Trains with its own learning rate and weight decay."""

    def __init__(self, site: task.Site, params: dict[str, Any]) -> None:
        self.site = site
        self.params = params

    def fit(
        self, parameters: task.Model, config: Any
    ) -> tuple[task.Model, int, dict[str, Any]]:
        """Train the model that the server sent."""
        model, validation_accuracy = task.train(parameters, self.site, **self.params)
        return model, len(self.site.y_train), {"accuracy": validation_accuracy}


def client_fn(context: Context) -> Client:
    """Return the client of one site."""
    params = {"learning_rate": 0.1, "l2": 1e-3}
    return DigitsClient(task.load_site(context), params).to_client()


app = ClientApp(client_fn=client_fn)
