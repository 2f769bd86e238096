"""Small Flower apps in folders, as people have them, for `flwr-fbo tune`."""

from __future__ import annotations

import itertools
from pathlib import Path

_NUMBERS = itertools.count()

_PROJECT = """\
[project]
name = "{package}"
version = "1.0.0"
description = "A model of three numbers"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>=1.41,<1.43"]

[tool.flwr.app]
publisher = "tests"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# The settings.
[tool.flwr.app.config]
num-server-rounds = 6
learning-rate = 0.001  # a first guess
optimizer = "slow"
nesterov = false
{more}"""

_MESSAGE_CLIENT = """\
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


def factor(config):
    return {"slow": 0.1, "fast": 1.0}[config["optimizer"]] * config["learning-rate"]


@app.train()
def train(message, context):
    w = message.content["arrays"]["w"].numpy()
    w = w - factor(context.run_config) * (w - 1.0)
    metrics = MetricRecord({"num-examples": 10, "train_loss": float(np.sum(w))})
    content = RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    w = message.content["arrays"]["w"].numpy()
    closeness = float(1 / (1 + np.linalg.norm(w - 1.0)))
    metrics = MetricRecord({"num-examples": 10, "eval_acc": closeness})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""

_MESSAGE_SERVER = """\
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


def test(server_round, arrays):
    return MetricRecord({{"loss": float(np.linalg.norm(arrays["w"].numpy() - 1.0))}})


@app.lifespan()
def lifespan(context):
    yield


@app.main()
def main(grid, context):
    arrays = ArrayRecord({{"w": Array(np.zeros(3))}})
    rounds = context.run_config["num-server-rounds"]
    strategy = FedAvg({options})
    return strategy.start(grid, arrays, rounds{more})
"""

_LEGACY_CLIENT = """\
import numpy as np
from flwr.client import ClientApp, NumPyClient


class Site(NumPyClient):
    def __init__(self, config):
        self.config = config

    def fit(self, parameters, config):
        rate = self.config["learning-rate"]
        return [parameters[0] - rate * (parameters[0] - 1.0)], 10, {}

    def evaluate(self, parameters, config):
        loss = float(np.linalg.norm(parameters[0] - 1.0))
        return loss, 10, {"eval_acc": 1 / (1 + loss)}


def client_fn(context):
    return Site(context.run_config).to_client()


app = ClientApp(client_fn=client_fn)
"""

_LEGACY_SERVER = """\
import numpy as np
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg


def server_fn(context):
    rounds = context.run_config["num-server-rounds"]
    initial = ndarrays_to_parameters([np.zeros(3)])
    strategy = FedAvg(initial_parameters=initial, {options})
    config = ServerConfig(num_rounds=rounds)
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
"""

# A loop of its own, as Flower's example with CatBoost: the model is in a ConfigRecord,
# and clients report their metric with it, when they have trained.
_LOOP_CLIENT = """\
import struct
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    w, = struct.unpack("d", message.content["gmodel"]["model"])
    w -= context.run_config["learning-rate"] * (w - 1.0)
    found = {"AUC": 1 / (1 + abs(w - 1.0)), "model": struct.pack("d", w)}
    return Message(RecordDict({"found": ConfigRecord(found)}), reply_to=message)
"""

_LOOP_SERVER = """\
import struct
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    w = 0.0
    for server_round in range(context.run_config["num-server-rounds"]):
        model = ConfigRecord({"model": struct.pack("d", w)})
        asked = [
            Message(RecordDict({"gmodel": model}), node, MessageType.TRAIN)
            for node in grid.get_node_ids()
        ]
        replies = [r.content["found"]["model"] for r in grid.send_and_receive(asked)]
        w = sum(struct.unpack("d", reply)[0] for reply in replies) / len(replies)
"""


def write_app(
    folder: Path,
    *,
    server: str,
    client: str = _MESSAGE_CLIENT,
    more: str = "",
) -> Path:
    """Write an app with a package of a new name into a folder; return that folder."""
    package = f"tuned_app_{next(_NUMBERS)}"
    files = {"__init__": "", "server_app": server, "client_app": client}
    (folder / package).mkdir(parents=True)
    for name, text in files.items():
        (folder / package / f"{name}.py").write_text(text)
    (folder / "LICENSE").write_text("As you like it.\n")
    text = _PROJECT.format(package=package, more=more).replace(
        f'name = "{package}"', f'name = "{package.replace("_", "-")}"'
    )
    (folder / "pyproject.toml").write_text(text)
    return folder


def message_app(
    folder: Path, options: str = "", more: str = "", toml: str = "", client: str = ""
) -> Path:
    """Write an app of the Message API, whose server may evaluate."""
    server = _MESSAGE_SERVER.format(options=options, more=more)
    return write_app(folder, server=server, more=toml, client=client or _MESSAGE_CLIENT)


def own_server(folder: Path, server: str) -> Path:
    """Write an app with another server."""
    return write_app(folder, server=server)


def loop_app(folder: Path) -> Path:
    """Write an app whose `main` has a loop of its own, in which nobody evaluates."""
    return write_app(folder, server=_LOOP_SERVER, client=_LOOP_CLIENT)


def legacy_app(folder: Path, options: str = "min_available_clients=2") -> Path:
    """Write an app of a `server_fn` and of `NumPyClient`."""
    server = _LEGACY_SERVER.replace("{options}", options)
    return write_app(folder, server=server, client=_LEGACY_CLIENT)


MESSAGE_CLIENT = _MESSAGE_CLIENT
