"""Every public name opens with an example that a reader can run, and runs here."""

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import flwr_fbo


def _public() -> Iterator[tuple[str, Any]]:
    """Yield each public class and function: the others are type aliases and texts."""
    for name in sorted(dir(flwr_fbo)):
        one = getattr(flwr_fbo, name)
        if inspect.isclass(one) or inspect.isfunction(one):
            yield name, one


def example_of(docstring: str | None) -> list[doctest.Example]:
    """Return the example that a docstring opens with: before its other sections."""
    opening = (docstring or "").split("\nParameters\n---")[0]
    opening = opening.split("\nAttributes\n---")[0]
    return doctest.DocTestParser().get_examples(opening)


def lacks_example(docstring: str | None) -> bool:
    """Return whether there is no example, or a part of it is skipped."""
    examples = example_of(docstring)
    return not examples or any(e.options.get(doctest.SKIP) for e in examples)


PUBLIC = list(_public())


def test_every_public_name_opens_with_an_example() -> None:
    missing = [name for name, one in PUBLIC if lacks_example(inspect.getdoc(one))]
    assert not missing, f"no runnable example, or a skipped one: {', '.join(missing)}"
    assert len(PUBLIC) > 40


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


@pytest.mark.parametrize(
    ("docstring", "lacks"),
    [
        ("Say it.\n\n>>> 1 + 1\n2", False),
        ("Say it.\n\n>>> 1 + 1  # doctest: +SKIP\n2", True),
        ("Say it.\n\nParameters\n----------\n\n>>> 1 + 1\n2", True),
        ("Say it.", True),
        (None, True),
    ],
)
def test_a_lack_is_noticed(docstring: str | None, lacks: bool) -> None:
    assert lacks_example(docstring) == lacks
