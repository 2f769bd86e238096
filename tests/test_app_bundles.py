"""The example apps keep Flower's conventions: app bundles (FAB) of format 1."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.support.app_bundles import read_project

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def flwr_requirements(project: dict[str, Any]) -> list[Requirement]:
    requirements = map(Requirement, project["project"]["dependencies"])
    return [one for one in requirements if one.name == "flwr"]


APPS = [
    path.parent
    for path in sorted(EXAMPLES.rglob("pyproject.toml"))
    if "flwr" in read_project(path.parent)["tool"]
]
each_app = pytest.mark.parametrize(
    "app", APPS, ids=lambda path: str(path.relative_to(EXAMPLES))
)


def test_every_example_has_an_app() -> None:
    readmes = {path.parent for path in EXAMPLES.glob("*/README.md")}
    apps = {EXAMPLES / app.relative_to(EXAMPLES).parts[0] for app in APPS}
    assert readmes == apps | {EXAMPLES / "own-kind"}  # a package, and no app


@each_app
def test_an_app_declares_the_format_the_licence_and_flower(app: Path) -> None:
    project = read_project(app)
    settings = project["tool"]["flwr"]["app"]
    assert settings["fab-format-version"] == 1
    assert project["project"]["license"] == {"file": "LICENSE"}
    assert (app / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    [flwr] = flwr_requirements(project)
    [ours] = flwr_requirements(read_project(ROOT))
    assert flwr.specifier == ours.specifier
    assert flwr.specifier.contains(settings["flwr-version-target"])


@pytest.mark.slow
@each_app
def test_an_app_builds_into_its_code_and_its_licence(app: Path, tmp_path: Path) -> None:
    flwr = Path(sys.executable).with_name("flwr")
    done = subprocess.run(
        [str(flwr), "build", "--app", str(app)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "", "HOME": str(tmp_path), "FLWR_HOME": str(tmp_path / "flwr")},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recommended" not in done.stdout
    [bundle] = tmp_path.glob("*.fab")
    names = set(zipfile.ZipFile(bundle).namelist())
    [package] = (path.parent for path in app.glob("*/__init__.py"))
    code = {path.relative_to(app).as_posix() for path in package.glob("*.py")}
    assert code | {"LICENSE", "pyproject.toml"} <= names
    folders = {name.split("/")[0] for name in names if "/" in name}
    assert folders == {package.name, ".info"}
