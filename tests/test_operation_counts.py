"""A small seeded study does no more work than it did: what is counted is operations.

Seconds depend on the machine, counts do not. The figures are today's; whoever needs
more of an operation says why, and whoever needs fewer lowers the bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from optuna.distributions import FloatDistribution

from flwr_fbo import InProcessGrid, SearchSpace, VotingSettings
from flwr_fbo.agents.bandits.fed_ucb import LinearUCBAgent
from flwr_fbo.agents.tuning.fed_vote import VotingAgent
from flwr_fbo.models import gp, linear, matern
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.continual_settings import ContinualSettings
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.protocol.confidence import Confidence
from flwr_fbo.protocol.linear_ucb_settings import LinearUCBSettings
from tests.federation import (
    AGENT,
    NUM_AGENTS,
    NUM_ITERATIONS,
    Objective,
    numpy_app,
    objective_of,
    strategy,
)

M, P = AGENT.num_features, AGENT.num_sub_regions
FIRST = AGENT.num_initial
NUMBER, HEADER = 8, 128  # bytes; of the .npy format

# Four messages of each number of observations, and a search where no agent follows.
WEIGHTS = {4: 4, 5: 7, 6: 7, 7: 6, 8: 8}
# 787 and 1287 today; the former depends on the last bits a little, so on the machine.
MOST_LIKELIHOODS, MOST_CONFIG_BYTES = 850, 1350
# 13 today.
MOST_OF_A_FIT = 16


def counted(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, counts: Counter[int]
) -> None:
    """Count the calls of a module's function, by the rows of its first argument."""
    function = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        counts[len(args[0])] += 1
        return function(*args, **kwargs)

    monkeypatch.setattr(module, name, call)


class MeasuringGrid(InProcessGrid):
    """Which remembers the bytes of the records of each round, there and back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.arrays: list[tuple[int, int]] = []
        self.largest_config = 0

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver all messages and replies."""
        there = list(messages)
        back = list(super().send_and_receive(there, timeout=timeout))
        if not there:  # Flower's evaluation
            return back
        self.arrays.append((_array_bytes(there), _array_bytes(back)))
        configs = [c for m in there for c in m.content.config_records.values()]
        largest = max(config.count_bytes() for config in configs)
        self.largest_config = max(self.largest_config, largest)
        return back


def _array_bytes(messages: list[Message]) -> int:
    records = [r for m in messages for r in m.content.array_records.values()]
    return sum(len(array.data) for record in records for array in record.values())


@dataclass
class Work:
    """What a study did."""

    weights: Counter[int] = field(default_factory=Counter)
    likelihoods: Counter[int] = field(default_factory=Counter)
    evaluations: int = 0
    arrays: list[tuple[int, int]] = field(default_factory=list)
    largest_config: int = 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Run the published preset: a message an agent, and a release, every round."""
    done = Work()
    counted(monkeypatch, linear, "cho_factor", done.weights)
    counted(monkeypatch, gp, "dpotrf", done.likelihoods)

    def make(context: Context) -> Objective:
        objective = objective_of(int(context.node_config["partition-id"]))

        def counting(params: dict[str, Any]) -> float:
            done.evaluations += 1
            return objective(params)

        return counting

    grid = MeasuringGrid(numpy_app(make), NUM_AGENTS)
    strategy().start(grid, num_rounds=NUM_ITERATIONS + 1)
    _, *done.arrays = grid.arrays  # the first asks who is there
    done.largest_config = grid.largest_config
    return done


def test_every_setting_is_evaluated_once(work: Work) -> None:
    assert work.evaluations == NUM_AGENTS * (FIRST + NUM_ITERATIONS)


def test_one_small_factorisation_a_message_and_one_a_search(work: Work) -> None:
    """Of t rows for t observations, below M: never an M x M one."""
    assert set(work.weights) == set(WEIGHTS)  # it is this that factorises, still
    assert all(work.weights[rows] <= bound for rows, bound in WEIGHTS.items())


def test_likelihoods_are_evaluated_no_more_often(work: Work) -> None:
    """Of the one fit of an agent that this study has time for, from eight starts."""
    assert work.likelihoods
    assert set(work.likelihoods) <= {FIRST + 1, FIRST + 2}
    assert sum(work.likelihoods.values()) <= MOST_LIKELIHOODS


def test_expected_improvement_factorises_once_a_suggestion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And in one suggestion of five as often as its fit asks for the likelihood."""
    factorised: Counter[int] = Counter()
    counted(monkeypatch, matern, "dpotrf", factorised)
    axes = {name: FloatDistribution(0.0, 1.0) for name in "ab"}
    settings = VotingSettings(refit_every=5)
    agent = VotingAgent(SearchSpace(axes), "maximize", settings, 0, 5, 7)
    for iteration in range(12):
        for x in agent.ask(iteration):
            agent.tell(iteration, x, float(np.sin(5.0 * x[0]) + x[1]))
    fits = {1, 6, 11}
    assert set(factorised) == set(range(1, 12))
    assert all(factorised[rows] == 1 for rows in set(factorised) - fits)
    assert all(factorised[rows] <= MOST_OF_A_FIT for rows in fits)


def test_what_travels_is_the_vectors_and_the_messages(work: Work) -> None:
    """Nothing there in the first round; then P x M numbers there, M numbers back."""
    assert len(work.arrays) == NUM_ITERATIONS + 1
    for number, (there, back) in enumerate(work.arrays):
        vectors = HEADER + NUMBER * P * M if number else 0
        # Under both names, for both kinds of client.
        assert there <= NUM_AGENTS * 2 * vectors
        assert back <= NUM_AGENTS * (HEADER + NUMBER * M)
    assert work.largest_config <= MOST_CONFIG_BYTES


def test_a_release_of_a_running_sum_draws_its_own_noise_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ContinualSettings(8, 4, epsilon=1.0, delta=0.1)
    drawn = []
    add_noise = SeededEntropy.add_noise

    def counting(self: SeededEntropy, k: int, rows: Any, std: Any) -> Any:
        drawn.append(rows.size)
        return add_noise(self, k, rows, std)

    monkeypatch.setattr(SeededEntropy, "add_noise", counting)
    release = ContinualRelease(settings, SeededEntropy(1))
    for k in range(1, 9):
        release.release(k, np.zeros(settings.sum_shape))
        release.release(k, np.zeros(settings.sum_shape))  # from the record
    assert drawn == [5 * 6 // 2] * 8


@pytest.mark.parametrize("local_data", ["released", "raw"])
def test_a_linear_bandit_factorises_once_a_synchronisation(
    local_data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own trials, where it acts on them, are updates of rank one."""
    counts: Counter[int] = Counter()
    counted(monkeypatch, np.linalg, "cholesky", counts)
    releases = ContinualSettings(4, 3, epsilon=1.0, delta=0.1)
    settings = LinearUCBSettings(releases, local_data=local_data)
    agent = LinearUCBAgent(Confidence.of(settings, 2))
    actions = np.eye(3)
    counts.clear()
    for _ in range(2):
        for _ in range(10):
            agent.tell(actions[agent.choose(actions)[0]], 0.5)
        agent.receive(agent.running_sum)
    assert counts == {3: 2}
