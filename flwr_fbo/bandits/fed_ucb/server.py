"""The server of FedUCB (Dubey & Pentland, 2020): it adds up what agents release.

Each agent's release is a private sum of all its trials so far, so the newest one takes
the place of those before. Where an agent is absent, or its message is malformed, its
last release stays in the total.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.fields import to_json
from flwr_fbo._common.version import __version__
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee, Trust
from flwr_fbo.study.codec import is_release
from flwr_fbo.study.server import Server, Step

_log = logging.getLogger("flwr.fbo")


class FedUCBServer(Server):
    """Sums the agents' last releases.

    Parameters
    ----------
    study : LinearBanditStudy
        The study, as all agents are told it.

    Attributes
    ----------
    num_releases : list of int
        Number of releases that have come from each agent.
    iterations : sequence of int
        Increasing: after which iterations agents are asked for a release.
    ledger : list of LedgerRow
        One per synchronisation: the sum of all last releases, shape (d + 1, d + 1),
        with how many each agent has made.

    Notes
    -----
    *Formal guarantees.* None of its own, and none needed: it sees nothing but what
    agents have made private themselves (`ContinualRelease`), and adding that up is
    post-processing. The confidence ellipsoid is sure with mixed releases too, as the
    noise of each is bounded by that of the largest, if who answers does not depend on
    the noise. A client that lies can send any sum that an honest one could, and so
    spoil the estimates of all: nothing here keeps it from that. What no honest client
    sends is refused: a sum that is too long, or, without noise, not positive
    semidefinite. If a total is of no use all the same, agents leave it aside.
    """

    def __init__(self, study: LinearBanditStudy) -> None:
        self.study, self.num_agents, self.ledger = study, study.num_agents, []
        self.num_releases = [0] * study.num_agents
        self.iterations: Sequence[int] = ()
        size = study.settings.releases.dimension + 1
        self._triangle = np.triu_indices(size)
        # The agents' last releases, of each the upper triangle.
        self._last = np.zeros((self.num_agents, len(self._triangle[0])))

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released."""
        super().resume(ledger)
        self.num_releases = num_releases_in(ledger, self.num_agents)
        if self.study.trigger is not None:  # nobody had planned when
            self.iterations = [row.iteration for row in self.ledger]

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the agents' last releases, (M, (d + 1) (d + 2) / 2); none at first."""
        return {"last": self._last} if self.ledger else {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what ``state_dict`` returned."""
        self._last = state.get("last", np.zeros_like(self._last))

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """The sum; or each total of new trials, and who is in it, as with secure sums.

        Shapes (k, d + 1, d + 1) and (k, M). A release is the running sum of its agent's
        blocks and of their noise: the difference of two has the noise of one.
        """
        if not self.study.settings.uses_blocks or not self.ledger:
            return super().arrays
        sums = np.stack([row.vectors for row in self.ledger])
        counts = np.array([row.facts["num_releases"] for row in self.ledger])
        totals = np.diff(sums, axis=0, prepend=0 * sums[:1])
        summed = np.diff(counts, axis=0, prepend=0 * counts[:1]) > 0
        return [totals, summed.astype(np.uint8)]

    def step(self, iteration: int) -> Step:
        """Decide whether agents are asked for a release after ``iteration``."""
        k = bisect_left(self.iterations, iteration)
        planned = k < len(self.iterations) and self.iterations[k] == iteration
        return Step(iteration, k + 1 if planned else 0)

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Put the releases that have come in the place of those before.

        Parameters
        ----------
        step : Step
            The step that asked for these messages.
        messages : mapping of int to ndarray of shape (d + 1, d + 1)
            By slot: each the next release of its agent.
        """
        if not step.release:
            return
        settings = self.study.settings.releases
        # A new array: what is on record of the last one stays as it is.
        last, counts = self._last.copy(), list(self.num_releases)
        for slot, message in messages.items():
            if is_release(message, settings):
                last[slot] = message[self._triangle]
                counts[slot] += 1
            else:
                _log.warning("\t> agent %d: its message is not a valid release", slot)
        if counts != self.num_releases:
            self._last, self.num_releases = last, counts
            facts = facts_of(self.study, counts)
            rows, columns = self._triangle
            total = np.empty((settings.dimension + 1,) * 2)
            total[rows, columns] = total[columns, rows] = last.sum(axis=0)
            self.ledger.append(LedgerRow(step.iteration, facts, total))

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        return lines_of(self.study)


def facts_of(study: LinearBanditStudy, num_releases: list[int]) -> dict[str, Any]:
    """Return what a row of the server's ledger says besides its vectors."""
    return {
        "num_releases": num_releases,
        "settings": to_json(study.settings),
        "private": study.private,
        "flwr_fbo": __version__,
    }


def num_releases_in(ledger: Sequence[LedgerRow], num_agents: int) -> list[int]:
    """Return how many releases each agent had made by the end of a ledger."""
    return list(ledger[-1].facts["num_releases"]) if ledger else [0] * num_agents


def lines_of(study: LinearBanditStudy) -> list[str]:
    """Describe what all agents have in common, a line each."""
    r = study.settings.releases
    releases = f"{r.num_releases or 'any number of'} releases"
    if r.sliding_window is not None:
        releases += f" with a sliding window of {r.sliding_window}"
    low, high = r.reward_range
    lines = [
        f"{study.num_agents} agents, dimension {r.dimension}, actions of norm up to "
        f"{r.max_action_norm:g}, rewards in [{low:g}, {high:g}]",
        f"{releases} an agent, {r.mechanism} with {r.calibration} "
        f"calibration: {Guarantee(EXAMPLE).text(r.epsilon, r.delta)}",
    ]
    return [*lines, study.warning] if study.warning else lines


def spent_by_agent(study: LinearBanditStudy, num_releases: int) -> PrivacySpent:
    """Return what an agent that has made so many releases has spent."""
    epsilon = study.epsilon_spent(num_releases)
    method = "gdp" if 0 < epsilon < math.inf else "none"
    conditions = (study.promise.condition,) if study.promise.condition else ()
    trust: Trust = "local" if study.secure is None else "sums"
    terms = Guarantee(EXAMPLE, trust, conditions)
    delta = study.settings.releases.delta
    return PrivacySpent(epsilon, delta, num_releases, method, guarantee=terms)
