"""The simulator of linear bandits, against a loop over agents."""

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits.linear.exploration import (
    EllipsoidSampling,
    InverseGapWeighting,
)
from flwr_fbo.lab.simulation.linear_bandits import (
    BanditRun,
    Baseline,
    play_together,
)
from flwr_fbo.lab.tasks.linear_bandit import LinearBandits, LinearBanditTask
from tests.support.linear_bandits import (
    RELEASES,
    SCHEDULE,
    SIMULATION,
    TASK,
    M,
    T,
    play_objects,
    simulation,
)

PUBLISHED = replace(RELEASES, mechanism="tree", calibration="paper", epsilon=200.0)
UNKNOWN = replace(RELEASES, num_releases=None)


OWN = simulation(local_data="own", width=None)


CASES = {
    "released": simulation(),
    "raw": simulation(local_data="raw"),
    "own": OWN,
    "own, window": replace(
        OWN,
        settings=replace(OWN.settings, releases=replace(UNKNOWN, sliding_window=1)),
    ),
    "own, sampling": simulation(
        local_data="own", width=0.5, exploration=EllipsoidSampling(radius=1.0)
    ),
    "own, non-private": OWN.baseline("non-private"),
    "own, noise only": replace(OWN, control="noise-only"),
    "observed width": simulation(width="observed"),
    "paper calibration": simulation(releases=PUBLISHED, width="paper"),
    **{name: SIMULATION.baseline(name) for name in get_args(Baseline)},
    "non-private, raw": simulation(local_data="raw").baseline("non-private"),
    "noise-only": replace(SIMULATION, control="noise-only"),
    "ellipsoid sampling": simulation(exploration=EllipsoidSampling()),
    "inverse gap, raw": simulation(exploration=InverseGapWeighting(), local_data="raw"),
    "unknown horizon": simulation(releases=UNKNOWN),
    "sliding window": simulation(releases=replace(RELEASES, sliding_window=2)),
    "sliding window, raw": simulation(
        releases=replace(UNKNOWN, sliding_window=1), local_data="raw", width="observed"
    ),
    "sliding window, non-private": simulation(
        releases=replace(RELEASES, sliding_window=2)
    ).baseline("non-private"),
    "one agent": replace(simulation(local_data="raw"), num_agents=1),
}


@pytest.mark.parametrize("case", CASES)
def test_simulator_plays_as_agents_do(case: str) -> None:
    run = CASES[case].run(1, 101)
    expected = play_objects(CASES[case], 1, 101)
    assert np.array_equal(run.actions, expected.actions)
    assert run.synchronised == expected.synchronised
    assert bool(run.synchronised) == ("independent" not in case)
    for name in ("regret", "running_sums", "total"):
        ours, theirs = getattr(run, name), getattr(expected, name)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_runs_repeat_and_depend_on_both_seeds() -> None:
    run = SIMULATION.run(1, 2)
    assert np.array_equal(run.actions, SIMULATION.run(1, 2).actions)
    other_noise = SIMULATION.run(1, 3)
    assert np.array_equal(run.actions[:10], other_noise.actions[:10])
    assert not np.array_equal(run.actions, other_noise.actions)
    assert not np.array_equal(run.actions, SIMULATION.run(2, 2).actions)


def test_methods_that_play_together_play_as_if_alone() -> None:
    simulations = [CASES[name] for name in ("released", "raw", "full", "own")]
    runs = play_together(simulations, 1, 2)
    for run, each in zip(runs, simulations, strict=True):
        alone = each.run(1, 2)
        for name in ("actions", "regret", "running_sums", "total"):
            assert np.array_equal(getattr(run, name), getattr(alone, name))
        assert run.synchronised == alone.synchronised
    assert not np.array_equal(runs[0].actions, runs[1].actions)


def test_only_methods_with_the_same_trials_play_together() -> None:
    with pytest.raises(ValueError, match=r"simulations=\[\] .* at least one"):
        play_together([], 1, 2)
    for other in (
        replace(SIMULATION, num_trials=T + 1),
        replace(SIMULATION, task=replace(TASK, num_actions=5)),
        replace(SIMULATION, num_agents=M + 1),
    ):
        with pytest.raises(ValueError, match="of one task, number of trials and"):
            play_together([SIMULATION, other], 1, 2)


def test_noise_only_is_the_noise_of_the_private_method() -> None:
    private, control = play_together([SIMULATION, CASES["noise-only"]], 1, 2)
    assert np.array_equal(private.actions[:10], control.actions[:10])
    first = replace(SIMULATION, schedule=[10])
    private, control = play_together(
        [first, replace(first, control="noise-only")], 1, 2
    )
    products = [RELEASES.gram(*_played(run, i)) for run in (private,) for i in range(M)]
    np.testing.assert_allclose(private.total - control.total, np.sum(products, axis=0))


def _played(run: BanditRun, agent: int) -> tuple[FloatArray, FloatArray]:
    """Return the agent's first ten trials on seed 1."""
    bandits = LinearBandits(TASK, 1, [agent])
    chosen = run.actions[:10, agent : agent + 1].astype(np.intp)
    actions = [bandits.contexts(t)[0, chosen[t, 0]] for t in range(10)]
    return np.array(actions), np.array(
        [bandits.rewards(t, chosen[t]) for t in range(10)]
    )[:, 0]


def test_random_actions_are_uniform() -> None:
    random = replace(SIMULATION, num_trials=300, control="random")
    run = random.run(1, 2)
    assert run.synchronised == []
    counts = np.bincount(run.actions.ravel(), minlength=6)
    assert np.abs(counts - 200).max() < 5 * math.sqrt(200 * 5 / 6)
    assert not np.array_equal(run.actions, random.run(1, 3).actions)


def test_sums_are_exact_without_noise() -> None:
    run = SIMULATION.baseline("non-private").run(3, 0)
    bandits = LinearBandits(TASK, 3, range(M))
    sums, pooled = np.zeros((M, 4, 4)), np.zeros((4, 4))
    for t, chosen in enumerate(run.actions):
        x = bandits.contexts(t)[np.arange(M), chosen]
        z = np.column_stack([x, bandits.rewards(t, chosen)])
        sums += z[:, :, None] * z[:, None, :]
        if t + 1 == SCHEDULE[-1]:
            pooled = sums.sum(axis=0)
    np.testing.assert_allclose(run.running_sums, sums, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.total, pooled, rtol=0, atol=1e-10)


def test_regret_falls_with_what_is_shared() -> None:
    released = replace(SIMULATION, num_trials=300, schedule=[20, 60, 150, 200])
    regret = {
        name: released.baseline(name).run(4, 0).regret.sum()
        for name in get_args(Baseline)
    }
    assert regret["full"] < regret["non-private"] < regret["independent"]


def test_full_communication_acts_on_all_trials_so_far() -> None:
    run = SIMULATION.baseline("full").run(5, 0)
    np.testing.assert_allclose(run.total, run.running_sums.sum(axis=0))


def test_independent_agents_pay_for_nobody_else() -> None:
    alone = SIMULATION.baseline("independent")
    assert not alone.run(5, 0).total.any()
    assert simulation(width="paper").baseline("independent") == alone
    observed = simulation(width="observed").baseline("independent")
    assert observed.settings.width == "observed"
    assert observed.run(5, 0).regret.sum() < alone.run(5, 0).regret.sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": [5, 5]}, r"schedule=\[5, 5\] is not allowed: increasing"),
        ({"schedule": [0, 5]}, "from 1 to 90"),
        ({"schedule": range(1, 6)}, r"len\(schedule\)=5 .* at most 4 sync"),
        ({"control": "noise"}, "control='noise' is not allowed: one of"),
        ({"task": LinearBanditTask(2, 2)}, r"task.dimension=2 .* 3, as in"),
    ],
)
def test_bad_simulations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SIMULATION, **change)


def test_unknown_baselines_are_refused() -> None:
    with pytest.raises(ValueError, match="name='best' is not allowed"):
        SIMULATION.baseline("best")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "field"),
    [({"max_action_norm": 0.5}, "actions"), ({"reward_range": (0, 0.5)}, "rewards")],
)
def test_trials_beyond_the_promised_bounds_stop_a_run(
    bounds: dict[str, Any], field: str
) -> None:
    releases = replace(RELEASES, **bounds)
    with pytest.raises(ValueError, match=rf"{field}\[\d\]="):
        simulation(releases=releases).run(1, 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dimension", 1), ("num_actions", 10), ("concentration", 0.0)],
)
def test_bad_tasks(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}={value!r} is not allowed"):
        replace(TASK, **{field: value})
