"""Flower's log while trials run: whose a line is, and errors that repeat."""

from __future__ import annotations

import copy
import logging
from collections import deque
from typing import Self

from flwr_fbo._common.errors import log_once
from flwr_fbo.tuner.trials.trial_thread import CHOSEN_TRIAL, THREAD_NAME, TrialThread

_flower_log = logging.getLogger("flwr")

# Lines of a trial that are kept.
_MOST_LINES = 1000
# In Flower's line about a reply that is an error.
_ERROR_REPLY = "Received error in reply from node"


class TrialLog(logging.Filter):
    """Says in Flower's log which trial a line is of; counts error replies that repeat.

    Below a warning it is at level DEBUG: sixteen trainings would fill the log. The
    lines of a `main` that has ended can be shown later as the app's own. It is in use
    within a ``with`` statement.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, deque[logging.LogRecord]] = {}

    def __enter__(self) -> Self:
        _flower_log.addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        _flower_log.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a line of a trial; return whether it is logged."""
        name = record.threadName or ""
        if not name.startswith(THREAD_NAME):
            return True
        own = self._lines.setdefault(name, deque(maxlen=_MOST_LINES))
        own.append(copy.copy(record))
        line = f"[{name}] {record.getMessage()}"
        if _ERROR_REPLY in line:
            reason = line.partition(": ")[2]
            log_once(f"error reply {reason}: the same", line, record.levelno)
            return False
        record.msg, record.args = line, None
        if record.levelno < logging.WARNING:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return True

    def forget(self, trial: TrialThread) -> None:
        """Forget the lines of a trial whose `main` goes on."""
        if not trial.has_ended:
            self._lines.pop(f"{THREAD_NAME}{trial.number}", None)

    def show(self, trial: TrialThread) -> None:
        """Log the last lines of a trial as those of the app's own training."""
        for record in self._lines.pop(f"{THREAD_NAME}{trial.number}", ()):
            record.threadName = CHOSEN_TRIAL
            _flower_log.handle(record)
