"""Collector of a study's secure sums: a release's attempts, one after another.

`flwr_fbo.secure.aggregator` makes one attempt, which is five exchanges. Until its sum
may have been unmasked it can be given up, and another one begun, with the sites that
are there then. From the last exchange on it cannot: two sums of the same messages over
different sites differ by the messages of a few. So what could be unmasked is on disk
first, and the same is asked again, however often the server starts anew.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.secure.aggregator import Aggregator
from flwr_fbo.secure.block_sums import BlockSums
from flwr_fbo.secure.graph import MAX_COMPLETE
from flwr_fbo.secure.integer_noise import SumNoise
from flwr_fbo.secure.roster import Roster, digest_of
from flwr_fbo.secure.secure_release import SecureTotal
from flwr_fbo.secure.sum_settings import GroupedSums, SecureSums, SumGroup
from flwr_fbo.secure.terms import Exchange, SumFailedError, SumRequest

_log = logging.getLogger("flwr.fbo")

# Sends the requests of one exchange; returns what came back, by slot.
Ask = Callable[[Sequence[SumRequest]], Mapping[int, Any]]

_OPEN_SUM = "open-sum"
# What a study without a roster says.
_NO_ROSTER = (
    "no roster: this holds against a server that follows the protocol and reads all it "
    "sees, not against one that deviates from it"
)


class SecureCollector:
    """Has the sites of a study sum their messages, and add the noise.

    Examples
    --------
    >>> from flwr_fbo.journal.journal import Journal
    >>> from flwr_fbo.secure import SecureAggregation, SumIdentity
    >>> settings = ReleaseSettings(3, clip_norm=1.0, sampling_probability=1.0)
    >>> collector = SecureAggregation().collector([range(3)])
    >>> sums = collector.sums(settings, length=2)
    >>> site, journals = SumIdentity(), [Journal({"slot": n}) for n in range(3)]
    >>> def ask(requests):  # each is answered at a site
    ...     vector = np.array([0.6, 0.8])
    ...     return {
    ...         one.slot: site.reply(journals[one.slot], sums, one, lambda: vector)
    ...         for one in requests
    ...     }
    >>> summed = collector.collect(sums, "example", 1, ask=ask, keep=lambda: None)
    >>> summed.slots
    (0, 1, 2)
    >>> sums.row(0, 0, summed.slots, summed.total).vectors.shape  # with the noise
    (1, 2)

    Parameters
    ----------
    groups : sequence of SumGroup
        Sites that are summed together, group by group.
    roster : Roster, optional
        Pinned public keys of all sites.

    Raises
    ------
    ValueError
        If the roster lacks a site, or has more than a large group.

    Attributes
    ----------
    groups : tuple of SumGroup
        Terms of each group of sites.
    roster : Roster, optional
        Signing keys of the sites; None without a roster.
    open_sum : bytes
        State of the sum that may have been unmasked, but was not received; empty
        without one.
    failure : str
        Reason why the last sum failed; empty if it did not.
    """

    def __init__(
        self, groups: Sequence[SumGroup], roster: Roster | None = None
    ) -> None:
        self.groups, self.roster = tuple(groups), roster
        self.open_sum, self.failure = b"", ""
        for group in self.groups:
            _check_pinned(roster, group.slots)

    @property
    def warning(self) -> str:
        """What the sums do not hold against; empty with a roster."""
        return "" if self.roster is not None else _NO_ROSTER

    def trust(self) -> list[str]:
        """Return what the server learns of a site, for the log."""
        # A site knows its own noise, so that fewer shares are left than are summed.
        colluding = max((group.colluding for group in self.groups), default=0)
        lines = [
            "secure aggregation: the server learns the noisy sum, and who answered",
            f"epsilon holds against the server with at most {colluding} colluding "
            "agents",
        ]
        return lines + ([f"WARNING: {self.warning}"] if self.warning else [])

    def sums(self, settings: ReleaseSettings, length: int) -> SecureSums:
        """Return how messages of some length are summed under a release's settings.

        Raises
        ------
        ValueError
            If the sites cannot sum what would be released; the message names the field.
        """
        sums = SecureSums(settings, length, self.groups, digest_of(self.roster))
        for group in range(len(self.groups)):
            sums.noise(group)  # which names what does not fit
        return sums

    def block_sums(self, releases: ContinualSettings, most_trials: int) -> BlockSums:
        """Return how blocks of at most so many trials of a site are summed.

        Raises
        ------
        ValueError
            If the sites cannot sum them; the message names the field.
        """
        return BlockSums(releases, most_trials, self.groups, digest_of(self.roster))

    def collect(
        self,
        sums: GroupedSums[SumNoise],
        about: str,
        release: int,
        group: int = 0,
        *,
        ask: Ask,
        keep: Callable[[], object],
    ) -> SecureTotal | None:
        """Play one attempt at a sum, or go on with the open one; return the sum.

        None if too few sites were there, for the reason ``failure``. Then it can be
        tried again; an open sum stays open until it is there.

        Parameters
        ----------
        sums : SecureSums or BlockSums
            How the study is summed.
        about : str
            What is summed, as JSON: the same for all sites.
        release : int
            Number of the release as its sites count, from 1.
        group : int
            Group of sites that are summed.
        ask : callable
            Sends the requests of one exchange, and returns the replies by slot. One
            that is missing, or malformed, is that of a site that drops out.
        keep : callable
            Puts `open_sum` on disk: it is there when this returns.
        """
        attempt, state = secrets.randbits(62), b""
        if self.open_sum:
            kept = json.loads(self.open_sum)
            attempt, state = kept["attempt"], kept["aggregator"].encode()
        terms = sums.terms(about, release, group, attempt)
        aggregator = Aggregator(terms, self.roster, state)
        self.failure = ""
        try:
            while aggregator.exchange != Exchange.DONE:
                if aggregator.exchange == Exchange.UNMASK:
                    # Before the first site can answer: after a crash nobody knows
                    # whether one did, and another sum would lay messages open.
                    kept = {"attempt": attempt, "aggregator": aggregator.state.decode()}
                    self.open_sum = json.dumps(kept).encode()
                    keep()
                asked = [
                    SumRequest(
                        about, release, slot, attempt, int(aggregator.exchange), payload
                    )
                    for slot, payload in aggregator.requests().items()
                ]
                aggregator.receive(ask(asked))
        except SumFailedError as error:
            self.failure = str(error)
            return None
        # The caller puts what it makes of the sum on disk, in place of the open sum: if
        # it ends before, the same sum is asked for again.
        self.open_sum = b""
        return SecureTotal(aggregator.summed, aggregator.total)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the sum that may have been unmasked, if one is open."""
        if not self.open_sum:
            return {}
        return {_OPEN_SUM: np.frombuffer(self.open_sum, np.uint8)}

    def resume(self, state: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Continue from a state that has what `state_dict` returned.

        Return the rest of the state, which is others'.
        """
        rest = dict(state)
        found = rest.pop(_OPEN_SUM, None)
        self.open_sum = b"" if found is None else found.tobytes()
        return rest


def _check_pinned(roster: Roster | None, slots: range) -> None:
    """Raise ValueError unless the sites that sum together are those of a roster."""
    if roster is None:
        return
    pinned = set(roster.slots)
    missing = sorted(set(slots) - pinned)
    allowed = f"one with the keys of slots {slots.start} to {slots.stop - 1}"
    require(not missing, "roster", f"without slots {missing[:8]}", allowed)
    # Of more than 50 all must be summed: else a server could choose sites by their
    # place in the sparse graph that they mask each other on.
    ok = len(slots) <= MAX_COMPLETE or len(slots) == len(pinned)
    allowed = f"one of the {len(slots)} sites that sum together, as they are over 50"
    require(ok, "roster", f"{len(pinned)} sites", allowed)
