"""Trials train with the same clients in the same rounds, if a strategy draws them."""

import random
from collections import defaultdict
from typing import Any

import pytest
from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from flwr_fbo import Halving
from flwr_fbo.tuner.trials.trial_grid import TrialGrid, _ordered
from flwr_fbo.tuning import current_trial
from tests.support.apps import in_process, main_of, server_context, tuner
from tests.support.races import NUM_NODES, RaceGrid, race, race_context

NODES = list(range(100, 130))


@pytest.mark.parametrize("size", [1, 3, 15, 30])
def test_nodes_come_in_such_an_order_that_the_sample_is_known(size: int) -> None:
    """The generator of the process gives what it would have given."""
    samples = []
    for state in range(5):
        random.seed(state)
        expected = random.sample(range(len(NODES)), size), random.random()
        random.seed(state)
        nodes = _ordered(list(NODES), size, "a seed")
        samples.append(random.sample(nodes, size))
        assert sorted(nodes) == NODES
        assert [nodes.index(node) for node in samples[-1]] == expected[0]
        assert random.random() == expected[1]
    assert all(sample == samples[0] for sample in samples)
    others = {tuple(_ordered(list(NODES), size, str(n))) for n in range(9)}
    assert len(others) > 4


def test_fewer_nodes_than_a_strategy_waits_for_are_all_there_are() -> None:
    assert _ordered([3, 1], 5, "a seed") == [3, 1]


def test_only_a_strategy_that_draws_gets_another_order() -> None:
    inner = in_process()
    grid: Any = TrialGrid(inner, lambda *_: [], True, lambda _: None, sample_seed=1)
    plain = list(inner.get_node_ids())
    assert list(grid.get_node_ids()) == plain
    drawn, known = sample_nodes(grid, 1, 3)
    assert sorted(known) == sorted(plain)
    for state in (1, 2, 3):
        random.seed(state)
        assert sample_nodes(grid, 1, 3)[0] == drawn


def _sampled(grid: RaceGrid) -> dict[int, dict[int, frozenset[int]]]:
    """Return which nodes each trial was trained by, by round."""
    found: dict[int, dict[int, frozenset[int]]] = defaultdict(dict)
    for sent in grid.in_trials:
        for trial, nodes in sent.items():
            found[trial][len(found[trial])] = frozenset(nodes)
    return found


def _half() -> FedAvg:
    return FedAvg(fraction_train=0.5)


@pytest.mark.parametrize("parallel", [1, 4])
def test_all_trials_of_a_halving_draw_the_same_clients(parallel: int) -> None:
    grid = RaceGrid()
    study = tuner(num_agents=NUM_NODES, schedule=Halving(6, (2, 4), parallel=parallel))
    study.start(main_of(_half), grid, race_context())
    rounds = _sampled(grid)
    assert len(rounds) == 6
    by_round = [{sent[number] for sent in rounds.values()} for number in (0, 1)]
    assert [len(sets) for sets in by_round] == [1, 1]
    assert by_round[0] != by_round[1]
    assert all(len(nodes) == NUM_NODES // 2 for (nodes,) in by_round)


def test_so_do_the_trials_of_a_group_in_a_race() -> None:
    """Two groups of ten, half of which train; eight trials have each."""
    grid = RaceGrid()
    race().start(main_of(_half), grid, race_context())
    first = [nodes[0] for nodes in _sampled(grid).values()]
    assert len(first) == 16
    assert len(set(first)) == 2
    assert not set.intersection(*map(set, set(first)))


def test_what_else_an_app_draws_is_its_own_in_each_trial() -> None:
    drawn: dict[int, list[float]] = {}

    class Noisy(FedAvg):
        def configure_train(self, *args: Any, **kwargs: Any) -> Any:
            messages = list(super().configure_train(*args, **kwargs))
            drawn[self.trial].append(random.random())
            return messages

        trial = -1

    def main(grid: Grid, context: Context) -> None:
        trial = current_trial(context)
        assert trial is not None
        strategy = Noisy(fraction_train=0.5)
        strategy.trial = trial.number
        drawn[trial.number] = []
        main_of(lambda: strategy)(grid, context)

    tuner(schedule=Halving(4, (2,))).start(main, in_process(), server_context())
    numbers = [value for values in drawn.values() for value in values]
    assert len(drawn) == 4
    assert len(set(numbers)) == len(numbers)
