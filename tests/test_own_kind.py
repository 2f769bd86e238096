"""The example of a kind of study of one's own, installed as its users install it."""

import importlib
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from flwr_fbo import InProcessGrid, Limits
from flwr_fbo.bandits import ContinualSettings
from flwr_fbo.cli import app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.privacy.spending_ledger import SpendingLedger
from flwr_fbo.site.site import site_app
from flwr_fbo.strategies.host import Host
from flwr_fbo.study import kinds
from tests.support.documents import ROOT
from tests.support.ledgers import ledger_charges

EXAMPLE = ROOT / "examples" / "own-kind"
PAGE = ROOT / "docs/research/add-an-algorithm.md"
MODULES = ("kind", "report", "server", "site", "study")
MEANS = (0.2, 0.4, 0.8, 0.3)
RELEASES = ContinualSettings(6, 4, epsilon=4.0, delta=1e-5, reward_range=(0, 1))
TRIALS = 20


@pytest.fixture
def greedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example, whose kind is registered as its project says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    [(name, value)] = project["entry-points"][kinds.GROUP].items()
    info = tmp_path / "installed" / "greedy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greedy\n")
    (info / "entry_points.txt").write_text(f"[{kinds.GROUP}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    kinds._others.cache_clear()
    parts = {name: importlib.import_module(f"greedy.{name}") for name in MODULES}
    yield SimpleNamespace(**parts)
    kinds._others.cache_clear()
    for name in [n for n in sys.modules if n.split(".")[0] == "greedy"]:
        del sys.modules[name]


class Federation:
    """Three sites with a folder each, and all trials that were played there."""

    def __init__(self, greedy: Any, base: Path, *lost: tuple[int, int]) -> None:
        self.base, self.played = base, list[tuple[int, int, int]]()
        left, played = set(lost), self.played

        class Ward:
            def __init__(self, site: int) -> None:
                self.site = site

            def contexts(self, t: int) -> Any:
                self.t = t
                return np.eye(len(MEANS))

            def reward(self, x: Any) -> float:
                arm = int(np.argmax(x))
                played.append((self.site, self.t, arm))
                drawn = np.random.default_rng((self.site, self.t)).random()
                return float(drawn < MEANS[arm])

        def reply(site: Any, agent: Any, instruction: Any, arrays: Any) -> Any:
            answer = greedy.site.GreedySite.reply(site, agent, instruction, arrays)
            about = instruction.slot, instruction.num_trials // TRIALS
            if about in left:  # made and charged, and never seen
                left.remove(about)
                raise ConnectionError
            return answer

        loses_answers = type(
            "LosesAnswers", (greedy.site.GreedySite,), {"reply": reply}
        )
        self.app = site_app(
            loses_answers(lambda context: Ward(int(context.node_config["agent-id"])))
        )
        configs: list[Any] = [
            {"agent-id": i, "fbo-folder": str(self.site(i))} for i in range(3)
        ]
        self.grid = InProcessGrid(self.app, 3, node_configs=configs)

    def site(self, number: int) -> Path:
        return self.base / f"site-{number}"

    @property
    def server(self) -> Path:
        return self.base / "server"

    def journal(self, number: int) -> Path:
        [path] = self.site(number).glob("epsilon-greedy-*.sqlite")
        return path

    def releases(self, number: int) -> list[Any]:
        with Journal.snapshot(self.journal(number)) as journal:
            return [row.vectors for row in journal.ledger()]


class KilledError(Exception):
    """Ends a server."""


def _killed_in(greedy: Any, number: int) -> type[Any]:
    """Return a strategy that ends in a round, which is not on disk by then."""

    def after_round(strategy: Any, step: Any, answers: Any) -> None:
        if step.iteration + 1 == number:
            raise KilledError

    return type("Killed", (greedy.server.FedGreedy,), {"_after_round": after_round})


def _start(strategy: type[Any], federation: Federation, **seeds: int) -> Any:
    made = strategy(RELEASES, 3, TRIALS, **seeds)
    return made.start(
        federation.grid, folder=federation.server, host=Host(patience=1.0)
    )


def _printed(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_a_killed_server_goes_on_without_another_trial_or_noise(
    greedy: Any, tmp_path: Path
) -> None:
    lost, FedGreedy = (1, 3), greedy.server.FedGreedy
    whole = Federation(greedy, tmp_path / "whole", lost)
    expected = _start(FedGreedy, whole, seed=5, noise_seed=6)
    assert [r.answered for r in expected.rounds] == [3, 3, 2, 3, 3, 3]
    stopped = Federation(greedy, tmp_path / "stopped", lost)
    with pytest.raises(KilledError):
        _start(_killed_in(greedy, 4), stopped, seed=5, noise_seed=6)
    result = _start(FedGreedy, stopped, noise_seed=6)  # the seed is on record
    np.testing.assert_array_equal(result.estimate, expected.estimate)
    assert np.argmax(result.estimate) == np.argmax(MEANS)
    assert sorted(stopped.played) == sorted(whole.played)
    assert len({(site, t) for site, t, _ in stopped.played}) == len(stopped.played)
    # The one whose answer was lost sent that release again, and made one less.
    assert [len(stopped.releases(i)) for i in range(3)] == [6, 5, 6]
    total = sum(stopped.releases(i)[-1] for i in range(3))
    with Journal.snapshot(stopped.server / "server.sqlite") as record:
        last = record.ledger()[-1]
    np.testing.assert_array_equal(last.vectors, total)
    assert last.facts["num_releases"] == [6, 5, 6]


def test_all_releases_are_charged_once(greedy: Any, tmp_path: Path) -> None:
    federation = Federation(greedy, tmp_path)
    result = _start(greedy.server.FedGreedy, federation)  # with real noise
    assert result.privacy_spent.epsilon == 4.0
    with SpendingLedger.held(federation.site(0)) as ledger:
        assert len(ledger_charges(ledger)) == 1
    shown = _printed("ledger", "show", federation.site(0))
    assert "epsilon 4.000" in shown
    assert "norm of release" in shown
    assert "norm of total" in _printed("ledger", "show", federation.server)
    _printed("report", federation.site(0))
    # The kind says nothing for a statement: what the ledger has is stated all the same.
    for folder in (federation.site(0), federation.server):
        text = _printed("statement", folder)
        assert "a study of kind epsilon-greedy" in text
        assert "not on record" in text
    assert "What it has seen." in (federation.site(0) / "report.html").read_text()


def test_an_older_copy_of_a_journal_is_not_used(greedy: Any, tmp_path: Path) -> None:
    federation, copy = Federation(greedy, tmp_path), tmp_path / "copy"
    with pytest.raises(KilledError):
        _start(_killed_in(greedy, 2), federation, seed=5)
    shutil.copytree(federation.site(1), copy)
    with pytest.raises(KilledError):
        _start(_killed_in(greedy, 4), federation)
    # At a machine of its own: the state of the first would know that it is older.
    shutil.rmtree(federation.site(1))
    shutil.copytree(copy, federation.site(1))
    restored = Federation(greedy, tmp_path)
    result = _start(greedy.server.FedGreedy, restored)
    assert [r.answered for r in result.rounds] == [3, 3, 3, 2, 2, 2]
    # Nor are the trials played again that are in later releases.
    assert {site for site, *_ in restored.played} == {0, 2}


def test_an_agent_keeps_a_total_that_is_not_sent_again(greedy: Any) -> None:
    study = greedy.study.GreedyStudy(RELEASES, 3, TRIALS, 0.1, 5, noise_seed=6)
    total = np.diag([1.0, 2.0, 3.0, 4.0, 5.0])
    with Journal(greedy.site.GreedyAgent.identity_of(study)) as journal:
        agent = greedy.site.GreedyAgent(journal, study)
        agent.join(0, agent.number)
        agent.hear([total])
        again = greedy.site.GreedyAgent(journal, study)
        again.join(0, again.number)
        again.hear([])
    np.testing.assert_array_equal(again.total, total)


def test_what_is_promised_is_computed(greedy: Any) -> None:
    study = greedy.study.GreedyStudy
    noisy, loud = RELEASES, ContinualSettings(6, 4, epsilon=np.inf, delta=1e-5)
    about = 3, TRIALS, 0.1, 5
    assert study(noisy, *about).promise.private
    assert not study(noisy, *about, noise_seed=6).promise.private
    assert not study(loud, *about).promise.private
    spent = study(noisy, *about).promise.charges[0].noise_multiplier
    assert spent == pytest.approx(1 / RELEASES.mu)


def test_a_site_takes_all_decisions_for_random_ones_unless_told(greedy: Any) -> None:
    """A study without `largest_uniform_share`: sites could not enrol."""
    limits = Limits(max_uniform_share=0.5)
    site = greedy.site.GreedySite(lambda context: None, limits)
    study = greedy.study.GreedyStudy(RELEASES, 3, TRIALS, 0.1, 5)
    assert not hasattr(study, "largest_uniform_share")
    assert site.uniform_share(study) == 1.0


def test_a_folder_needs_a_registered_kind(
    greedy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "entry_points", lambda **_: ())
    kinds._others.cache_clear()
    federation = Federation(greedy, tmp_path)
    with pytest.raises(JournalError, match="'greedy-server' here: a package"):
        _start(greedy.server.FedGreedy, federation)
    configs: list[Any] = [{"agent-id": i} for i in range(3)]
    grid = InProcessGrid(federation.app, 3, node_configs=configs)
    result = greedy.server.FedGreedy(RELEASES, 3, TRIALS).start(grid)
    assert [r.answered for r in result.rounds] == [3] * 6


def test_the_page_quotes_what_is_there() -> None:
    text = PAGE.read_text()
    quoted = re.findall(r"```{literalinclude} (\S+)\n((?::.*\n)*)```", text)
    assert len(quoted) >= 3
    for name, options in quoted:
        code = (PAGE.parent / name).read_text()
        [quoted_object] = re.findall(r":pyobject: (\S+)", options) or [""]
        for part in quoted_object.split("."):
            assert re.search(rf"^ *(class|def) {part}\b", code, re.M) or not part
