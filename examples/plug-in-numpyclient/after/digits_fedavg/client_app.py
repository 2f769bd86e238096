"""The client: one site trains the model on its own digits."""

from typing import Any

from flwr.app import Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp

from digits_fedavg import task
from flwr_fbo import best_params, with_tuning

DEFAULT = {"learning_rate": 0.1, "l2": 1e-3}


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
    params = best_params(context, default=DEFAULT)
    return DigitsClient(task.load_site(context), params).to_client()


def split(site: task.Site) -> tuple[task.Site, task.Site]:
    """Return the site as the tuning sees it, and as the comparison sees it."""
    X, y, cut = site.X_train, site.y_train, 3 * len(site.y_train) // 4
    to_tune = task.Site(X[:cut], y[:cut], site.X_validation, site.y_validation)
    return to_tune, task.Site(X[:cut], y[:cut], X[cut:], y[cut:])


def make_objective(context: Context) -> Any:
    """Return a function that trains with a setting, and returns the accuracy."""
    site, _ = split(task.load_site(context))
    return lambda params: task.train(task.INITIAL, site, **params)[1]


def compare(context: Context) -> Any:
    """Return the default, and a function that scores a setting on held-out digits."""
    _, site = split(task.load_site(context))
    return DEFAULT, lambda params: task.train(task.INITIAL, site, **params)[1]


app = ClientApp(client_fn=with_tuning(client_fn, make_objective, compare=compare))
