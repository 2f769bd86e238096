"""What `tests/lab/simulation/test_linear_bandits.py` and others share."""

from dataclasses import replace
from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import (
    exploration_rng,
)
from flwr_fbo.bandits.linear.settings import (
    DeterminantTrigger,
    LinearUCBSettings,
)
from flwr_fbo.lab.simulation.linear_bandits import (
    BanditRun,
    BanditSimulation,
)
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import SeededEntropy

TASK = LinearBanditTask(dimension=3, num_actions=6)


M, T, SCHEDULE = 4, 90, [10, 37, 64, 80]


# So little privacy that the sums are more than noise, even with so few trials.
RELEASES = ContinualSettings(num_releases=4, dimension=3, epsilon=30.0, delta=0.1)


SETTINGS = LinearUCBSettings(RELEASES, local_data="released", width="exact")


SIMULATION = BanditSimulation(SETTINGS, M, TASK, T, SCHEDULE)


def simulation(**settings: Any) -> BanditSimulation:
    return replace(SIMULATION, settings=replace(SIMULATION.settings, **settings))


def play_objects(
    simulation: BanditSimulation,
    seed: int,
    noise_seed: int,
    trigger: DeterminantTrigger | None = None,
) -> BanditRun:
    """Play with one object an agent, and bandits of its own.

    A trigger says when to synchronise, in place of the schedule.
    """
    s, m = simulation.settings, simulation.num_agents
    agents = [LinearUCBAgent(Confidence.of(s, m)) for _ in range(m)]
    bandits = [LinearBandits(simulation.task, seed, [i]) for i in range(m)]
    releases = [
        ContinualRelease(s.releases, SeededEntropy(noise_seed, i)) for i in range(m)
    ]
    actions = np.empty((simulation.num_trials, m), dtype=np.int32)
    regret = np.zeros(simulation.num_trials)
    total, k = np.zeros_like(agents[0].running_sum), 0
    times = [0]
    window = s.releases.sliding_window
    earlier: list[list[FloatArray]] = [[0 * total] for _ in range(m)]
    synchronised: list[int] = []
    for t in range(simulation.num_trials):
        for i, (agent, bandit) in enumerate(zip(agents, bandits, strict=True)):
            decision_set = bandit.contexts(t)[0]
            index, _ = agent.choose(decision_set, exploration_rng(noise_seed, i, t))
            chosen = np.array([index])
            agent.tell(decision_set[index], float(bandit.rewards(t, chosen)[0]))
            actions[t, i] = index
            regret[t] += bandit.regrets(t, chosen)[0]
        due = t + 1 in simulation.schedule
        if trigger is not None:
            due = any(agent.wants_synchronisation(trigger) for agent in agents)
        if due:
            synchronised.append(t + 1)
            k, total, parts = k + 1, np.zeros_like(total), []
            for agent, release, before in zip(agents, releases, earlier, strict=True):
                told = agent.running_sum.copy()
                before.append(agent.running_sum.copy())
                if window is not None and k > window:
                    told -= before[k - window]
                noise_only = simulation.control == "noise-only"
                released = release.release(k, 0 * told if noise_only else told)
                total += released
                since = 0 if window is None or k <= window else times[k - window]
                parts.append(OwnPart(released, told, t + 1 - since))
            times.append(t + 1)
            for agent, part in zip(agents, parts, strict=True):
                agent.receive(total, k, part, len(agents) - 1)
    sums = np.array([agent.running_sum for agent in agents])
    return BanditRun(actions, regret, synchronised, sums, total)
