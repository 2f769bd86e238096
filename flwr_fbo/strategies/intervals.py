"""Times between synchronisations, where sites decide at their own pace."""

from __future__ import annotations

import logging
import time

from flwr_fbo._common.validation import is_number, require

_log = logging.getLogger("flwr.fbo")

_LONGEST_INTERVAL = 10 * 365 * 86400.0


def check_interval(interval: float | None) -> None:
    """Raise ValueError unless it is a number of seconds, or None."""
    if interval is not None:
        is_short = is_number(interval) and 0 <= interval <= _LONGEST_INTERVAL
        bounds = "a number of seconds, 0 to ten years"
        require(is_short, "interval", interval, bounds)


def wait_until_due(last: float, interval: float) -> None:
    """Wait until an interval after a Unix time is over."""
    # No longer than the interval, wherever the clock was set to.
    pause = min(last + interval - time.time(), interval)
    if pause > 0:
        _log.info("The next synchronisation is in %.0f s.", pause)
        time.sleep(pause)
