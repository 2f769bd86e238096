"""The option of tuning strategies that keeps messages from the server.

Secure sums of a study's messages, from the server's side, exchange by exchange.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flwr_fbo._common.fields import check_fields, integer, ruled
from flwr_fbo._common.validation import require
from flwr_fbo.privacy.secure_release import SecureTotal
from flwr_fbo.secure_sum.aggregator import Aggregator
from flwr_fbo.secure_sum.graph import MAX_COMPLETE
from flwr_fbo.secure_sum.roster import Roster
from flwr_fbo.secure_sum.terms import Exchange, default_threshold
from flwr_fbo.strategies.options import check_folder
from flwr_fbo.study.secure_sums import SecureSums, SumGroup

# Takes the release, the exchange, the attempt and requests; returns replies by slot.
Ask = Callable[[int, int, int, Mapping[int, Any]], dict[int, Any]]

# What a study without a roster says.
NO_ROSTER = (
    "no roster: this holds against a server that follows the protocol and reads all it "
    "sees, not against one that deviates from it"
)


@dataclass(frozen=True)
class SecureAggregation:
    """How the sites of a tuning study sum their messages without a trusted server.

    The server learns the sum with its noise, and who answered. Each release takes five
    more exchanges of short messages.

    Examples
    --------
    >>> from optuna.distributions import FloatDistribution
    >>> from flwr_fbo import FedVote, SecureAggregation
    >>> strategy = FedVote(
    ...     {"C": FloatDistribution(1e-3, 1e3, log=True)},
    ...     "maximize",
    ...     num_agents=20,
    ...     epsilon=8,
    ...     delta=1e-3,
    ...     aggregation=SecureAggregation(colluding=2),
    ... )

    Attributes
    ----------
    colluding : int
        Number C of sites, >= 0, that may collude with the server or with each other.
        With more than 50 sites at most a fifth of them. A site knows its own noise: if
        C is 0, epsilon holds against the server, and not against the other sites.
    threshold : int, optional
        Number T of sites that must agree on a sum before it is unmasked, more than half
        of the n sites: C < 2 T - n and C < T - 1. The default is more than two thirds.
    honest : int, optional
        Number H of summed sites whose noise alone gives the planned noise multiplier,
        from 1 to n - C; by default T - C. A sum has at least H + C sites. Fewer honest
        sites allow more to be absent; the noise is then sqrt(answered / H) times that
        of a trusted server.
    roster : str or Path, optional
        File with the public keys of all sites (``flwr-fbo keys roster``), the one that
        the sites pin. Without it the guarantee is against a server that follows the
        protocol and reads all that it sees.

    Raises
    ------
    ValueError
        If an argument is not allowed; the message names it.
    """

    colluding: int = field(default=0, metadata=integer(0))
    threshold: int | None = field(default=None, metadata=integer(1, optional=True))
    honest: int | None = field(default=None, metadata=integer(1, optional=True))
    roster: str | Path | None = field(default=None, metadata=ruled(check_folder))

    def __post_init__(self) -> None:
        check_fields(self)

    def group(self, slots: range) -> SumGroup:
        """Return how some sites sum their messages.

        Raises
        ------
        ValueError
            If the numbers do not fit so many sites; the message names the field.
        """
        threshold, honest = self.threshold, self.honest
        if threshold is None:
            threshold = default_threshold(len(slots))
        if honest is None:
            honest = max(threshold - self.colluding, 1)
        about = slots.start, len(slots), honest, self.colluding, threshold
        return SumGroup(*about)

    def load_roster(self) -> Roster | None:
        """Return the roster in the file, or None without one.

        Raises
        ------
        ValueError
            If the file cannot be read, or is not a roster.
        """
        if self.roster is None:
            return None
        try:
            return Roster.load(self.roster)
        except OSError as error:
            why = f"a file that can be read ({error.strerror})"
            raise ValueError(
                f"roster={str(self.roster)!r} is not allowed: {why}."
            ) from error


def check_pinned(roster: Roster | None, slots: range) -> None:
    """Raise ValueError unless the sites that sum together are those of a roster.

    Of more than 50 all must be. Else a server could choose sites by their place in the
    sparse graph that they mask each other on.
    """
    if roster is None:
        return
    pinned = set(roster.slots)
    missing = sorted(set(slots) - pinned)
    allowed = f"one with the keys of slots {slots.start} to {slots.stop - 1}"
    require(not missing, "roster", f"without slots {missing[:8]}", allowed)
    ok = len(slots) <= MAX_COMPLETE or len(slots) == len(pinned)
    allowed = f"one of the {len(slots)} sites that sum together, as they are over 50"
    require(ok, "roster", f"{len(pinned)} sites", allowed)


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
