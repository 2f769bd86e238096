"""How the messages of a release come to the server: each, or as their sum alone.

`SecureAggregation` is the option of tuning strategies that keeps messages from the
server: secure sums, from the server's side, exchange by exchange.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Message

from flwr_fbo._common.fields import check_fields, integer, ruled
from flwr_fbo._common.validation import check_folder, require
from flwr_fbo.privacy.release import PlannedRelease
from flwr_fbo.privacy.secure_release import SecureRelease, SecureTotal
from flwr_fbo.secure_sum.aggregator import Aggregator
from flwr_fbo.secure_sum.graph import MAX_COMPLETE
from flwr_fbo.secure_sum.roster import Roster, digest_of
from flwr_fbo.secure_sum.terms import Exchange, SumFailedError, default_threshold
from flwr_fbo.strategies.enrolment import one_array
from flwr_fbo.study.secure_sums import SecureSums, SumGroup
from flwr_fbo.study.server import Step
from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.tuning.search.study import TuningStudy

_log = logging.getLogger("flwr.fbo")

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


def exchanged_sum(
    sums: SecureSums,
    about: str,
    release: int,
    group: int,
    *,
    roster: Roster | None,
    open_sum: bytes,
    keep: Callable[[bytes], None],
    ask: Ask,
) -> SecureTotal:
    """Play the server's half of a secure sum; return the sum for a release.

    Until a sum may have been unmasked it can be tried again, with other sites. From the
    last exchange on it cannot: two sums of the same messages would differ by some of
    them. So its state is on disk before that is asked, and the same is asked again.

    Parameters
    ----------
    sums : SecureSums
    about : str
        What is summed, as JSON.
    release : int
        As its sites number it, from 1.
    group : int
        Group of sites that are summed.
    roster : Roster or None
        Public keys of the sites.
    open_sum : bytes
        State of the sum that may have been unmasked; empty without one.
    keep : callable
        Takes this state, which is on disk before the next request leaves.
    ask : callable
        Sends the requests of one exchange.

    Raises
    ------
    SumFailedError
        If too few sites were there.
    """
    attempt, state = secrets.randbits(62), b""
    if open_sum:
        kept = json.loads(open_sum)
        attempt, state = kept["attempt"], kept["aggregator"].encode()
    terms = sums.terms(about, release, group, attempt)
    aggregator = Aggregator(terms, roster, state)
    while aggregator.exchange != Exchange.DONE:
        if aggregator.exchange == Exchange.UNMASK:
            kept = {"attempt": attempt, "aggregator": aggregator.state.decode()}
            keep(json.dumps(kept).encode())
        exchange = int(aggregator.exchange)
        requests = aggregator.requests()
        aggregator.receive(ask(release, exchange, attempt, requests))
    return SecureTotal(aggregator.summed, aggregator.total)


class PlainCollector:
    """Hands all messages to a trusted server, which reads them and adds the noise.

    Parameters
    ----------
    server : DPFTSDEServer
    min_answers : int or None
        Agents that must answer before a release; None for the server's own number.
    """

    def __init__(self, server: DPFTSDEServer, min_answers: int | None) -> None:
        self._server, self._min_answers = server, min_answers

    def plan(self, release: PlannedRelease) -> tuple[PlannedRelease, None]:
        """Return the mechanism, and nothing that sites need to know."""
        return release, None

    def needed(self, step: Step, num_enrolled: int) -> int:
        """Return how many agents must answer before a step's release."""
        if self._min_answers is not None:
            return self._min_answers
        return self._server.fewest_answers(step.release, num_enrolled)

    def read(self, slot: int, reply: Message) -> Any:
        """Return the message in a reply."""
        return one_array(slot, reply)

    def release(
        self, study: TuningStudy, step: Step, messages: Mapping[int, Any], ask: Ask
    ) -> bool:
        """Have the server release the messages; return whether it did."""
        self._server.receive(step, dict(sorted(messages.items())))
        return True

    def trust(self) -> list[str]:
        """Return what the server learns of a site, for the log."""
        readable = self._server.readable
        return [f"the server is trusted: it reads in each agent's message {readable}"]


class SecureCollector:
    """Has the sites sum their messages and add the noise: see `SecureAggregation`.

    Parameters
    ----------
    server : DPFTSDEServer
    aggregation : SecureAggregation
    num_features : int
        M, the length of a message.

    Raises
    ------
    ValueError
        If the numbers, or the roster, do not fit the sites that sum together.
    """

    def __init__(
        self, server: DPFTSDEServer, aggregation: SecureAggregation, num_features: int
    ) -> None:
        self._server, self.aggregation = server, aggregation
        self._num_features = num_features
        self.roster = aggregation.load_roster()
        self._groups = tuple(map(aggregation.group, server.groups()))
        for slots in server.groups():
            check_pinned(self.roster, slots)

    def plan(self, release: PlannedRelease) -> tuple[PlannedRelease, SecureSums]:
        """Return the mechanism with the sites' noise, and how the sites sum."""
        assert isinstance(release, SecureRelease)
        groups, digest = self._groups, digest_of(self.roster)
        secure = SecureSums(release.settings, self._num_features, groups, digest)
        for group in range(len(groups)):
            secure.noise(group)  # which names what does not fit
        excess = max((g.excess for g in groups), default=1.0)
        return release.with_excess(excess), secure

    def needed(self, step: Step, num_enrolled: int) -> int:
        """Return how many agents must answer before a step's release."""
        return self._groups[self._server.group_of(step.release)].min_summed

    def read(self, slot: int, reply: Message) -> None:
        """Return nothing: no message is in a reply where the sites sum them."""

    def release(
        self, study: TuningStudy, step: Step, messages: Mapping[int, Any], ask: Ask
    ) -> bool:
        """Have the sites sum their messages, and the server release the sum.

        False if too few sites were there; then it can be tried again.
        """
        sums, group = study.secure, self._server.group_of(step.release)
        assert sums is not None
        # As its sites number it: a cohort is in one release, which is its first.
        number = self._server.release_number(self._groups[group].first_slot, step)

        def keep(state: bytes) -> None:
            self._server.open_sum = state

        try:
            summed = exchanged_sum(
                sums,
                study.text,
                number,
                group,
                roster=self.roster,
                open_sum=self._server.open_sum,
                keep=keep,
                ask=ask,
            )
        except SumFailedError as error:
            _log.warning("The release is postponed, at no epsilon: %s", error)
            return False
        self._server.receive_sum(step, sums.noise(group), summed)
        return True

    def trust(self) -> list[str]:
        """Return what the server learns of a site, for the log."""
        lines = [
            "secure aggregation: the server learns the noisy sum, and who answered",
            # A site knows its own noise.
            "epsilon holds against the server with at most "
            f"{self.aggregation.colluding} colluding agents",
        ]
        return lines if self.roster is not None else [*lines, f"WARNING: {NO_ROSTER}"]
