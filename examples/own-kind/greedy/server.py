"""The server half, and the strategy around it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.validation import require
from flwr_fbo._common.version import __version__
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.accounting import PrivacySpent
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.guarantee import EXAMPLE, Guarantee
from flwr_fbo.strategies.bandit_result import BanditResult
from flwr_fbo.strategies.base import StudyStrategy, num_asked_for
from flwr_fbo.study.codec import fresh_seed, is_release
from flwr_fbo.study.server import Server, Step
from greedy.kind import SERVER
from greedy.study import GreedyInstruction, GreedyStudy


class GreedyServer(Server):
    """Adds up the newest release of each site."""

    def __init__(self, study: GreedyStudy) -> None:
        self.study, self.num_agents, self.ledger = study, study.num_agents, []
        # Of each slot: where an answer is lost, its site is asked for the same again.
        self.heard = [0] * study.num_agents
        self.sums = np.zeros((study.num_agents, *study.releases.sum_shape))

    def step(self, iteration: int) -> Step:
        """Every round asks for a release."""
        return Step(iteration, release=iteration + 1)

    def receive(self, step: Step, messages: Mapping[int, Any]) -> None:
        """Take the releases of a round; what cannot be one counts as none."""
        releases = self.study.releases
        good = {s: m for s, m in messages.items() if is_release(m, releases)}
        for slot, message in good.items():
            self.sums[slot] = message
            self.heard[slot] += 1
        if good:
            facts = {
                "private": self.study.promise.private,
                "flwr_fbo": __version__,
                "num_releases": list(self.heard),
            }
            total = self.sums.sum(axis=0)
            self.ledger.append(LedgerRow(step.iteration, facts, total))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return what a restarted server needs besides the ledger."""
        return {"heard": np.array(self.heard), "sums": self.sums.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what `state_dict` returned."""
        if state:
            self.heard, self.sums = state["heard"].tolist(), np.array(state["sums"])

    def summary(self) -> list[str]:
        """Describe the study."""
        releases, is_private = self.study.releases, self.study.promise.private
        terms = Guarantee(EXAMPLE, "local")
        return [
            f"{self.num_agents} agents, {releases.dimension} arms",
            terms.text(releases.epsilon, releases.delta)
            if is_private
            else "NOT PRIVATE: no noise, or seeded",
        ]


class FedGreedy(StudyStrategy[BanditResult]):
    """Federated epsilon-greedy as a Flower strategy."""

    result_type = BanditResult
    record_kind = SERVER
    server: GreedyServer
    study: GreedyStudy

    def __init__(
        self,
        releases: ContinualSettings,
        num_agents: int,
        trials_a_round: int = 50,
        exploration: float = 0.1,
        *,
        seed: int | None = None,
        noise_seed: int | None = None,
    ) -> None:
        drawn = fresh_seed() if seed is None else seed
        about = releases, num_agents, trials_a_round, exploration, drawn, noise_seed
        study = GreedyStudy(*about)
        super().__init__(GreedyServer(study), study)

    def default_rounds(self) -> int:
        """Return the number of releases, which is planned."""
        assert self.study.releases.num_releases is not None
        return self.study.releases.num_releases

    def plan(self, horizon: int) -> None:
        """Refuse any other number of rounds."""
        rounds = self.default_rounds()
        require(horizon + 1 == rounds, "num_rounds", horizon + 1, f"{rounds}")

    def instruction(self, node: int, slot: int, step: Step) -> GreedyInstruction:
        """Return what the agent of a slot is asked."""
        heard = self.server.heard[slot]
        return GreedyInstruction(
            "round",
            self.study,
            slot,
            journal=self._enrolment.journals.get(slot, 0),
            num_trials=(step.iteration + 1) * self.study.trials_a_round,
            release=heard + 1,  # and not the round: an answer may have been lost
            heard=heard,
        )

    @property
    def privacy_spent(self) -> PrivacySpent:
        """What an agent has spent: all of it, once a release was asked for."""
        made = max(self.server.heard) or num_asked_for(self._rounds)
        return self.study.spent(made)

    def _end(self, result: BanditResult) -> None:
        total = self.server.vectors
        if total is not None:
            means = total[:-1, -1] / total.diagonal()[:-1].clip(1)
            result.estimate = means + self.study.releases.reward_middle
        result.num_synchronisations = max(self.server.heard)
        result.privacy_spent = self.privacy_spent
