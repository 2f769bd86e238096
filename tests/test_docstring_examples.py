"""The examples of public names run as they are written."""

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.public import public_names


def _public() -> Iterator[tuple[str, Any]]:
    """Yield each public class and function: the others are type aliases and texts."""
    for name, one in public_names().items():
        if inspect.isclass(one) or inspect.isfunction(one):
            yield name, one


PUBLIC = list(_public())


@pytest.mark.parametrize(("name", "one"), PUBLIC, ids=[name for name, _ in PUBLIC])
def test_an_example_runs_as_it_is_written(name: str, one: Any) -> None:
    if ">>> from torch" in (inspect.getdoc(one) or ""):
        pytest.importorskip("torch")
    parser = doctest.DocTestParser()
    test = parser.get_doctest(inspect.getdoc(one) or "", {}, name, None, 0)
    said: list[str] = []
    flags = doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
    assert not said, "".join(said)
