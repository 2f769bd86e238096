"""The client: what a site tunes. Its data and its trials never leave it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from sklearn.svm import SVC

from flwr_fbo import TuningClient
from flwr_fbo.datasets.digits import partition


def make_objective(context: Context) -> Callable[[dict[str, Any]], float]:
    """Return this site's objective: the validation accuracy of an SVM."""
    client = int(context.node_config["partition-id"])
    num_clients = int(context.node_config["num-partitions"])
    data = partition(client, num_clients, int(context.run_config["data-seed"]))
    folder = str(context.run_config["trial-folder"])
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)

    def accuracy(params: dict[str, Any]) -> float:
        model = SVC(C=params["C"], gamma=params["gamma"])
        model.fit(data.X_train, data.y_train)
        value = float(model.score(data.X_validation, data.y_validation))
        if folder:
            with (Path(folder) / f"client-{client}.jsonl").open("a") as file:
                file.write(json.dumps({**params, "accuracy": value}) + "\n")
        return value

    return accuracy


def client_fn(context: Context) -> Any:
    """Return the client of one node."""
    return TuningClient(make_objective, context).to_client()


app = ClientApp(client_fn=client_fn)
