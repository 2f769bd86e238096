"""Works that wait for each other, and get what they would get alone."""

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flwr_fbo.tuning.search import agents_at_once
from flwr_fbo.tuning.search.agents_at_once import in_block, run_together

CALLS: list[list[Any]] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


def squares(items: Sequence[int]) -> list[int]:
    CALLS.append(list(items))
    if -1 in items:
        raise ArithmeticError("-1 has no square here")
    return [item**2 for item in items]


def cubes(items: Sequence[int]) -> list[int]:
    CALLS.append(list(items))
    return [item**3 for item in items]


def squared(item: int) -> Callable[[], int]:
    return lambda: in_block(squares, item)


def test_alone_it_is_a_block_of_one() -> None:
    assert in_block(squares, 3) == 9
    assert CALLS == [[3]]


def test_works_that_wait_are_one_block() -> None:
    works = [squared(2), lambda: 7, squared(4), lambda: in_block(cubes, 2)]
    assert list(run_together(works)) == [4, 7, 16, 8]
    assert CALLS == [[2, 4], [2]]


def test_a_work_may_wait_again_and_again() -> None:
    def twice(item: int) -> Callable[[], int]:
        return lambda: in_block(squares, in_block(squares, item))

    assert list(run_together([twice(2), squared(5), twice(3)])) == [16, 25, 81]
    assert CALLS == [[2, 5, 3], [4, 9]]


def test_only_so_many_wait_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents_at_once, "_AT_ONCE", 2)
    assert list(run_together(map(squared, range(5)))) == [0, 1, 4, 9, 16]
    assert CALLS == [[0, 1], [2, 3], [4]]


def test_the_error_of_one_is_its_own() -> None:
    def guarded(item: int) -> Callable[[], int | str]:
        def work() -> int | str:
            try:
                return in_block(squares, item)
            except ArithmeticError as error:
                return str(error)

        return work

    results = list(run_together([guarded(2), guarded(-1), guarded(3)]))
    assert results == [4, "-1 has no square here", 9]


def test_an_error_that_nobody_handles_ends_all() -> None:
    closed = []

    def waits() -> int:
        try:
            return in_block(squares, 1)
        finally:
            closed.append("yes")

    def fails() -> int:
        raise KeyError("x")

    with pytest.raises(KeyError):
        list(run_together([waits, fails]))
    assert closed == ["yes"]


def test_blocks_within_a_work_are_of_that_work() -> None:
    def outer() -> int:
        return sum(run_together([squared(2), squared(3)])) + in_block(squares, 10)

    assert list(run_together([outer, squared(5)])) == [113, 25]
    assert CALLS == [[2, 3], [10, 5]]


def test_works_run_in_this_thread_with_this_context() -> None:
    """Signals, connections and settings of a thread work as they do outside."""
    variable = contextvars.ContextVar("variable", default="nothing")
    variable.set("outer")

    def work() -> tuple[str, int]:
        seen = variable.get()
        variable.set("inner")
        in_block(squares, 1)
        return seen + variable.get(), threading.get_ident()

    here = threading.get_ident()
    assert list(run_together([work, work])) == [("outerinner", here)] * 2
    assert variable.get() == "outer"
