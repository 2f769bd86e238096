"""Public lists: which learner, whose names, what fits, and that they come first."""

import json
import logging
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import (
    DPFTSDE,
    FTS,
    FedVote,
    FedWarmStart,
    InProcessGrid,
    Seeds,
    tuning_app,
)
from flwr_fbo.integrations import FederatedSampler
from flwr_fbo.tuning import Portfolio, SearchSpace, Trial
from flwr_fbo.tuning.fed_vote.settings import FedVoteSettings
from flwr_fbo.tuning.search.portfolios import LEARNERS, listed_settings
from flwr_fbo.tuning.search.study import TuningStudy, create_agent

X = FloatDistribution(0.0, 1.0)
SVC = {
    "C": FloatDistribution(1e-2, 1e4, log=True),
    "gamma": FloatDistribution(1e-5, 10.0, log=True),
}
FOREST: dict[str, BaseDistribution] = {
    "max_features": FloatDistribution(0.1, 1.0),
    "min_samples_leaf": IntDistribution(1, 20),
}


@pytest.mark.parametrize("learner", list(LEARNERS))
def test_each_learner_has_a_list_that_says_where_it_is_from(learner: str) -> None:
    found = Portfolio.of(learner)
    assert len(found.settings) >= 3
    assert found.num_data_sets >= 4
    assert any(name in str(found) for name in ("BSD-3-Clause", "Apache-2.0"))
    space = SearchSpace(found.space(num_features=7))
    settings = found.settings_in(space, num_features=7)
    assert len(settings) == 3
    for params in settings:
        space.to_unit(params)  # raises, if it does not fit


def test_the_file_has_the_learners_and_their_own_names() -> None:
    stored = json.loads(
        files("flwr_fbo.tuning.search").joinpath("portfolios.json").read_text()
    )
    assert list(stored) == list(LEARNERS)
    for learner, about in stored.items():
        for params in about["settings"]:
            assert set(params) == set(LEARNERS[learner].space)


def test_gamma_is_divided_by_the_number_of_features() -> None:
    found = Portfolio.of("svc")
    few, many = (found.settings_in(SVC, num_features=d) for d in (10, 100))
    for a, b, listed in zip(few, many, found.settings, strict=False):
        assert a["C"] == b["C"] == listed["C"]
        assert a["gamma"] == pytest.approx(listed["gamma"] / 10)
        assert b["gamma"] == pytest.approx(listed["gamma"] / 100)
    with pytest.raises(ValueError, match=r"num_features=None.*'gamma'"):
        found.settings_in(SVC)
    words = {**SVC, "gamma": CategoricalDistribution(["auto", "scale"])}
    assert {params["gamma"] for params in found.settings_in(words)} == {"scale"}


def test_other_libraries_names_are_found() -> None:
    space = {
        "model__num_leaves": IntDistribution(2, 255, log=True),
        "eta": FloatDistribution(1e-3, 1.0, log=True),
        "min-child-samples": IntDistribution(1, 100, log=True),
    }
    found = Portfolio.for_names(list(space))
    assert found.learner == "gradient_boosting"
    for params, listed in zip(found.settings_in(space), found.settings, strict=False):
        assert params["model__num_leaves"] == listed["max_leaf_nodes"]
        assert params["eta"] == listed["learning_rate"]
        assert params["min-child-samples"] == listed["min_samples_leaf"]


def test_what_does_not_fit_is_moved_or_at_the_centre_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = {
        "C": FloatDistribution(1e-3, 0.01, log=True),  # the list's are larger
        "kernel": CategoricalDistribution(["linear", "poly"]),
        "tol": FloatDistribution(0.0, 1.0),
    }
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        (params,) = Portfolio.of("svc").settings_in(space)
    middle = pytest.approx(0.5, abs=1e-5)
    assert params == {"C": 0.01, "kernel": "linear", "tol": middle}
    assert "['kernel', 'tol']" in caplog.text
    kernels = {**SVC, "kernel": CategoricalDistribution(["linear", "rbf"])}
    for params in Portfolio.of("svc").settings_in(kernels, num_features=3):
        assert params["kernel"] == "rbf"


def test_a_default_that_is_no_number_is_at_the_centre(
    caplog: pytest.LogCaptureFixture,
) -> None:
    space = {
        "max_depth": IntDistribution(2, 20),  # None, in the library
        "kernel": IntDistribution(0, 4),
        "min_samples_leaf": IntDistribution(1, 20),
    }
    with caplog.at_level(logging.INFO, "flwr.fbo"):
        found = Portfolio.of("random_forest").settings_in(space)
    assert {params["max_depth"] for params in found} == {11}
    assert len({params["min_samples_leaf"] for params in found}) == 3
    assert "['kernel', 'max_depth']" in caplog.text
    for params in Portfolio.of("svc").settings_in({"C": SVC["C"], **space}):
        assert params["kernel"] == 2


@pytest.mark.parametrize(("high", "step"), [(1.0, 0.3), (0.7, 0.1)])
def test_numbers_keep_to_the_steps_of_their_range(high: float, step: float) -> None:
    """Six steps of 0.1 from 0.1 on are a bit more than 0.7."""
    space = {
        "max_features": FloatDistribution(0.1, high, step=step),
        "min_samples_leaf": IntDistribution(2, 17, step=5),
        "min_samples_split": IntDistribution(2, 4),
    }
    whole = SearchSpace(space)
    for params in Portfolio.of("random_forest").settings_in(space, size=6):
        whole.to_unit(params)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["C"], "['svc', 'logistic_regression']"),
        (["x", "y"], "do not decide it"),
        (["max_features", "x", "y"], "do not decide it"),
    ],
)
def test_auto_wants_names_that_decide_the_learner(
    names: list[str], reason: str
) -> None:
    with pytest.raises(ValueError, match="portfolio='auto'") as raised:
        listed_settings("auto", dict.fromkeys(names, X))
    assert reason in str(raised.value)


def test_an_unknown_learner_gets_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'random_forest'"):
        listed_settings("random-forest", FOREST)
    with pytest.raises(ValueError, match=r"portfolio=3 is not allowed"):
        listed_settings(3, FOREST)  # type: ignore[arg-type]


def study(portfolio: Any) -> TuningStudy:
    space, agent = SearchSpace({"x": X}), FedVoteSettings()
    return TuningStudy(space, "maximize", agent, 0, 0, portfolio=portfolio)


def test_enqueued_settings_then_the_list_then_the_centre() -> None:
    one = create_agent(study([{"x": 0.25}, {"x": 0.75}]), 0, 0)
    np.testing.assert_allclose(one.ask(0)[:, 0], [0.25, 0.75, 0.5], atol=1e-5)
    assert one.sources == ["start"] * 3
    one.enqueue([{"x": 0.125}])  # takes the centre's place, as without a list
    np.testing.assert_allclose(one.ask(0)[:, 0], [0.125, 0.25, 0.75], atol=1e-5)
    assert one.sources == ["enqueued", "start", "start"]


def test_a_setting_that_the_site_enqueued_itself_is_not_tried_twice() -> None:
    one = create_agent(study([{"x": 0.25}, {"x": 0.75}]), 0, 0)
    one.enqueue([{"x": 0.75}])
    assert one.ask(0)[:, 0].tolist() == [0.75, 0.25]


def test_the_own_search_learns_from_the_list() -> None:
    asked = []
    for values in ((0.0, 1.0, 0.5), (1.0, 0.0, 0.5)):
        one = create_agent(study([{"x": 0.25}, {"x": 0.75}]), 0, 0)
        for point, value in zip(one.ask(0), values, strict=True):
            one.tell(0, point, value)
        asked.append(one.ask(1)[0, 0])
    assert asked[0] > 0.5 > asked[1]


@pytest.mark.parametrize("number", [float, np.float32])
def test_a_study_keeps_its_list_on_the_wire(number: Callable[[float], float]) -> None:
    sent = study([{"x": number(0.25)}])
    again = TuningStudy.from_dict(json.loads(json.dumps(sent.to_dict())))
    assert list(again.portfolio) == [{"x": 0.25}]


@pytest.mark.parametrize(
    ("portfolio", "reason"),
    [
        ([{"x": 2.0}], r"portfolio\[0\]"),
        ([{"y": 0.5}], r"portfolio\[0\]"),
        ([0.5], "portfolio="),
        ([{"x": 0.5}] * 101, r"len\(portfolio\)=101"),
    ],
)
def test_a_list_must_fit_the_space(portfolio: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FedVote({"x": X}, "maximize", 4, epsilon=8, delta=1e-3, portfolio=portfolio)


@pytest.mark.parametrize("kind", [FedVote, FedWarmStart, DPFTSDE, FTS])
def test_every_strategy_begins_with_the_list(kind: Any, tmp_path: Path) -> None:
    seen: dict[int, list[dict[str, Any]]] = {}

    def make_objective(context: Any) -> Any:
        mine = seen.setdefault(int(context.node_config["partition-id"]), [])

        def objective(trial: Trial) -> float:
            mine.append(dict(trial))
            return float(trial["max_features"])

        return objective

    private = {} if kind is FTS else {"epsilon": 8.0, "delta": 1e-3}
    strategy = kind(
        FOREST,
        "maximize",
        4,
        portfolio="random_forest",
        seeds=Seeds(1, 2) if kind is FTS else Seeds(1, 2, 3),
        **private,
    )
    strategy.start(InProcessGrid(tuning_app(make_objective), 4), num_rounds=2)
    listed = Portfolio.of("random_forest").settings_in(FOREST)
    assert len(seen) == 4
    for trials in seen.values():
        for params, expected in zip(trials, listed, strict=False):
            assert params == pytest.approx(expected)
        assert len(trials) > len(listed)


def test_a_sampler_alone_begins_with_the_list() -> None:
    sampler = FederatedSampler.from_space(FOREST, "maximize", "random_forest", seed=1)
    own = optuna.create_study(direction="maximize", sampler=sampler)
    own.optimize(
        lambda trial: (
            trial.suggest_float("max_features", 0.1, 1.0)
            - 0.01 * trial.suggest_int("min_samples_leaf", 1, 20)
        ),
        n_trials=6,
    )
    listed = Portfolio.of("random_forest").settings_in(FOREST)
    assert [trial.params for trial in own.trials[:3]] == [
        pytest.approx(params) for params in listed
    ]
    assert own.best_value >= max(trial.value or 0.0 for trial in own.trials[:4])
