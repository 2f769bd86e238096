"""What NumPy, pandas and PyTorch have is taken; an error names what it has seen."""

# What is taken is of more types than the signatures name.
# mypy: disable-error-code="arg-type"

import doctest
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flwr_fbo import InProcessGrid, Limits, LinearBanditPolicy, tuning_app
from flwr_fbo._common import conversion
from flwr_fbo._common.fields import to_json
from flwr_fbo.bandits import (
    ArmTable,
    Category,
    ContinualSettings,
    Decision,
    FeatureEncoder,
    LinearUCBSettings,
    Network,
    Number,
    RewardTimeout,
    evaluate_policy,
    ips,
)
from flwr_fbo.bandits.off_policy.policies import from_function, greedy
from flwr_fbo.tuning import FedVoteSettings, Trial
from flwr_fbo.tuning.site.tuning_site import TuningSite
from tests.support.policies import (
    ARMS,
    CONTEXT,
    VECTOR_SETTINGS,
    VECTORS,
    enrolled,
)

HAS_TORCH = "FLWR_FBO_REQUIRE_TORCH" in os.environ or find_spec("torch") is not None
torch: Any = import_module("torch") if HAS_TORCH else None


def _tensor(value: Any, **options: Any) -> Any:
    """Return a tensor; an array where PyTorch is missing."""
    return np.array(value) if torch is None else torch.tensor(value, **options)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> LinearBanditPolicy:
    return enrolled(tmp_path_factory.mktemp("named") / "site")


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> LinearBanditPolicy:
    folder = tmp_path_factory.mktemp("vectors") / "site"
    return enrolled(folder, VECTOR_SETTINGS, None)


def _generator(*items: Any) -> Iterator[Any]:
    yield from items


FRAME = pd.DataFrame([CONTEXT, {"age": 7, "way": "ambulance"}])


@pytest.mark.parametrize(
    "context",
    [
        FRAME.iloc[0],
        FRAME.iloc[[0]],
        next(FRAME.itertuples(index=False)),
        {"age": np.int64(71), "way": np.str_("walk-in")},
        {"age": np.float32(71), "way": "walk-in"},
        {"age": np.array(71), "way": "walk-in"},
        {"age": _tensor(71), "way": "walk-in"},
        FRAME.astype({"way": "category"}).iloc[0],
        FRAME.convert_dtypes().iloc[0],
    ],
)
def test_a_context(context: Any, policy: LinearBanditPolicy) -> None:
    assert policy.probabilities(context) == policy.probabilities(CONTEXT)
    number = policy.choose(context).ticket
    assert policy.decisions()[number].context == CONTEXT


@pytest.mark.parametrize(
    ("context", "seen"),
    [
        (FRAME, "one row, and it has 2"),
        ([71, "walk-in"], "and it is a list"),
        (FRAME["age"].to_numpy(), "and it is a ndarray"),
        ({"age": pd.NA, "way": "walk-in"}, "context['age']=<NA>"),
        ({"age": None, "way": "walk-in"}, "context['age']=None"),
        ({"age": 71, "way": np.nan}, "context['way']=nan"),
    ],
)
def test_another_context(context: Any, seen: str, policy: LinearBanditPolicy) -> None:
    with pytest.raises(ValueError, match="context") as caught:
        policy.choose(context)
    assert seen in str(caught.value)


def test_the_rows_of_a_frame(policy: LinearBanditPolicy) -> None:
    rows = [dict(row) for row in FRAME.to_dict("records")]
    expected = policy.probabilities_many(rows)
    for contexts in (FRAME, _generator(*rows), tuple(rows), [*map(pd.Series, rows)]):
        assert policy.probabilities_many(contexts) == expected
    first = policy.num_trials
    policy.choose_many(FRAME, np.array([["ward", "home"], ["clinic", "home"]]))
    assert [one.context for one in policy.decisions()[first:]] == rows
    assert policy.decisions()[-1].arms == ("clinic", "home")


@pytest.mark.parametrize(
    "eligible",
    [
        np.array(["ward", "home"]),
        pd.Index(["ward", "home"]),
        pd.Series(["home", "ward"], index=[5, 7]),
        pd.Series(["home", "ward"], dtype="string"),
        ("ward", "home"),
        {"ward", "home"},
        {"ward": 1, "home": 2}.keys(),
        _generator("ward", "home"),
    ],
)
def test_eligible_arms(eligible: Any, policy: LinearBanditPolicy) -> None:
    assert set(policy.probabilities(CONTEXT, eligible)) == {"ward", "home"}


@pytest.mark.parametrize(
    ("eligible", "seen"),
    [
        ("ward", "it is a str"),
        (3, "it is a int"),
        (np.array([1, 2]), "names, and this is a int"),
        (np.array([], dtype=str), "one arm or more"),
        (pd.Index(["ward", None]), "names, and this is a"),
    ],
)
def test_other_arms(eligible: Any, seen: str, policy: LinearBanditPolicy) -> None:
    with pytest.raises(ValueError, match=seen):
        policy.choose(CONTEXT, eligible)


@pytest.mark.parametrize("as_ticket", [np.int64, np.uint8, np.array, _tensor])
@pytest.mark.parametrize(
    ("reward", "recorded"),
    [
        (True, 1.0),
        (np.bool_(False), 0.0),
        (np.float32(0.5), 0.5),
        (np.array(0.25), 0.25),
        (_tensor(0.5, requires_grad=True), 0.5),
        (np.float32(1 + 1.2e-7), 1.0),
        (-1 - 9e-7, -1.0),
    ],
)
def test_tickets_and_rewards(
    as_ticket: Callable[[int], Any],
    reward: Any,
    recorded: float,
    vectors: LinearBanditPolicy,
) -> None:
    first, second, third = (vectors.choose(VECTORS).ticket for _ in range(3))
    vectors.reward(as_ticket(first), reward)
    vectors.reward_many(pd.Series({second: reward}))
    vectors.cancel(as_ticket(third))
    given = [one.reward for one in vectors.decisions()[first:]]
    np.testing.assert_array_equal(given, [recorded, recorded, np.nan])


@pytest.mark.parametrize("ticket", [True, np.bool_(True), 0.0, "0", None, pd.NA])
def test_other_tickets(ticket: Any, vectors: LinearBanditPolicy) -> None:
    with pytest.raises(ValueError, match=r"ticket=.*, and it is a "):
        vectors.reward(ticket, 0.5)


@pytest.mark.parametrize("reward", ["1", None, pd.NA, [0.5], np.array([0.5]), 1j])
def test_other_rewards(reward: Any, vectors: LinearBanditPolicy) -> None:
    ticket = vectors.choose(VECTORS).ticket
    with pytest.raises(ValueError, match=r"value=.*a number, and it is a "):
        vectors.reward(ticket, reward)
    with pytest.raises(ValueError, match=r"rewards\[0\]=1.00001"):
        vectors.reward(ticket, 1.00001)


def _unit_vectors(seed: int) -> Any:
    x = np.random.default_rng(seed).normal(size=(200, 3)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        pd.DataFrame,
        _tensor,
        lambda x: _tensor(x, requires_grad=True),
        lambda x: list(map(list, x)),
        lambda x: _generator(*x),
    ],
)
def test_vectors_in_single_precision(
    convert: Callable[[Any], Any], vectors: LinearBanditPolicy
) -> None:
    x = _unit_vectors(1)
    assert np.linalg.norm(x.astype(float), axis=1).max() > 1 + 1e-9
    ticket = vectors.choose(convert(x)).ticket
    features = vectors.decisions()[ticket].features
    assert np.linalg.norm(features, axis=1).max() <= 1 + 1e-15
    np.testing.assert_allclose(features, x, rtol=2e-7)


def test_what_keeps_the_bound_stays_as_it_is(vectors: LinearBanditPolicy) -> None:
    ticket = vectors.choose(VECTORS).ticket
    np.testing.assert_array_equal(vectors.decisions()[ticket].features, VECTORS)


def test_longer_vectors_are_refused_with_their_norm(
    vectors: LinearBanditPolicy,
) -> None:
    for factor, seen in ((1 + 1e-5, "1.00001"), (2.0, "2")):
        with pytest.raises(ValueError, match=rf"actions\[0\].*has norm {seen}\."):
            vectors.choose(factor * VECTORS)


def test_a_log_in_single_precision(tmp_path: Path) -> None:
    site = enrolled(tmp_path / "vectors", VECTOR_SETTINGS, None)
    x = _unit_vectors(2)
    rewards = pd.Series(np.float32(1 + 1e-7)).repeat(len(x))
    assert site.add_history(pd.DataFrame(x), rewards) == len(x)
    site = enrolled(tmp_path / "named")
    actions = pd.Series(["ward", "home"], index=[3, 9])
    assert site.add_history(actions, _tensor([True, False]), FRAME) == 2


LOG = [
    Decision(
        number=np.int64(t),
        time=60.0 * t,
        context=FRAME.iloc[t % 2],
        arms=pd.Index(["ward", "home"]),
        features=pd.DataFrame(np.eye(2, dtype=np.float32)),
        chosen=np.int64(t % 3 > 0),
        propensity=np.float32(0.5),
        reward=np.bool_(t % 2),
    )
    for t in range(60)
]
FIXED = {"ward": 0.3, "home": 0.7}


def test_a_decision_has_plain_values() -> None:
    one = LOG[1]
    assert (one.number, one.arms, one.chosen) == (1, ("ward", "home"), 1)
    assert (one.propensity, one.reward) == (0.5, 1.0)
    assert one.context == {"age": 7, "way": "ambulance"}
    assert isinstance(one.features, np.ndarray)


THIRDS = np.full(3, 1 / 3, dtype=np.float32)  # with a sum of 1 + 3e-8


@pytest.mark.parametrize(
    "probabilities",
    [
        [FIXED] * 60,
        [{"home": 0.7, "ward": np.float32(0.3)}] * 60,
        [pd.Series(FIXED)] * 60,
        [pd.Series([0.3, 0.7])] * 60,
        pd.DataFrame([FIXED] * 60)[["home", "ward"]],
        pd.DataFrame([[0.3, 0.7]] * 60),
        np.array([[0.3, 0.7]] * 60, dtype=np.float32),
        _tensor([[0.3, 0.7]] * 60),
        _generator(*[(0.3, 0.7)] * 60),
        np.array([[0.3, 0.7000004]] * 60),
    ],
)
def test_probabilities(probabilities: Any) -> None:
    expected = ips(LOG, [(0.3, 0.7)] * 60)
    assert ips(LOG, probabilities).value == pytest.approx(expected.value, rel=1e-6)


def test_probabilities_are_those_of_their_arms_and_have_a_sum() -> None:
    with pytest.raises(ValueError, match=r"their sum is 1\.0001\."):
        ips(LOG, [(0.3, 0.7001)] * 60)
    with pytest.raises(ValueError, match=r"their sum is 0\.7\."):
        ips(LOG, [{"home": 0.7}] * 60)
    with pytest.raises(ValueError, match=r"decision 0='hame'.*did you mean 'home'"):
        ips(LOG, [{"hame": 1.0}] * 60)


@pytest.mark.parametrize(
    "policy",
    [
        FIXED,
        pd.Series(FIXED),
        lambda context, arms, features: FIXED,
        lambda *_: pd.Series(FIXED),
        lambda *_: _tensor(np.array([0.3, 0.7])),
        from_function(lambda *_: (0.3, 0.7)),
    ],
)
def test_policies(policy: Any) -> None:
    expected = ips(LOG, [FIXED] * 60)
    for log in (LOG, tuple(LOG), _generator(*LOG)):
        assert evaluate_policy(log, policy).ips == expected


@pytest.mark.parametrize("answer", [np.array(1), _tensor(1), np.str_("home")])
def test_answers_of_a_policy(answer: Any) -> None:
    [expected] = {evaluate_policy(LOG, {"home": 1}).ips}
    assert evaluate_policy(LOG, lambda *_: answer).ips == expected


def test_an_estimate_is_an_array() -> None:
    for theta in (_tensor([0.0, 1.0], requires_grad=True), pd.Series([0.0, 1.0])):
        assert greedy(theta).probabilities(LOG[0]) == pytest.approx([0, 1])


def test_settings_have_plain_numbers() -> None:
    releases = ContinualSettings(
        np.int64(3),
        np.array(2),
        np.float32(1),
        np.float64(1e-3),
    )
    assert releases == ContinualSettings(3, 2, 1.0, 1e-3)
    assert to_json(
        LinearUCBSettings(releases, local_data="released", ridge=np.int64(2))
    ) == (to_json(LinearUCBSettings(releases, local_data="released", ridge=2)))
    integer: Any = np.int32(7)
    assert type(FedVoteSettings(num_initial=integer).num_initial) is int
    assert type(Limits(max_steps=integer).max_steps) is int
    assert type(RewardTimeout(integer, np.float32(1)).seconds) is int
    assert Network(integer) == Network(7)
    assert Number(np.int64(0), np.float32(1)) == Number(0, 1)
    assert Category(np.array(["a", "b"])) == Category(["a", "b"])
    fields = {"x": Number(0, 1)}
    encoder = FeatureEncoder(fields, blocks=pd.Index(["a", "b"]))
    assert encoder == FeatureEncoder(fields, blocks=("a", "b"))
    frame = pd.DataFrame({"price": [9.0, 5.0, 1.0]}, index=["ward", "clinic", "home"])
    assert ArmTable(frame) == ARMS
    pairs = np.array([["x", "y"]])
    fields["y"] = Number(0, 1)
    encoder = FeatureEncoder(fields, blocks=("a", "b"), interactions=pairs)
    assert encoder.interactions == (("x", "y"),)
    single: Any = np.float32(1)
    arms = [("a", {}), ("b", pd.Series())]
    assert encoder.encode(pd.Series({"x": 0.5, "y": 1}), arms, single)[1] == {}
    settings = pd.DataFrame({"x": [0.5, 0.25]})
    app = tuning_app(lambda context: lambda trial: 0.0, enqueue=settings)
    grid = InProcessGrid(app, integer)
    assert len(grid.contexts) == 7
    site = TuningSite(lambda context: lambda trial: 0.0, settings)
    assert site.enqueue == [{"x": 0.5}, {"x": 0.25}]


def test_an_objective_may_have_numpys_numbers_and_optunas_older_names() -> None:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    trial = Trial(
        {"a": 0.5, "b": 0.5, "c": 0.5, "n": 3, "k": "y"},
        {
            "a": FloatDistribution(0, 1),
            "b": FloatDistribution(0.1, 1, log=True),
            "c": FloatDistribution(0, 1, step=0.25),
            "n": IntDistribution(1, 5),
            "k": CategoricalDistribution(["x", "y"]),
        },
    )
    assert trial.suggest_float("a", 0, 1) == 0.5
    assert trial.suggest_float("b", 0.1, 1, log=True) == 0.5
    assert trial.suggest_float("c", 0, 1, step=0.25) == 0.5
    assert trial.suggest_int("n", np.int64(1), np.int64(5)) == 3
    assert trial.suggest_categorical("k", np.array(["x", "y"])) == "y"
    wrongs: list[Callable[[], float]] = [
        lambda: trial.suggest_float("a", 0, 2),
        lambda: trial.suggest_float("b", 0.1, 1),
        lambda: trial.suggest_float("a", 0.1, 1, log=True),
        lambda: trial.suggest_float("c", 0, 1, step=0.5),
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match=r"asks for .* the study declares"):
            wrong()


def test_neither_pandas_nor_torch_is_imported() -> None:
    code = "import sys, flwr_fbo._common.conversion as c; c.mappings('x', [{}]); "
    code += "assert not {'pandas', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_examples_print_what_they_show() -> None:
    assert doctest.testmod(conversion).failed == 0
