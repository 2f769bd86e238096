"""NumPy docstrings as they stand in the source, read without importing a module."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

# Sections whose entries are values that a reader gives or gets by name.
SECTIONS = ("Parameters", "Attributes")


def documented(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each public class, function and method."""
    yield from _within(ast.parse(path.read_text(encoding="utf-8")), "")


def _within(
    parent: ast.Module | ast.ClassDef, prefix: str
) -> Iterator[tuple[str, str]]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_"):
            continue
        yield f"{prefix}{node.name}", ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            yield from _within(node, f"{prefix}{node.name}.")


def entries(docstring: str, section: str) -> dict[str, str]:
    """Return the text of each entry of a section, by its name; empty without words."""
    lines = inspect.cleandoc(docstring).splitlines()
    heading = [section, "-" * len(section)]
    starts = [i for i in range(len(lines)) if lines[i : i + 2] == heading]
    if not starts:
        return {}
    found: dict[str, list[str]] = {}
    name = ""
    for line, below in pairwise([*lines[starts[0] + 2 :], ""]):
        if re.fullmatch("-+", below):
            break  # the heading of the next section
        if line.startswith(" "):
            found[name].append(line.strip())
        elif line:
            name = line.partition(" : ")[0]
            found[name] = []
    return {name: "\n".join(text) for name, text in found.items()}
