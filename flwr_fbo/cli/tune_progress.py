"""What ``flwr-fbo tune`` shows while it runs: a line a rung, and the time left."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

from flwr_fbo.cli.output import columns_of, wrapped
from flwr_fbo.tuner.rungs.progress import IS_PROGRESS

# Clears a line of a terminal.
_CLEAR = "\r\x1b[K"


class _Lines(logging.Handler):
    """Prints progress and warnings to standard error, without Flower's decoration.

    In a terminal a line that tells of a rung under way is replaced by the next one.
    """

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._is_terminal = sys.stderr.isatty()
        self._is_open = False
        self._warned: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, if it is for the user."""
        progress = getattr(record, IS_PROGRESS, None)
        is_passing = progress == "passing"
        if progress is None and record.levelno < logging.WARNING:
            return
        if is_passing and record.levelno < logging.INFO and not self._is_terminal:
            return
        text = record.getMessage()
        if record.levelno >= logging.ERROR and " ends without a result: " in text:
            return  # the error itself ends the command
        if progress is None:
            if text in self._warned:  # the command had it before the tuner
                return
            self._warned.add(text)
            text = f"Warning: {text}"
        if is_passing and self._is_terminal:  # a longer line could not be replaced
            text = text[: get_terminal_size().columns - 1]
        else:
            text = wrapped(text, columns_of(sys.stderr))
        if self._is_terminal:
            text = f"{_CLEAR}{text}"
        self._is_open = self._is_terminal and is_passing
        sys.stderr.write(text if self._is_open else f"{text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """End a line that is open."""
        if self._is_open:
            sys.stderr.write(_CLEAR)
            self._is_open = False
        super().close()


@contextmanager
def tuning_log(verbose: bool) -> Iterator[None]:
    """Show a tuner's progress; with ``verbose`` Flower's own log as it is."""
    flower, own = logging.getLogger("flwr"), logging.getLogger("flwr.fbo")
    if verbose:
        yield
        return
    lines, before = _Lines(), (flower.level, own.level, own.propagate)
    flower.setLevel(logging.ERROR)
    own.setLevel(logging.DEBUG)
    own.propagate = False
    own.addHandler(lines)
    try:
        yield
    finally:
        own.removeHandler(lines)
        lines.close()
        flower.setLevel(before[0])
        own.setLevel(before[1])
        own.propagate = before[2]
