"""Limits in the node config: numbers or text, and misspelled entries are named."""

import math
import re
from typing import Any

import pytest
from flwr.app import Context, RecordDict, UserConfig

from flwr_fbo import Limits
from flwr_fbo._common.errors import NodeConfigError
from flwr_fbo.site.limits import limits_text
from flwr_fbo.site.node_config_limits import (
    hearing,
    node_limits,
    site_limits,
    tell,
)


def _context(**node_config: Any) -> Context:
    config: UserConfig = {
        f"fbo-{key.replace('_', '-')}": value for key, value in node_config.items()
    }
    return Context(1, 1, config, RecordDict(), {})


def test_the_node_config_may_give_numbers_or_text() -> None:
    given = {"max_epsilon_per_client": "3", "max_delta": "1e-3", "max_releases": "7"}
    assert node_limits(_context(**given)) == Limits(
        max_epsilon_per_client=3, max_delta=1e-3, max_releases=7
    )
    infinite = Limits(max_epsilon_per_client=math.inf)
    assert node_limits(_context(max_epsilon_per_client="inf")) == infinite
    of_example = Limits(max_epsilon_per_example=2, max_delta=0.1)
    configured = _context(max_epsilon_per_example="2", max_delta=0.1)
    assert node_limits(configured) == of_example
    assert node_limits(_context()) == Limits()


def test_a_range_is_text_with_both_ends() -> None:
    assert node_limits(_context(metric_range="0..10")).metric_range == (0.0, 10.0)
    assert node_limits(_context(metric_range="-1.5..2e3")).metric_range == (-1.5, 2e3)
    for bad in ("1..0", "0..1..2", "0..", "0..nan", "0..inf", "3", 3):
        with pytest.raises(NodeConfigError, match=r"^node config fbo-metric-range="):
            node_limits(_context(metric_range=bad))


def test_an_apps_limits_are_heard_as_they_are() -> None:
    limits = Limits(metric_range=(0.0, 10.0), max_epsilon_per_client=math.inf)
    context = _context()
    with hearing(context):
        tell(limits)
    assert limits in site_limits(context)
    assert limits_text([limits]) == "max_epsilon_per_client=inf, metric_range=0..10"


@pytest.mark.parametrize("name", ["min_onest", "max_epsilom_per_example", "rooster"])
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
        "fob-max-epsilon-per-client",
        "max-epsilon",
        "max_epsilon",
        "max-epsilon-per-client",
        "fbo-max-epsilom-per-client",
    ],
)
def test_what_looks_like_a_limit_and_is_none_is_refused_by_name(key: str) -> None:
    context = Context(1, 1, {key: 0.5}, RecordDict(), {})
    meant = "did you mean 'fbo-max-epsilon-per-client'"
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
