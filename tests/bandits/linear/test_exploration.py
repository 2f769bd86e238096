"""Exploration: probabilities as the formulas have them, and as actions are drawn."""

import json
import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import chisquare

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.fields import from_json, to_json
from flwr_fbo.bandits import (
    Category,
    ContinualSettings,
    EllipsoidSampling,
    FeatureEncoder,
    InverseGapWeighting,
    LinearUCBSettings,
    Number,
    Optimism,
    RewardTimeout,
)
from flwr_fbo.bandits.linear import exploration
from flwr_fbo.bandits.linear.agent import LinearUCBAgent
from flwr_fbo.bandits.linear.confidence import Confidence
from flwr_fbo.bandits.linear.exploration import (
    Exploration,
    drawn,
    exploration_rng,
)
from flwr_fbo.bandits.linear.study import (
    LinearBanditInstruction,
    LinearBanditStudy,
)

D, K = 3, 4
RELEASES = ContinualSettings(num_releases=5, dimension=D, epsilon=np.inf, delta=0.1)
SETTINGS = LinearUCBSettings(RELEASES, local_data="released")
KINDS: tuple[Exploration, ...] = (
    Optimism(),
    EllipsoidSampling(num_draws=7, uniform_share=0.2, radius=0.3),
    EllipsoidSampling(num_draws=64, uniform_share=1.0, radius=1.0),
    InverseGapWeighting(scale=2.0),
)


def total(seed: int = 0) -> FloatArray:
    """Return a sum of twenty trials."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, D))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.clip(x @ [0.5, -0.3, 0.4] + 0.1 * rng.normal(size=20), -1, 1)
    z = np.column_stack([x, y])
    return np.asarray(z.T @ z)


def actions(num_actions: int = K, seed: int = 1) -> FloatArray:
    x = np.random.default_rng(seed).normal(size=(num_actions, D))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def agent_with(kind: Exploration) -> LinearUCBAgent:
    settings = replace(SETTINGS, exploration=kind)
    return LinearUCBAgent(Confidence.of(settings, 1), total())


# Formulas, with explicit inverses and one action at a time.


def belief() -> tuple[FloatArray, FloatArray, float]:
    """Return V, theta and w."""
    V = total()[:D, :D] + SETTINGS.ridge * np.eye(D)
    theta = np.linalg.inv(V) @ total()[:D, D]
    least = np.linalg.eigvalsh(V)[0]
    log_det = np.log(np.linalg.det(V))
    width = Confidence.of(SETTINGS, 1).width_at(np.asarray(log_det), np.asarray(least))
    return V, theta, float(width)


def slowly(kind: Exploration, x: FloatArray, rng: np.random.Generator) -> list[float]:
    V, theta, width = belief()
    num_actions = len(x)
    means = [float(one @ theta) for one in x]
    radii = [width * math.sqrt(one @ np.linalg.inv(V) @ one) for one in x]
    if isinstance(kind, Optimism):
        bounds = [m + r for m, r in zip(means, radii, strict=True)]
        return [float(a == bounds.index(max(bounds))) for a in range(num_actions)]
    if isinstance(kind, InverseGapWeighting):
        best, u = means.index(max(means)), sum(radii) / num_actions
        gaps = [max(means) - m for m in means]
        p = [1 / (num_actions * (1 + kind.scale * gap / u)) for gap in gaps]
        others = sum(p) - p[best]
        return [1 - others if a == best else p[a] for a in range(num_actions)]
    assert isinstance(kind, EllipsoidSampling)
    back = np.linalg.inv(np.linalg.cholesky(V).T)
    normal = rng.standard_normal((kind.num_draws, D))
    exponential = rng.standard_exponential(kind.num_draws)
    counts = [0] * num_actions
    for g, e in zip(normal, exponential, strict=True):
        point = g / math.sqrt(g @ g + 2 * e)
        parameter = theta + kind.radius * width * back @ point
        values = [float(one @ parameter) for one in x]
        counts[values.index(max(values))] += 1
    share = kind.uniform_share
    return [(1 - share) * c / kind.num_draws + share / num_actions for c in counts]


def probabilities_of(
    agent: LinearUCBAgent, x: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return the probabilities of one decision."""
    return np.asarray(agent.probabilities_many(x[None], [rng])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_actions", [1, K])
def test_probabilities_are_those_of_the_formulas(
    kind: Exploration, num_actions: int
) -> None:
    x, agent = actions(num_actions), agent_with(kind)
    for seed in range(2):
        rngs = [np.random.default_rng(seed) for _ in range(2)]
        probabilities = probabilities_of(agent, x, rngs[0])
        expected = slowly(kind, x, rngs[1])
        np.testing.assert_allclose(probabilities, expected, rtol=1e-9, atol=1e-12)
        assert rngs[0].random() == rngs[1].random()  # both have drawn as much


@pytest.mark.parametrize("kind", KINDS)
def test_a_choice_is_drawn_from_the_probabilities(kind: Exploration) -> None:
    x, agent = actions(), agent_with(kind)
    for seed in range(20):
        rngs = [np.random.default_rng(seed) for _ in range(2)]
        index, propensity = agent.choose(x, rngs[0])
        probabilities = probabilities_of(agent, x, rngs[1])
        assert propensity == probabilities[index]
        if not isinstance(kind, Optimism):
            assert drawn(probabilities, rngs[1]) == (index, propensity)


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_together_are_those_alone(
    kind: Exploration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever portions draws are computed."""
    agent = agent_with(kind)
    x = np.stack([actions(seed=i) for i in range(9)])

    def together() -> FloatArray:
        rngs = [np.random.default_rng(i) for i in range(9)]
        return agent._belief.probabilities(x, rngs)

    alone = [
        probabilities_of(agent, one, np.random.default_rng(i))
        for i, one in enumerate(x)
    ]
    np.testing.assert_allclose(together(), alone, rtol=0, atol=1e-12)
    for size in (1, 2 * 7 * K, 10**9):
        monkeypatch.setattr(exploration, "_VALUES_AT_ONCE", size)
        np.testing.assert_allclose(together(), alone, rtol=0, atol=1e-12)


# Laws that probabilities obey.


@pytest.mark.parametrize("num_actions", [2, 17])
@pytest.mark.parametrize("share", [1e-12, 1 / 3, 1.0])
def test_probabilities_of_sampling_sum_to_one_and_have_a_least(
    share: float, num_actions: int
) -> None:
    for num_draws in (1, 7, 49, 100):
        kind = EllipsoidSampling(num_draws, share)
        rng = np.random.default_rng(num_draws)
        p = probabilities_of(agent_with(kind), actions(num_actions), rng)
        assert p.sum() == pytest.approx(1, abs=1e-14)
        assert p.min() >= share / num_actions
        assert p.max() <= 1


def test_the_propensity_of_an_action_that_is_alone_is_exactly_one() -> None:
    """A bit more would be no probability, and `evaluate_policy` refuses it."""
    for share in np.linspace(1e-12, 1, 21):
        for num_draws in range(1, 120, 7):
            kind = EllipsoidSampling(num_draws, float(share))
            assert given(kind, [0.3], [1.0]).tolist() == [1.0]


def given(
    kind: Exploration, mean: list[float], lengths: list[float], width: float = 1.0
) -> FloatArray:
    """Return the probabilities of actions with these estimates and uncertainties."""
    directions = np.array(lengths)[None, :, None] * np.eye(1, D)
    rngs = [np.random.default_rng(0)]
    arrays = np.array([mean]), directions, np.array([width])
    return np.asarray(kind.probabilities(*arrays, rngs)[0])


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_inverse_gaps_sum_to_one_and_the_best_has_its_share(scale: float) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 40):
        mean = rng.uniform(-1, 1, n)
        p = given(InverseGapWeighting(scale), mean.tolist(), [*rng.uniform(0, 2, n)])
        assert p.sum() == pytest.approx(1, abs=1e-14)
        assert np.all((p >= 0) & (p <= 1))
        assert p[np.argmax(mean)] >= 1 / n - 1e-15
        assert np.all(np.diff(p[np.argsort(mean)]) >= -1e-15)


def test_inverse_gap_weighting_has_its_limits() -> None:
    kind = InverseGapWeighting(scale=2.0)
    # By hand: u = (1 + 3) / 2 = 2, so that 1 / (2 (1 + 2 (0.5 / 2))) = 1/3.
    np.testing.assert_allclose(given(kind, [0.5, 0.0], [1.0, 3.0]), [2 / 3, 1 / 3])
    # Without uncertainty it is greedy, and of equals the first is the best.
    assert given(kind, [0.0, 0.5, 0.5], [0.0] * 3).tolist() == [0, 1, 0]
    assert given(kind, [0.0, 0.5], [1.0] * 2, width=0.0).tolist() == [0, 1]
    # Of equals all are alike.
    np.testing.assert_allclose(given(kind, [0.3] * 5, [1.0] * 5), [0.2] * 5)
    # Near ties are equals.
    np.testing.assert_allclose(given(kind, [0.3, 0.3 + 1e-12], [1.0] * 2), [0.5] * 2)
    assert given(kind, [0.3], [1.0]).tolist() == [1.0]
    assert given(kind, [0.3], [0.0]).tolist() == [1.0]
    far = given(kind, [0.0, 1e12, 0.0], [1.0] * 3)
    assert far[1] == pytest.approx(1, abs=1e-11)
    assert np.all(far > 0)
    # Gaps that no float holds are infinite ones.
    with np.errstate(over="ignore"):
        p = given(InverseGapWeighting(1e9), [0.0, 1e300], [1.0] * 2)
    assert p.tolist() == [0.0, 1.0]


def test_a_larger_scale_is_greedier_and_a_small_one_uniform() -> None:
    best = [
        given(InverseGapWeighting(scale), [0.1, 0.4, 0.2], [1.0] * 3)[1]
        for scale in (1e-9, 1.0, 10.0, 1e9)
    ]
    assert best == sorted(best)
    assert best[0] == pytest.approx(1 / 3)
    assert best[-1] == pytest.approx(1)


def test_an_action_that_is_best_for_all_draws_has_all_but_the_uniform_share() -> None:
    kind = EllipsoidSampling(num_draws=50, uniform_share=0.3, radius=0.5)
    p = given(kind, [0.0, 9.0, 0.0], [1.0] * 3)
    np.testing.assert_allclose(p, [0.1, 0.8, 0.1])


# Frequencies.


def test_nothing_of_probability_zero_is_drawn() -> None:
    class Fixed:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    below_one = np.nextafter(1.0, 0.0)
    for p in ([0.0, 0.3, 0.0, 0.7, 0.0], [0.1] * 10, [1e-300, 1.0, 0.0]):
        for value in (0.0, 0.3, 1 / 3, below_one):
            rng: Any = Fixed(value)
            index, propensity = drawn(np.array(p), rng)
            assert propensity == p[index] > 0


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[3]])
def test_recorded_propensities_are_the_frequencies(kind: Exploration) -> None:
    """40,000 draws: weighted by 1 / propensity each is drawn once a decision.

    With `EllipsoidSampling` each decision has propensities of its own.
    """
    agent, num_decisions, n = agent_with(kind), 40_000, 3
    x, rng = actions(n, seed=5), np.random.default_rng(11)
    counts, weights, squares = np.zeros(n), np.zeros(n), np.zeros(n)
    for _ in range(20):
        some = np.broadcast_to(x, (num_decisions // 20, n, D))
        chosen, p = agent._belief.choose(some, lambda: [rng] * (num_decisions // 20))
        counts += np.bincount(chosen, minlength=n)
        weights += np.bincount(chosen, 1 / p, minlength=n)
        squares += np.bincount(chosen, 1 / p**2, minlength=n)
    mean = weights / num_decisions
    error = np.sqrt((squares / num_decisions - mean**2) / num_decisions)
    assert np.all(np.abs(mean - 1) <= 5 * error)
    assert np.all(error < 0.02)
    if isinstance(kind, InverseGapWeighting):
        expected = num_decisions * probabilities_of(agent, x, rng)
        assert chisquare(counts, expected).pvalue > 1e-6


def test_sampling_plays_as_often_as_parameters_are_best() -> None:
    """As many draws say it as one likes: the probabilities' mean is the same."""
    x = actions(3, seed=5)
    few, many = (
        agent_with(EllipsoidSampling(n, uniform_share=1e-12, radius=1.0))
        for n in (5, 10_000)
    )
    rng = np.random.default_rng(2)
    mean = np.mean([probabilities_of(few, x, rng) for _ in range(1000)], axis=0)
    exact = np.mean([probabilities_of(many, x, rng) for _ in range(5)], axis=0)
    np.testing.assert_allclose(mean, exact, atol=5 * math.sqrt(0.25 / 5_000))


def test_agents_and_trials_explore_by_streams_of_their_own() -> None:
    places = [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0)]
    first = [exploration_rng(*place).random() for place in places]
    assert len(set(first)) == len(places)
    assert first == [exploration_rng(*place).random() for place in places]


# Settings.


ENCODER = FeatureEncoder(
    {"age": Number(0, 110), "way": Category(["walk-in", "ambulance"])},
    {"price": Number(0, 100)},
)
BLOCKS = FeatureEncoder({"age": Number(0, 110)}, blocks=("ward", "home"))
ENCODED = replace(SETTINGS, releases=replace(RELEASES, dimension=ENCODER.dimension))


def explored(exploration: dict[str, Any]) -> LinearUCBSettings:
    """Return settings of a study with an exploration in JSON."""
    values = {**to_json(SETTINGS), "exploration": exploration}
    made: LinearUCBSettings = from_json(LinearUCBSettings, values)
    return made


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: EllipsoidSampling(num_draws=10_001), "num_draws=10001"),
        (lambda: EllipsoidSampling(num_draws=True), "num_draws=True"),
        (lambda: EllipsoidSampling(uniform_share=0.0), "uniform_share=0.0"),
        (lambda: EllipsoidSampling(uniform_share=math.nan), "uniform_share=nan"),
        (lambda: EllipsoidSampling(radius=0.0), "radius=0.0"),
        (lambda: EllipsoidSampling(radius="1"), "radius='1'"),  # type: ignore[arg-type]
        (lambda: InverseGapWeighting(scale=math.inf), "scale=inf"),
        (lambda: RewardTimeout(math.inf), "seconds=inf"),
        (lambda: RewardTimeout(1.0, math.nan), "reward=nan"),
        (
            lambda: replace(SETTINGS, reward_timeout=RewardTimeout(1.0, -1.5)),
            "reward_timeout.reward=-1.5",
        ),
        (
            lambda: replace(SETTINGS, exploration=cast(Any, "optimism")),
            "exploration='optimism'",
        ),
        (lambda: replace(SETTINGS, encoder=ENCODER), "releases.dimension=3"),
        (lambda: explored({"kind": "greedy"}), "exploration.kind='greedy'"),
        (lambda: explored({"kind": []}), r"exploration.kind=\[\]"),
        (
            lambda: explored({"kind": "inverse-gap-weighting", "scale": -1}),
            "scale=-1",
        ),
    ],
)
def test_what_is_not_allowed_is_named(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (KINDS[0], SETTINGS),
        (KINDS[1], replace(ENCODED, encoder=ENCODER)),
        (
            KINDS[3],
            replace(
                SETTINGS,
                releases=replace(
                    RELEASES, dimension=BLOCKS.dimension, reward_range=(-2.0, 2.0)
                ),
                encoder=BLOCKS,
                reward_timeout=RewardTimeout(3600, -1.5),
            ),
        ),
    ],
    ids=["vectors", "encoder", "blocks and timeout"],
)
def test_settings_and_their_study_go_through_json(
    kind: Exploration, settings: LinearUCBSettings
) -> None:
    settings = replace(settings, exploration=kind)
    again = from_json(LinearUCBSettings, json.loads(json.dumps(to_json(settings))))
    assert again == settings
    assert again.feature_names == settings.feature_names
    study = LinearBanditStudy(settings, 3, noise_seed=5)
    assert LinearBanditStudy.from_dict(json.loads(study.text)) == study
    sent = LinearBanditInstruction.from_config(study.enrolment())
    assert sent.study == study
    assert sent.study.text == study.text
