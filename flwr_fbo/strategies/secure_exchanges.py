"""Secure sums of a study's messages, from the server's side, exchange by exchange."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.protocol.tuning_study import TuningStudy
from flwr_fbo.secure_sum.aggregator import Aggregator
from flwr_fbo.secure_sum.roster import Roster
from flwr_fbo.secure_sum.terms import Exchange, SumFailedError
from flwr_fbo.servers.dp_fts_de import DistributedExplorationServer

_log = logging.getLogger("flwr.fbo")

# Takes the release, the exchange, the attempt and requests; returns replies by slot.
Ask = Callable[[int, int, int, Mapping[int, Any]], dict[int, Any]]


class SecureExchanges:
    """Plays the server's half of secure sums.

    Until a sum may have been unmasked it can be tried again, with other sites. From the
    last exchange on it cannot: two sums of the same messages would differ by some of
    them. So its state is on disk before that is asked, and the same is asked again.

    Parameters
    ----------
    server : DistributedExplorationServer
        Keeps the sum that is open.
    roster : Roster, optional
        Public keys of the sites.
    ask : callable
        Sends the requests of one exchange. It commits the server's state first.
    """

    def __init__(
        self, server: DistributedExplorationServer, roster: Roster | None, ask: Ask
    ) -> None:
        self._server = server
        self.roster = roster
        self._ask = ask

    def sum_of(
        self, study: TuningStudy, release: int, group: int
    ) -> SecureTotal | None:
        """Return the sum for a release; None if too few sites were there.

        Parameters
        ----------
        study : TuningStudy
        release : int
            As its sites number it, from 1.
        group : int
            Group of sites that are summed.
        """
        assert study.secure is not None
        attempt, state = self._opened()
        terms = study.secure.terms(study.text, release, group, attempt)
        aggregator = Aggregator(terms, self.roster, state)
        try:
            while aggregator.exchange != Exchange.DONE:
                if aggregator.exchange == Exchange.UNMASK:
                    self._open(attempt, aggregator.state)
                exchange = int(aggregator.exchange)
                requests = aggregator.requests()
                replies = self._ask(release, exchange, attempt, requests)
                aggregator.receive(replies)
        except SumFailedError as error:
            _log.warning("The release is postponed, at no epsilon: %s", error)
            return None
        return SecureTotal(aggregator.summed, aggregator.total)

    def _open(self, attempt: int, state: bytes) -> None:
        kept = {"attempt": attempt, "aggregator": state.decode()}
        self._server.open_sum = json.dumps(kept).encode()

    def _opened(self) -> tuple[int, bytes]:
        """Return the attempt that may have been unmasked, or a new one."""
        if not self._server.open_sum:
            return secrets.randbits(62), b""
        kept = json.loads(self._server.open_sum)
        return kept["attempt"], kept["aggregator"].encode()
