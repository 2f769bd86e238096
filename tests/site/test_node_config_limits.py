"""Limits in the node config: numbers or text, and misspelled entries are named."""

import math
import re
from typing import Any

import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import Limits
from flwr_fbo._common.errors import NodeConfigError
from flwr_fbo.site.node_config_limits import node_limits


def _context(**node_config: Any) -> Context:
    config: UserConfig = {
        f"fbo-{key.replace('_', '-')}": value for key, value in node_config.items()
    }
    return Context(1, 1, config, RecordDict(), {})


def test_the_node_config_may_give_numbers_or_text() -> None:
    given = {"max_epsilon": "3", "max_delta": "1e-3", "max_releases": "7"}
    assert node_limits(_context(**given)) == Limits(3, 1e-3, 7)
    assert node_limits(_context(max_epsilon="inf")) == Limits(math.inf)
    assert node_limits(_context(max_epsilon=2, max_delta=0.1)) == Limits(2, 0.1)
    assert node_limits(_context()) == Limits()


@pytest.mark.parametrize("name", ["min_onest", "max_epsilom", "rooster"])
def test_a_misspelled_entry_of_the_node_config_is_named(name: str) -> None:
    key = f"fbo-{name.replace('_', '-')}"
    with pytest.raises(NodeConfigError, match=f"{key} is not allowed") as error:
        node_limits(_context(**{name: 3}))
    assert error.value.public == f"node config {key} is not allowed: no such entry."


@pytest.mark.parametrize(
    "key",
    [
        "fbo_max_epsilon",
        "FBO-max-epsilon",
        "Fbo-Max-Epsilon",
        "fbo.max.epsilon",
        "fbomaxepsilon",
        "fob-max-epsilon",
        "max-epsilon",
        "max_epsilon",
        "fb0-max-epsilon",
        "fbo-max-epsilom",
    ],
)
def test_what_looks_like_a_limit_and_is_none_is_refused_by_name(key: str) -> None:
    context = Context(1, 1, {key: 0.5}, RecordDict(), {})
    meant = "did you mean 'fbo-max-epsilon'"
    with pytest.raises(NodeConfigError, match=f"{re.escape(key)} .*{meant}"):
        node_limits(context)


@pytest.mark.parametrize(
    "key", ["partition-id", "agent-id", "batch-size", "folder", "num-agents", "key"]
)
def test_an_apps_own_entries_are_left_alone(key: str) -> None:
    node_limits(Context(1, 1, {key: 5}, RecordDict(), {}))


def test_a_limit_of_the_node_config_is_named_by_its_key() -> None:
    with pytest.raises(ValueError, match="node config fbo-max-trials='many'"):
        node_limits(_context(max_trials="many"))
