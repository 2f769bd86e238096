"""Wheel and sdist: they build, have what they must, and the wheel runs."""

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.gate,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("build", "hatchling")),
        reason="needs build and hatchling, of the extra dev",
    ),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = ("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT))
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return folder


def test_the_wheel_has_types_templates_and_experiments(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "flwr_fbo"
    wanted = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"flwr_fbo/py.typed", "flwr_fbo/study/report/page.html.jinja"} <= wanted
    assert wanted <= names
    assert not any(name.startswith("tests") for name in names)


def test_the_sdist_has_what_the_tests_need(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tops = ("benchmarks", "docs", "examples", "experiments", "flwr_fbo", "tests")
    wanted = {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml"}
    for top in tops:
        for suffix in ("py", "toml", "md"):
            found = (ROOT / top).rglob(f"*.{suffix}")
            wanted |= {str(p.relative_to(ROOT)) for p in found}
    wanted = {name for name in wanted if "/results/" not in name}
    assert wanted <= names, sorted(wanted - names)


def test_the_wheel_runs(built: Path, tmp_path: Path) -> None:
    """Installed without its dependencies, which are those of this environment."""
    [wheel] = built.glob("*.whl")
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    options = ("--no-index", "--target", str(site), str(wheel))
    subprocess.run([*pip, *options], check=True)
    code = (
        "import flwr_fbo, sys; from flwr_fbo.cli import app\n"
        f"assert flwr_fbo.__file__.startswith({str(site)!r}), flwr_fbo.__file__\n"
        "app(sys.argv[1:])"
    )
    for arguments in (
        ("run", "digits", "--seeds=1", "--evaluations=11", "--jobs=1"),
        ("report", "results/digits"),
    ):
        subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": str(site), "PATH": "", "OMP_NUM_THREADS": "1"},
            check=True,
        )
    assert (tmp_path / "results" / "digits" / "report.html").stat().st_size > 10_000
