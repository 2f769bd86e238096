"""The rooms of DESIGN.md: who may import whom."""

import ast
from pathlib import Path

import networkx as nx
import pytest

import flwr_fbo

PACKAGE = Path(flwr_fbo.__file__).parent

# A room imports only from rooms of a lower storey, or from itself.
STOREYS = [
    {"_common"},
    {"space", "journal", "models"},
    {"privacy", "secure_sum"},
    {"study"},
    {"algorithms"},
    {"_compat", "strategies", "clients"},
    {"tuner"},
    {"integrations", "off_policy", "grid"},
    {"cli"},
    {"lab"},
]
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
LEVEL = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}
MAY_IMPORT_FLWR = {
    "strategies",
    "clients",
    "tuner",
    "grid.py",
    "privacy/accounting.py",
    "privacy/ledger_accountant.py",
    "privacy/moments_accountant.py",
    "privacy/pld_accountant.py",
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
                ok = {room, str(relative)} & MAY_IMPORT_FLWR
                assert ok, f"{relative} imports {module}"
                private = any(f"{module}.".startswith(f"{p}.") for p in PRIVATE_FLWR)
                assert not private or relative.name == "_compat.py"


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
