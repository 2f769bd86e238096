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
    {"lab"},
    {"cli"},
]
# The lab is a house of its own.
LAB_STOREYS = [
    {"datasets"},
    {"tasks", "baselines"},
    {"simulation"},
    {"audit"},
    {"experiment_runner"},
]
LAB_LEVEL = {room: level for level, rooms in enumerate(LAB_STOREYS) for room in rooms}
# Of the command line: what is about experiments, data sets and audits.
LAB_COMMANDS = {
    "audit_command",
    "claims_command",
    "data_command",
    "experiment_page",
    "experiment_tables",
    "export_emnist_command",
    "list_command",
    "run_command",
    "tradeoff_command",
}
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


def _imports_at_once(path: Path) -> set[str]:
    """Return what is imported with the module: not within a function."""
    body = ast.parse(path.read_text()).body
    return {
        name
        for node in body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }


def test_only_its_own_commands_load_the_lab() -> None:
    for path in FILES:
        rooms = path.relative_to(PACKAGE).parts
        if rooms[0] == "lab" or path.stem in LAB_COMMANDS:
            continue
        loaded = {m for m in _imports_at_once(path) if m.startswith("flwr_fbo.lab")}
        assert not loaded, path
        if rooms[0] != "cli":
            assert not any(m.startswith("flwr_fbo.lab") for m in _imports(path)), path
            own = {f"flwr_fbo.cli.{name}" for name in LAB_COMMANDS}
            assert not own & _imports(path), path


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
