"""Compute for many agents of a process at once what each asks for alone.

Agents that a simulation plays in one process take turns as greenlets, in one thread.
One that needs a suggestion waits until the others need theirs too; then all suggestions
are computed as one block of arrays. So whatever is around an agent (Flower's client, a
journal, the user's objective) is written as if the agent were alone.

>>> def squares(items):
...     return [item**2 for item in items]  # one call, however many there are
>>> def work(item):
...     return 1 + in_block(squares, item)
>>> run_together([lambda: work(3), lambda: work(4)])
[10, 17]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import islice
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
Item = TypeVar("Item")

# Works that wait at a time: their arrays, journals and stacks are in memory.
_AT_ONCE = 128


class _Work(greenlet):  # type: ignore[misc]
    """A work that `run_together` has begun: only such a one waits for others."""


def in_block(function: Callable[[Sequence[Item]], Sequence[T]], item: Item) -> T:
    """Return what ``function`` gives for an item, together with the items of others.

    Parameters
    ----------
    function : callable
        Takes a list of items and returns a list: of each item the same, whichever
        others there are.
    item : object
        Argument of this caller.
    """
    current = getcurrent()
    if isinstance(current, _Work):
        answer: T = current.parent.switch((function, item))
        return answer
    return function([item])[0]


def run_together(works: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield what each work returns, in order.

    Works run one at a time, each until it is done or calls `in_block`; what they raise
    is raised here.
    """
    rest = iter(works)
    while functions := list(islice(rest, _AT_ONCE)):
        batch = [_Work(function) for function in functions]
        try:
            results = _run(batch)
        finally:
            for work in batch:
                if not work.dead:  # another one has raised
                    work.throw()
        yield from results


def _run(batch: Sequence[_Work]) -> list[Any]:
    results: dict[_Work, Any] = {}
    blocks: dict[Any, list[tuple[_Work, Any]]] = defaultdict(list)

    def note(work: _Work, outcome: Any) -> None:
        if work.dead:
            results[work] = outcome
        else:
            function, item = outcome
            blocks[function].append((work, item))

    for work in batch:
        work.gr_context = copy_context()
        note(work, work.switch())
    while blocks:
        function = next(iter(blocks))
        block = blocks.pop(function)
        answers = _answers(function, [item for _, item in block])
        for (work, _), answer in zip(block, answers, strict=True):
            go_on = work.throw if isinstance(answer, Exception) else work.switch
            note(work, go_on(answer))
    return [results[work] for work in batch]


def _answers(
    function: Callable[[Sequence[Any]], Sequence[Any]], items: Sequence[Any]
) -> Sequence[Any]:
    """Return the answer to each item, or the error that it alone is the reason of."""
    try:
        return function(items)
    except Exception:
        return [_answer(function, item) for item in items]


def _answer(function: Callable[[Sequence[Any]], Sequence[Any]], item: Any) -> Any:
    try:
        return function([item])[0]
    except Exception as error:
        return error
