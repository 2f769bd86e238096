"""One registry of the kinds of studies: who asks it, and who may add to it."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import flwr_fbo
from flwr_fbo import InProcessGrid
from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.spending_ledger import (
    NOTES,
    Charge,
    Facts,
    SpendingLedger,
    charge_facts,
    with_note,
)
from flwr_fbo.site.proofs import check_journals, recover
from flwr_fbo.site.site import site_app
from flwr_fbo.study import kinds
from flwr_fbo.study.kinds import GROUP, journal_kinds, load

PACKAGE = Path(flwr_fbo.__file__).parent
RUNNER = CliRunner()
WINGS = ("tuning", "bandits", "tuner")
REGISTRY = "study/kinds.py"
# Words of English, which say nothing of a kind.
COMMON = {"agent", "server", "tuning"}
PARTS = ("ledger", "page", "findings", "listing", "export", "receipts", "has_ended")


def _files() -> Iterator[tuple[str, ast.Module]]:
    """Yield the files of the core that are outside the wings, and not the registry."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.split("/")[0] not in (*WINGS, "lab") and name != REGISTRY:
            yield name, ast.parse(path.read_text())


def _texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a program that are not docstrings."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    docstrings = {id(node.value) for node in nodes}
    for node in ast.walk(tree):
        is_docstring = id(node) in docstrings
        if isinstance(node, ast.Constant) and not is_docstring:
            yield str(node.value)


def _wings_in(tree: ast.Module) -> set[str]:
    modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    parts = [module.split(".") for module in [*modules, *_texts(tree)]]
    return {p[1] for p in parts if p[0] == "flwr_fbo" and p[1:] and p[1] in WINGS}


def test_names_of_kinds_and_of_their_files_stand_in_their_wings_alone() -> None:
    names = {kind.name for kind in kinds.kinds()} - COMMON
    names |= {kind.name for kind in journal_kinds()} - COMMON
    files = {text for kind in journal_kinds() for text in (kind.files, kind.note)}
    names |= {text.partition("{")[0] for text in files - {"", kinds.SERVER_FILE}}
    assert {"neural-bandit", "last-study-agent-", "tuner.sqlite", "study-"} <= names
    # The last is an English word, too, but not before what stands for any study.
    named = re.compile("|".join(sorted(names - {"study-"})) + r"|study-\*")
    naming = {
        f"{file}: {text}"
        for file, tree in _files()
        for text in _texts(tree)
        if named.search(text)
    }
    assert naming == set()


def test_what_serves_all_kinds_imports_no_wing() -> None:
    """A file that imports a wing is that wing's: of one strategy, client or command."""
    importing = {file: wings for file, tree in _files() if (wings := _wings_in(tree))}
    shared = ("_common", "journal", "models", "privacy", "secure", "site", "study")
    for file, wings in importing.items():
        assert file.split("/")[0] not in shared, file
        # What the tuner does is about settings, as tuning is.
        assert len(wings - {"tuner"}) <= 1, f"{file} imports {wings}"
    asking = [
        f"cli/{name}_command.py" for name in ("ledger", "report", "show", "statement")
    ]
    asking += ["cli/server_page.py", "cli/check_site_command.py"]
    shared_modules = ("base", "enrolment", "result", "study_record")
    asking += [f"strategies/{name}.py" for name in shared_modules]
    assert not importing.keys() & {*asking}


@pytest.mark.parametrize("kind", [*journal_kinds()], ids=lambda kind: kind.name)
def test_each_part_of_a_kind_is_there(kind: kinds.JournalKind) -> None:
    for part in PARTS:
        if reference := getattr(kind, part):
            assert load(reference) is not None
    # What notes charges must be found: by a pattern, or by a name of its own.
    assert kind.files.endswith(".sqlite")


def test_each_kind_of_ours_says_its_part_of_a_statement() -> None:
    for name in kinds._OURS:
        assert callable(load(kinds._ours(name).statement))


def test_each_name_is_that_of_one_kind() -> None:
    names = [kind.name for kind in kinds.kinds()]
    journals = [kind.name for kind in journal_kinds()]
    assert len({*names}) == len(names)
    assert len({*journals}) == len(journals)


def test_what_sites_act_on_is_known_to_few() -> None:
    """A setting of one kind, that once stood in twenty files of the core."""
    wings = {"lab", "bandits"}
    core = [path for path in PACKAGE.rglob("*.py") if not wings & set(path.parts)]
    naming = [path.name for path in core if "local_data" in path.read_text()]
    assert len(naming) <= 3, naming


# A kind of another package

# The whole of it: agents send how often they played each arm, and the server adds up.
MODULE = """
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from flwr_fbo._common.fields import integer
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.privacy.guarantee import CLIENT
from flwr_fbo.privacy.spending_ledger import Charge, Promise
from flwr_fbo.site.recorded_agent import RecordedAgent
from flwr_fbo.site.site import Answer, Site
from flwr_fbo.site.site_journal import configured_slot, held_journal, record_name
from flwr_fbo.site.study_journals import study_journal
from flwr_fbo.strategies.base import StudyStrategy
from flwr_fbo.strategies.result import StudyResult
from flwr_fbo.study.codec import Instruction, Study, study_id_field
from flwr_fbo.study.kinds import SERVER_FILE, JournalKind, Kind
from flwr_fbo.study.report.ledger_view import (
    RELEASE, ROUND, LedgerView, columns, norm
)
from flwr_fbo.study.report.page import Section, journal_page
from flwr_fbo.study.server import Server, Step

COUNTS = JournalKind(
    "outside-counts",
    "outside-counts-{study_id}.sqlite",
    at_site=True,
    is_irreplaceable=True,
    ledger="greedy_kind:LEDGER",
    page="greedy_kind:page",
)
TOTALS = JournalKind("greedy-server", SERVER_FILE, ledger="greedy_kind:TOTAL_LEDGER")
KIND = Kind("outside-counts", (COUNTS, TOTALS), units=(CLIENT,))
LEDGER = LedgerView(lambda identity, rows: None, RELEASE, columns(norm_of_counts=norm))
TOTAL_LEDGER = LedgerView(
    lambda identity, rows: None, ROUND, columns(norm_of_totals=norm), study="counts"
)
FACTS = {"private": False, "flwr_fbo": "1"}


def page(journal):
    sections = [Section("Arms", ["Seven arms were counted."])]
    return journal_page("A site's counts", "Counts.", sections, journal)


@dataclass(frozen=True)
class GreedyStudy(Study):
    num_arms: int = field(metadata=integer(2, cap="max_choices"))
    study_id: str = study_id_field()

    strategy = "EpsilonGreedy"
    promise = Promise((Charge(2.0),))

    def steps(self, num_rows):
        return {f"num_arms={self.num_arms}": self.num_arms}

    def enrolment(self):
        return GreedyInstruction("enrol", self).to_config()


@dataclass(frozen=True)
class GreedyInstruction(Instruction):
    kind = KIND.name
    study_type = GreedyStudy
    release_charged = 1


class GreedyAgent(RecordedAgent):
    kind = COUNTS.name

    def counts(self):
        if not self.journal.num_releases:
            self.journal.add_release(LedgerRow(1, FACTS, np.array([3.0, 4.0])), {})
        return self.journal.ledger()[0].vectors


class GreedySite(Site):
    limits = None
    instruction_type = GreedyInstruction

    def claim(self, context, study, folder, gate):
        return {"agent-id": configured_slot(context)}

    @contextmanager
    def agent(self, context, instruction, folder, gate):
        study, kind = instruction.study, COUNTS.name
        with held_journal(
            context,
            GreedyAgent.identity_of(study),
            folder and study_journal(folder, kind, study.study_id),
            record=record_name(kind),
            may_begin=True,
            patience=0.0,
        ) as journal:
            yield GreedyAgent(journal)

    def num_trials(self, agent, instruction):
        return 0

    def play(self, context, agent, instruction, arrays, check_time):
        pass

    def reply(self, agent, instruction, arrays):
        return Answer([agent.counts()])


class GreedyServer(Server):
    def __init__(self, num_agents):
        self.num_agents, self.ledger = num_agents, []

    def step(self, iteration):
        return Step(iteration, release=iteration + 1)

    def receive(self, step, messages):
        total = np.sum([*messages.values()], axis=0)[None]
        self.ledger.append(LedgerRow(step.iteration, FACTS, total))

    def summary(self):
        return ["NOT PRIVATE: the counts of all agents"]


class EpsilonGreedy(StudyStrategy):
    result_type = StudyResult
    record_kind = TOTALS

    def __init__(self, num_agents):
        super().__init__(GreedyServer(num_agents), GreedyStudy(2))

    def instruction(self, node, slot, step):
        return GreedyInstruction("round", self.study, slot)

    def default_rounds(self):
        return 2
"""


@pytest.fixture
def outsider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with a kind, and return an empty folder."""
    site, info = tmp_path / "site", tmp_path / "site" / "greedy_kind-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "greedy_kind.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy-kind\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\noutside-counts = greedy_kind:KIND\n"
    )
    monkeypatch.syspath_prepend(str(site))
    kinds._others.cache_clear()
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o700)
    yield folder
    kinds._others.cache_clear()
    sys.modules.pop("greedy_kind", None)


def _printed(*words: str | Path) -> str:
    """Return what a command prints."""
    done = RUNNER.invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_study_of_a_kind_from_outside_runs_and_is_shown(outsider: Path) -> None:
    code = importlib.import_module("greedy_kind")
    server, sites = outsider / "server", [outsider / f"site-{i}" for i in range(2)]
    configs: list[dict[str, bool | float | int | str]] = [
        {"agent-id": i, "fbo-folder": str(at)} for i, at in enumerate(sites)
    ]
    grid = InProcessGrid(site_app(code.GreedySite()), 2, node_configs=configs)
    strategy = code.EpsilonGreedy(2)
    result = strategy.start(grid, folder=server)
    assert result.arrays.to_numpy_ndarrays()[0].tolist() == [[6.0, 8.0]]
    study = strategy.study.study_id
    assert sorted(path.name for path in sites[1].glob("*.sqlite")) == [
        f"outside-counts-{study}.sqlite",
        "spending.sqlite",
    ]
    assert "norm of totals" in _printed("ledger", "show", server)
    shown = _printed("ledger", "show", sites[1])
    assert "norm of counts" in shown
    assert "of all studies together" in shown
    assert study in _printed("ledger", "receipts", server)
    for folder, title in ((server, "Study of counts"), (sites[1], "s counts")):
        _printed("report", folder)
        assert title in (folder / "report.html").read_text()
    again = code.EpsilonGreedy(2).start(grid, folder=server)  # as it is on record
    assert again.rounds == result.rounds


def _charge() -> Facts:
    return charge_facts(("outside-counts", "abc"), 1, Charge(2.0), owner=0)


def _play(folder: Path) -> Path:
    """Keep a journal with a release, and a note of its charge."""
    path = folder / "outside-counts-abc.sqlite"
    identity = {"kind": "outside-counts", "study_id": "abc"}
    with Journal(identity, path) as journal:
        journal.put(with_note([], _charge())[1])
        facts = {"private": True, "flwr_fbo": "1"}
        journal.add_release(LedgerRow(1, facts, np.array([3.0, 4.0])), {})
        assert journal.load_array(NOTES) is not None
    return path


def test_commands_know_the_journals_of_a_kind_from_outside(outsider: Path) -> None:
    _play(outsider)
    shown = _printed("ledger", "show", outsider)
    assert "Study abc" in shown
    assert "norm of counts" in shown
    _printed("report", outsider)
    page = (outsider / "report.html").read_text()
    assert "A site's counts" in page.replace("&#39;", "'")
    assert "Seven arms were counted." in page


def test_charges_in_its_journals_are_proofs(outsider: Path) -> None:
    path = _play(outsider)
    with pytest.raises(JournalError, match="releases that the ledger beside it has"):
        check_journals(outsider, None)
    assert recover(outsider).of_journals == 1
    with SpendingLedger.held(outsider) as ledger:
        assert ledger.has_charge(_charge())
        path.unlink()
        check_journals(outsider, ledger)


def test_without_the_package_its_journals_are_no_results(tmp_path: Path) -> None:
    path = _play(tmp_path)
    shown = RUNNER.invoke(app, ["ledger", "show", str(tmp_path)])
    assert shown.exit_code == 1
    assert "There is no ledger" in shown.output
    for command in (["report"], ["ledger", "show"]):
        told = RUNNER.invoke(app, [*command, str(path)])
        assert told.exit_code == 1
        assert "of kind 'outside-counts'" in told.output


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("linear-bandit", "KIND", "flwr_fbo has a kind of that name"),
        ("another", "KIND", "not a Kind of that name"),
        ("outside-counts", "LEDGER", "not a Kind of that name"),
        ("outside-counts", "LOST", "AttributeError"),
    ],
)
def test_a_registration_that_does_not_fit_is_an_error(
    outsider: Path, name: str, value: str, reason: str
) -> None:
    """It is not left out: charges in journals of such a kind would not be seen."""
    info = outsider.parent / "site" / "greedy_kind-1.0.dist-info"
    text = f"[{GROUP}]\n{name} = greedy_kind:{value}\n"
    (info / "entry_points.txt").write_text(text)
    with pytest.raises(JournalError, match=reason):
        check_journals(outsider, None)
    told = RUNNER.invoke(app, ["ledger", "show", str(outsider)])
    assert told.exit_code == 1
    assert reason in " ".join(told.output.split())
    assert name in told.output


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"greedy-server"', '"server"', "another journal is called 'server', too"),
        ('"outside-counts",\n', '"agent",\n', "is called 'agent', too"),
        ('"greedy-server"', '"outside-counts"', "is called 'outside-counts', too"),
        (
            "outside-counts-{study_id}",
            "neural-bandit-{study_id}",
            "files of 'neural-bandit' are called",
        ),
        (
            "at_site=True,",
            'at_site=True, note="last-neural-bandit",',
            "the note of 'neural-bandit' is called",
        ),
    ],
)
def test_a_journal_with_the_name_or_file_of_another_is_an_error(
    outsider: Path, old: str, new: str, reason: str
) -> None:
    """Its ledger would be shown as that of the other kind: a KeyError."""
    assert old in MODULE
    code = MODULE.replace(old, new, 1)
    (outsider.parent / "site" / "greedy_kind.py").write_text(code)
    told = RUNNER.invoke(app, ["ledger", "show", str(outsider)])
    assert told.exit_code == 1
    assert reason in " ".join(told.output.split())
    with pytest.raises(JournalError, match="outside-counts"):
        check_journals(outsider, None)


def test_our_own_kinds_are_found_without_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: str) -> None:
        raise AssertionError

    monkeypatch.setattr(kinds, "entry_points", refuse)
    kinds._others.cache_clear()
    for name in ("agent", "server", "linear-bandit", "federation-tuner"):
        found = kinds.journal_kind(name)
        assert found is not None
        assert found.name == name
