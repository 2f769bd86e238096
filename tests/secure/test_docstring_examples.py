"""The examples of the room's docstrings run as they are written."""

import doctest
import importlib

import pytest

MODULES = (
    "aggregation_option",
    "aggregator",
    "block_noise",
    "block_sums",
    "collector",
    "integer_noise",
    "member",
    "roster",
    "secure_release",
    "terms",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    module = importlib.import_module(f"flwr_fbo.secure.{name}")
    failed, attempted = doctest.testmod(module)
    assert failed == 0
    assert attempted >= 2
