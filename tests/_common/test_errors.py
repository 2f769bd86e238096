"""Faults in the log: each once with its traceback, then counted."""

import logging
from typing import Any

import pytest

from flwr_fbo._common import errors
from flwr_fbo._common.errors import PublicError, end_of_faults, log_fault, log_once


def _raises(number: int) -> None:
    raise ValueError(f"row {number} is bad")


def _also_raises(number: int) -> None:
    raise ValueError(f"row {number} is bad")


def _caught(raise_it: Any, *arguments: Any) -> Exception:
    try:
        raise_it(*arguments)
    except Exception as error:
        return error
    raise AssertionError


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flwr.fbo")


def test_a_fault_has_one_line_with_its_traceback_and_is_then_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its text has another number each time."""
    for number in range(48):
        log_fault(_caught(_raises, number), "train failed")
    first, nine_more = caplog.records
    assert first.getMessage() == "train failed: ValueError: row 0 is bad"
    assert first.exc_info is not None
    assert "in _raises" in caplog.text
    assert "ValueError at test_errors.py" in nine_more.getMessage()
    assert nine_more.getMessage().endswith("the same fault 9 more times")
    end_of_faults()
    assert caplog.messages[2:] == [nine_more.getMessage().replace("9 more", "38 more")]
    end_of_faults()
    assert len(caplog.messages) == 3


def test_other_places_types_and_public_texts_are_other_faults(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def public(text: str) -> None:
        raise PublicError(text, public=text)

    log_fault(_caught(_raises, 1), "failed")
    log_fault(_caught(_also_raises, 1), "failed")
    log_fault(_caught(int, "x"), "failed")
    log_fault(_caught(public, "no 'a'"), "failed")
    log_fault(_caught(public, "no 'b'"), "failed")
    assert len(caplog.messages) == 5
    log_fault(_caught(public, "no 'b'"), "failed")
    assert len(caplog.messages) == 5


def test_a_public_text_is_told_again_when_it_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> None:
        raise PublicError("32 trials are too many.", public="too many trials")

    for _ in range(2):
        log_fault(_caught(refuse), "failed")
    end_of_faults()
    assert caplog.messages == [
        "failed: PublicError: 32 trials are too many.",
        "PublicError: 32 trials are too many: the same fault once more",
    ]


def test_what_was_counted_is_new_after_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        log_fault(_caught(_raises, 1), "failed")
        end_of_faults()
    assert [r.exc_info is None for r in caplog.records] == [False, False]


def test_a_line_that_is_no_error_is_counted_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for client in range(3):
        log_once("a client without a score:", f"client {client} has no score")
    end_of_faults()
    assert caplog.messages == [
        "client 0 has no score",
        "a client without a score: 2 more times",
    ]


def test_many_different_faults_fill_no_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for number in range(3000):
        log_once(f"fault {number}:", "something else")
    assert len(errors._faults) <= 1000
    assert len(caplog.messages) == 3000


def test_a_single_repeat_is_said_as_one(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        log_fault(_caught(_raises, 1), "failed")
    end_of_faults()
    assert caplog.messages[-1].endswith("the same fault once more")


def test_the_traceback_begins_in_the_users_app(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from flwr_fbo.site.site import SiteError, reported

    with pytest.raises(SiteError, match=r"^ValueError \(the site's log"):
        reported(lambda: _raises(7))
    assert "row 7 is bad" in caplog.text
    assert "site/site.py" not in caplog.text
