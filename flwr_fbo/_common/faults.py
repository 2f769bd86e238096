"""Faults in the log: each once with its traceback, then only how often it repeats."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from flwr_fbo._common.errors import PublicError

_log = logging.getLogger("flwr.fbo")

# More different faults are forgotten: a server that sends other rubbish each time must
# not fill the memory.
_MOST_FAULTS = 1000
# Packages whose frames say nothing of a fault in the user's app.
_NOT_THE_APP = ("flwr", "flwr_fbo")


@dataclass
class _Fault:
    """What is known of one fault.

    Attributes
    ----------
    name : str
        What the line with the number of repeats begins with.
    level : int
    num_repeats, num_logged : int
        Repeats so far, and those that the log has.
    """

    name: str
    level: int
    num_repeats: int = 0
    num_logged: int = 0


class _FaultLog:
    """The faults of a process; one that repeats is counted."""

    def __init__(self) -> None:
        self._faults: dict[Hashable, _Fault] = {}
        self._lock = threading.Lock()

    def note(
        self, key: Hashable, name: str, level: int, text: str, exc_info: Any = None
    ) -> None:
        """Log a fault, or count it; the 10th, 100th and so on gets a line."""
        with self._lock:
            fault = self._faults.get(key)
            if fault is None:
                if len(self._faults) == _MOST_FAULTS:
                    self._forget()
                self._faults[key] = _Fault(name, level)
                _log.log(level, "%s", text, exc_info=exc_info)
                return
            fault.num_repeats += 1
            if _is_power_of_ten(fault.num_repeats + 1):
                _count(fault)

    def end(self) -> None:
        """Log the repeats that the log has not, and forget all faults."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        for fault in self._faults.values():
            if fault.num_repeats > fault.num_logged:
                _count(fault)
        self._faults.clear()


def _count(fault: _Fault) -> None:
    more = fault.num_repeats - fault.num_logged
    fault.num_logged = fault.num_repeats
    times = "once more" if more == 1 else f"{more} more times"
    _log.log(fault.level, "%s %s", fault.name, times)


_FAULTS = _FaultLog()
# In a deployment each message is a process of its own.
atexit.register(_FAULTS.end)


def log_fault(error: BaseException, what: str, level: int = logging.ERROR) -> None:
    """Log an error that is handled: once with its traceback, then how often it repeats.

    Two errors are the same fault if they are of one type and were raised at the same
    place, by the same calls.

    Parameters
    ----------
    error : BaseException
    what : str
        What has failed.
    level : int
        Of the logging module.
    """
    calls = _calls_of_app(error.__traceback__)
    kind, text = type(error).__name__, " ".join(str(error).split())
    whole = f"{kind}: {text}" if text else kind
    # The text of others may have another number each time.
    public = error.public if isinstance(error, PublicError) else ""
    name = whole.removesuffix(".") if public else f"{kind} at {_place(calls)}"
    exc_info = type(error), error, calls
    key = type(error), public, tuple(_lines(calls))
    _FAULTS.note(key, f"{name}: the same fault", level, f"{what}: {whole}", exc_info)


def log_once(name: str, text: str, level: int = logging.WARNING) -> None:
    """Log a line once, and then ``name`` with how often it repeats."""
    _FAULTS.note(name, name, level, text)


def end_of_faults() -> None:
    """Log how often faults have repeated; those that come again are new."""
    _FAULTS.end()


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1" and number > 1


def _calls_of_app(calls: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first call of the user's app on, if there is one."""
    call = calls
    while call is not None:
        module = str(call.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_THE_APP:
            return call
        call = call.tb_next
    return calls


def _lines(calls: TracebackType | None) -> list[tuple[str, int]]:
    lines = []
    while calls is not None:
        lines.append((calls.tb_frame.f_code.co_filename, calls.tb_lineno))
        calls = calls.tb_next
    return lines


def _place(calls: TracebackType | None) -> str:
    """Return file and line of the innermost call."""
    lines = _lines(calls)
    if not lines:
        return "an unknown place"
    file, line = lines[-1]
    return f"{Path(file).name}:{line}"
