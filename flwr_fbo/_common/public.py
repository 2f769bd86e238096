"""Public names that are imported when they are first used (PEP 562).

So ``import flwr_fbo`` loads neither Flower nor any of the heavy optional libraries,
while editors and type checkers read the same list: the stub beside the package's
``__init__.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from typing import Any


def public_names(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    file : str
        Its ``__file__``; the stub beside it has a line ``from .module import Name as
        Name`` for each public name.
    """
    places: dict[str, str] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            places |= {alias.name: module for alias in node.names}
    names = sorted(places)

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(places[name]), name)

    return get, lambda: names, names
