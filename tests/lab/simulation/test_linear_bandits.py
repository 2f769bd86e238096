"""The environment of linear bandits, and the simulator against a loop over agents."""

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
from flwr_fbo.bandits.linear.settings import (
    geometric_schedule,
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


@pytest.mark.parametrize("d", [2, 10])
def test_means_are_exact_and_actions_in_the_ball(d: int) -> None:
    task = LinearBanditTask(dimension=d, num_actions=d**2)
    bandits = LinearBandits(task, 6, range(5))
    assert np.linalg.norm(bandits.theta) == pytest.approx(1.0, abs=1e-14)
    best = np.zeros(d**2)
    for t in range(200):
        actions = bandits.contexts(t)
        assert np.linalg.norm(actions, axis=-1).max() <= 1 + 1e-14
        means = np.sort(actions @ bandits.theta, axis=1)
        assert means[:, 0].min() >= 0.5 - 1e-14
        assert means[:, -2].max() <= 0.6 + 1e-14
        assert means[:, -1].min() >= 0.7 - 1e-14
        assert means[:, -1].max() <= 0.8 + 1e-14
        chosen = (actions @ bandits.theta).argmax(axis=1)
        best += np.bincount(chosen, minlength=d**2)
        assert bandits.regrets(t, chosen) == pytest.approx(np.zeros(5), abs=1e-14)
        first = bandits.regrets(t, np.zeros(5, dtype=np.intp))
        expected = means[:, -1] - actions[:, 0] @ bandits.theta
        np.testing.assert_allclose(first, expected, atol=1e-14)
    # The best action is anywhere: 1000 sets, five standard deviations.
    mean = 1000 / d**2
    assert np.abs(best - mean).max() < 5 * math.sqrt(mean)


def test_theta_is_uniform_on_the_sphere() -> None:
    thetas = np.array([LinearBandits(TASK, seed, []).theta for seed in range(2000)])
    np.testing.assert_allclose(np.linalg.norm(thetas, axis=1), 1.0)
    # A coordinate has variance 1/3; and 1/sqrt(45 n) is the error of a product's mean.
    assert np.abs(thetas.mean(axis=0)).max() < 5 / math.sqrt(3 * 2000)
    moments = thetas.T @ thetas / 2000
    assert np.abs(moments - np.eye(3) / 3).max() < 10 / math.sqrt(45 * 2000)


def test_actions_are_uniform_given_their_mean() -> None:
    bandits = LinearBandits(LinearBanditTask(), 7, range(4))
    actions = np.concatenate([bandits.contexts(t).reshape(-1, 10) for t in range(50)])
    means = actions @ bandits.theta
    across = actions - means[:, None] * bandits.theta
    radius = np.linalg.norm(across, axis=1) / np.sqrt(1 - means**2)
    # Uniform in a ball of 9 dimensions: radius^9 is uniform on [0, 1].
    uniform = np.sort(radius**9)
    even = (np.arange(len(uniform)) + 0.5) / len(uniform)
    assert np.abs(uniform - even).max() < 2 / math.sqrt(len(uniform))  # p < 1e-3
    covariance = across.T @ across / len(across)
    scale = np.mean(1 - means**2) / 11
    expected = scale * (np.eye(10) - np.outer(bandits.theta, bandits.theta))
    np.testing.assert_allclose(covariance, expected, atol=0.05 * float(scale))


def test_rewards_are_beta_with_the_actions_mean() -> None:
    task = LinearBanditTask(dimension=2, num_actions=2, concentration=4.0)
    bandits = LinearBandits(task, 8, range(100))
    residuals, variances = [], []
    for t in range(200):
        chosen = np.full(100, t % 2)
        mean = (bandits.contexts(t)[:, t % 2]) @ bandits.theta
        rewards = bandits.rewards(t, chosen)
        assert rewards.min() >= 0
        assert rewards.max() <= 1
        residuals.append(rewards - mean)
        variances.append(mean * (1 - mean) / 5)
    residual, variance = np.concatenate(residuals), np.concatenate(variances)
    assert abs(residual.mean()) < 5 * math.sqrt(variance.mean() / len(residual))
    assert np.mean(residual**2) == pytest.approx(variance.mean(), rel=0.03)


def test_what_an_agent_meets_depends_on_seed_slot_and_trial_only() -> None:
    everyone, alone = LinearBandits(TASK, 9, range(5)), LinearBandits(TASK, 9, [3])
    chosen = np.array([1, 2, 3, 4, 5])
    for t in (70, 2, 40, 41, 0):
        np.testing.assert_array_equal(everyone.contexts(t)[3], alone.contexts(t)[0])
        expected = everyone.rewards(t, chosen)[3]
        assert alone.rewards(t, chosen[3:4])[0] == expected
        assert everyone.regrets(t, chosen)[3] == alone.regrets(t, chosen[3:4])[0]
    other = LinearBandits(TASK, 10, [3])
    assert not np.array_equal(other.contexts(0), alone.contexts(0))
    assert not np.array_equal(everyone.contexts(0)[0], everyone.contexts(0)[1])
    assert not np.array_equal(everyone.contexts(0), everyone.contexts(1))


def test_actions_handed_out_are_the_callers() -> None:
    bandits = LinearBandits(TASK, 11, [0])
    actions = bandits.contexts(0)
    before = actions.copy()
    bandits.contexts(1000)
    assert np.array_equal(actions, before)
    actions[:] = 0
    assert np.array_equal(bandits.contexts(0), before)


def test_a_reward_does_not_depend_on_who_asked_before() -> None:
    asked, fresh = (LinearBandits(TASK, 12, range(M)) for _ in range(2))
    first, second = np.array([0, 1, 2, 3]), np.array([0, 4, 2, 5])
    before = asked.rewards(35, first)
    assert np.array_equal(asked.rewards(35, second), fresh.rewards(35, second))
    assert np.array_equal(asked.rewards(35, first), before)
    asked.contexts(99)
    assert np.array_equal(asked.rewards(35, first), before)


def test_a_peek_is_to_read() -> None:
    bandits = LinearBandits(TASK, 12, range(M))
    actions = bandits.peek(35)
    assert np.array_equal(actions, bandits.contexts(35))
    with pytest.raises(ValueError, match="read-only"):
        actions[0] = 0


def test_geometric_schedule() -> None:
    assert geometric_schedule(1600, 4, 100) == [100, 200, 400, 800]
    assert geometric_schedule(100, 1, 7) == [7]
    assert geometric_schedule(20, 16, 1) == [*range(1, 16), 17]
    assert geometric_schedule(20, 15, 5) == [*range(5, 20)]  # after every trial
    with pytest.raises(ValueError, match="num_releases=16 is not allowed"):
        geometric_schedule(20, 16, 5)
    with pytest.raises(ValueError, match="num_releases"):
        geometric_schedule(20, 2, 20)


@pytest.mark.parametrize(("trials", "first"), [(100, 20), (60, 59)])
def test_any_number_of_synchronisations_can_be_scheduled(
    trials: int, first: int
) -> None:
    for n in range(1, trials - first + 1):
        times = geometric_schedule(trials, n, first)
        assert (len(times), times[0]) == (n, first)
        assert np.all(np.diff([*times, trials]) > 0)


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


def test_there_is_no_trial_before_the_first() -> None:
    with pytest.raises(ValueError, match="t=-1 is not allowed"):
        LinearBandits(TASK, 1, [0]).contexts(-1)
