"""The server of FedVote: it tells agents how to read the count of their votes."""

from __future__ import annotations

from flwr_fbo.tuning.dp_fts_de.server import DPFTSDEServer
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.search.settings import Facts


class FedVoteServer(DPFTSDEServer):
    """Releases the mean of the votes with noise; see `DPFTSDEServer`."""

    readable = "its exact best setting"

    def plan_facts(self, before: Facts | None) -> VoteCount:
        """Return by how many votes noise and sampling move the count at a place."""
        # The mean is released; agents read the count, which is N times as large.
        noise_std = self.num_agents * float(self.release.noise_std(0)[0])
        q = self.release.settings.sampling_probability
        return VoteCount(self.num_agents, noise_std, q)
