"""Secure sums of a study, as its strategy has the sites make them between two rounds.

A sum is on record before it may be unmasked (`SecureCollector`). So a strategy that is
started again asks the same sites for the same sum, and never for a second one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from flwr_fbo.secure import SecureAggregation, SecureSums, SumRequest

_log = logging.getLogger("flwr.fbo")


class SecureRounds:
    """Has the sites of a study sum what they send, one release at a time.

    Parameters
    ----------
    aggregation : SecureAggregation
        How the sites sum.
    groups : sequence of range
        Slots of the sites that are summed together, group by group.

    Raises
    ------
    ValueError
        If the numbers, or the roster, do not fit so many sites.
    """

    def __init__(self, aggregation: SecureAggregation, groups: Sequence[range]) -> None:
        self.collector = aggregation.collector(groups)

    def needed(self, group: int = 0) -> int:
        """Return how many sites must answer before those of a group are summed."""
        return self.collector.groups[group].min_summed

    def sum_up(
        self,
        sums: SecureSums,
        about: str,
        release: int,
        group: int = 0,
        *,
        ask: Callable[[Sequence[SumRequest]], Mapping[int, Any]],
        keep: Callable[[], object],
    ) -> tuple[tuple[int, ...], NDArray[Any]] | None:
        """Return the sites in the sum of a release, and their sum.

        None if the release is postponed, at no epsilon: nothing was unmasked, or the
        same sum is asked for again.

        Parameters
        ----------
        sums, about, release, group, ask, keep
            See `SecureCollector.collect`.
        """
        summed = self.collector.collect(sums, about, release, group, ask=ask, keep=keep)
        if summed is None:
            reason = self.collector.failure
            _log.warning("The release is postponed, at no epsilon: %s", reason)
            return None
        return summed.slots, summed.total

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the sum that may have been unmasked, if one is open."""
        return self.collector.state_dict()

    def resume(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Continue from a state; return the rest of it, which is the server half's."""
        return self.collector.resume(state)
