"""Commands in the documentation that its test does not run, why, and what it checks."""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from typer.main import get_command

from flwr_fbo.cli import app as flwr_fbo_app
from flwr_fbo.lab.experiment_runner.config import find_experiment, load_experiment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Command:
    """A kind of command that is not run.

    Attributes
    ----------
    pattern : str
        Regular expression of its beginning.
    reason : str
        Why it is not run.
    check : callable
        Of the split command: raises if it cannot be right.
    """

    pattern: str
    reason: str
    check: Callable[[list[str]], None]


def parse_flwr_fbo(command: list[str]) -> None:
    """Check that ``flwr-fbo`` would take it, and has such an experiment."""
    context = _parse(get_command(flwr_fbo_app), command[1:])
    names = context.params.get("experiments", [context.params.get("experiment")])
    for name in filter(None, names):
        paper = ROOT / "experiments" / name
        there = paper.is_dir() or paper.with_suffix(".toml").exists()
        assert name == "mine.toml" or there or find_experiment(name)


def _parse(node: click.Command, arguments: list[str]) -> click.Context:
    context = node.make_context(node.name, list(arguments))
    while isinstance(node, click.Group):
        rest = [*context._protected_args, *context.args]
        _, found, rest = node.resolve_command(context, rest)
        assert found is not None
        node, parent = found, context
        context = node.make_context(node.name, rest, parent=parent)
    return context


def _flwr(command: list[str]) -> None:
    """Parse it with Flower's own parser; its run config must be that of an example."""
    params = _parse(
        get_command(importlib.import_module("flwr.cli.app").app), command[1:]
    ).params
    given = " ".join(params.get("run_config_overrides") or ())
    files = (ROOT / "examples").rglob("pyproject.toml")
    tools = [tomllib.loads(file.read_text()).get("tool", {}) for file in files]
    apps = [tool["flwr"]["app"] for tool in tools if "flwr" in tool]  # not a library
    known = {key for app in apps for key in app.get("config", {})}
    assert set(re.findall(r"([\w-]+)=", given)) <= known, given


def _make(command: list[str]) -> None:
    assert re.search(rf"^{command[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def _pip(command: list[str]) -> None:
    """Check that the extras exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:flwr-fbo|\.)\[(.*?)\]", " ".join(command)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])


def _compare(command: list[str]) -> None:
    assert (ROOT / "examples/plug-in-pytorch" / command[1]).exists()


def _module(command: list[str]) -> None:
    assert importlib.util.find_spec(command[2]) is not None


def _of_bandits(command: list[str]) -> None:
    file = command[2].replace(".", "/")
    assert len([*ROOT.glob(f"examples/*-bandit/{file}.py")]) == 1


def _all_figures(command: list[str]) -> None:
    for file in ROOT.glob(command[3].rstrip(";")):
        load_experiment(file)


NOT_RUN = (
    Command(
        "make ",
        "it makes an environment; tests/support/strangers_path.py does it",
        _make,
    ),
    Command("pip install ", "the same", _pip),
    Command(
        "python compare.py",
        "minutes; tests/test_plug_in_pytorch.py runs what it runs",
        _compare,
    ),
    Command(
        "python -m triage.",
        "minutes; tests/test_triage_bandit.py plays what it plays",
        _of_bandits,
    ),
    Command(
        r"python -m (bandits|kitchens)\.compare",
        "minutes; tests/test_compared_bandits.py plays what it plays",
        _of_bandits,
    ),
    Command("flwr ", "tests/support/engine.py runs the examples on the engine", _flwr),
    Command("for f in ", "a night", _all_figures),
    Command("python -m benchmarks.", "minutes, and figures of a machine", _module),
    Command("python -m tests.adversaries.", "the same", _module),
    Command(
        r"flwr-fbo (run|claims) (landmine|har|emnist|feducb|fed-go-ucb|dp-fts-de)",
        "minutes to hours, most with data from the internet",
        parse_flwr_fbo,
    ),
    Command(
        "flwr-fbo tune my-app",
        "the reader's app; tests/cli/test_tune_command.py tunes several",
        parse_flwr_fbo,
    ),
    Command("flwr-fbo data download", "it needs the internet", parse_flwr_fbo),
    Command(
        "flwr-fbo superexec",
        "it needs a SuperNode; tests/test_reviewed_app.py starts one",
        parse_flwr_fbo,
    ),
)
