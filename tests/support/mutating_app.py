"""A Flower app whose clients and server change whatever they are given.

It runs in the in-process grid, and as it is on Flower's engine: what each side sees
afterwards must be the same.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Any, context: Any) -> Message:
    """Say what has come, and change all of it."""
    config = message.content["config"]
    metrics = message.content["metrics"]
    arrays = message.content["arrays"]
    kept = context.state.config_records.setdefault("kept", ConfigRecord({"n": 0}))
    seen = {
        "client": context.node_config["partition-id"],
        "names": sorted(message.content),
        "lr": config["lr"],
        "layers": list(config["layers"]),
        "losses": list(metrics["losses"]),
        "w": arrays["w"].numpy().tolist(),
        "kept": kept["n"],
    }
    config["lr"] *= 0.5
    config["layers"].append(int(context.node_config["partition-id"]))
    metrics["losses"].clear()
    arrays["w"].data = Array(np.full(2, 9.0)).data
    arrays["b"] = Array(np.ones(1))
    message.content["own"] = ConfigRecord({"secret": 1})
    kept["n"] += 1
    reply = RecordDict(
        {"seen": ConfigRecord({"json": json.dumps(seen)}), "kept": kept.copy()}
    )
    return Message(reply, reply_to=message)


@server.main()
def main(grid: Grid, context: Any) -> None:
    """Ask everybody twice with the very same records, and change the replies."""
    content: Any = RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.zeros(2))}),
            "config": ConfigRecord({"lr": 1.0, "layers": [8, 4]}),
            "metrics": MetricRecord({"losses": [0.25, 0.125]}),
        }
    )
    while len(nodes := sorted(grid.get_node_ids())) < context.run_config["num-clients"]:
        time.sleep(0.1)  # the engine's come one after the other
    seen = []
    for number in (1, 2):
        asked = [
            Message(content, node, "train", group_id=str(number)) for node in nodes
        ]
        replies: Any = grid.send_and_receive(asked)
        for reply in replies:
            seen.append(json.loads(reply.content["seen"]["json"]))
            seen[-1]["round"] = number
            reply.content["kept"]["n"] = 100
    seen.sort(key=lambda one: (one["round"], one["client"]))
    config, arrays = content["config"], content["arrays"]
    own = [sorted(content), config["lr"], config["layers"], sorted(arrays)]
    text = json.dumps({"clients": seen, "server": own})
    Path(context.run_config["file"]).write_text(text)
