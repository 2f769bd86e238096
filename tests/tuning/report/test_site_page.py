"""The page of a site that tunes: was it worth it, and which parameter mattered."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo import best_params
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.tables import Trial, TrialSource
from flwr_fbo.privacy.spending_ledger import (
    Charge,
    Promise,
    SpendingLedger,
    charge_facts,
    composed_epsilon,
    with_note,
)
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.page import Figure
from flwr_fbo.tuning import FedVoteSettings
from flwr_fbo.tuning.fed_vote.settings import VoteCount
from flwr_fbo.tuning.report.site_page import (
    LOOKS,
    importances_of,
    parameter_section,
    tuning_page,
    worth_section,
)
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agent_journal import (
    agent_identity,
    load_agent,
    recorded_agent,
)
from flwr_fbo.tuning.search.comparison import compared
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.search.study import TuningStudy
from flwr_fbo.tuning.site.tuning_journals import journal_path
from tests.support.pages import (
    Elements,
    assert_figures_can_be_read,
    assert_self_contained,
)

MIXED: dict[str, BaseDistribution] = {
    "learning $rate": FloatDistribution(1e-4, 1.0, log=True),
    "kernel": CategoricalDistribution(["rbf", "a very long name of a kernel", None]),
    "depth": IntDistribution(1, 9),
}
SOURCES: tuple[TrialSource, ...] = ("enqueued", "start", "own search", "federation")
Value = Callable[[int, dict[str, Any]], float]


def _bowl(number: int, params: dict[str, Any]) -> float:
    exponent = math.log10(params["learning $rate"])
    return float(-((exponent + 2) ** 2) - 0.01 * params["depth"])


def _journal(
    folder: Path,
    num: int,
    space: dict[str, BaseDistribution] = MIXED,
    value: Value = _bowl,
    direction: Direction = "maximize",
    promise: Promise | None = None,
) -> Path:
    """Return the journal of agent 0 after so many uniform trials, of all sources."""
    study = TuningStudy(
        SearchSpace(space),
        direction,
        FedVoteSettings(num_features=20),
        study_id="mine",
        feature_seed=1,
        facts=VoteCount(3),
        promise=promise or Promise(),
    )
    path, rng = journal_path(folder, study, 0), np.random.default_rng(1)
    assert path is not None
    with Journal(agent_identity(study, 0), path) as journal:
        journal.put(load_agent(journal, study, 0).state_dict())  # as a round begins
        for i in range(num):
            point = study.space.snap(rng.random(study.space.dim))
            params = study.space.from_unit(point)
            source = SOURCES[0] if i == 0 else SOURCES[1 + i % 3]
            number = journal.begin_trial(i, params, point, source)
            journal.end_trial(number, value(i, params))
    return path


def _text(path: Path) -> str:
    with Journal(None, path) as journal:
        return tuning_page(journal)


def _trial(number: int, source: TrialSource, value: float) -> Trial:
    state: Any = "failed" if math.isnan(value) else "complete"
    here = np.zeros(1)
    return Trial(number, 0, {"x": 0.5}, here, state, value, 0, 0.0, 1.0, source)


def _lines(trials: list[Trial], direction: Direction = "maximize") -> list[str]:
    parts = worth_section(trials, direction, None).parts
    return [part for part in parts if isinstance(part, str)]


def test_a_page_has_all_of_it(tmp_path: Path) -> None:
    text = _text(_journal(tmp_path, 5))
    assert_self_contained(text)
    assert_figures_can_be_read(text)
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings[:5] == [
        "Best setting",
        "Was it worth it?",
        "Privacy spent",
        "Convergence",
        "Parameters",
    ]
    for source in SOURCES:
        assert f"<td>{source}</td>" in text
    # Convergence, a slice of each of three parameters, all of them together.
    assert len(Elements(text).named("svg")) == 5
    assert text == _text(next(tmp_path.glob("*.sqlite")))  # not by chance


def test_a_page_has_what_the_site_was_charged(tmp_path: Path) -> None:
    path = _journal(tmp_path, 5, promise=Promise((Charge(2.0),), True, delta=1e-4))
    facts = charge_facts(("tuning", "mine"), 1, Charge(2.0), 0)
    with Journal(None, path) as journal:
        journal.put(with_note([], facts)[1])
    with SpendingLedger.held(tmp_path) as ledger:
        ledger.add(facts)
        ledger.record(("tuning", "before"), 1, Charge(3.0), owner=0)
        ledger.record(("tuning", "before"), 1, Charge(0.1), owner=1)  # of another
    text = _text(path)
    for what, charges in (
        ("promised by this study", [Charge(2.0)]),
        ("charged in this study", [Charge(2.0)]),
        ("charged in all studies", [Charge(2.0), Charge(3.0)]),
    ):
        epsilon = f"{composed_epsilon(charges, 1e-4):.4g}"
        cells = rf"{what}</t[hd]>\s*<td[^>]*>{len(charges)}</td>\s*<td[^>]*>epsilon "
        cells += rf"{epsilon} per client \(message or zeros, delta 0.0001\)<"
        assert re.search(cells, text), what
    assert "NOT PRIVATE" not in text
    assert "NOT PRIVATE: this study promises no epsilon." in _text(
        _journal(tmp_path / "open", 5)
    )


def test_a_site_can_use_its_journal_while_a_page_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = _journal(tmp_path, 5), []

    def chart(*_: Any, **__: Any) -> str:
        with Journal(None, path) as journal:
            opened.append(journal.num_trials)
        return ""

    monkeypatch.setattr(charts, "chart", chart)
    _text(path)
    assert set(opened) == {5}


def test_sources_are_told_apart_without_colour() -> None:
    assert set(LOOKS) == set(SOURCES)
    markers = [marker for marker, _ in LOOKS.values()]
    colors = [color for _, color in LOOKS.values()]
    assert len(set(markers)) == len(set(colors)) == len(LOOKS)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_what_the_federation_brought_is_said(direction: Direction) -> None:
    sign = 1.0 if direction == "maximize" else -1.0
    own = [
        _trial(0, "enqueued", sign * 0.5),
        _trial(1, "start", sign * 0.4),
        _trial(2, "own search", sign * 0.7),
        _trial(3, "own search", math.nan),
    ]
    better = [*own, _trial(4, "federation", sign * 0.8)]
    first, second, _ = _lines(better, direction)
    assert first.startswith(
        f"The best setting came from the federation: {sign * 0.8:g} from the "
        f"federation in 1 evaluation, {sign * 0.7:g} from the site's own trials in 4"
    )
    assert f"has {sign * 0.8:g}, the default {sign * 0.5:g}" in second
    worse = [*own, _trial(4, "federation", sign * 0.6)]
    assert _lines(worse, direction)[0].startswith("The federation brought no better")
    table = worth_section(worse, direction, None).parts[2]
    assert list(table.rows) == [  # type: ignore[union-attr]
        ("default (enqueued first)", 1, 0, f"{sign * 0.5:g}"),
        ("own trials (enqueued, start, own search)", 4, 1, f"{sign * 0.7:g}"),
        ("federation", 1, 0, f"{sign * 0.6:g}"),
    ]


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([], "No trial came from the federation"),
        ([_trial(0, "start", 1.0)], "so the tuning has not evaluated the default"),
        ([_trial(0, "start", 1.0), _trial(1, "federation", math.nan)], "ration failed"),
        ([_trial(0, "start", math.nan), _trial(1, "federation", 1.0)], "own trials fa"),
        ([_trial(0, "enqueued", math.nan)], "The default failed in the tuning."),
        ([_trial(0, "enqueued", 0.5)], "No trial is better than the default, 0.5."),
    ],
)
def test_what_is_missing_is_said(trials: list[Trial], said: str) -> None:
    lines = _lines(trials)
    assert any(said in line for line in lines), lines
    assert "It was" not in lines
    assert "was not compared with the default on held-out data" in lines[-1]


def test_a_comparison_is_shown(tmp_path: Path) -> None:
    path = _journal(tmp_path, 2)
    config: Any = {"fbo-folder": str(tmp_path), "partition-id": 0}
    context = Context(1, 1, config, RecordDict(), {})
    default = {"learning $rate": 0.25, "kernel": "rbf", "depth": 3}
    assert "was not compared" in _text(path)
    best_params(context, default, compare=lambda p: 0.574 if p == default else 0.403)
    text = _text(path)
    said = "The default is kept: it scores 0.574, the tuned setting scores 0.403."
    assert f"On held-out data: {said}" in text
    assert "gives the default, which was kept on held-out data, to" in text
    assert "learning $rate = 0.25" in text
    assert "has changed since" not in text
    assert "was not compared" not in text


def test_a_comparison_of_an_older_setting_is_marked() -> None:
    comparison = compared(lambda p: 1.0, {"x": 0.1}, {"x": 0.2}, "maximize", 1)
    section = worth_section([_trial(0, "start", 1.0)], "maximize", comparison)
    assert section.parts[-1] == "The best setting has changed since this comparison."


ONE: dict[str, BaseDistribution] = {"learning $rate": FloatDistribution(0.0, 1e-6)}
MANY: dict[str, BaseDistribution] = {
    f"parameter-{i}": FloatDistribution(0, 1) for i in range(9)
}


@pytest.mark.parametrize(
    ("num", "space", "value"),
    [
        (0, MIXED, lambda i, params: 0.0),
        (1, MIXED, lambda i, params: 0.0),
        (3, MIXED, lambda i, params: 0.0),
        (3, MIXED, lambda i, params: math.nan),
        (3, MIXED, lambda i, params: 1e99 * (-1) ** i),
        (3, ONE, lambda i, params: params["learning $rate"]),
    ],
)
def test_few_trials_constant_values_and_one_parameter(
    num: int, space: dict[str, BaseDistribution], value: Value, tmp_path: Path
) -> None:
    text = _text(_journal(tmp_path, num, space, value))
    assert_self_contained(text)
    assert text.count("<figure>") <= 8
    assert "nan" not in text.lower().replace("maintenance", "")


def _recorded(path: Path) -> tuple[list[Trial], Agent]:
    with Journal(None, path) as journal:
        trials = [t for t in journal.trials() if t.state == "complete"]
        return trials, recorded_agent(journal)


def test_the_parameter_that_matters_comes_first(tmp_path: Path) -> None:
    path = _journal(tmp_path, 20, MANY, lambda i, params: params["parameter-7"] ** 2)
    importances = importances_of(*_recorded(path))
    assert next(iter(importances)) == "parameter-7"
    assert importances["parameter-7"] > 0.5
    assert sum(importances.values()) == pytest.approx(1.0)
    section = parameter_section(*_recorded(path))
    captions = [p.caption for p in section.parts if isinstance(p, Figure)]
    assert "against parameter-7, " in captions[0]
    assert len(captions) == 7  # six slices, and all together
    (tmp_path / "flat").mkdir()
    flat = _journal(tmp_path / "flat", 12, value=lambda i, params: 0.0)
    assert importances_of(*_recorded(flat)) == {}
    assert any("leave out the less important" in str(p) for p in section.parts)
