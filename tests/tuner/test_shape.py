"""The tuner's code stays in pieces that a reader can hold: one idea per class."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flwr_fbo
from benchmarks.rooms import lines_of_code
from flwr_fbo import FederationTuner

PACKAGE = Path(flwr_fbo.__file__).parent / "tuner"
MOST_METHODS, MOST_LINES, MOST_POSITIONAL, MOST_FILES = 25, 250, 6, 14
SOURCES = {path: path.read_text() for path in PACKAGE.rglob("*.py")}


def _nodes(kind: type[ast.stmt]) -> Iterator[tuple[Path, ast.stmt]]:
    for path, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, kind):
                yield path, node


def test_a_class_has_few_methods_and_lines_of_code() -> None:
    found = list(_nodes(ast.ClassDef))
    assert len(found) > 40
    for path, node in found:
        assert isinstance(node, ast.ClassDef)
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
        assert len(methods) <= MOST_METHODS, f"{path.name}: {node.name}"
        source = ast.get_source_segment(SOURCES[path], node) or ""
        lines = lines_of_code(source, ast.parse(source))
        assert lines <= MOST_LINES, f"{path.name}: {node.name}"


def test_a_function_has_few_positional_parameters() -> None:
    found = list(_nodes(ast.FunctionDef))
    assert len(found) > 400
    for path, node in found:
        assert isinstance(node, ast.FunctionDef)
        names = [a.arg for a in node.args.posonlyargs + node.args.args]
        names = [name for name in names if name not in ("self", "cls")]
        assert len(names) <= MOST_POSITIONAL, f"{path.name}: {node.name}"


def test_a_folder_has_few_files() -> None:
    for folder in {path.parent for path in SOURCES}:
        files = [path for path in SOURCES if path.parent == folder]
        assert len(files) <= MOST_FILES, folder.name


@pytest.mark.parametrize("host", ["folder", "study", "callbacks"])
def test_what_a_host_decides_is_a_parameter_of_start(host: str) -> None:
    made = inspect.signature(FederationTuner).parameters
    assert len(made) <= 10
    assert host not in made
    assert host in inspect.signature(FederationTuner.start).parameters
    options: dict[str, Any] = {"privacy": None, host: None}
    with pytest.raises(TypeError, match=f"'{host}'"):
        FederationTuner({}, "loss", "minimize", 2, **options)
