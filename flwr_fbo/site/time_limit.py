"""Time limit of one message's trials: a trial that is late does not begin.

What was played before that is in the journal, and a message that asks again goes on
from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr_fbo._common.errors import OutOfTimeError

# Called before each trial of a message.
CheckTime = Callable[[], None]


def time_limit(seconds: float) -> CheckTime:
    """Return what raises `OutOfTimeError` once so long has passed since its first call.

    Parameters
    ----------
    seconds : float
        From the first trial on.
    """
    began: float | None = None

    def check() -> None:
        nonlocal began
        now = time.monotonic()
        began = now if began is None else began
        if now - began > seconds:
            raise OutOfTimeError(
                f"The trials of this message took longer than max_seconds={seconds:g}: "
                "the next message continues them."
            )

    return check
