"""The decisions of a site's journal as a sequence that is read piece by piece."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from flwr_fbo.bandits.site.decision import Decision

# Decisions that are read at once.
READ_AT_ONCE = 256


class Decisions(Sequence[Decision]):
    """What `BanditPolicy.decisions` returns: a sequence, in order of time.

    Each piece is read when it is asked for, so that a million decisions take no more
    memory than some hundred. Other processes decide in between: a decision has the
    reward that had come when it was read. Which decisions there are is fixed.

    Examples
    --------
    >>> from flwr_fbo.bandits import Decision
    >>> from flwr_fbo.bandits.site.decisions import Decisions
    >>> def read(first, end):
    ...     return [
    ...         Decision(i, 1.7e9, None, ("0",), [[1.0]], 0, 1.0, 0.5)
    ...         for i in range(first, end)
    ...     ]
    >>> decisions = Decisions(read, range(1000))
    >>> len(decisions), decisions[-1].number, sum(1 for _ in decisions)
    (1000, 999, 1000)

    Parameters
    ----------
    read : callable
        Returns the decisions of a journal from one number on, before another.
    numbers : sequence of int
        Numbers of the decisions that the sequence has, ascending.
    """

    def __init__(
        self, read: Callable[[int, int], list[Decision]], numbers: Sequence[int]
    ) -> None:
        self._read, self._numbers = read, numbers

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Decision: ...

    @overload
    def __getitem__(self, index: slice) -> Decisions: ...

    def __getitem__(self, index: int | slice) -> Decision | Decisions:
        """Return one, or a sequence of some, which are in order of time, too."""
        if isinstance(index, slice):
            return Decisions(self._read, sorted(self._numbers[index]))
        number = self._numbers[index]
        [decision] = self._read(number, number + 1)
        return decision

    def __iter__(self) -> Iterator[Decision]:
        """Yield all of them."""
        place = 0
        while place < len(self._numbers):
            first = self._numbers[place]
            after = bisect_left(self._numbers, first + READ_AT_ONCE)
            last = self._numbers[after - 1]
            wanted = set(self._numbers[place:after])
            yield from (d for d in self._read(first, last + 1) if d.number in wanted)
            place = after
