"""The site: an agent that lives in a journal, and the environment that it plays in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from flwr_fbo import Limits
from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.site.bandit_site import BanditSite, MakeEnvironment, playing
from flwr_fbo.bandits.site.environment import (
    BanditEnvironment,
    environment_in_time,
    fitting_actions,
    fitting_reward,
)
from flwr_fbo.journal.journal import Journal
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.site.recorded_agent import RecordedBanditAgent, older_copy
from flwr_fbo.site.site import Answer, site_app
from flwr_fbo.site.time_limit import CheckTime
from flwr_fbo.study.codec import is_array
from greedy.kind import SITE
from greedy.study import GreedyInstruction, GreedyStudy


class GreedyAgent(RecordedBanditAgent):
    """One agent: it explores at random, or plays the best arm of the agents' total."""

    kind = SITE.name
    study: GreedyStudy

    def __init__(self, journal: Journal, study: GreedyStudy) -> None:
        super().__init__(journal)
        self.study = study

    def join(self, slot: int, number: int) -> None:
        """Take the slot that the server names, and go on from the journal."""
        super().join(slot, number)
        releases = self.study.releases
        # With the journal: it keeps a release before it leaves, and its noise.
        self.mechanism = ContinualRelease(releases, self.entropy(), self.journal)
        zeros = np.zeros(releases.sum_shape)
        self.sums = self._state.get("own-sums", zeros)
        self.total = self._state.get("total", zeros)
        self.num_trials = int(self._state.get("num-trials", 0))

    def hear(self, arrays: Sequence[FloatArray]) -> None:
        """Keep the total, which a server sends until this agent has answered once."""
        if arrays and is_array(arrays[0], self.study.releases.sum_shape):
            self.total = arrays[0]
            # An array may be replaced, unless its name ends in -NUMBER.
            self._put({"total": self.total})

    def choose(self, t: int) -> int:
        """Return the arm of trial t, a function of the seed and of released totals."""
        rng = np.random.default_rng((self.study.seed, self.slot, t))
        order = rng.permutation(self.study.releases.dimension)
        if not self.total.any() or rng.random() < self.study.exploration:
            return int(order[0])
        # Of rewards less the middle of their range, which all arms lack alike.
        counts, sums = self.total.diagonal()[:-1], self.total[:-1, -1]
        made = self.mechanism.num_released
        noise = self.study.releases.std_by(made) * np.sqrt(self.study.num_agents)
        return int(order[np.argmax((sums / np.maximum(counts, noise + 1))[order])])

    def play(self, environment: BanditEnvironment, num_trials: int) -> None:
        """Play until there are so many trials, and keep each at once."""
        releases = self.study.releases
        for t in range(self.num_trials, num_trials):
            # They leave out or clip what does not fit: an error would tell of the data.
            actions = fitting_actions(environment, t, releases.dimension, 1.0)
            if actions is not None:
                x = np.eye(releases.dimension)[self.choose(t)]
                reward = fitting_reward(environment, t, x, releases.reward_range)
                if reward is not None:  # counts: diagonal; rewards: last column
                    self.sums = self.sums + releases.gram([x], [reward])
            self.num_trials = t + 1
            self._put({"own-sums": self.sums, "num-trials": np.array(t + 1)})


@dataclass(frozen=True)
class GreedySite(BanditSite[GreedyInstruction, GreedyAgent]):
    """The site, which `BanditSite` charges before it calls `reply`."""

    make_environment: MakeEnvironment
    limits: Limits | None = None

    instruction_type = GreedyInstruction
    recorded = GreedyAgent

    def __post_init__(self) -> None:
        self.check_limits()

    def num_trials(self, agent: GreedyAgent, instruction: GreedyInstruction) -> int:
        """Return how many trials are missing."""
        return instruction.num_trials - agent.num_trials

    def play(
        self,
        context: Context,
        agent: GreedyAgent,
        instruction: GreedyInstruction,
        arrays: Sequence[FloatArray],
        check_time: CheckTime,
    ) -> None:
        """Take the total that came along, and play."""
        made = agent.mechanism.num_released
        if made < instruction.heard:  # else a release would be made again
            raise older_copy(made, instruction.heard)
        agent.hear(arrays)
        # A server learns only the type of what an environment raises: its text may
        # quote trials.
        with playing(self.make_environment, context) as environment:
            limited = environment_in_time(environment, check_time)
            agent.play(limited, instruction.num_trials)

    def reply(
        self,
        agent: GreedyAgent,
        instruction: GreedyInstruction,
        arrays: Sequence[FloatArray],
    ) -> Answer:
        """Return the release; as it is on record if its answer was lost."""
        return Answer([agent.mechanism.release(instruction.release, agent.sums)])


def greedy_app(
    make_environment: MakeEnvironment, limits: Limits | None = None
) -> ClientApp:
    """Return the app of a site."""
    return site_app(GreedySite(make_environment, limits))
