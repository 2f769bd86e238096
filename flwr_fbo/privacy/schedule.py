"""After which iterations something is released.

A release costs privacy and is worth something only if an agent follows it. Agent and
server follow the same 1 - p_t, so the server can stop when following has become
improbable (as the DP-FTS-DE paper advises); agents keep what they have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from flwr_fbo._validation import is_number, require

Schedule = Literal["all"] | int | float | Collection[int]

# Of the agents, one in twenty still follows the last release.
MIN_FOLLOW_PROBABILITY = 0.05


def check_schedule(schedule: Schedule) -> None:
    """Raise ValueError unless ``schedule`` is one that `release_iterations` takes."""
    allowed = (
        "'all', K >= 0 for the first K, a collection of iterations >= 0, or a "
        "probability between 0 and 1 (a float)"
    )
    if isinstance(schedule, str):
        ok = schedule == "all"
    elif isinstance(schedule, float):
        ok = 0 < schedule < 1
    elif isinstance(schedule, Collection):
        ok = all(_is_iteration(t) for t in schedule)
    else:
        ok = _is_iteration(schedule)
    require(ok, "releases", schedule, allowed)


def _is_iteration(value: object) -> bool:
    return is_number(value) and isinstance(value, int) and value >= 0


def release_iterations(
    schedule: Schedule, horizon: int, follow_probability: Callable[[int], float]
) -> tuple[int, ...]:
    """Return the iterations that are released, in order; see `check_schedule`.

    Parameters
    ----------
    schedule : "all", int, float or collection of int
        All; the first K; those after which 1 - p is at least this in the next
        iteration; or the ones in the collection.
    horizon : int
        T, the last iteration; its messages would be of no use to anybody.
    follow_probability : callable
        1 - p_t for t >= 1.
    """
    iterations = range(horizon)
    if isinstance(schedule, str):
        return tuple(iterations)
    if isinstance(schedule, float):
        return tuple(t for t in iterations if follow_probability(t + 1) >= schedule)
    if isinstance(schedule, Collection):
        return tuple(t for t in iterations if t in schedule)
    return tuple(iterations[:schedule])
