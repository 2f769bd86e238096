"""Lines of `flwr-fbo tune` while it runs, in a terminal and elsewhere."""

import io
import logging
import sys

import pytest

from flwr_fbo.cli.tune_progress import tuning_log
from flwr_fbo.tuner.rungs.progress import IS_PROGRESS

_log = logging.getLogger("flwr.fbo")


class Stream(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        """Return whether it is one."""
        return self._is_terminal


def _printed(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with tuning_log(verbose=False):
        logging.getLogger("flwr").warning("of Flower")
        _log.info("of a tuner")
        _log.debug("round 1", extra={IS_PROGRESS: "passing"})
        _log.info("round 2", extra={IS_PROGRESS: "passing"})
        _log.info("rung 1", extra={IS_PROGRESS: "rung"})
        _log.warning("careful")
        _log.warning("%s", "careful")  # said once
        _log.debug("round 3", extra={IS_PROGRESS: "passing"})
    return stream.getvalue()


def test_elsewhere_each_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _printed(False, monkeypatch) == "round 2\nrung 1\nWarning: careful\n"


def test_in_a_terminal_one_line_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = "\r\x1b[K"
    parts = ["", "round 1", "round 2", "rung 1\n", "Warning: careful\n", "round 3", ""]
    assert _printed(True, monkeypatch) == clear.join(parts)


def test_a_warning_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "16")
    assert "Warning: careful\n" in _printed(False, monkeypatch)
    monkeypatch.setenv("COLUMNS", "12")
    assert "Warning:\n  careful\n" in _printed(False, monkeypatch)


def test_the_log_is_as_before_afterwards() -> None:
    flower = logging.getLogger("flwr")
    before = flower.level, _log.level, _log.propagate, [*_log.handlers]
    with tuning_log(verbose=False):
        pass
    with tuning_log(verbose=True):
        assert flower.level == before[0]
    assert (flower.level, _log.level, _log.propagate, [*_log.handlers]) == before
