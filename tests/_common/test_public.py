"""Public names: few at the top, and found where the stub says."""

import pytest

import flwr_fbo
from flwr_fbo import bandits
from tests.support.public import public_names


def test_few_names_stand_at_the_top() -> None:
    assert len(dir(flwr_fbo)) <= 25


def test_each_public_name_has_one_place() -> None:
    names = [name.rpartition(".")[2] for name in public_names()]
    assert len(names) == len(set(names))


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    name = "Bandit"
    with pytest.raises(AttributeError, match=r"flwr_fbo\.bandits.*'Bandit'"):
        getattr(bandits, name)
