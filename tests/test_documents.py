"""The code in README and documentation runs as it is written."""

import inspect
import math
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from flwr.app import Context, RecordDict
from optuna.distributions import FloatDistribution
from typer.testing import CliRunner

from benchmarks import paper_differences, warm_start
from benchmarks.demo import ROWS, demo_arguments
from benchmarks.pictures import FOLDER, PICTURES, THEMES
from benchmarks.rows import read_rows
from benchmarks.tuned_examples import EXAMPLES, imported
from flwr_fbo import InProcessGrid
from flwr_fbo.cli import app
from flwr_fbo.cli.commands import COMMANDS, load_command
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.privacy.accounting import calibrate_noise_multiplier
from flwr_fbo.tuning import FedVoteSettings, SearchSpace
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.fed_vote.votes_by_chance import votes_by_chance
from tests.support.before_and_after import diff
from tests.support.documents import (
    ROOT,
    Page,
    blocks_of,
    has_files,
    is_shown_as,
    run_in_a_copy,
)
from tests.support.public import public_names

PAGES = sorted(ROOT.glob("docs/**/*.md"))
READMES = [ROOT / "README.md", *sorted(ROOT.glob("experiments/**/README.md"))]
READMES += sorted(ROOT.glob("examples/*/README.md"))
# The commands of this one follow each other: tests/test_deployment_page.py runs them.
_RUN_ELSEWHERE = (ROOT / "README.md", ROOT / "examples/deployment/README.md")
MENUS = [path for path in READMES if path not in _RUN_ELSEWHERE]
# They take seconds.
OF_THE_GATE = (
    "docs/app/bandits-in-practice.md",
    "docs/app/track-and-export.md",
    "docs/research/add-an-algorithm.md",
)
# They run experiments, or count the epsilon of many releases.
SLOW = (
    "docs/privacy/choose-epsilon.md",
    "docs/site/keep-it-running.md",
    "docs/reference/command-line.md",
    "docs/research/experiments.md",
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _marked(path: Path) -> Any:
    marks = {**dict.fromkeys(SLOW, "slow"), **dict.fromkeys(OF_THE_GATE, "gate")}
    name = _name(path)
    mark = [getattr(pytest.mark, marks[name])] if name in marks else []
    return pytest.param(path, id=name, marks=mark)


@pytest.mark.parametrize("path", [_marked(path) for path in PAGES])
def test_a_page_runs_as_it_is_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in NEEDS.get(_name(path), ()):
        pytest.importorskip(package, reason=f"the page needs {package}")
    if has_files(path):
        run_in_a_copy(path, tmp_path)
        return
    page = Page(path)
    page.run()
    if check := CHECKS.get(_name(path)):
        check(page)


@pytest.mark.parametrize("path", [_marked(path) for path in MENUS])
def test_a_readme_names_commands_that_exist(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Page(path, menu=True, python=path.parent.parent != ROOT / "examples")
    page.run()
    if check := CHECKS.get(_name(path)):
        check(page)


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    """The first lines of it, and draws the picture."""
    arguments = demo_arguments(tmp_path / "record")
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line]
    first = next(b for b in blocks_of(ROOT / "README.md") if b.language == "text")
    shown = first.text.splitlines()
    found = [line for line in lines if line.partition(":")[0] in _names_of(shown)]
    assert is_shown_as("\n".join(found), "\n".join(shown))
    curves = [row["points"] for row in read_rows(ROWS) if row["kind"] != "ended"]
    last = sorted(points[-1][1] for points in curves)
    assert [f"{score:.2f}" for score in last] == ["0.80", "0.95"]


def _names_of(lines: list[str]) -> set[str]:
    return {line.partition(":")[0] for line in lines}


def test_the_readme_is_read_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_the_readme_names_both_commands_of_the_makefile() -> None:
    """What the project is tried with, and tested with."""
    rules = (ROOT / "Makefile").read_text()
    named = re.findall("`(make [a-z]+)`", rules.splitlines()[0])
    assert named == ["make demo", "make test"]
    lines = (ROOT / "README.md").read_text().splitlines()
    for command in named:
        assert [line for line in lines if line.startswith(f"$ {command}")]


def test_the_readme_runs_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the app that it names in place of the reader's own."""
    monkeypatch.chdir(tmp_path)
    with imported(EXAMPLES / "tune-fedavg-sklearn" / "after") as example:
        page = Page(ROOT / "README.md", menu=True)
        config = dict(example.config)
        page.names["main"] = example.server.main
        grid = InProcessGrid(example.client.app, 20, run_config=config)
        context = Context(1, 1, {}, RecordDict(), config)
        started = SimpleNamespace(main=lambda: lambda tuned: tuned(grid, context))
        page.names["app"] = started  # as a ServerApp that is run at once
        for block in blocks_of(page.path):
            if block.language == "console":
                page._console(block)
            if block.language == "python":
                page._python(block)
    assert "Privacy spent for the choice: epsilon 2.0" in page.printed
    [python] = [b.text for b in blocks_of(page.path) if b.language == "python"]
    assert len([line for line in python.splitlines() if line]) <= 15


def _your_own_objective(page: Page) -> None:
    assert 7.9 < page.names["result"].privacy_spent.epsilon <= 8.0
    assert len(page.names["study"].trials) == 21 + 3
    assert page.names["study"].trials[0].params["gamma"] == 0.03
    assert len(page.printed.splitlines()) == 2 + 5


def _linear_bandits(page: Page) -> None:
    assert page.names["strategy"].study.private
    assert "epsilon 4 per example" in page.printed
    assert "[2, 2, 2]\n[5, 5, 5]" in page.printed


def _bandits_in_practice(page: Page) -> None:
    assert page.names["strategy"].study.private
    assert page.names["choice"].arm in ("clinic", "home")
    first, second = page.names["first"], page.names["second"]
    assert first.arm != second.arm
    assert [*page.names["policy"].awaited] == [second.ticket]
    assert page.names["policy"].decisions()[0].context == {"age": 71, "severity": 4}
    assert page.names["policy"].summary().num_logged == 1000


def _neural_bandits(page: Page) -> None:
    assert all(r.answered == 4 for r in page.names["result"].rounds)
    assert "epsilon 8 for one evaluation" in page.printed


@pytest.mark.gate
def test_the_table_of_warm_starts_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    warm_start.show(read_rows(ROOT / "benchmarks/warm_start.jsonl"))
    printed = capsys.readouterr().out.splitlines()
    page = (ROOT / "docs/when-federation-helps.md").read_text()
    begin = page.index("| table (D; sites; seeds) |")
    rows = page[begin : page.index("\n\n", begin)].splitlines()
    assert len(rows) == len(warm_start.TASKS) + 4
    assert set(rows) <= set(printed)
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    mean, bound = (dict(zip(cells[0], row, strict=True)) for row in cells[-2:])
    found = mean["epsilon 2"], mean["list"], bound["epsilon 2"]
    release, listed, least = (f"{float(number):.3f}" for number in found)
    for name in (
        "README.md",
        "docs/app/start-warm.md",
        "docs/when-federation-helps.md",
    ):
        text = (ROOT / name).read_text()
        assert all(number in text for number in (release, listed, least)), name


def test_the_table_of_neural_bandits_is_of_the_rows() -> None:
    page = (ROOT / "docs/app/neural-bandits.md").read_text()
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if "±" in line]
    cells = {tuple(row[1:]) for row in table if len(row) == 6}
    shown: dict[str, list[str]] = {}
    for row in read_rows(ROOT / "benchmarks/neural_or_linear.jsonl"):
        found = Estimate.of(np.array(row["regret"]))
        text = f"{found.mean:.1f} ± {found.standard_error:.1f}"
        if not row["method"].endswith("epsilon 8"):
            shown.setdefault(row["cell"], []).append(text)
    assert cells == set(map(tuple, shown.values()))


@pytest.mark.gate
def test_effects_of_differences_are_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    paper_differences.show(ROOT / "benchmarks/paper_differences.jsonl")
    page = (ROOT / "docs/research/differences-from-the-papers.md").read_text()
    printed = re.findall(r"seeds +(\S+ ± \S+)", capsys.readouterr().out)
    assert len(printed) == len(paper_differences.DIFFERENCES)
    # In words where all seeds are alike.
    numbers = [text for text in printed if not text.endswith(" 0.0000")]
    assert len(numbers) == len(printed) - 3
    assert [text for text in numbers if text not in page] == []


@pytest.mark.gate
def test_the_table_of_votes_is_what_the_command_says() -> None:
    """`flwr-fbo privacy --strategy FedVote`, but for what that takes to print."""
    space = SearchSpace({name: FloatDistribution(0, 1) for name in ("C", "gamma")})
    page = (ROOT / "docs/when-federation-helps.md").read_text()
    rows = re.findall(r"^\| ([\d.]+) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for epsilon, row in rows:
        z = calibrate_noise_multiplier(float(epsilon), 1e-3, 1.0, num_releases=3)
        for sites, cell in zip((5, 10, 30, 100), row.split(" | "), strict=True):
            votes = votes_by_chance(FedVoteSettings(), VoteCount(sites, z), space, 0)
            crowd = votes.smallest_crowd
            assert cell == (f"{crowd}: never" if crowd > sites else str(crowd))


def _put_it_in_your_app(page: Page) -> None:
    example, package = ROOT / "examples" / "plug-in-numpyclient", "digits_fedavg"
    shown = [block.text for block in blocks_of(page.path) if block.language == "diff"]
    files = ("server_app.py", "client_app.py")
    assert shown == ["".join(diff(example, f"{package}/{file}")) for file in files]


# Packages of extras that the test of a page needs.
NEEDS = {
    "docs/app/bandits-in-practice.md": ("pandas",),
    "docs/app/track-and-export.md": ("mlflow", "tensorboardX", "pandas"),
}

# What a page must come to, where it prints what differs from run to run.
CHECKS: dict[str, Callable[[Page], None]] = {
    "docs/app/bandits-in-practice.md": _bandits_in_practice,
    "docs/app/put-it-in-your-app.md": _put_it_in_your_app,
    "docs/app/your-own-objective.md": _your_own_objective,
    "docs/app/linear-bandits.md": _linear_bandits,
    "docs/app/neural-bandits.md": _neural_bandits,
}


@pytest.mark.parametrize(
    ("got", "wanted", "ok"),
    [
        ("TS  0.8411 ± 0.0906\n", "TS  0.8411 ± 0.0906\n", True),
        ("TS  0.8412 ± 0.0905\n", "TS  0.8411 ± 0.0906\n", True),
        ("+0.0000\n", "-0.0001\n", True),
        ("TS  0.8413 ± 0.0906\n", "TS  0.8411 ± 0.0906\n", False),
        ("TS  0.84 ± 0.0906\n", "TS  0.8411 ± 0.0906\n", False),
        ("random  0.8411 ± 0.0906\n", "TS  0.8411 ± 0.0906\n", False),
        ("a\nb\nTS 1.0 x\nc\n", "...\nTS 1.0 ...\n", True),
        ("a\nb\nTS 1.0 x\nc\n", "...\nTS 2.0 ...\n", False),
        ("7 of 9 (x)\n", "7 of 9 (x)\n", True),
        ("8 of 9 (x)\n", "7 of 9 (x)\n", False),
    ],
)
def test_only_last_digits_may_differ(got: str, wanted: str, ok: bool) -> None:
    assert is_shown_as(got, wanted) == ok


def test_first_pages_lead_to_the_tuner_of_a_federation_first() -> None:
    """With the same command, in README and index; and so do tutorials and ways."""
    index_command, readme_command = (
        next(b for b in blocks_of(ROOT / page) if "flwr-fbo tune" in b.text)
        for page in ("docs/index.md", "README.md")
    )
    assert index_command.text == readme_command.text
    index = (ROOT / "docs/index.md").read_text()
    apps = re.findall(r"^app/(.*)$", index, re.MULTILINE)
    first = ["tune-your-fedavg", "tune-in-python", "federation-tuner"]
    assert apps[:4] == [*first, "put-it-in-your-app"]
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text()
        doors = (
            "train one model|one model of all",
            "train their own|at sites",
            r"FedUCB|bandit\*\*",
        )
        places = [re.search(door, text) for door in doors]
        found = [place.start() for place in places if place is not None]
        assert found == sorted(found), page
        assert len(found) == len(doors)


@pytest.mark.gate
def test_a_page_whose_file_lacks_an_import_fails(tmp_path: Path) -> None:
    page, folder = tmp_path / "page.md", tmp_path / "copy"
    file = "# flwr_fbo/lab/tasks/_mine.py\n"
    use = "from flwr_fbo.lab.tasks._mine import ROOT_OF_TWO"
    for line in ("import math\n", ""):
        text = f"{file}{line}ROOT_OF_TWO = math.sqrt(2)\n"
        page.write_text(f"```python\n{text}```\n\n```python\nimport math\n{use}\n```\n")
        if line:
            run_in_a_copy(page, folder / "whole")
        else:
            with pytest.raises(AssertionError, match="'math' is not defined"):
                run_in_a_copy(page, folder / "lacking")


def test_checks_and_slow_pages_exist() -> None:
    assert {*CHECKS, *NEEDS, *SLOW, *OF_THE_GATE} <= {
        _name(path) for path in (*PAGES, *MENUS)
    }


def test_how_sure_an_observer_becomes_is_computed() -> None:
    text = (ROOT / "docs/privacy/choose-epsilon.md").read_text()
    found = re.findall(r"([\d.]+) % (?:sure )?at\s+epsilon (\d)", text)
    assert [epsilon for _, epsilon in found] == ["1", "2", "4", "8"]
    for sure, epsilon in found:
        odds = math.exp(int(epsilon))
        assert sure == f"{100 * odds / (1 + odds):.2f}"


@pytest.mark.parametrize("path", [*PAGES, *READMES], ids=_name)
def test_a_line_that_is_a_comment_stands_alone(path: Path) -> None:
    """A line of a paragraph that begins with a percent sign is not rendered."""
    before = ""
    for line in path.read_text().splitlines():
        assert not line.startswith("%") or not before.strip(), line
        before = line


def test_links_between_pages_and_files_lead_somewhere() -> None:
    for path in (*PAGES, *READMES):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (path.parent / target).exists(), f"{_name(path)}: {target}"


def test_links_to_a_section_lead_to_one() -> None:
    """Sphinx looks at pages only: here are README, its siblings and examples, too."""

    def anchors(path: Path) -> set[str]:
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
        return {heading.strip().replace(" ", "-") for heading in plain}

    others = [
        ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    ]
    for path in (*READMES, *others):
        for name, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", path.read_text()):
            if not name.startswith("http"):
                target = path.parent / name if name else path
                assert anchor in anchors(target), f"{_name(path)}: {name}#{anchor}"


def test_pictures_are_as_drawn() -> None:
    for draw in PICTURES:
        for name, theme in THEMES.items():
            file = FOLDER / f"{draw.__name__}-{name}.svg"
            assert file.read_text(encoding="utf-8") == str(draw(theme)), file.name


def test_pictures_have_a_text_for_those_who_do_not_see_them() -> None:
    count = 0
    for path in (*PAGES, *READMES):
        text = path.read_text()
        count += len(re.findall(r"!\[[^\]]{20}", text))
        assert not re.search(r"!\[[^\]]{0,19}\]", text), _name(path)
        for directive in re.findall(r"```{image}(.*?)```", text, re.DOTALL):
            assert re.search(r"^:alt: .{20}", directive, re.MULTILINE), _name(path)
            count += 1
    assert count > 9


def test_modules_that_pages_name_exist() -> None:
    rooms = "|".join(path.parent.name for path in ROOT.glob("flwr_fbo/*/__init__.py"))
    named = [
        name
        for path in (*PAGES, *READMES)
        for name in re.findall(
            rf"`(?:flwr_fbo\.)?((?:{rooms})\.(?!sh`|py`)[\w.]+)`", path.read_text()
        )
    ]
    assert len(named) > 50
    for name in named:
        pkgutil.resolve_name(f"flwr_fbo.{name}")


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(p.read_text() for p in ROOT.glob("docs/reference/*.md"))
    for name in public_names():
        assert re.search(rf":: {re.escape(name)}$", text, re.MULTILINE), name


def test_where_a_docstring_points_to_is_in_the_reference() -> None:
    """Parameters that are documented elsewhere are documented on a page."""
    text = "".join(p.read_text() for p in ROOT.glob("docs/reference/*.md"))
    for name, value in public_names().items():
        docstring = inspect.getdoc(value) or ""
        for pointed in re.findall(r"[Ss]ee `([A-Z]\w+)", docstring):
            assert re.search(rf"\.{pointed}$", text, re.MULTILINE), (name, pointed)


def _commands() -> list[str]:
    """Return every command there is, those in a group after its name."""
    names = []
    for name in COMMANDS:
        command = load_command(name)
        inner = command.commands if isinstance(command, click.Group) else {name: None}
        names += [name] if list(inner) == [name] else [f"{name} {one}" for one in inner]
    return names


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/command-line.md").read_text()
    assert sorted(re.findall(r"^## `flwr-fbo (.*)`$", text, re.M)) == sorted(
        _commands()
    )
    for section in text.split("\n## ")[1:]:
        command = section.split("`")[1]
        assert f"$ {command}" in section, f"{command} has no example"
