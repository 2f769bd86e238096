"""The server of FedUCB where the sites sum their blocks, and add the noise themselves.

A block is what the trials of a site between two releases add. The server learns the
noisy total of the blocks and who is in it, and sends all totals to the sites. A release
for which too few sites are there waits, and later ones wait for it: a site may have
sent its block masked, and that block is in no other sum.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.validation import require
from flwr_fbo.bandits.fed_ucb.server import facts_of, lines_of, num_releases_in
from flwr_fbo.bandits.linear.study import LinearBanditStudy
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.study.server import Server, Step


class BlockServer(Server):
    """Keeps the totals of blocks that the sites have summed.

    Parameters
    ----------
    study : LinearBanditStudy
        The study, with its secure sums.

    Attributes
    ----------
    num_releases : list of int
        Number of totals that each agent's blocks are in.
    iterations : sequence of int
        Increasing: after which iterations a release is due.
    ledger : list of LedgerRow
        One per release: the total of its blocks, shape (d + 1, d + 1), its noise and
        the agents in it.

    Notes
    -----
    *Formal guarantees.* None of its own: those of `flwr_fbo.secure.block_noise`. What
    it sees of a site is in totals with the noise of enough sites.
    """

    def __init__(self, study: LinearBanditStudy) -> None:
        self.study, self.num_agents, self.ledger = study, study.num_agents, []
        self.num_releases = [0] * study.num_agents
        self.iterations: Sequence[int] = ()

    def resume(self, ledger: Sequence[LedgerRow]) -> None:
        """Go on after what an earlier run released."""
        super().resume(ledger)
        self.num_releases = num_releases_in(ledger, self.num_agents)

    @property
    def vectors(self) -> FloatArray | None:
        """The sum of all totals, shape (d + 1, d + 1); None before a release."""
        rows = [row.vectors for row in self.ledger]
        return np.sum(rows, axis=0) if rows else None

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """All totals, shape (k, d + 1, d + 1), and who is in each, shape (k, M)."""
        if not self.ledger:
            return []
        summed = np.zeros((len(self.ledger), self.num_agents), np.uint8)
        for k, row in enumerate(self.ledger):
            summed[k, row.facts["summed"]] = 1
        return [np.stack([row.vectors for row in self.ledger]), summed]

    def step(self, iteration: int) -> Step:
        """Decide: the first release that is due and has not been made, if there is one.

        After an iteration between two planned ones it is tried again.
        """
        made, due = len(self.ledger), bisect_right(self.iterations, iteration)
        return Step(iteration, made + 1 if made < due else 0)

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Take nothing: what sites answer besides their sum says nothing of them."""

    def receive_sum(self, step: Step, row: LedgerRow) -> None:
        """Put a total on the ledger.

        Parameters
        ----------
        step : Step
            The step that asked for the release.
        row : LedgerRow
            The total, and what the ledger says of it.

        Raises
        ------
        ValueError
            If that release has been made.
        """
        made = len(self.ledger)
        require(step.release == made + 1, "release", step.release, f"{made + 1}")
        counts = list(self.num_releases)
        for slot in row.facts["summed"]:
            counts[slot] += 1
        self.num_releases = counts
        facts = {**row.facts, **facts_of(self.study, counts), "release": step.release}
        self.ledger.append(LedgerRow(step.iteration, facts, row.vectors))

    def summary(self) -> list[str]:
        """Describe the settings, a line each."""
        return lines_of(self.study)
