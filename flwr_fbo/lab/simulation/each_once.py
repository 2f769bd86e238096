"""A control for bandits with few actions: try each once, together, and play the best.

It has no model, and learns nothing of an action from another: a method with a model is
of use where it needs fewer trials than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flwr_fbo.lab.simulation.turns import FederationRun
from flwr_fbo.lab.tasks.nonlinear_bandit import NonlinearBandit, NonlinearBanditTask


@dataclass(frozen=True)
class EachOnce:
    """Agents that share what each action was rewarded with, until all are known.

    Attributes
    ----------
    task : NonlinearBanditTask
    num_agents, num_rounds : int
    """

    task: NonlinearBanditTask
    num_agents: int
    num_rounds: int

    def run(self, seed: int) -> FederationRun:
        """Play all rounds.

        An action and its reward go to the server, and from there to all others: 2 N
        scalars, and one synchronisation.
        """
        bandit, agents = NonlinearBandit(self.task, seed), self.num_agents
        turns = np.arange(self.num_rounds * agents).reshape(-1, agents)
        num_tried = min(len(bandit.actions), turns.size)
        rewards = [bandit.reward(i % agents, i // agents, i) for i in range(num_tried)]
        actions = np.where(turns < num_tried, turns, np.argmax(rewards))
        regret = (bandit.means.max() - bandit.means)[actions].sum(axis=1)
        shared = np.minimum(turns[:, -1] + 1, num_tried)
        return FederationRun(actions, regret, 2 * agents * shared, num_tried)
