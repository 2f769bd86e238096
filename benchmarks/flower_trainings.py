"""Run ``flwr-fbo``, and count how often each client trains.

    python -m benchmarks.flower_trainings FILE tune ...

FILE gets a JSON object: messages of type ``train`` by node id.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextvars import ContextVar
from functools import wraps
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from flwr_fbo.cli import app


def count(trainings: Counter[int]) -> None:
    """Count what every client is asked to train, by node id."""
    true_call = ClientApp.__call__
    inside = ContextVar("inside", default=False)

    @wraps(true_call)
    def call(self: ClientApp, message: Message, context: Context) -> Message:
        about = message.metadata
        is_train = about.message_type.split(".")[0] == MessageType.TRAIN
        if is_train and not inside.get():  # an app may call another one
            trainings[about.dst_node_id] += 1
        before = inside.set(True)
        try:
            return true_call(self, message, context)
        finally:
            inside.reset(before)

    ClientApp.__call__ = call  # type: ignore[method-assign]


def main() -> None:
    """Run a command, and write the counts whatever comes of it."""
    path, *arguments = sys.argv[1:]
    trainings: Counter[int] = Counter()
    count(trainings)
    try:
        app(arguments)
    finally:
        Path(path).write_text(json.dumps(trainings))


if __name__ == "__main__":
    main()
