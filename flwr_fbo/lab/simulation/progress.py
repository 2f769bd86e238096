"""How far a simulation is, for whoever shows it.

A loop that takes long goes over `telling`; whoever waits for it listens with `told`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Listener = Callable[[float], None]
T = TypeVar("T")

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def told(listener: Listener) -> Iterator[None]:
    """Have a function told what share of a block is done, from 0 to 1."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def telling(items: Sequence[T]) -> Iterator[T]:
    """Yield the items, and tell after each what share of them is done.

    What a loop inside tells is a part of the item's share.
    """
    outer = _listener.get()
    if outer is None:
        yield from items
        return
    for i, item in enumerate(items):

        def inner(share: float, i: int = i) -> None:
            outer((i + share) / len(items))

        with told(inner):
            yield item
        outer((i + 1) / len(items))
