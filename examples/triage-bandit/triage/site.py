"""A site's own program: it decides for its patients, and returns rewards later."""

import time
from contextlib import suppress
from typing import Any

import numpy as np
import typer
from sklearn.datasets import load_breast_cancer

from flwr_fbo import LinearBanditPolicy
from flwr_fbo.bandits import LateRewardError
from triage.study import BIOPSY, CONTEXT, COSTS, FOLLOW_UP, IMAGING, SILENCE, WEEK

# From how many weeks on, and up to how many, the outcome of an arm is known.
DELAYS = {BIOPSY: (0.5, 1.5), IMAGING: (1, 3), FOLLOW_UP: (1, 4)}


def load_patients(site: int = 0, num_sites: int = 1) -> list[tuple[Any, str]]:
    """Return contexts and diagnoses of a site's share of the 569 patients."""
    data = load_breast_cancer()
    columns = [list(data.feature_names).index(name) for name in CONTEXT]
    contexts = [dict(zip(CONTEXT, row, strict=True)) for row in data.data[:, columns]]
    order = np.random.default_rng(0).permutation(len(contexts))[site::num_sites]
    return [(contexts[i], str(data.target_names[data.target[i]])) for i in order]


class Clinic:
    """A site, whose patients come again and again, in random order."""

    def __init__(self, folder: str, patients: Any, rng: np.random.Generator) -> None:
        self.policy = LinearBanditPolicy.open(folder, patience=600)
        self._patients, self._rng = patients, rng
        self._queue: list[int] = []
        # When a reward is known, its ticket, and the reward.
        self._outcomes: list[tuple[float, int, float]] = []

    def decide(self) -> None:
        """Decide for the next patient."""
        if not self._queue:
            self._queue = self._rng.permutation(len(self._patients)).tolist()
        context, diagnosis = self._patients[self._queue.pop()]
        choice = self.policy.choose(context)
        if (choice.arm, diagnosis) == (FOLLOW_UP, "benign"):
            return  # nothing is ever heard of this patient
        known = time.time() + self._rng.uniform(*DELAYS[choice.arm]) * WEEK
        reward = 1 - COSTS[choice.arm][diagnosis]
        self._outcomes.append((known, choice.ticket, reward))

    def return_rewards(self) -> None:
        """Return the rewards that are known by now."""
        now = time.time()
        for known, ticket, reward in self._outcomes:
            if known <= now:
                # This program may have slept for longer than a reward is awaited.
                with suppress(LateRewardError):
                    self.policy.reward(ticket, reward)
        self._outcomes = [one for one in self._outcomes if one[0] > now]


def main(
    folder: str, site: int, sites: int = 4, decisions: int = 2000, per_week: float = 20
) -> None:
    """Play at site number SITE, whose client keeps its journal in FOLDER."""
    clinic = Clinic(folder, load_patients(site, sites), np.random.default_rng())
    for _ in range(decisions):
        clinic.decide()
        clinic.return_rewards()
        time.sleep(WEEK / per_week)
    for _ in range(round(SILENCE.seconds / WEEK) + 1):  # for what is still to come
        clinic.return_rewards()
        time.sleep(WEEK)


if __name__ == "__main__":
    typer.run(main)
