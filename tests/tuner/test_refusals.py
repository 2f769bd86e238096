"""What is wrong with a tuner is told before any client is asked anything."""

# What is wrong on purpose is of another type, too.
# mypy: disable-error-code="arg-type"

import re
from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import FederationTuner, Halving, PrivateChoice, Seeds
from flwr_fbo.secure import SecureAggregation
from tests.support.apps import RUN_CONFIG, SPACE, RecordingGrid, recording, tuner

RATE = FloatDistribution(1e-3, 1.0, log=True)
ROUNDS = IntDistribution(1, 50)


def _keyed(key: str, distribution: BaseDistribution = ROUNDS) -> dict[str, Any]:
    return {"space": {**SPACE, key: distribution}}


BAD: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], str]] = {
    # The tuner's arguments, more of the run config, and what the error begins with.
    "a key that the run config does not have": (
        lambda: _keyed("optimizer.momentum", FloatDistribution(0, 0.9)),
        {},
        "space='optimizer.momentum' is not allowed: a key of the app's run config",
    ),
    "a key with another spelling": (
        lambda: {"space": {"learning_rate": RATE}},
        {},
        "space='learning_rate' is not allowed: .*did you mean 'learning-rate'",
    ),
    "num-server-rounds": (
        lambda: _keyed("num-server-rounds"),
        {},
        "space='num-server-rounds' is not allowed: .* rounds is not searched",
    ),
    "num_rounds": (
        lambda: _keyed("num_rounds"),
        {"num_rounds": 3},
        "space='num_rounds' is not allowed: .* rounds is not searched",
    ),
    "rounds in a table": (
        lambda: _keyed("server.num-rounds"),
        {"server.num-rounds": 3},
        "space='server.num-rounds' is not allowed: .* rounds is not searched",
    ),
    "a default of another type": (
        lambda: {},
        {"learning-rate": "0.1"},
        "run_config['learning-rate']='0.1' is not allowed: a number",
    ),
    "a default that is no choice's type": (
        lambda: _keyed("optimizer", CategoricalDistribution(["sgd", "adam"])),
        {"optimizer": 1},
        "run_config['optimizer']=1 is not allowed: a str",
    ),
    "a default that is a truth": (
        lambda: {},
        {"learning-rate": True},
        "run_config['learning-rate']=True is not allowed: a number",
    ),
    "no space": (lambda: {"space": {}}, {}, "space={} is not allowed"),
    "a choice that no run config can have": (
        lambda: _keyed("unused", CategoricalDistribution([None, "a"])),
        {},
        "space['unused']=(None, 'a') is not allowed",
    ),
    "a direction": (lambda: {"direction": "max"}, {}, "direction='max' is not"),
    "a metric": (lambda: {"metric": ""}, {}, "metric={'': 1.0} is not allowed"),
    "a number for a metric": (lambda: {"metric": 3}, {}, "metric=3 is not allowed"),
    "a weight of a metric": (
        lambda: {"metric": {"accuracy": 0}},
        {},
        "metric={'accuracy': 0} is not allowed: names of metrics, each with",
    ),
    "privacy where no client has a score": (
        lambda: {"score": "server"},
        {},
        "privacy=PrivateChoice(.*) is not allowed: None with score='server'",
    ),
    "whose score": (lambda: {"score": "mine"}, {}, "score='mine' is not allowed"),
    "fewer agents than nodes": (
        lambda: {"num_agents": 3},
        {},
        "num_agents=3 is not allowed: at least the 6 nodes that are connected",
    ),
    "a schedule": (lambda: {"schedule": (3, 9)}, {}, "schedule=(3, 9) is not"),
    "seeds": (lambda: {"seeds": 1}, {}, "seeds=1 is not allowed"),
    "seeds of features": (
        lambda: {"seeds": Seeds(features=1)},
        {},
        "seeds.features=1 is not allowed: None",
    ),
    "too many enqueued": (
        lambda: {"enqueue": [{}] * 6},
        {},
        "len(enqueue)=6 is not allowed: at most 5",
    ),
    "a schedule with one trial left": (
        lambda: {"schedule": Halving(4, (1, 100))},
        {},
        "rounds=(1, 100) is not allowed: short enough that two of 4 trials",
    ),
    "a schedule that shrinks": (
        lambda: {"schedule": Halving(4, (3, 2))},
        {},
        "rounds=(3, 2) is not allowed: growing",
    ),
    "an enqueued value outside": (
        lambda: {"enqueue": [{}, {"learning-rate": 5.0}]},
        {},
        "enqueue[1]['learning-rate']=5.0 is not allowed: a number from 0.001 to 1",
    ),
    "an enqueued value of another type": (
        lambda: {"enqueue": [{"local-epochs": 2.0}]},
        {},
        "enqueue[0]['local-epochs']=2.0 is not allowed: an integer",
    ),
    "an enqueued truth": (
        lambda: {"enqueue": [{"learning-rate": True}]},
        {},
        "enqueue[0]['learning-rate']=True is not allowed: a number",
    ),
    "an enqueued key": (
        lambda: {"enqueue": [{"learningrate": 0.1}]},
        {},
        "enqueue[0]='learningrate' is not allowed: .*did you mean 'learning-rate'",
    ),
    "an enqueued table": (
        lambda: {
            **_keyed("optimizer.lr", RATE),
            "enqueue": [{"optimizer": {"lr": 0.1}}],
        },
        {"optimizer.lr": 0.1},
        "enqueue[0]='optimizer' is not allowed: .*'optimizer.lr'",
    ),
    "one setting enqueued without a list": (
        lambda: {"enqueue": {"learning-rate": 0.1}},
        {},
        "enqueue={'learning-rate': 0.1} is not allowed: a list of settings",
    ),
    "privacy": (lambda: {"privacy": 2.0}, {}, "privacy=2.0 is not allowed"),
    "epsilon": (
        lambda: {"privacy": PrivateChoice(epsilon=-1, delta=1e-3)},
        {},
        "epsilon=-1 is not allowed",
    ),
    "a relative folder": (
        lambda: {"folder": "results"},
        {},
        "folder='results' is not allowed: an absolute path",
    ),
    "a callback": (
        lambda: {"callbacks": [print]},
        {},
        "callbacks=[<built-in function print>] is not allowed: a list or tuple",
    ),
    "secure sums without privacy": (
        lambda: {
            "privacy": None,
            "aggregation": SecureAggregation(threshold=4, honest=4),
            "seeds": Seeds(study=1),
        },
        {},
        "privacy=None is not allowed: given, with secure aggregation",
    ),
    "a main that cannot be called": (
        lambda: {},
        {"main": 3},
        "main=3 is not allowed: a function of grid and context",
    ),
}


def _start(
    options: Callable[[], dict[str, Any]], more: dict[str, Any], grid: RecordingGrid
) -> None:
    """Make a tuner, and start it, with a `main` that is not to be called."""

    def main(*_: Any) -> None:
        raise AssertionError

    run_config = {**RUN_CONFIG, **more}
    main_or_not = run_config.pop("main", main)
    made: FederationTuner = tuner(**options())
    made.start(main_or_not, grid, Context(1, 1, {}, RecordDict(), run_config))


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_answered_before_any_message(what: str) -> None:
    options, more, wanted = BAD[what]
    grid = recording()
    pattern = "^" + re.escape(wanted).replace(r"\.\*", ".*")
    with pytest.raises(ValueError, match=pattern):
        _start(options, more, grid)
    assert grid.sends == []


def test_how_to_get_a_hard_coded_value_into_the_run_config_is_said_word_by_word() -> (
    None
):
    space = {
        "optimizer.lr": RATE,
        "epochs": IntDistribution(1, 5),
        "name": CategoricalDistribution(["sgd", "adam"]),
        "nesterov": CategoricalDistribution([False, True]),
    }
    with pytest.raises(ValueError, match=r"^space='optimizer\.lr'") as raised:
        _start(lambda: {"space": space}, {}, recording())
    told = str(raised.value)
    assert "[tool.flwr.app.config] in pyproject.toml" in told
    assert '`optimizer.lr = 0.0316`, `epochs = 3`, `name = "sgd"`' in told
    assert "`nesterov = false`" in told
    for key in space:
        assert f'`context.run_config["{key}"]`' in told


def test_local_rounds_are_a_setting_of_the_training() -> None:
    for key in ("local-rounds", "num_local_rounds", "xgb.num-boost-round"):
        tuner(**_keyed(key))
