"""Successive halving: how many trials go on."""

from typing import Any

import pytest

from flwr_fbo import Halving
from tests.support.apps import SPACE, in_process, main_of, server_context, tuner


@pytest.mark.parametrize(
    ("schedule", "num_trials", "num_survivors"),
    [
        (Halving(16, (3, 9, 27)), (16, 5, 2), (5, 2, 1)),
        (Halving(16, (3, 9)), (16, 5), (5, 1)),
        (Halving(5, (7,)), (5,), (1,)),
    ],
)
def test_trials_fall_as_rounds_grow(
    schedule: Halving,
    num_trials: tuple[int, ...],
    num_survivors: tuple[int, ...],
) -> None:
    assert tuple(rung.num_trials for rung in schedule.rungs) == num_trials
    assert tuple(rung.num_survivors for rung in schedule.rungs) == num_survivors
    assert schedule.rungs[0].rounds == schedule.rounds[0]
    assert schedule.rungs[-1].rounds == schedule.rounds[-1]


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("trials", {"trials": 1}),
        ("rounds", {"rounds": ()}),
        ("rounds", {"rounds": [3, 9]}),
        ("rounds", {"rounds": (3, 3)}),
        ("rounds", {"rounds": (0, 3)}),
        ("rounds", {"rounds": (1, 27)}),
        ("parallel", {"parallel": 0}),
    ],
)
def test_bad_settings_are_named(field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{field}="):
        Halving(**{"trials": 16, "rounds": (3, 9), **options})


def test_halving_only_chooses() -> None:
    study = tuner(schedule=Halving(4, (1, 2)))
    result = study.start(main_of(), in_process(), server_context())
    assert result.returned is None
    assert result.exact_metrics is None
    assert SPACE.keys() == result.best.keys()
