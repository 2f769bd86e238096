"""No number that a server may write makes a site's arithmetic fail, whatever its data.

Each field has a range of its own, and at its ends, with the worst data that are within
bounds, nothing raises, and nothing that leaves is not finite.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution, IntDistribution

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.bandits import (
    ContinualSettings,
    EllipsoidSampling,
    FedGOUCBSettings,
    InverseGapWeighting,
    LinearUCBSettings,
    Network,
    NeuralPrivacy,
    Number,
    Optimism,
    RewardTimeout,
)
from flwr_fbo.bandits.fed_go_ucb.agent import FedGOUCBAgent
from flwr_fbo.bandits.linear.agent import LinearUCBAgent, OwnPart
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.settings import DeterminantTrigger
from flwr_fbo.models.langevin_regression import LangevinSettings
from flwr_fbo.privacy import WeightSchedule
from flwr_fbo.privacy.continual import ContinualRelease
from flwr_fbo.privacy.noise import SeededEntropy
from flwr_fbo.privacy.release import ReleaseSettings
from flwr_fbo.privacy.spending_ledger import Charge
from flwr_fbo.tuner.message_headers import check_weights
from flwr_fbo.tuning import (
    DPFTSDESettings,
    FedVoteSettings,
    FedWarmStartSettings,
    FTSSettings,
    SearchSpace,
)
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_warm_start.settings import Cohorts, WarmStartFacts
from flwr_fbo.tuning.search.agent import play_round
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

D, K, TRIALS = 3, 4, 24
RELEASES = ContinualSettings(2, D, epsilon=1.0, delta=1e-5)
LINEAR = LinearUCBSettings(RELEASES, local_data="own", parameter_norm=1.0, width=1.0)
WRITTEN: list[Any] = [
    RELEASES,
    LINEAR,
    EllipsoidSampling(),
    InverseGapWeighting(),
    DeterminantTrigger(1.0),
    RewardTimeout(1.0),
    Number(0.0, 1.0, missing=0.5),
    FedGOUCBSettings(),
    NeuralPrivacy(1.0, 1e-3),
    Network(2),
    LangevinSettings(),
    DPFTSDESettings(),
    FTSSettings(),
    FedVoteSettings(),
    FedWarmStartSettings(),
    VoteCount(3),
    Cohorts(3),
    WeightSchedule(),
    ReleaseSettings(3),
    Charge(1.0),
]
# Where zero is allowed, a number near it cannot do harm that zero does not.
ENDS: dict[str, tuple[float, ...]] = {
    "noise_scale": (1e-12, 0.5, 1e12),
    "parameter_norm": (1e-15, 1.0, 1e15),
    "alpha": (1e-15, 0.01, 1 - 1e-12),
    "ridge": (1e-15, 1.2e-10, 1.0, 1e15),
    "width": (1e-15, 0.3, 1e6),
}


def numbers_of(given: Any) -> Iterator[tuple[Any, str]]:
    for one in fields(given):
        if isinstance(getattr(given, one.name), float):
            yield given, one.name


@pytest.mark.parametrize(
    ("given", "name"),
    [pair for one in WRITTEN for pair in numbers_of(one)],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_a_number_has_a_range(given: Any, name: str) -> None:
    for absurd in (math.nan, -math.inf, -1e300, 1e300):
        with pytest.raises(ValueError, match=name):
            replace(given, **{name: absurd})
    tiny, allowed = math.ulp(0.0), True
    try:
        replace(given, **{name: tiny})
    except ValueError:
        allowed = False
    if allowed:
        replace(given, **{name: 0.0})


@pytest.mark.parametrize("weight", [1e300, 1e-300, -1e-300, math.inf, math.nan, 0.0])
def test_a_metric_has_a_weight_of_a_usual_size(weight: float) -> None:
    with pytest.raises(ValueError, match="size 1e-9 to 1e9"):
        check_weights("metric", {"accuracy": weight})


@st.composite
def linear_settings(draw: st.DrawFn) -> LinearUCBSettings:
    """Return settings with each number at an end of its range, or in the middle."""
    local: Any = draw(st.sampled_from(["own", "own", "released", "raw"]))
    length = draw(st.sampled_from([1e-6, 1.0, 1e6]))
    low = draw(st.sampled_from([-1e6, 0.0]))
    releases = ContinualSettings(
        2,
        D,
        epsilon=draw(st.sampled_from([1e-3, 1.0, 1e3, math.inf])),
        delta=draw(st.sampled_from([1e-15, 1e-5, 1 - 1e-9])),
        max_action_norm=draw(st.sampled_from([1e-6, 1.0, 1e6])),
        reward_range=(low, low + length) if length == 1e6 or low == 0 else (0, length),
    )
    chosen: dict[str, Any] = {
        name: draw(st.sampled_from(ends)) for name, ends in ENDS.items()
    }
    if local != "own" and draw(st.booleans()):
        chosen["width"] = draw(st.sampled_from(["exact", "observed"]))
    exploration = draw(
        st.sampled_from(
            [
                Optimism(),
                EllipsoidSampling(4, uniform_share=1e-12, radius=1e-9),
                EllipsoidSampling(4, uniform_share=1.0, radius=1.0),
                InverseGapWeighting(scale=1e-12),
                InverseGapWeighting(scale=1e12),
            ]
        )
    )
    return LinearUCBSettings(
        releases, local_data=local, exploration=exploration, **chosen
    )


def worst_actions(kind: str, t: int, length: float) -> FloatArray:
    """Return K actions that make sums ill-conditioned, or round to nothing."""
    rng = np.random.default_rng(t)
    if kind == "zero":
        return np.zeros((K, D))
    if kind == "alike":
        return np.full((K, D), length * D**-0.5 * (1 - 1e-12))
    if kind == "rank one":
        return np.outer(np.linspace(-1, 1, K), length * np.array([1, 1e-8, 0]))
    drawn = rng.normal(size=(K, D))
    norms = 1.000001 * np.linalg.norm(drawn, axis=1, keepdims=True)
    return np.asarray(length * drawn / norms)


KINDS = st.sampled_from(["zero", "alike", "rank one", "any"])
REWARDS = st.sampled_from(["low", "high", "alternating"])


def totals(releases: ContinualSettings) -> list[FloatArray]:
    """Return totals that a site takes: honest ones, and as large as any may be."""
    size = D + 1
    largest = releases.largest_entries
    rng = np.random.default_rng(0)
    signs = np.sign(rng.normal(size=(size, size)))
    v = rng.uniform(-1, 1, size)
    corner = np.zeros((size, size))
    corner[0, -1] = corner[-1, 0] = largest[0, -1]
    return [
        np.zeros((size, size)),
        largest,
        largest * np.triu(signs) + (largest * np.triu(signs, 1)).T,
        largest * np.outer(v, v),
        corner,
        1e-300 * np.ones((size, size)),
    ]


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=linear_settings(), kind=KINDS, paid=REWARDS, which=st.integers(0, 5))
def test_a_linear_bandit_never_fails(
    drawn: LinearUCBSettings, kind: str, paid: str, which: int
) -> None:
    releases, rng = drawn.releases, np.random.default_rng(0)
    low, high = releases.reward_range
    agent = LinearUCBAgent(Confidence.of(drawn, 2))
    mechanism = ContinualRelease(releases, SeededEntropy(1, 0))
    for t in range(TRIALS):
        actions = worst_actions(kind, t, releases.max_action_norm)
        chosen, propensity = agent.choose(actions, rng)
        assert 0 < propensity <= 1
        is_high = paid == "high" or (paid == "alternating" and t % 2 == 0)
        agent.tell(actions[chosen], high if is_high else low)
        if t % 10 == 9:
            k = t // 10 + 1
            clean, count = agent.running_sum.copy(), agent.num_trials
            released = mechanism.release(k, clean)
            assert np.isfinite(released).all()
            total = released + totals(releases)[which]
            # By the total alone it is taken or left aside, as by `RecordedBandit`.
            try:
                agent.receive(total, k, OwnPart(released, clean, count), 1)
            except np.linalg.LinAlgError:
                other = LinearUCBAgent(Confidence.of(drawn, 2))
                with pytest.raises(np.linalg.LinAlgError):
                    other.receive(total, k, OwnPart(0 * released, 0 * clean, 0), 1)
    assert np.isfinite(agent.estimate).all()
    assert not np.isnan(agent.confidence_width).any()
    if drawn.local_data == "own":
        assert not math.isnan(agent.worth_of_others or 0.0)


def test_a_small_ridge_says_nothing_of_trials() -> None:
    """Of many trials whose squares round to less than they are, to the last step."""
    releases = ContinualSettings(2, D, 1.0, 1e-5, reward_range=(0, 100))
    agent = LinearUCBAgent(
        Confidence.of(replace(LINEAR, releases=releases, ridge=1e-15), 2)
    )
    x = np.array([0.7, 0.7, 1e-4])
    product = releases.outer_products([x], [100.0])[0]
    assert np.linalg.eigvalsh(product[:D, :D])[0] < -1e-9
    agent.tell_sum(10_000 * product, 10_000)
    chosen, _ = agent.choose([x, -x])
    assert chosen == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    ridge=st.sampled_from([1e-15, 1e-5, 1e15]),
    beta=st.sampled_from([1e-15, 0.1, 1e15]),
    spread=st.sampled_from([1e-9, 8.0, 1e9]),
    exploration=st.sampled_from(["sampling", "optimism", "refined", "private", "bare"]),
    paid=st.sampled_from([0.0, 1.0, -1e6, 1e6]),
    is_alike=st.booleans(),
)
def test_a_neural_bandit_never_fails(
    ridge: float,
    beta: float,
    spread: float,
    exploration: str,
    paid: float,
    is_alike: bool,
) -> None:
    chosen: dict[str, Any] = {"ridge": ridge, "beta": beta, "num_exploration": 0}
    if exploration in ("private", "bare"):
        epsilon = 1.0 if exploration == "private" else math.inf
        chosen["privacy"] = NeuralPrivacy(epsilon, 1e-5, 2, num_features=4)
    elif exploration != "sampling":
        refined = int(exploration == "refined")
        chosen |= {"exploration": "optimism", "num_refinements": refined}
    given_settings = FedGOUCBSettings(**chosen)
    # The widest networks tell no actions apart: an error before there are any data.
    model = Network(2, width=25 if spread > 8 else 3, spread=spread)
    agent = FedGOUCBAgent(
        given_settings, model, 0, 0, num_agents=2, entropy=SeededEntropy(1, 0)
    )
    for t in range(TRIALS):
        rng = np.random.default_rng(t)
        actions = np.ones((K, 2)) if is_alike else rng.uniform(-9, 9, (K, 2))
        action = actions[agent.choose(actions)]
        agent.tell(action, paid if t % 3 else -paid)
        if t % 10 == 9:
            values = agent.message(t // 10 + 1).values
            assert np.isfinite(values).all()
            with suppress(np.linalg.LinAlgError):  # left aside, by the total alone
                agent.receive(values, agent.num_in_sums)
            agent.wants_synchronisation()


VALUES: dict[str, Callable[[int], float]] = {
    "alike": lambda t: 0.5,
    "zero": lambda t: 0.0,
    "alternating": lambda t: float(t % 2),
    "huge": lambda t: -1e100 if t % 2 else 1e100,
    "tiny": lambda t: t * 1e-300,
    "one": lambda t: 1e100 * (t == 5),
    "failing": lambda t: math.nan if t % 2 else float(t),
    "failed": lambda t: math.nan,
}
SPACE = SearchSpace(
    {"x": FloatDistribution(1e-300, 1e300, log=True), "n": IntDistribution(1, 3)}
)
AGENTS: list[Any] = [
    DPFTSDESettings(
        num_features=20,
        num_sub_regions=2,
        num_surrogate_features=20,
        num_initial=2,
        num_candidates=20,
        num_starts=2,
        lengthscale=lengthscale,
        regularization=regularization,
        noise_floor=noise_floor,
        refit_every=2,
    )
    for lengthscale, regularization, noise_floor in [
        (1e-9, 1e-15, 1e-15),
        (1e9, 1e-15, 1e6),
        (1e9, 1e15, 1e-15),
    ]
]
AGENTS += [
    FTSSettings(
        num_features=20,
        num_surrogate_features=20,
        num_candidates=20,
        num_starts=2,
        lengthscale=1e9,
        regularization=1e-15,
        noise_floor=1e-15,
        weighting="similarity",
    ),
    FedVoteSettings(num_features=20, num_candidates=50, num_cells=10**9),
    FedVoteSettings(num_features=20, num_candidates=50, max_similarity=1 - 1e-6),
    FedWarmStartSettings(num_features=16, num_candidates=50, share_after=2),
]
FACTS: dict[type, Any] = {
    FedVoteSettings: VoteCount(3, noise_std=1e9, sampling_probability=1e-9),
    FedWarmStartSettings: WarmStartFacts(Cohorts(3, (1, 1), noise_multiplier=1e6)),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("agent", AGENTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("sent", ["nothing", "zero", "huge", "drawn"])
def test_a_tuning_agent_never_fails(agent: Any, values: str, sent: str) -> None:
    study = TuningStudy(
        SPACE, "maximize", agent, feature_seed=1, facts=FACTS.get(type(agent))
    )
    made: Any = create_agent(study, 2, entropy=1)
    rows = {FTSSettings: 3}.get(type(agent), agent.num_sub_regions)
    drawn = np.random.default_rng(0).normal(size=(rows, agent.message_length))
    vectors = {"nothing": None, "zero": 0 * drawn, "drawn": drawn}.get(
        sent, 1e100 * np.sign(drawn)
    )

    def objective(trial: Any) -> float:
        return VALUES[values](trial.number)

    for iteration in range(7):
        message = play_round(made, objective, iteration, vectors, True)
        assert message is not None
        assert np.isfinite(message).all()


@pytest.mark.parametrize("agent", AGENTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("absurd", [1e101, math.inf, -math.inf])
def test_vectors_that_no_server_releases_are_refused(agent: Any, absurd: float) -> None:
    study = TuningStudy(SPACE, "maximize", agent, facts=FACTS.get(type(agent)))
    rows = {FTSSettings: 3}.get(type(agent), agent.num_sub_regions)
    vectors = np.zeros((rows, agent.message_length))
    vectors[0, 0] = absurd
    made = create_agent(study, 2, entropy=1)
    with pytest.raises(ValueError, match="vectors of shape"):
        made.receive(vectors)
