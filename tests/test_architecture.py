"""The rooms of DESIGN.md: who may import whom."""

import ast
import re
from pathlib import Path

import networkx as nx
import pytest

import flwr_fbo
from benchmarks.rooms import (
    LEVEL,
    MOST_FLOORS,
    MOST_ROOMS,
    PICTURE,
    PlanError,
    draw,
    floors_of,
    lines_of_code,
    read_rooms,
)
from flwr_fbo import secure

PACKAGE = Path(flwr_fbo.__file__).parent

# The lab is a house of its own.
LAB_STOREYS = [
    {"datasets"},
    {"tasks", "baselines"},
    {"simulation"},
    {"audit"},
    {"experiment_runner"},
    {"cli"},
]
LAB_LEVEL = {room: level for level, rooms in enumerate(LAB_STOREYS) for room in rooms}
# Where the two halves of Flower are wrapped, and a site's app is asked.
MAY_IMPORT_FLWR = {
    "site",
    "tuning/site",
    "bandits/site",
    "strategies",
    "clients",
    "tuner",
    "grid.py",
    "privacy/accounting.py",
    "_compat.py",
}
PRIVATE_FLWR = ("flwr.client", "flwr.common", "flwr.supercore", "flwr.compat")


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def _module(path: Path) -> str:
    return ".".join(("flwr_fbo", *path.relative_to(PACKAGE).with_suffix("").parts))


def _room(module: str) -> str:
    return module.split(".")[1]


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def test_rooms_import_downwards() -> None:
    for path in FILES:
        relative = path.relative_to(PACKAGE)
        room = relative.parts[0].removesuffix(".py")
        for module in _imports(path):
            if module.startswith("flwr_fbo."):
                other = _room(module)
                allowed = other == room or LEVEL[other] <= LEVEL[room]
                assert allowed, f"{relative} imports {module}"
            elif module.split(".")[0] == "flwr":
                ok = {room, str(relative), str(relative.parent)} & MAY_IMPORT_FLWR
                assert ok, f"{relative} imports {module}"
                private = any(f"{module}.".startswith(f"{p}.") for p in PRIVATE_FLWR)
                assert not private or relative.name == "_compat.py"


def test_secure_sums_show_others_seven_names() -> None:
    """And know nothing of what is summed: see `flwr_fbo.secure`."""
    room = "flwr_fbo.secure"
    imported = set()
    for path in FILES:
        if path.parent.name == "secure":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == room:
                imported |= {alias.name for alias in node.names}
        inner = {name for name in _imports(path) if name.startswith(f"{room}.")}
        assert not inner, f"{path.relative_to(PACKAGE)} imports {inner}"
    assert imported == set(dir(secure))
    assert len(imported) <= 7
    assert read_rooms()["secure"].imports <= {"_common", "journal", "privacy"}


def test_the_lab_has_rooms_of_its_own() -> None:
    for path in (PACKAGE / "lab").glob("*/**/*.py"):
        room = path.relative_to(PACKAGE / "lab").parts[0]
        for module in _imports(path):
            if module.startswith("flwr_fbo.lab."):
                other = module.split(".")[2]
                assert LAB_LEVEL[other] <= LAB_LEVEL[room], f"{path} imports {module}"


def test_only_the_table_of_commands_names_the_lab() -> None:
    """Which imports a module of it when its command is called."""
    naming = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if "lab.cli." in path.read_text()
        and path.relative_to(PACKAGE).parts[0] != "lab"
    }
    assert naming == {"cli/commands.py"}


def test_there_is_no_circle() -> None:
    modules = {_module(path): path for path in FILES}
    imports = nx.DiGraph(
        (module, imported)
        for module, path in modules.items()
        for imported in _imports(path) & set(modules)
    )
    assert sorted(nx.simple_cycles(imports)) == []


def test_servers_do_not_know_agents() -> None:
    for path in FILES:
        if path.name == "server.py":
            assert not {m for m in _imports(path) if m.split(".")[-1] == "agent"}, path


def test_unknown_names_are_refused() -> None:
    name = "FedAvg"
    with pytest.raises(AttributeError, match="FedAvg"):
        getattr(flwr_fbo, name)


def test_rooms_and_floors_are_few() -> None:
    rooms = read_rooms()
    assert len(rooms) <= MOST_ROOMS
    assert max(floors_of(rooms).values()) < MOST_FLOORS


def test_the_picture_in_the_docs_has_the_rooms_that_there_are() -> None:
    rooms = read_rooms()
    assert set(floors_of(rooms)) == {r for r in LEVEL if r != "lab"}
    shown = set(re.findall(r">(\w+)</text>", PICTURE.read_text()))
    assert shown == set(rooms)


def _package(folder: Path, **imports: str) -> Path:
    package = folder / "house"
    for room, text in imports.items():
        (package / room).mkdir(parents=True)
        (package / room / "module.py").write_text(text)
    return package


def test_a_room_stands_above_all_that_it_imports(tmp_path: Path) -> None:
    package = _package(
        tmp_path,
        cellar='"""Text."""\n\n# A comment.\nclass Box:\n    """Docs."""\n',
        hall="from house.cellar.module import Box\n",
        roof="def look():\n    import house.hall.module, house.cellar\n",
        lab="from house.roof import look\n",
    )
    rooms = read_rooms(package)
    floors = floors_of(rooms, {"cellar": 0, "hall": 1, "roof": 1})
    assert floors == {"cellar": 0, "hall": 1, "roof": 2}
    assert (rooms["cellar"].num_lines, rooms["cellar"].num_classes) == (1, 1)
    assert rooms["roof"].imports == {"hall", "cellar"}
    picture = tmp_path / "rooms.svg"
    draw(rooms, floors, picture)
    first = picture.read_bytes()
    draw(rooms, floors, picture)
    assert picture.read_bytes() == first


def test_circles_and_imports_upwards_are_named(tmp_path: Path) -> None:
    rooms = read_rooms(_package(tmp_path, a="import house.b", b="import house.a"))
    with pytest.raises(PlanError, match=r"circle: [ab] imports [ab] imports"):
        floors_of(rooms, {"a": 0, "b": 0})
    rooms["a"].imports.clear()
    with pytest.raises(PlanError, match="b imports a, which is above it"):
        floors_of(rooms, {"a": 1, "b": 0})


# Rooms whose classes have one idea each.
FLAT_ROOMS = {"strategies"}
MOST_METHODS, MOST_LINES, MOST_POSITIONAL = 25, 250, 6
# Whose signature is that of a method of Flower.
OF_FLOWER = {"StudyStrategy.start"}


@pytest.mark.parametrize("room", FLAT_ROOMS)
def test_classes_are_small(room: str) -> None:
    for path in sorted((PACKAGE / room).rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            assert len(methods) <= MOST_METHODS, f"{path.name}: {node.name}"
            source = ast.get_source_segment(text, node) or ""
            num_lines = lines_of_code(source, ast.parse(source))
            assert num_lines <= MOST_LINES, f"{path.name}: {node.name}: {num_lines}"


def test_functions_take_at_most_six_arguments_by_place() -> None:
    """But for commands, whose parameters are a command line's."""
    for path in FILES:
        if path.parent.name == "cli":
            continue
        tree = ast.parse(path.read_text())
        methods = {
            id(part): f"{node.name}.{part.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for part in node.body
            if isinstance(part, ast.FunctionDef)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            name = methods.get(id(node), node.name)
            most = MOST_POSITIONAL + (id(node) in methods)
            if name not in OF_FLOWER:
                assert _num_positional(node) <= most, f"{path.name}: {name}"


def _num_positional(function: ast.FunctionDef) -> int:
    return len(function.args.posonlyargs) + len(function.args.args)
