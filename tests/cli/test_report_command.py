"""``flwr-fbo report``: one page that needs nothing else, of each kind of results."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape
from optuna.distributions import (
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import DPFTSDE, FTS, FedVote, InProcessGrid, Seeds, tuning_app
from flwr_fbo.journal.journal import Journal
from flwr_fbo.lab.experiment_runner.config import builtin_experiments, load_experiment
from flwr_fbo.lab.experiment_runner.curves import summarize
from flwr_fbo.lab.experiment_runner.figure import looks_of
from flwr_fbo.lab.experiment_runner.results import read_results
from flwr_fbo.study.report.page import (
    Section,
    render,
)
from flwr_fbo.tuning import FedVoteSettings
from tests.support import bandit_sites as bandit
from tests.support import fed_go_ucb as neural
from tests.support import peer_studies as peers
from tests.support.begun_journals import begin_journal
from tests.support.federation import NUM_AGENTS, SPACE, numpy_app, strategy
from tests.support.pages import (
    assert_figures_can_be_read,
    assert_self_contained,
    headings_of,
    invoke,
    page,
)

PageOf = Callable[[Path], str]

TUNING = """
name = "mine"
num_agents = 2
num_evaluations = 13
preset = "paper-synthetic"
methods = ["alone", "random", "open", "private", "noise-only"]

[task]
name = "synthetic"

[privacy]
noise_multiplier = 1.0
sampling_probability = 0.35
delta = 1e-3
"""
EVIL = '<script>alert("x")</script> $\\frac$ & more'
TUNING += f"""
[curves.evil]
label = '{EVIL}'
method = "private"
noise_multiplier = 2.0
"""
BANDIT = """
name = "bandit"
num_agents = 3
num_iterations = 30
first_synchronisation = 10
num_synchronisations = 3

[task]
name = "linear-bandit"

[privacy]
epsilon = 1.0
delta = 0.1
"""
NEURAL = """
name = "neural"
num_agents = 3
num_iterations = 6
width = 5
methods = ["fed-go-ucb", "n-go-ucb", "no-phase-one", "each-once", "random"]

[settings]
num_exploration = 2

[task]
name = "function-bandit"
"""
TRANSFER = """
name = "transfer"
num_agents = 3
num_targets = 1
num_evaluations = 5
num_observations = 5
methods = ["alone", "random", "fts", "noise-only"]

[task]
name = "synthetic"
"""
EXPERIMENTS = {
    "tuning": TUNING,
    "bandit": BANDIT,
    "sweep": BANDIT + '\n[sweep]\naxis = "epsilon"\nepsilon = [1.0, 4.0]\n',
    "neural": NEURAL,
    "transfer": TRANSFER,
}


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("experiments")
    found = {}
    for name, toml in EXPERIMENTS.items():
        (folder / f"{name}.toml").write_text(toml)
        output = folder / name
        run = ("run", folder / f"{name}.toml", "--seeds=2", "--jobs=1")
        done = invoke(*run, "--output", output)
        assert done.exit_code == 0, done.output
        [results] = output.glob("*/results.jsonl")
        found[name] = results
    return found


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's folder, and a folder a site, of each kind of study."""
    root = tmp_path_factory.mktemp("studies")
    configs: list[Any] = [
        {"partition-id": i, "fbo-folder": str(root / "tuning" / f"site-{i}")}
        for i in range(NUM_AGENTS)
    ]
    grid = InProcessGrid(numpy_app(), NUM_AGENTS, node_configs=configs)
    strategy(folder=root / "tuning" / "server").start(grid, num_rounds=5)
    grid = InProcessGrid(numpy_app(), NUM_AGENTS)
    folder = root / "fts" / "server"
    seeds = Seeds(study=1, features=2)
    fts = FTS(SPACE, "maximize", NUM_AGENTS, seeds=seeds)
    fts.start(grid, num_rounds=3, folder=folder)
    (root / "bandit").mkdir()
    sites = bandit.Sites(root / "bandit")

    def play() -> None:
        for slot in range(bandit.M):
            policy = sites.policy(slot)
            ticket = policy.choose(bandit.ACTIONS).ticket
            policy.reward(ticket, 0.123456)

    sites.before = {2: play, 4: play}
    bandit.site_strategy(root / "bandit").start(sites)
    peers.strategy_of(
        peers.RING, interval=0.0, noise_seed=1, folder=root / "peers" / "server"
    ).start(peers.sites(root / "peers"))
    configs = [
        {"partition-id": i, "fbo-folder": str(root / "neural" / f"site-{i}")}
        for i in range(neural.N)
    ]
    grid = InProcessGrid(neural.APP, neural.N, node_configs=configs)
    neural.strategy_of(folder=root / "neural" / "server").start(grid)
    return root


KINDS = ("tuning", "fts", "bandit", "peers", "neural")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_of_an_experiment(
    name: str, experiments: dict[str, Path], page_of: PageOf
) -> None:
    text = page_of(experiments[name].parent)
    assert_self_contained(text)
    assert_figures_can_be_read(text)
    headings = headings_of(text)
    assert headings[:2] == ["Summary", "Convergence"]
    assert headings[-2:] == ["Settings", "Versions"]
    assert "Communication" in headings
    assert ("Best settings of the agents" in headings) == (
        name in ("tuning", "transfer")
    )
    experiment, runs = read_results(experiments[name])
    for label in map(experiment.label_of, experiment.methods):
        escaped = label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert escaped.replace('"', "&#34;") in text
    rows = summarize(experiment, runs, None)
    for line in experiment.verdict(rows):
        assert render("", "", [Section("", [line])]).count("<p>") == 1
    assert "±" in text
    assert "not private" in text


def test_a_label_is_text_and_no_code(
    experiments: dict[str, Path], page_of: PageOf
) -> None:
    text = page_of(experiments["tuning"].parent)
    assert text == page_of(experiments["tuning"])  # not by chance
    assert "<script" not in text
    assert "&lt;script&gt;alert(" in text
    assert "$\\frac$" in text  # no formula either


def test_claims_of_a_built_in_experiment_have_verdicts(tmp_path: Path) -> None:
    """Results do not hold them; they are those of the plan."""
    plan = load_experiment(builtin_experiments()["digits-votes"])
    path = tmp_path / "results.jsonl"
    length = plan.num_steps
    lines = [json.dumps({"flwr_fbo": "0.0.7", "experiment": plan.to_dict()})]
    for seed in range(3):
        for i, method in enumerate(plan.methods):
            run = {"method": method, "seed": seed, "epsilon": 2.0, "private": False}
            best = [[0.5 + 0.1 * i + 0.01 * seed] * length] * plan.num_agents
            run |= {"seconds": 1.0, "best_so_far": best, "failed_trials": 0}
            lines.append(json.dumps(run))
    path.write_text("\n".join([*lines, ""]))
    text = page(path, tmp_path / "a.html")
    assert "Claims" in headings_of(text)
    assert plan.claims[0].text in text
    assert "<td>not told from noise-only</td>" in text
    assert plan.description in text
    assert "0.0.7" in text  # the version that wrote them
    # From before best settings were kept.
    assert "Best settings of the agents" not in headings_of(text)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_who_spends_epsilon_has_sent_something(
    name: str, experiments: dict[str, Path]
) -> None:
    experiment, runs = read_results(experiments[name])
    for run in runs:
        sent = experiment.num_sent(run.method, runs)
        assert sent is not None
        assert sent > 0 or run.epsilon == 0


def test_numbers_are_counted_as_they_are_sent(experiments: dict[str, Path]) -> None:
    experiment, runs = read_results(experiments["tuning"])
    # Each of 2 agents a message of 50 after evaluations 10 to 12, and before its next
    # one the vectors of P = 2 sub-regions.
    assert DPFTSDE.presets["paper-synthetic"].agent.num_sub_regions == 2
    assert experiment.num_steps == 13
    assert experiment.num_sent("private", runs) == 3 * 2 * 50 + 3 * 2 * 2 * 50
    assert experiment.num_sent("alone", runs) == 0


def test_agents_of_an_experiment_show_their_best(
    experiments: dict[str, Path], page_of: PageOf
) -> None:
    _, runs = read_results(experiments["tuning"])
    text = page_of(experiments["tuning"])
    assert text.count("<details>") == 7
    settings = runs[0].__dict__["best_settings"]
    assert len(settings) == 2
    for params in settings:
        for name, value in params.items():
            assert f"{name} = {value:.4g}" in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_a_server_tells_of_no_agent(
    kind: str, studies: Path, page_of: PageOf
) -> None:
    text = page_of(studies / kind / "server")
    assert_self_contained(text)
    assert_figures_can_be_read(text)
    headings = headings_of(text)
    if kind == "tuning":
        assert headings.pop(0) == "Recommendation"
    assert headings[:3] == ["Privacy", "Participation", "Communication"]
    assert not {"Best setting", "Best settings of the agents", "Trials"} & set(headings)
    assert "flwr-fbo report" in text  # where a site finds its own
    assert "slot" not in text.lower()
    words = text.split("<body>")[1]
    for number in _secrets(studies / kind):
        assert f"{number:.6g}" not in words


@pytest.mark.parametrize("epsilon", [8, 0.1])
def test_a_server_shows_what_it_recommends(epsilon: float, tmp_path: Path) -> None:
    """With a chart of each parameter, and a map of two: but none of nothing."""
    space = {"x": FloatDistribution(0, 1), "n": IntDistribution(1, 8)}
    study = FedVote(
        space,
        "maximize",
        12,
        epsilon=epsilon,
        delta=1e-3,
        agent=FedVoteSettings(num_candidates=50),
        seeds=Seeds(study=1, features=2, noise=3),
    )
    client = tuning_app(lambda context: lambda trial: -abs(trial["x"] - trial["n"] / 8))
    grid = InProcessGrid(client, 12)
    result = study.start(grid, num_rounds=21, folder=tmp_path / "server")
    text = page(tmp_path / "server", tmp_path / "a.html")
    assert_self_contained(text)
    assert_figures_can_be_read(text)
    found = result.recommendation
    assert (found.params is None) == (epsilon < 1)
    if found.params is None:
        assert "Map of the released score" not in text
        return
    assert f"Recommended for all sites: {escape(found.evidence)}." in text
    captions = re.findall("<figcaption>(.*?)</figcaption>", text, re.DOTALL)
    for name, value in found.params.items():
        [caption] = [c for c in captions if f"score against {name};" in c]
        assert f"highest at {name} = {value:.4g}." in caption
    assert captions[2].startswith("Map of the released score over x and n")


def test_a_server_that_recommends_nothing_says_why(
    studies: Path, page_of: PageOf
) -> None:
    text = page_of(studies / "tuning" / "server")
    why = "it cannot be told from chance and noise ("
    assert f"Recommended for all sites: none, because {why}" in text


def _secrets(folder: Path) -> Iterator[float]:
    """Yield what sites evaluated and where, and what a server holds of them."""
    for path in folder.glob("*/*.sqlite"):
        with Journal(None, path) as journal:
            rows = journal.ledger()
            trials = journal.trials()
        numbers = [n for row in rows for n in np.ravel(row.vectors)[:50].tolist()]
        for trial in trials:
            point = trial.point.ravel().tolist()  # of a decision, all its actions
            values = trial.value, *trial.params.values(), *point
            numbers += [v for v in values if isinstance(v, float)]
        # A short one, such as 0.001, may be anything.
        yield from (n for n in numbers if len(f"{n:.6g}".strip("-")) >= 7)


def test_a_server_shows_what_was_spent_round_by_round(
    studies: Path, page_of: PageOf
) -> None:
    text = page_of(studies / "tuning" / "server")
    spent = re.findall(r"epsilon (\d+\.\d+)", text)
    shown = invoke("ledger", "show", studies / "tuning" / "server").output
    assert f"epsilon {spent[0]}" in shown
    assert "NOT PRIVATE: the noise was seeded" in text
    assert "noise_<wbr>seed</th><td>given</td>" in text
    assert "<td>-1.0 to 1.0</td>" in text  # the space, to be read


@pytest.mark.parametrize("kind", ["fts", "peers", "neural"])
def test_a_server_shows_no_seed_but_that_of_the_features(
    kind: str, studies: Path, page_of: PageOf
) -> None:
    text = page_of(studies / kind / "server").replace("<wbr>", "")
    shown = re.findall(r"(\w*seed)</th><td>(\w+)</td>", text)
    assert {value for name, value in shown if name != "feature_seed"} == {"given"}


@pytest.mark.parametrize("kind", ["tuning", "bandit", "peers", "neural"])
def test_the_page_of_a_site_is_its_own(
    kind: str, studies: Path, page_of: PageOf
) -> None:
    text = page_of(studies / kind / "site-1")
    assert_self_contained(text)
    assert "For this site alone" in text
    if kind in ("tuning", "bandit"):
        assert_figures_can_be_read(text)
    if kind == "tuning":
        [path] = (studies / kind / "site-1").glob("study-*.sqlite")
        with Journal(None, path) as journal:
            best = max(journal.trials(), key=lambda trial: trial.value)
        assert headings_of(text)[0] == "Best setting"
        # Four initial settings in the first round, and one in each other.
        rounds = re.findall(
            r"<tr><th scope=\"row\">\d+</th><td>(\d+)</td><td>\d{4}-", text
        )
        assert [*map(int, rounds)] == [1, 1, 1, 1, 2, 3, 4, 5]
        assert '<th scope="col">round</th>' in text
        assert f"{best.value:.6g}" in text
        for value in best.params.values():
            assert f"<td>{value}</td>" in text


def test_a_page_lies_beside_its_results_for_its_owner_only(studies: Path) -> None:
    folder = studies / "fts" / "server"
    assert invoke("report", folder).exit_code == 0
    page = folder / "report.html"
    assert page.stat().st_mode & 0o777 == 0o600
    before = page.read_text()
    assert invoke("report", folder).exit_code == 0  # once more
    assert page.read_text() == before
    assert len(list(folder.glob("*.html"))) == 1


def test_what_is_no_results_is_named(
    tmp_path: Path, studies: Path, experiments: dict[str, Path]
) -> None:
    site = studies / "tuning" / "site-0"
    both = tmp_path / "both"
    both.mkdir()
    for path in site.glob("*.sqlite"):
        (both / path.name).write_bytes(path.read_bytes())
    begin_journal(both / "server.sqlite")
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)) * 20)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    sqlite = tmp_path / "rubbish.sqlite"
    sqlite.write_bytes(b"SQLite format 3\0" + b"x" * 2000)
    header = tmp_path / "header.jsonl"
    header.write_text(experiments["tuning"].read_text().splitlines()[0] + "\n")
    lone = tmp_path / "lone"
    lone.mkdir()
    for results, words in (
        (tmp_path / "gone", "No such file"),
        (lone, "There are no results in"),
        (both, "results of several kinds or agents: server.sqlite, study-"),
        (binary, "a file that flwr-fbo run wrote"),
        (empty, "a file that flwr-fbo run wrote"),
        (sqlite, "cannot be used"),
        (header, "No seed has been run by all methods"),
        (Path(__file__), "a file that flwr-fbo run wrote"),
    ):
        result = invoke("report", results, "--output", tmp_path / "x.html")
        assert result.exit_code == 1, (results, result.output)
        assert len(result.output.strip().splitlines()) == 1
        assert words in result.output, result.output
        assert not (tmp_path / "x.html").exists()
    blocked = invoke("report", experiments["tuning"], "--output", binary / "a.html")
    assert blocked.exit_code == 1
    assert "Error: " in blocked.output


def test_a_study_that_runs_is_read(studies: Path, tmp_path: Path) -> None:
    path = studies / "tuning" / "server"
    with Journal(None, path / "server.sqlite"):
        for command in ("report", "ledger show"):
            options = ("--output", tmp_path / "x.html") if command == "report" else ()
            result = invoke(*command.split(), path, *options)
            assert result.exit_code == 0, result.output
    assert (tmp_path / "x.html").is_file()


def test_curves_are_told_apart_without_colour(experiments: dict[str, Path]) -> None:
    for path in experiments.values():
        experiment, _ = read_results(path)
        shapes = [look[1:] for look in looks_of(experiment).values()]
        assert len(set(shapes)) == len(shapes), (path, shapes)
