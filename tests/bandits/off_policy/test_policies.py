"""Target policies, how a command line names them, and their evaluation."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flwr_fbo.bandits.off_policy.estimators import (
    doubly_robust,
    ips,
    logged_mean,
    snips,
)
from flwr_fbo.bandits.off_policy.policies import (
    always,
    evaluate_policy,
    from_function,
    greedy,
    parse_policy,
    uniform,
)
from flwr_fbo.bandits.site.decision import Decision

ARMS = ("ward", "home", "clinic")
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
DECISION = Decision(3, 0.0, {"age": 71}, ARMS, FEATURES, 1, 0.5, 0.25)


def _probabilities(policy: Any) -> list[float]:
    return list(policy.probabilities(DECISION))


def test_uniform() -> None:
    assert _probabilities(uniform) == pytest.approx([1 / 3] * 3)


def test_always() -> None:
    assert _probabilities(always("clinic")) == [0, 0, 1]
    assert always("clinic").name == "always:clinic"


def test_always_is_uniform_where_the_arm_is_not_eligible() -> None:
    assert _probabilities(always("hotel")) == pytest.approx([1 / 3] * 3)


def test_an_arm_that_is_nowhere_eligible_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"arm='hame'.*did you mean 'home'"):
        evaluate_policy([DECISION, replace(DECISION, number=4)], always("hame"))


def test_a_policy_is_not_asked_about_decisions_without_a_reward() -> None:
    log, asked = _log(), []

    def last(context: Any, arms: Any, features: Any) -> int:
        asked.append(context)
        return len(arms) - 1

    found = evaluate_policy(log, from_function(last))
    assert len(asked) == found.ips.num_decisions == len(log) - found.ips.num_awaited
    assert found.ips.num_awaited > 0


@pytest.mark.parametrize(
    ("theta", "best"),
    [([0.0, 1.0], 1), ([1.0, 1.0], 0)],
)
def test_greedy_takes_the_first_of_the_best(theta: list[float], best: int) -> None:
    assert _probabilities(greedy(theta)) == list(np.eye(3)[best])


@pytest.mark.parametrize("theta", [[[1.0, 0.0]], [math.nan, 0.0], 1.0])
def test_an_estimate_is_a_finite_vector(theta: Any) -> None:
    with pytest.raises(ValueError, match="theta="):
        greedy(theta)


def test_an_estimate_has_the_dimension_of_the_features() -> None:
    with pytest.raises(ValueError, match=r"theta=\(3,\) .* shape \(2,\).*decision 3"):
        _probabilities(greedy([1.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (2, [0, 0, 1]),
        (np.int64(1), [0, 1, 0]),
        ("ward", [1, 0, 0]),
        ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]),
        ((1, 0, 0), [1, 0, 0]),
    ],
)
def test_a_function_answers_in_three_ways(answer: Any, expected: list[float]) -> None:
    seen = []

    def choose(*arguments: Any) -> Any:
        seen.append(arguments)
        return answer

    policy = from_function(choose)
    assert _probabilities(policy) == expected
    [(context, arms, features)] = seen
    assert context is DECISION.context
    assert arms is ARMS
    assert features is FEATURES
    assert policy.name == "choose"


@pytest.mark.parametrize("answer", [3, -1, True, None])
def test_any_other_answer_is_refused(answer: Any) -> None:
    policy = from_function(lambda *_: answer, "mine")
    with pytest.raises(
        ValueError, match=r"decision 3=.*an index from 0 to 2, an arm's name, or 3 prob"
    ):
        _probabilities(policy)


def test_a_name_that_a_function_answers_is_that_of_an_eligible_arm() -> None:
    with pytest.raises(ValueError, match=r"answer of mine .*did you mean 'home'"):
        _probabilities(from_function(lambda *_: "hame", "mine"))


def test_a_command_line_names_a_policy() -> None:
    assert parse_policy("uniform") is uniform
    assert _probabilities(parse_policy("always:home")) == [0, 1, 0]
    assert parse_policy("always:a:b").name == "always:a:b"
    assert _probabilities(parse_policy("greedy", theta=[0.0, 1.0])) == [0, 1, 0]


def test_a_command_line_names_a_function_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def oldest(context, arms, features):\n    return context['age'] // 71\n"
    (tmp_path / "house_rules.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    policy = parse_policy("python:house_rules:oldest")
    assert sys.path == before
    assert _probabilities(policy) == [0, 1, 0]
    assert policy.name == "python:house_rules:oldest"
    with pytest.raises(ValueError, match="'youngest' is not allowed: a function of"):
        parse_policy("python:house_rules:youngest")
    (tmp_path / "lacking.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        parse_policy("python:lacking:choose")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unifrom", "policy='unifrom' .* one of uniform, always:NAME, greedy, python"),
        ("always:", "policy='always:'"),
        ("python:math", "policy='python:math'"),
        ("greedy", "theta=None .* an estimate"),
        ("python:no_such_module:f", "module of the policy='no_such_module'"),
        ("python:math:pi", "function of the policy='pi'"),
    ],
)
def test_a_policy_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_policy(text)


def _log(num: int = 60) -> list[Decision]:
    rng = np.random.default_rng(0)
    p = np.array([0.2, 0.5, 0.3])
    return [
        Decision(
            number=t,
            time=float(t),
            context=None,
            arms=ARMS,
            features=FEATURES,
            chosen=(chosen := int(rng.choice(3, p=p))),
            propensity=float(p[chosen]),
            reward=math.nan if t % 20 == 19 else float(chosen + rng.normal()),
        )
        for t in range(num)
    ]


def test_an_evaluation_has_all_estimates_beside_the_log_s_mean() -> None:
    log, policy = _log(), [[0, 1, 0]] * 60
    found = evaluate_policy(log, always("home"), confidence=0.9)
    assert found.ips == ips(log, policy, 0.9)
    assert found.snips == snips(log, policy, 0.9)
    assert found.doubly_robust == doubly_robust(log, policy, 0.9)
    assert found.logged == logged_mean(log, 0.9)
    assert found.logged.num_awaited == 3


def test_the_table_has_a_line_an_estimate() -> None:
    found = evaluate_policy(_log(), always("home"), confidence=0.9)
    lines = str(found).splitlines()
    assert lines[0] == "Policy: always:home"
    assert lines[1] == "Decisions: 57 with a reward, 3 left out without a reward"
    assert "90 % interval" in lines[2]
    for line, value in zip(
        lines[3:7],
        (found.logged, found.ips, found.snips, found.doubly_robust),
        strict=True,
    ):
        assert f" {value.value:.4g} " in line
        assert f" {value.low:.4g} to {value.high:.4g} " in line
    assert len({len(line) for line in lines[2:7]}) == 1
    assert lines[7:] == found.warnings


@pytest.mark.parametrize("scale", [-1e-7, -1e7])
def test_the_table_fits_a_terminal(scale: float) -> None:
    log = [replace(one, reward=scale * one.reward) for one in _log()]
    lines = str(evaluate_policy(log, uniform, confidence=0.999)).splitlines()
    assert max(map(len, lines)) <= 100


def test_no_escape_character_of_a_name_reaches_a_table() -> None:
    policy = from_function(lambda *_: 0, "x\x1b[2J")
    assert "\x1b" not in str(evaluate_policy(_log(), policy))
