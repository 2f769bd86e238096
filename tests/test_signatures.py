"""Every public constructor and function says what it takes."""

import inspect
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.exception import AggregationError
from optuna.distributions import FloatDistribution

import flwr_fbo
from flwr_fbo import (
    DPFTSDE,
    FTS,
    FedGOUCB,
    FedUCB,
    FedVote,
    FedWarmStart,
    Halving,
    Host,
    InProcessGrid,
    Privacy,
    PrivateChoice,
    Seeds,
    tuning_app,
)
from flwr_fbo.tuning import FTSSettings
from tests.support.public import public_names

STRATEGIES: list[Any] = [
    FedVote,
    FedWarmStart,
    DPFTSDE,
    FTS,
    FedUCB,
    flwr_fbo.DecentralizedFedUCB,
    FedGOUCB,
]


def _public() -> list[tuple[str, Any]]:
    """Return what can be called of the public names, and public class methods."""
    found: list[tuple[str, Any]] = []
    for name, value in public_names().items():
        if inspect.isclass(value):
            found += [
                (f"{name}.{method}", function)
                for method, function in inspect.getmembers(value, inspect.ismethod)
                if not method.startswith("_")
                and function.__module__.startswith("flwr_fbo")
            ]
        if callable(value) and getattr(value, "__module__", "").startswith("flwr_fbo"):
            found.append((name, value))
    return found


@pytest.mark.parametrize(("name", "function"), _public())
def test_no_parameter_hides_behind_others(name: str, function: Any) -> None:
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.kind not in (
            inspect.Parameter.VAR_KEYWORD,
            inspect.Parameter.VAR_POSITIONAL,
        ), f"{name}: {parameter}"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_host_decides_is_given_to_start(strategy: Any) -> None:
    parameters = inspect.signature(strategy).parameters
    # FedWarmStart has cohorts and known releases besides, DPFTSDE presets.
    most = {"FedWarmStart": 12, "DPFTSDE": 11}.get(strategy.__name__, 10)
    assert len(parameters) <= most
    hosts = {"folder", "host", *(field.name for field in fields(Host))}
    assert not hosts & parameters.keys()
    assert {"folder", "host"} <= inspect.signature(strategy.start).parameters.keys()


@pytest.mark.parametrize("strategy", [FedVote, FedWarmStart, DPFTSDE])
def test_epsilon_and_delta_come_first(strategy: Any) -> None:
    names = list(inspect.signature(strategy).parameters)
    assert names[:5] == ["space", "direction", "num_agents", "epsilon", "delta"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_method_is_defined_on_more_than_two_levels(strategy: Any) -> None:
    """Who reads one has two places to look at."""
    own = [c for c in strategy.__mro__ if c.__module__.startswith("flwr_fbo")]
    names = [name for c in own for name in vars(c) if name != "__init__"]
    methods = {n for n in names if not n.startswith("__") and names.count(n) > 2}
    assert not {n for n in methods if callable(getattr(strategy, n))}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_has_two_levels_of_ours_above_it_at_most(strategy: Any) -> None:
    own = [c for c in strategy.__mro__ if c.__module__.startswith("flwr_fbo")]
    assert len(own) <= 3, own


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("wrong", "right"),
    [("foldr", "folder"), ("hosts", "host"), ("num_round", "num_rounds")],
)
def test_a_wrong_keyword_is_answered_with_the_right_one(
    strategy: Any, wrong: str, right: str
) -> None:
    words = rf"\.start\(\) has no parameter '{wrong}'.*did you mean '{right}'"
    with pytest.raises(TypeError, match=words):
        strategy.start(None, **{wrong: 1})
    name = list(inspect.signature(strategy).parameters)[-1]
    words = rf"\(\) has no parameter '{name}_'.*did you mean '{name}'"
    with pytest.raises(TypeError, match=words):
        strategy(**{f"{name}_": 1})


def test_numpy_numbers_are_numbers() -> None:
    space = {"x": FloatDistribution(0, 1)}
    numbers: Any = [np.int64(4), np.float32(8), np.uint8(2), np.int32(3)]
    four, eight, two, rounds = numbers
    study = FedVote(
        space,
        "maximize",
        four,
        epsilon=eight,
        delta=np.float64(1e-3),
        seeds=Seeds(study=two),
        privacy=Privacy(min_answers=two),
    )
    app = tuning_app(lambda context: lambda trial: trial["x"])
    host = Host(min_agents=two, patience=np.float64(0))
    result = study.start(InProcessGrid(app, 4), num_rounds=rounds, host=host)
    assert result.privacy_spent is not None
    assert type(study.study.study_seed) is int
    assert type(Halving(four, (1,)).trials) is int
    assert type(PrivateChoice(epsilon=eight, delta=1e-3).epsilon) is float


def test_what_sites_refuse_by_default_is_said_before_they_are_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FTSSettings(num_candidates=10_000, num_starts=2_000, num_features=2_048)
    space = {f"x{d}": FloatDistribution(0, 1) for d in range(200)}
    study = FTS(space, "maximize", 4, agent=agent)
    app = tuning_app(lambda context: lambda trial: trial["x0"])
    with pytest.raises(AggregationError, match="more than max_steps"):
        study.start(InProcessGrid(app, 4), num_rounds=3, host=Host(patience=0.0))
    assert "Sites refuse this study, but for those that allow more" in caplog.text
    first = caplog.text.index("Sites refuse this study")
    assert first < caplog.text.index("could not answer its server")
    assert "max_steps=50000000" in caplog.text[first:]


def test_one_that_is_like_none_is_answered_with_all() -> None:
    with pytest.raises(TypeError, match="no parameter 'zzz': it has space, direction"):
        FedVote(zzz=1)  # type: ignore[call-arg]
