"""A process of its own, killed at some instant.

``FLWR_FBO_NUM_KILLS`` is the number of kills of each test: `tests/adversaries/kills.py`
sets it to 100.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

NUM_KILLS = int(os.environ.get("FLWR_FBO_NUM_KILLS", 25))


def killed_after(
    seconds: float | None, target: Callable[..., None], *arguments: Any
) -> bool:
    """Run ``target`` for so long at most; return whether it was killed.

    Anything else that ends it before its time is an error.
    """
    context = multiprocessing.get_context("fork")
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
