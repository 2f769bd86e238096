"""Lists of settings from finished tuners and studies, and who begins with them."""

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from optuna.distributions import FloatDistribution, IntDistribution
from typer.testing import CliRunner

from flwr_fbo import (
    FTS,
    FedVote,
    FedWarmStart,
    Halving,
    InProcessGrid,
    PrivateChoice,
    Seeds,
    tuning_app,
)
from flwr_fbo.cli import app
from flwr_fbo.journal.journal_file import JournalError
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.tuner.records.portfolio_of_studies import ordered_trials
from flwr_fbo.tuner.records.trials_record import FILE_NAME
from flwr_fbo.tuning import StudyPortfolio, portfolio_of_studies, server_score
from tests.support.apps import SPACE, in_process, main_of, server_context, tuner
from tests.support.races import RaceGrid, race, race_context
from tests.support.tuner_folders import record, record_first_rung

SITES = {"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)}
BEST = {"x": 0.3, "y": 0.7}


def _tune(folder: Path, **options: Any) -> Any:
    """Let a private tuner with little noise run to its end."""
    real = {"seeds": Seeds(study=1), "schedule": Halving(6, (1, 3)), **options}
    return tuner(folder=folder, **real).start(main_of(), in_process(), server_context())


def _hill(context: Context) -> Callable[[Any], float]:
    return lambda params: math.exp(-sum((params[n] - BEST[n]) ** 2 for n in BEST) / 0.1)


def _vote(folder: Path, **options: Any) -> Any:
    """Let the sites of a federation vote to the end."""
    budget: dict[str, Any] = {"epsilon": 100.0, "delta": 1e-3}
    strategy = FedVote(SITES, "maximize", 6, **{**budget, **options})
    grid = InProcessGrid(tuning_app(_hill), 6)
    return strategy.start(grid, num_rounds=21, folder=folder)


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with folders of studies."""
    root = tmp_path_factory.mktemp("studies")
    _tune(root / "first")
    record_first_rung(root / "unfinished", "private")
    for kind in ("seeded", "exact"):
        record(root / kind, kind)
    control = PrivateChoice(epsilon=1000.0, delta=1e-3, noise_only=True)
    _tune(root / "control", privacy=control)
    _tune(root / "other", space={**SPACE, "local-epochs": IntDistribution(1, 4)})
    _vote(root / "votes")
    return root


def test_the_next_tuner_begins_with_the_winner_of_the_first(
    studies: Path, tmp_path: Path
) -> None:
    first = _tune(studies / "first")  # complete: it asks nobody
    assert first.best_trial != 0
    found = portfolio_of_studies([studies / "first"], size=3)
    assert found.settings[0] == first.best
    found.save(tmp_path / "list.json")
    options = {"seeds": Seeds(study=7), "enqueue": str(tmp_path / "list.json")}
    second = _tune(tmp_path / "second", **options)
    defaults = first.settings[0]
    listed = [params for params in found.settings if params != defaults]
    assert second.settings[1 : 1 + len(listed)] == tuple(listed)
    assert first.best in second.settings[:4]
    without = _tune(tmp_path / "third", seeds=Seeds(study=7))
    assert first.best not in without.settings


def test_a_race_begins_with_the_winner_of_the_first_one(tmp_path: Path) -> None:
    real: dict[str, Any] = {"privacy": PrivateChoice(epsilon=100.0, delta=1e-3)}
    first = race(folder=tmp_path / "a", seeds=Seeds(study=1), **real).start(
        main_of(), RaceGrid(), race_context()
    )
    assert first.best_trial != 0
    found = portfolio_of_studies([tmp_path / "a"])
    assert found.settings[0] == first.best
    second = race(seeds=Seeds(study=2), enqueue=found, **real).start(
        main_of(), RaceGrid(), race_context()
    )
    assert second.settings[1] == first.best
    assert len(second.settings) == len(first.settings) == 16


def test_all_winners_come_first_and_those_with_less_noise_before_others(
    studies: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("little", "much")]
    results = [
        _tune(folder, privacy=PrivateChoice(epsilon, 1e-3), seeds=Seeds(study=seed))
        for folder, epsilon, seed in zip(folders, (500.0, 900.0), (3, 4), strict=True)
    ]
    found = portfolio_of_studies(folders, size=100)
    assert found.settings[:2] == (results[1].best, results[0].best)
    every = [*results[0].settings, *results[1].settings]
    assert all(params in every for params in found.settings)
    assert len(found.settings) == len({json.dumps(p) for p in every})
    spent = [result.privacy_spent.epsilon for result in reversed(results)]
    assert [source.epsilon for source in found.sources] == spent
    assert len(portfolio_of_studies(folders, size=3).settings) == 3


def test_trials_are_in_the_order_in_which_they_were_dropped() -> None:
    first = np.array([0.1, 0.5, 0.4, -0.3, -math.inf, 0.2])
    rows = [
        LedgerRow(0, {"trials": [0, 1, 2, 3, 4, 5], "survivors": [1, 2, 3]}, first),
        LedgerRow(
            1,
            {"trials": [1, 2, 3], "survivors": [2], "failed": [3]},
            np.array([0.2, -0.1, 0.9]),
        ),
    ]
    assert ordered_trials(rows) == [2, 1, 5, 0]


def test_a_metric_that_is_minimised_is_listed_from_its_smallest(
    studies: Path,
) -> None:
    result = record(studies / "exact", "exact")
    found = portfolio_of_studies([studies / "exact"], size=100, exact=True)
    last, first = result.rungs[-1], result.rungs[0]
    assert found.settings[0] == result.best
    assert min(last.scores) == last.scores[last.trials.index(result.best_trial)]
    ended = [trial for trial in first.trials if trial not in last.trials]
    scores = {trial: first.scores[first.trials.index(trial)] for trial in ended}
    ended = sorted(
        (t for t in ended if math.isfinite(scores[t])), key=lambda t: scores[t]
    )
    listed = [result.settings.index(params) for params in found.settings]
    assert [trial for trial in listed if trial in ended] == ended
    assert len(ended) >= 2


def test_defaults_outside_the_space_are_not_listed(tmp_path: Path) -> None:
    result = record(tmp_path / "a", "exact", **{"learning-rate": 7.0})
    found = portfolio_of_studies([tmp_path / "a"], size=100, exact=True)
    assert {"learning-rate": 7.0, "local-epochs": 1} in result.settings
    assert 0 < len(found.settings) < len(result.settings)
    assert all(params["learning-rate"] <= 1 for params in found.settings)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unfinished", r"unfinished: rungs=1 is not allowed: 2: the tuner is not fin"),
        ("seeded", r"seeded: private=False is not allowed: True, unless exact=True"),
        ("exact", r"exact: private=False is not allowed: True, unless exact=True"),
        ("control", r"control: noise_only=True is not allowed: False"),
        ("other", r"other: space\['local-epochs'\]=.*high=4.*high=5.*, as in .*first"),
        ("votes", r"votes: space\['learning-rate'\]=None is not allowed: FloatDist"),
        ("nothing", r"nothing: folder=.*: the folder of a FederationTuner, or of a"),
        ("first", r"folders=.*first' is not allowed: each study once"),
    ],
)
def test_other_studies_are_refused(name: str, words: str, studies: Path) -> None:
    with pytest.raises(ValueError, match=words):
        portfolio_of_studies([studies / "first", studies / name])


def test_studies_that_were_not_private_are_marked(
    studies: Path, tmp_path: Path
) -> None:
    folders = [studies / name for name in ("first", "exact", "seeded")]
    found = portfolio_of_studies(folders, exact=True)
    assert not found.private
    privacy = {(source.private, source.epsilon is None) for source in found.sources}
    assert privacy == {(True, False), (False, True)}
    found.save(tmp_path / "list.json")
    document = json.loads((tmp_path / "list.json").read_text())
    assert document["private"] is False
    assert "NOT PRIVATE" in document["about"]
    assert "NOT PRIVATE" in str(found.sources[-1]) + str(found.sources[0])


def test_scores_of_the_server_are_of_no_client(tmp_path: Path) -> None:
    def main(grid: Grid, context: Context) -> None:
        rate = context.run_config["learning-rate"]
        FedAvg(fraction_evaluate=0.0).start(
            grid,
            ArrayRecord({"w": Array(np.zeros(3))}),
            num_rounds=1,
            train_config=ConfigRecord({"learning-rate": rate}),
            evaluate_fn=server_score(
                grid, lambda _, arrays: MetricRecord({"distance": float(rate)})
            ),
        )

    options: dict[str, Any] = {"privacy": None, "score": "server", "seeds": None}
    study = tuner(folder=tmp_path, schedule=Halving(4, (1,)), **options)
    result = study.start(main, in_process(), server_context())
    found = portfolio_of_studies([tmp_path])
    assert found.settings[0] == result.best
    assert found.private
    assert "no client's scores" in str(found.sources[0])


def test_the_file_has_no_scores(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    # Seeded: else one of the scores may begin as a setting does, by chance.
    result = _tune(folder, seeds=Seeds(study=1, noise=1))
    portfolio_of_studies([folder], exact=True).save(tmp_path / "list.json")
    text = (tmp_path / "list.json").read_text()
    names = ["format", "about", "private", "space", "settings", "sources"]
    assert list(json.loads(text)) == names
    of_source = {"kind", "num_agents", "private", "epsilon", "delta"}
    assert [set(source) for source in json.loads(text)["sources"]] == [of_source]
    scores = [score for rung in result.rungs for score in rung.scores]
    assert not [score for score in scores if f"{abs(score):.5g}" in text]
    assert str(tmp_path) not in text


def test_sites_begin_with_what_sites_have_voted_for(
    studies: Path, tmp_path: Path
) -> None:
    result = _vote(studies / "votes")
    assert result.recommended is not None
    found = portfolio_of_studies([studies / "votes"])
    assert found.settings == (result.recommended,)
    assert found.sources[0].kind == "FedVote"
    assert found.sources[0].epsilon == pytest.approx(
        result.privacy_spent.epsilon, rel=1e-3
    )
    found.save(tmp_path / "list.json")
    strategy = FedVote(
        SITES, "maximize", 2, epsilon=8, delta=1e-3, portfolio=tmp_path / "list.json"
    )
    grid = InProcessGrid(tuning_app(_hill), 2)
    strategy.start(grid, num_rounds=2)
    first = [agent.values[0] for agent in grid.agents(strategy.study)]
    assert first == [pytest.approx(_hill(server_context())(found.settings[0]))] * 2


def test_a_study_that_found_nothing_is_left_out(
    studies: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason = _vote(tmp_path / "none", epsilon=0.01).recommendation.reason
    folders = [studies / "votes", tmp_path / "none"]
    with caplog.at_level(logging.WARNING, logger="flwr.fbo"):
        found = portfolio_of_studies(folders)
    assert len(found.sources) == len(found.settings) == 1
    assert reason
    text = f"{tmp_path / 'none'} recommends no setting, and is left out: {reason}."
    assert text in caplog.text
    with pytest.raises(ValueError, match=r"folders=.* is not allowed: one with a find"):
        portfolio_of_studies([tmp_path / "none"])


def test_a_study_that_began_with_releases_that_were_not_private_is_refused(
    tmp_path: Path,
) -> None:
    grid = InProcessGrid(tuning_app(_hill), 8)
    seeded: dict[str, Any] = {"epsilon": 100.0, "seeds": Seeds(noise=1)}
    first = FedWarmStart(SITES, "maximize", 8, delta=1e-3, **seeded)
    first.start(grid, num_rounds=12)
    second = FedWarmStart(
        SITES,
        "maximize",
        8,
        delta=1e-3,
        cohorts=(),  # nobody sends
        known=first.knowledge,
    )
    grid = InProcessGrid(tuning_app(_hill), 8)
    second.start(grid, num_rounds=3, folder=tmp_path)
    with pytest.raises(ValueError, match="private=False is not allowed"):
        portfolio_of_studies([tmp_path])


def test_strategies_without_private_releases_are_refused(tmp_path: Path) -> None:
    grid = InProcessGrid(tuning_app(_hill), 2)
    FTS(SITES, "maximize", 2).start(grid, num_rounds=3, folder=tmp_path / "fts")
    with pytest.raises(JournalError, match=r"is of kind 'relay-server', not 'server'"):
        portfolio_of_studies([tmp_path / "fts"])


def test_a_study_that_goes_on_is_refused(tmp_path: Path) -> None:
    strategy = FedVote(SITES, "maximize", 2, epsilon=8, delta=1e-3)

    class Killed(InProcessGrid):
        num_sends = 0

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
            self.num_sends += 1
            if self.num_sends == 4:
                raise KeyboardInterrupt
            return super().send_and_receive(messages, timeout=timeout)

    with pytest.raises(KeyboardInterrupt):
        strategy.start(Killed(tuning_app(_hill), 2), num_rounds=9, folder=tmp_path)
    with pytest.raises(
        ValueError, match=r"rounds=\d is not allowed: 9: the study is n"
    ):
        portfolio_of_studies([tmp_path])


def test_a_record_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no journal")
    with pytest.raises(JournalError):
        portfolio_of_studies([tmp_path])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folders": []}, "folders"),
        ({"folders": "one"}, "folders"),
        ({"folders": [3]}, "folders"),
        ({"size": 0}, "size=0"),
        ({"size": 101}, "size=101"),
        ({"exact": 1}, "exact=1"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any], words: str, studies: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        portfolio_of_studies(**{"folders": [studies / "first"], **options})


def test_the_command_writes_the_file_and_says_what_it_cost(
    studies: Path, tmp_path: Path
) -> None:
    file, first = tmp_path / "list.json", studies / "first"
    done = CliRunner().invoke(app, ["portfolio", str(file), str(first), "--size", "2"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("FederationTuner, 6 clients, epsilon ")
    assert done.output.endswith(f", without the training\n2 settings in {file}\n")
    assert StudyPortfolio.load(file) == portfolio_of_studies([first], size=2)
    exact = str(studies / "exact")
    done = CliRunner().invoke(app, ["portfolio", str(file), exact])
    assert done.exit_code == 1
    assert "private=False is not allowed" in done.output
    done = CliRunner().invoke(app, ["portfolio", str(file), exact, "--exact"])
    assert "NOT PRIVATE: the order depends on clients' exact scores." in done.output
