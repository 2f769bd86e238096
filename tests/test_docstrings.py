"""Docstrings are whole as they are written: an IDE, `help` and Sphinx show the same."""

import ast
import inspect
import re

import pytest

import flwr_fbo
from tests.support.docstrings import SECTIONS, documented, entries
from tests.support.documents import ROOT

PACKAGE = ROOT / "flwr_fbo"
MODULES = sorted(PACKAGE.rglob("*.py"))
PRIVATE_TUNING = ("FedVote", "FedWarmStart", "DPFTSDE")
STRATEGIES = (*PRIVATE_TUNING, "FTS", "FedUCB", "DecentralizedFedUCB", "FedGOUCB")


def test_each_documented_parameter_has_words() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {name}: {entry}"
        for path in MODULES
        for name, docstring in documented(path)
        for section in SECTIONS
        for entry, text in entries(docstring, section).items()
        if not text
    ]
    assert not missing, "\n".join(missing)


def test_the_reader_of_docstrings_sees_what_is_missing() -> None:
    text = """A thing.

    Parameters
    ----------
    a : int
        Number of things.

        And more.
    b, c : float
    d

    Notes
    -----
    e : int
    """
    words = "Number of things.\nAnd more."
    assert entries(text, "Parameters") == {"a": words, "b, c": "", "d": ""}
    assert entries(text, "Attributes") == {}


@pytest.mark.parametrize(
    "pattern",
    [
        # A line such as ``{space, direction}``, for a program to replace.
        r"^ *\{[\w, ]+\} *$",
        # A heading that was filled into the paragraph below it.
        r"\w +-{4,}",
    ],
)
def test_no_docstring_has_a_line_that_is_broken(pattern: str) -> None:
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                docstring = ast.get_docstring(node) or ""
                found = re.findall(pattern, docstring, re.MULTILINE)
                assert not found, (path.name, found)


def test_what_is_written_is_what_is_shown() -> None:
    written = {
        name: docstring
        for path in MODULES
        for name, docstring in documented(path)
        if "." not in name
    }
    for name in dir(flwr_fbo):
        value = getattr(flwr_fbo, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value) == inspect.cleandoc(written[name]), name


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_documents_what_it_takes_in_its_order(name: str) -> None:
    strategy = getattr(flwr_fbo, name)
    found = entries(inspect.getdoc(strategy) or "", "Parameters")
    assert list(found) == list(inspect.signature(strategy).parameters)
    found = entries(inspect.getdoc(strategy.start) or "", "Parameters")
    assert ["self", *found] == list(inspect.signature(strategy.start).parameters)


@pytest.mark.parametrize(
    "parameter", ["space", "direction", "portfolio", "aggregation"]
)
def test_what_several_strategies_take_is_said_alike(parameter: str) -> None:
    names = [*PRIVATE_TUNING, *([] if parameter == "aggregation" else ["FTS"])]
    docstrings = (inspect.getdoc(getattr(flwr_fbo, name)) or "" for name in names)
    assert len({entries(text, "Parameters")[parameter] for text in docstrings}) == 1
