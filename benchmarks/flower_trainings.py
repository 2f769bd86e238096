"""Run ``flwr-fbo``, and count how often each client trains.

    python -m benchmarks.flower_trainings FILE tune ...

FILE gets a JSON object: messages of type ``train`` by node id.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from functools import wraps
from pathlib import Path

from flwr.app import Context, Message, MessageType
from flwr.clientapp import ClientApp

from flwr_fbo.cli import app


def count(seen: dict[int, set[str]]) -> None:
    """Note the ids of what every client is asked to train, by node id."""
    true_call = ClientApp.__call__

    @wraps(true_call)
    def call(self: ClientApp, message: Message, context: Context) -> Message:
        about = message.metadata
        if about.message_type.split(".")[0] == MessageType.TRAIN:
            # By its id: an app may call another one with the same message.
            seen[about.dst_node_id].add(about.message_id)
        return true_call(self, message, context)

    ClientApp.__call__ = call  # type: ignore[method-assign]


def main() -> None:
    """Run a command, and write the counts whatever comes of it."""
    path, *arguments = sys.argv[1:]
    seen: dict[int, set[str]] = defaultdict(set)
    count(seen)
    try:
        app(arguments)
    finally:
        counts = {str(node): len(ids) for node, ids in sorted(seen.items())}
        Path(path).write_text(json.dumps(counts))


if __name__ == "__main__":
    main()
