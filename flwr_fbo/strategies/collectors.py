"""How the messages of a release come to the server: each, or as their sum alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import Message

from flwr_fbo.algorithms.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.algorithms.search.study import TuningStudy
from flwr_fbo.privacy.release import PlannedRelease
from flwr_fbo.privacy.secure_release import SecureRelease
from flwr_fbo.secure_sum.roster import digest_of
from flwr_fbo.secure_sum.terms import SumFailedError
from flwr_fbo.strategies.base import one_array
from flwr_fbo.strategies.secure_aggregation import (
    NO_ROSTER,
    Ask,
    SecureAggregation,
    SecureExchanges,
    check_pinned,
)
from flwr_fbo.study.secure_sums import SecureSums
from flwr_fbo.study.server import Step

_log = logging.getLogger("flwr.fbo")


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
        exchanges = SecureExchanges(self._server, self.roster, ask)
        try:
            summed = exchanges.sum_of(sums, study.text, number, group)
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
