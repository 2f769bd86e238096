"""Secure sums of a study's messages, from the server's side, exchange by exchange."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.secure_sum.aggregator import Aggregator
from flwr_fbo.secure_sum.roster import Roster
from flwr_fbo.secure_sum.terms import Exchange
from flwr_fbo.study.secure_sums import SecureSums

# Takes the release, the exchange, the attempt and requests; returns replies by slot.
Ask = Callable[[int, int, int, Mapping[int, Any]], dict[int, Any]]


class SumKeeper(Protocol):
    """Keeps the sum that is open.

    Attributes
    ----------
    open_sum : bytes
        State of the sum that may have been unmasked; empty without one.
    """

    open_sum: bytes


class SecureExchanges:
    """Plays the server's half of secure sums.

    Until a sum may have been unmasked it can be tried again, with other sites. From the
    last exchange on it cannot: two sums of the same messages would differ by some of
    them. So its state is on disk before that is asked, and the same is asked again.

    Parameters
    ----------
    keeper : SumKeeper
        Keeps the sum that is open.
    roster : Roster, optional
        Public keys of the sites.
    ask : callable
        Sends the requests of one exchange. What the keeper has is on disk first.
    """

    def __init__(self, keeper: SumKeeper, roster: Roster | None, ask: Ask) -> None:
        self._keeper = keeper
        self.roster = roster
        self._ask = ask

    def sum_of(
        self, sums: SecureSums, about: str, release: int, group: int
    ) -> SecureTotal:
        """Return the sum for a release.

        Parameters
        ----------
        sums : SecureSums
        about : str
            What is summed, as JSON.
        release : int
            As its sites number it, from 1.
        group : int
            Group of sites that are summed.

        Raises
        ------
        SumFailedError
            If too few sites were there.
        """
        attempt, state = self._opened()
        terms = sums.terms(about, release, group, attempt)
        aggregator = Aggregator(terms, self.roster, state)
        while aggregator.exchange != Exchange.DONE:
            if aggregator.exchange == Exchange.UNMASK:
                self._open(attempt, aggregator.state)
            exchange = int(aggregator.exchange)
            requests = aggregator.requests()
            aggregator.receive(self._ask(release, exchange, attempt, requests))
        return SecureTotal(aggregator.summed, aggregator.total)

    def _open(self, attempt: int, state: bytes) -> None:
        kept = {"attempt": attempt, "aggregator": state.decode()}
        self._keeper.open_sum = json.dumps(kept).encode()

    def _opened(self) -> tuple[int, bytes]:
        """Return the attempt that may have been unmasked, or a new one."""
        if not self._keeper.open_sum:
            return secrets.randbits(62), b""
        kept = json.loads(self._keeper.open_sum)
        return kept["attempt"], kept["aggregator"].encode()
