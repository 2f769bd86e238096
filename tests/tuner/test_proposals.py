"""Which settings are tried after the first batch."""

from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import Halving, PrivateChoice
from flwr_fbo.space.search_space import Params, SearchSpace
from flwr_fbo.tuner.candidates import first_candidates
from flwr_fbo.tuner.proposals import propose
from tests.tuner.apps import in_process, main_of, recording, server_context, tuner

SPACE = SearchSpace(
    {
        "rate": FloatDistribution(1e-4, 1.0, log=True),
        "momentum": FloatDistribution(0.0, 0.9),
    }
)


def _score(params: Params) -> float:
    """Best at the rate .01 and the momentum .6."""
    x = SPACE.to_unit(params) - SPACE.to_unit({"rate": 0.01, "momentum": 0.6})
    return float(-np.sum(x**2))


def test_proposals_find_better_settings_than_other_points() -> None:
    ours, others = [], []
    for seed in range(8):
        first, more = (
            first_candidates(SPACE, 8, {"rate": 1.0, "momentum": 0.0}, [], s)
            for s in (seed, 100 + seed)
        )
        rng = np.random.default_rng(seed)
        scores = [_score(params) + 0.03 * rng.standard_normal() for params in first]
        proposed = propose(SPACE, first, scores, 8, seed)
        assert len(proposed) == 8
        ours.append(max(map(_score, proposed)))
        others.append(max(map(_score, more)))
    assert np.mean(ours) > 0.5 * np.mean(others)  # both are below 0
    assert np.mean(np.greater(ours, others)) > 0.6


def test_none_is_tried_twice_while_there_are_others() -> None:
    space = SearchSpace(
        {
            "epochs": IntDistribution(1, 5),
            "loss": CategoricalDistribution(["hinge", "log"]),
        }
    )
    tried = [{"epochs": n, "loss": "log"} for n in (1, 2, 3)]
    proposed = propose(space, tried, [0.1, 0.5, 0.2], 7, seed=0)
    distinct = {tuple(p.values()) for p in [*tried, *proposed]}
    assert len(distinct) == 10
    more = propose(space, [*tried, *proposed], [0.1 * n for n in range(10)], 3, seed=0)
    assert len(more) == 3


@pytest.mark.parametrize(
    "scores", [[0.0, 0.0, 0.0], [-np.inf, -np.inf, -np.inf], [-np.inf, 0.5, 0.1]]
)
def test_any_scores_do(scores: list[float]) -> None:
    tried = first_candidates(SPACE, 3, {"rate": 1.0, "momentum": 0.0}, [], seed=1)
    proposed = propose(SPACE, tried, scores, 5, seed=1)
    assert len({tuple(p.values()) for p in proposed}) == 5


def test_defaults_outside_the_space_say_nothing() -> None:
    outside = {"rate": 7.0, "momentum": 0.0}
    assert len(propose(SPACE, [outside], [1.0], 4, seed=0)) == 4
    inside = {"rate": 0.01, "momentum": 0.5}
    assert propose(SPACE, [outside, inside], [1.0, 0.0], 2, seed=0)


BATCHES = Halving(8, (1, 3), parallel=3, batches=2)


def test_a_later_batch_is_nearer_the_best_setting(tmp_path: Path) -> None:
    """In the app a rate of about 0.3 or more, and more epochs, are better."""
    study = tuner(schedule=BATCHES, privacy=None, folder=tmp_path)
    result = study.start(main_of(), in_process(), server_context())
    first, both, last = result.rungs
    assert first.trials == tuple(range(4)) == tuple(sorted(first.survivors))
    assert both.trials == tuple(range(8))
    assert len(both.survivors) == 3 == len(last.trials)
    assert np.mean(both.scores[4:]) > np.mean(both.scores[1:4])
    assert (
        tuner(schedule=BATCHES, privacy=None, folder=tmp_path).start(
            main_of(), in_process(), server_context()
        )
        == result
    )


def test_each_batch_is_a_release_of_its_own() -> None:
    privacy = PrivateChoice(epsilon=2.0, delta=1e-3)
    study = tuner(schedule=BATCHES, privacy=privacy)
    grid = recording()
    spent = study.start(main_of(), grid, server_context()).privacy_spent
    assert spent is not None
    assert spent.num_releases == 3
    assert 1.9 < spent.epsilon <= 2.0


def test_enqueued_settings_are_of_the_first_batch() -> None:
    rate = "learning-rate"
    enqueued = [{rate: value} for value in (0.1, 0.2, 0.3)]
    study = tuner(schedule=BATCHES, privacy=None, enqueue=enqueued)
    result = study.start(main_of(), in_process(), server_context())
    assert [one[rate] for one in result.settings[1:4]] == [0.1, 0.2, 0.3]
    with pytest.raises(ValueError, match=r"^len\(enqueue\)=4 .* at most 3.* batch"):
        tuner(schedule=BATCHES, enqueue=[*enqueued, {rate: 0.4}])
