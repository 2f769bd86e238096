"""Which folder of the package imports which: a table, and a picture of it.

    python -m benchmarks.rooms [--into docs/images/rooms.svg]

A room is a folder of `flwr_fbo`, or a single file beside the folders. The lab is left
out: it is a package of its own, and nothing but its commands loads it. A room stands
one floor above the highest room that it imports. The command fails if rooms import each
other in a circle, or one imports a room that `STOREYS` has above it.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

PACKAGE = Path(__file__).parent.parent / "flwr_fbo"
PICTURE = PACKAGE.parent / "docs" / "images" / "rooms.svg"
# A room imports only from rooms of a lower storey, of its own storey, or from itself.
STOREYS = [
    {"_common", "_compat"},
    {"space", "journal", "models"},
    {"privacy"},
    {"secure"},
    {"study"},
    {"site"},
    {"tuning", "bandits"},
    {"strategies", "clients", "integrations"},
    {"tuner"},
    {"grid"},
    {"cli"},
    {"lab"},
]
LEVEL = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}
# The aim: more are hard to keep in mind.
MOST_ROOMS, MOST_FLOORS = 17, 9
_LEFT_OUT = ("__init__", "lab")
# In inches.
_BOX, _GAP, _STOREY = (1.45, 0.5), 0.35, 0.95


class PlanError(Exception):
    """Rooms import each other in a circle, or upwards."""


@dataclass
class Room:
    """One folder of the package, or one file beside the folders."""

    num_lines: int = 0
    num_classes: int = 0
    imports: set[str] = field(default_factory=set)


def read_rooms(package: Path = PACKAGE) -> dict[str, Room]:
    """Return the rooms of a package, with what they import, lazily or at once."""
    rooms: dict[str, Room] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).parts[0].removesuffix(".py")
        if name in _LEFT_OUT:
            continue
        room, text = rooms.setdefault(name, Room()), path.read_text()
        tree = ast.parse(text)
        room.num_lines += lines_of_code(text, tree)
        nodes = list(ast.walk(tree))
        room.num_classes += sum(isinstance(node, ast.ClassDef) for node in nodes)
        modules = [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
        for node in nodes:
            if isinstance(node, ast.Import):
                modules += [alias.name for alias in node.names]
        paths = [module.split(".") for module in modules]
        imported = {
            parts[1] for parts in paths if parts[0] == package.name and parts[1:]
        }
        room.imports |= imported - {name, *_LEFT_OUT}
    return rooms


def lines_of_code(text: str, tree: ast.Module) -> int:
    """Return the number of lines with code: no comments, docstrings or blank lines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
    layout |= {tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def floors_of(
    rooms: Mapping[str, Room], level: Mapping[str, int] = LEVEL
) -> dict[str, int]:
    """Return the floor of each room: the longest path of imports to the ground.

    Raises
    ------
    PlanError
        If there is a circle, or an arrow upwards; the message names the rooms.
    """
    try:
        order = [
            *TopologicalSorter({n: r.imports for n, r in rooms.items()}).static_order()
        ]
    except CycleError as error:
        circle = " imports ".join(reversed(error.args[1]))
        raise PlanError(f"Rooms import each other in a circle: {circle}.") from None
    for name, room in rooms.items():
        for other in sorted(room.imports):
            if level[other] > level[name]:
                raise PlanError(f"{name} imports {other}, which is above it.")
    floors: dict[str, int] = {}
    for name in order:
        floors[name] = max((floors[o] + 1 for o in rooms[name].imports), default=0)
    return floors


def table_of(rooms: Mapping[str, Room], floors: Mapping[str, int]) -> str:
    """Return the rooms from the top floor down, and their sums."""
    lines = [f"{'floor':5}  {'room':12} {'lines':>7} {'classes':>7}  imports"]
    for name in sorted(rooms, key=lambda name: (-floors[name], name)):
        room = rooms[name]
        numbers = f"{room.num_lines:7,} {room.num_classes:7}"
        imports = ", ".join(sorted(room.imports))
        lines.append(f"{floors[name]:5}  {name:12} {numbers}  {imports}".rstrip())
    total = sum(room.num_lines for room in rooms.values())
    classes = sum(room.num_classes for room in rooms.values())
    lines.append(f"{'':5}  {'':12} {total:7,} {classes:7}")
    num_floors = max(floors.values()) + 1
    lines.append(
        f"{len(rooms)} rooms on {num_floors} floors; the aim is at most {MOST_ROOMS} "
        f"on {MOST_FLOORS}."
    )
    return "\n".join(lines)


def draw(rooms: Mapping[str, Room], floors: Mapping[str, int], path: Path) -> None:
    """Draw rooms as boxes on their floors, with an arrow for each import.

    An import is pale if other arrows lead to the same room.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    places = _places(rooms, floors)
    (width, height), num_floors = _BOX, max(floors.values()) + 1
    all_x, margin = [x for x, _ in places.values()], width / 2 + 0.1
    left, right = min(all_x) - margin, max(all_x) + margin
    # The same file for the same rooms, with letters that stay text.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rooms"}):
        figure = Figure((right - left, num_floors * _STOREY))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(left, right), ylim=(-0.45, num_floors * _STOREY - 0.45))
        axes.axis("off")
        for name, room in sorted(rooms.items()):
            for other in sorted(room.imports):
                is_implied = _leads_to(rooms, room.imports - {other}, other)
                (x, y), (to_x, to_y) = places[name], places[other]
                arrow = FancyArrowPatch(
                    (x, y - height / 2),
                    (to_x, to_y + height / 2),
                    arrowstyle="-|>",
                    mutation_scale=7 if is_implied else 11,
                    color="#d9d9d9" if is_implied else "#0072b2",
                    linewidth=0.7 if is_implied else 1.5,
                    shrinkA=0,
                    shrinkB=0,
                    zorder=1 if is_implied else 2,
                )
                axes.add_patch(arrow)
        for name, (x, y) in places.items():
            corner = (x - width / 2, y - height / 2)
            style: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.06"}
            box = FancyBboxPatch(
                corner, width, height, fc="white", ec="#333333", zorder=3, **style
            )
            axes.add_patch(box)
            room = rooms[name]
            classes = (
                "1 class" if room.num_classes == 1 else f"{room.num_classes} classes"
            )
            size = f"{room.num_lines:,} lines, {classes}"
            axes.text(x, y + 0.09, name, ha="center", va="center", size=10, zorder=4)
            axes.text(x, y - 0.12, size, ha="center", va="center", size=7, zorder=4)
        figure.savefig(path, metadata={"Date": None, "Creator": None})


def _leads_to(rooms: Mapping[str, Room], starts: set[str], target: str) -> bool:
    """Return whether a room is imported by some rooms, or by what they import."""
    return any(
        target in rooms[name].imports or _leads_to(rooms, rooms[name].imports, target)
        for name in starts
    )


def _places(
    rooms: Mapping[str, Room], floors: Mapping[str, int]
) -> dict[str, tuple[float, float]]:
    """Return the middle of each box, so that few strong arrows pass behind boxes.

    Floor by floor the best places are taken, given those of all others, until no floor
    can be improved.
    """
    by_floor = [
        sorted(name for name in rooms if floors[name] == floor)
        for floor in range(max(floors.values()) + 1)
    ]
    columns = {
        name: (2.0 * i - len(names) + 1) / 2
        for names in by_floor
        for i, name in enumerate(names)
    }
    arrows = [
        (name, other)
        for name in sorted(rooms)
        for other in sorted(rooms[name].imports)
        if not _leads_to(rooms, rooms[name].imports - {other}, other)
    ]
    best = _disorder(columns, floors, arrows)
    for _ in range(5):
        for names in by_floor:
            half = np.arange(-len(names) - 1, len(names) + 2) / 2
            for chosen in permutations(half, len(names)):
                if len(names) > 1 and np.diff(np.sort(chosen)).min() < 1:
                    continue
                tried = {**columns, **dict(zip(names, chosen, strict=True))}
                found = _disorder(tried, floors, arrows)
                if found < best - 1e-9:
                    columns, best = tried, found
    return {
        name: (float(column) * (_BOX[0] + _GAP), floors[name] * _STOREY)
        for name, column in columns.items()
    }


def _disorder(
    columns: Mapping[str, float],
    floors: Mapping[str, int],
    arrows: Sequence[tuple[str, str]],
) -> float:
    """Return how many boxes arrows pass behind, and their length as a small part."""
    names = list(columns)
    x = np.array([columns[name] for name in names])
    y = np.array([floors[name] for name in names])
    place = {name: i for i, name in enumerate(names)}
    begin, end = (np.array([place[pair[k]] for pair in arrows]) for k in (0, 1))
    # Where an arrow is on each floor between its ends; elsewhere it meets no box.
    falls = (y[begin] - y[end]).astype(float)
    share = (y[begin][:, None] - y[None, :]) / falls[:, None]
    across = x[begin][:, None] + share * (x[end] - x[begin])[:, None]
    between = (share > 0) & (share < 1)
    # An arrow that is not steep meets a box beside its middle, too.
    reach = 0.5 + 0.3 * np.abs(x[end] - x[begin])[:, None] / falls[:, None]
    met = between & (np.abs(across - x[None, :]) < reach)
    length = np.abs(x[end] - x[begin]).sum() + 0.1 * np.abs(x).sum()
    return float(met.sum() + 0.05 * length)


def main() -> None:
    """Print the table, and draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rooms")
    parser.add_argument("--into", type=Path, default=PICTURE, metavar="FILE")
    path = parser.parse_args().into
    rooms = read_rooms()
    try:
        floors = floors_of(rooms)
    except PlanError as error:
        raise SystemExit(str(error)) from None
    print(table_of(rooms, floors))
    draw(rooms, floors, path)


if __name__ == "__main__":
    main()
