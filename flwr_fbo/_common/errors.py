"""Errors, and their log.

Errors say which part of their text a server may read. In the log each fault stands
once, and then only how often it repeats.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

_log = logging.getLogger("flwr.fbo")

# More different faults are forgotten: a server that sends other rubbish each time must
# not fill the memory.
_MOST_FAULTS = 1000
# Packages whose frames say nothing of a fault in the user's app.
_NOT_THE_APP = ("flwr", "flwr_fbo")


class PublicError(Exception):
    """Base of errors with a text for the site, and perhaps another for the server.

    Parameters
    ----------
    text : str
        Text for the site's log.
    public : str
        Text that may leave the site: no value of its data, its configuration, its file
        system, or of another study. Nothing but the error's type leaves without it.
    """

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self.public = public

    @classmethod
    def told(cls, text: str) -> Self:
        """Return an error whose whole text may leave the site."""
        return cls(text, public=text)


class RefusedError(PublicError, RuntimeError):
    """A site refuses what a server asks of it; nothing has left."""


class NodeConfigError(PublicError, ValueError):
    """A value of a site's node config is not allowed, or is missing."""


class AppFailedError(PublicError, RuntimeError):
    """The app's objective, environment or model at a site is missing, or has failed."""


class OutOfTimeError(RuntimeError):
    """The trials of a message took too long, so that this one does not begin."""


def refused(why: str, public: str = "") -> RefusedError:
    """Return the error; all of it is public, unless another reason is."""
    text = "This site takes no part: {}."
    return RefusedError(text.format(why), public=text.format(public or why))


@dataclass
class _Fault:
    """One fault: what lines about its repeats begin with, and how many there are."""

    name: str
    level: int
    num_repeats: int = 0
    num_logged: int = 0

    def log_repeats(self) -> None:
        """Log the repeats that the log has not."""
        more = self.num_repeats - self.num_logged
        if more:
            self.num_logged = self.num_repeats
            times = "once more" if more == 1 else f"{more} more times"
            _log.log(self.level, "%s %s", self.name, times)


# The faults of this process.
_faults: dict[Hashable, _Fault] = {}
_lock = threading.RLock()


def _note(
    key: Hashable, name: str, level: int, text: str, exc_info: Any = None
) -> None:
    """Log a fault, or count it; the 10th, 100th and so on gets a line."""
    with _lock:
        if key not in _faults:
            if len(_faults) == _MOST_FAULTS:
                end_of_faults()
            _faults[key] = _Fault(name, level)
            _log.log(level, "%s", text, exc_info=exc_info)
            return
        fault = _faults[key]
        fault.num_repeats += 1
        if str(fault.num_repeats + 1).strip("0") == "1":
            fault.log_repeats()


def end_of_faults() -> None:
    """Log how often faults have repeated; those that come again are new."""
    with _lock:
        for fault in _faults.values():
            fault.log_repeats()
        _faults.clear()


# In a deployment each message is a process of its own.
atexit.register(end_of_faults)


def log_fault(error: BaseException, what: str, level: int = logging.ERROR) -> None:
    """Log an error that is handled: once, then how often it repeats.

    With its traceback, unless it has a public text and no cause: that says what to do.
    Two errors are the same fault if they are of one type and were raised at the same
    place, by the same calls.

    Parameters
    ----------
    error : BaseException
        The handled error.
    what : str
        Text for the log: the work that failed.
    level : int
        Level of the logging module.
    """
    # From the first call of the user's app on, if there is one.
    calls = call = error.__traceback__
    while call is not None:
        module = str(call.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_THE_APP:
            calls = call
            break
        call = call.tb_next
    kind, text = type(error).__name__, " ".join(str(error).split())
    whole = f"{kind}: {text}" if text else kind
    # The text of others may have another number each time.
    public = error.public if isinstance(error, PublicError) else ""
    lines = []
    frame = calls
    while frame is not None:
        lines.append((frame.tb_frame.f_code.co_filename, frame.tb_lineno))
        frame = frame.tb_next
    place = f"{Path(lines[-1][0]).name}:{lines[-1][1]}" if lines else "an unknown place"
    name = whole.removesuffix(".") if public else f"{kind} at {place}"
    is_told = public and error.__cause__ is None
    exc_info = None if is_told else (type(error), error, calls)
    key = type(error), public, tuple(lines)
    _note(key, f"{name}: the same fault", level, f"{what}: {whole}", exc_info)


def log_once(name: str, text: str, level: int = logging.WARNING) -> None:
    """Log a line once, and then ``name`` with how often it repeats."""
    _note(name, name, level, text)
