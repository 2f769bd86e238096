"""A client process as a deployment begins one for each message, without the network.

    python -m benchmarks.client_process MODULE < ASKED

Flower's ``flwr-clientapp`` fetches a message over HTTP, loads the app, answers, and
sends the reply. Here what is asked comes as JSON on stdin, a list of objects with
``config`` and ``node_config``, and may be empty; each is answered in turn. On stdout:
the modules that were loaded beyond those of ``flwr-clientapp``.
"""

import json
import sys
from importlib import import_module
from typing import Any

import flwr.supernode.runtime.run_clientapp  # noqa: F401  (all that it needs itself)
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

_OF_FLOWER = set(sys.modules)


def _answer(app: Any, asked: dict[str, Any]) -> None:
    config = ConfigRecord(asked["config"])
    content = RecordDict({"arrays": ArrayRecord(), "config": config})
    context = Context(1, 1, asked["node_config"], RecordDict(), {})
    reply = app(Message(content, dst_node_id=1, message_type="train"), context)
    assert not reply.has_error(), reply.error


if __name__ == "__main__":
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    client_app = import_module(sys.argv[1]).app
    for one in json.load(sys.stdin):
        _answer(client_app, one)
    print(*sorted(set(sys.modules) - _OF_FLOWER))
