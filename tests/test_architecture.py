"""The rooms of DESIGN.md: who may import whom, and what importing costs."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import flwr_fbo

PACKAGE = Path(flwr_fbo.__file__).parent

# A room imports only from rooms of a lower storey, or from itself.
STOREYS = [
    {
        "_version",
        "_arrays",
        "_errors",
        "_files",
        "_frames",
        "_random",
        "_text",
        "_validation",
    },
    {"space", "journal", "models", "datasets"},
    {"privacy", "secure_sum"},
    {"protocol", "tasks"},
    {"agents", "servers"},
    {"_compat", "strategies", "clients"},
    {"tuner"},
    {"integrations", "off_policy", "simulation"},
    {"audit"},
    {"experiment_runner"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(STOREYS) for room in rooms}
MAY_IMPORT_FLWR = {
    "strategies",
    "clients",
    "tuner",
    "simulation/grid.py",
    "privacy/accounting.py",
    "privacy/ledger_accountant.py",
    "privacy/moments_accountant.py",
    "privacy/pld_accountant.py",
    "_compat.py",
}
# Modules that need an extra, and the most parameters that a constructor takes.
NEEDS_AN_EXTRA = {"_cnn", "_emnist_tff"}
MAX_PARAMETERS = 17
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


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_import_downwards(path: Path) -> None:
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
        if path.relative_to(PACKAGE).parts[0] == "servers":
            agents = {m for m in _imports(path) if m.startswith("flwr_fbo.agents")}
            assert not agents, path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_a_test_file_is_short() -> None:
    tests = Path(__file__).parent
    lengths = {p: len(p.read_text().splitlines()) for p in tests.rglob("*.py")}
    assert {p: length for p, length in lengths.items() if length > 600} == {}


# Files of one algorithm, in several rooms, bear its name.
ALGORITHMS = {
    "decentralized_fed_ucb",
    "dp_fts_de",
    "fed_go_ucb",
    "fed_ucb",
    "fed_vote",
    "fed_warm_start",
    "fts",
    "glm_ucb",
    "kernel_ucb",
}


def test_a_file_name_is_used_once() -> None:
    """But for an algorithm's own, and for a data set's loader and its task."""
    rooms: dict[str, list[str]] = {}
    for path in FILES:
        rooms.setdefault(path.stem, []).append(path.relative_to(PACKAGE).parts[0])
    shared = {name: found for name, found in rooms.items() if len(found) > 1}
    for name in {"__init__", "base", *ALGORITHMS}:
        shared.pop(name, None)
    pair = ["datasets", "tasks"]
    assert {name: found for name, found in shared.items() if found != pair} == {}


def test_a_server_imports_nothing_that_its_clients_may_be_importing() -> None:
    """A simulation runs the ServerApp in one thread, and imports the ClientApp in one.

    Two threads that import one package with circular imports can see half of it.
    """
    loaded = _loaded_by(
        "from optuna.distributions import FloatDistribution as F; import flwr_fbo; "
        "s = flwr_fbo.FedVote({'x': F(0, 1)}, 'maximize', 9, epsilon=2, delta=1e-3); "
        "s.plan(9); s.server.receive(s.server.step(1), {})"
    )
    assert "opendp" in loaded
    assert not loaded & {"sklearn", "torch", "pandas", "matplotlib"}


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(m.split('.')[0] for m in sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return set(out.stdout.split())


def test_unknown_names_are_refused() -> None:
    name = "FedAvg"
    with pytest.raises(AttributeError, match="FedAvg"):
        getattr(flwr_fbo, name)


def test_constructors_have_few_parameters() -> None:
    many = {
        name: parameters
        for name, parameters in _constructors()
        if len(parameters) > MAX_PARAMETERS
    }
    assert many == {}


def _constructors() -> Iterator[tuple[str, list[str]]]:
    """Yield the package's classes, each with the parameters that it takes."""
    for module in pkgutil.walk_packages(flwr_fbo.__path__, "flwr_fbo."):
        if module.name.rpartition(".")[2] in NEEDS_AN_EXTRA:
            continue
        for cls in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(cls) and cls.__module__ == module.name:
                yield f"{module.name}.{cls.__name__}", _parameters(cls)


def _parameters(cls: type) -> list[str]:
    """Return all parameters, those that ``**options`` hands to our bases too.

    What a base takes by position ``**options`` cannot hand to it.
    """
    names: dict[str, None] = {}
    by_position = True
    for base in inspect.getmro(cls):
        if "__init__" not in vars(base) or not base.__module__.startswith("flwr_fbo"):
            continue
        _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        passed_on = [p for p in parameters if p.kind == p.VAR_KEYWORD]
        for p in parameters:
            if p not in passed_on and (by_position or p.kind == p.KEYWORD_ONLY):
                names[p.name] = None
        if not passed_on:
            break
        by_position = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    return list(names)
