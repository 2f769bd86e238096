"""The file of a list of settings, and which spaces it fits."""

import json
from pathlib import Path
from typing import Any

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo.integrations import FederatedSampler
from flwr_fbo.tuning import PortfolioSource, SearchSpace, StudyPortfolio
from flwr_fbo.tuning.search.portfolios import listed_settings

SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-3, 1.0, log=True),
    "epochs": IntDistribution(1, 8),
    "kind": CategoricalDistribution(["sgd", True, 2]),
}
SETTINGS = (
    {"rate": 0.5, "epochs": 8, "kind": True},
    {"rate": 0.9, "epochs": 7, "kind": True},
    {"rate": 0.01, "epochs": 2, "kind": "sgd"},
)
SOURCE = PortfolioSource("FederationTuner", 20, True, epsilon=2.0, delta=1e-3)
PORTFOLIO = StudyPortfolio(SearchSpace(SPACE), SETTINGS, (SOURCE,))


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    PORTFOLIO.save(tmp_path / "a.json")
    found = StudyPortfolio.load(tmp_path / "a.json")
    assert found == PORTFOLIO
    assert [type(value) for value in found.settings[0].values()] == [float, int, bool]
    PORTFOLIO.save(str(tmp_path / "a.json"))  # replaces it


def _edited(path: Path, **changes: Any) -> Path:
    PORTFOLIO.save(path)
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "flwr_fbo knowledge, version 1"}, "format="),
        ({"private": False}, "private=False is not allowed: True"),
        ({"settings": []}, r"len\(settings\)=0"),
        ({"settings": 3}, "settings=3"),
        ({"settings": [{"rate": 0.5}]}, r"settings\[0\]=\['rate'\]"),
        ({"settings": [{**SETTINGS[0], "rate": 7.0}]}, r"settings\[0\]\['rate'\]=7"),
        ({"sources": []}, "sources"),
        ({"sources": [{"kind": "FedVote"}]}, "has no"),
        ({"space": "[]"}, "space"),
        ({"space": 3}, "damaged"),
        ({"more": 3}, "more"),
    ],
)
def test_a_damaged_file_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = _edited(tmp_path / "a.json", **changes)
    with pytest.raises(ValueError, match=rf"a.json cannot be used: .*{words}"):
        StudyPortfolio.load(path)


@pytest.mark.parametrize("text", ["", "[]", "no", '{"a": NaN}', "[" * 5000])
def test_what_is_no_list_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json cannot be used"):
        listed_settings(tmp_path / "a.json", SPACE)


def test_numbers_move_to_the_nearest_end_and_settings_count_once() -> None:
    narrow = {
        "kind": SPACE["kind"],
        "rate": FloatDistribution(0.1, 0.4, step=0.1),
        "epochs": IntDistribution(1, 5, step=2),
    }
    assert PORTFOLIO.settings_in(narrow) == [
        {"rate": 0.4, "epochs": 5, "kind": True},
        {"rate": 0.1, "epochs": 1, "kind": "sgd"},
    ]
    assert PORTFOLIO.settings_in(SearchSpace(SPACE)) == list(SETTINGS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rate": None},
            r"space\['rate'\]=None is not allowed: Float.* as in the list",
        ),
        ({"lr": FloatDistribution(0, 1)}, r"space\['lr'\]=.*one of the parameters of"),
        (
            {"rate": CategoricalDistribution([0.1, 1.0])},
            r"space\['rate'\]=.*choice 0.5",
        ),
        (
            {"kind": CategoricalDistribution(["sgd", 1])},
            r"space\['kind'\].*choice True",
        ),
        ({"kind": IntDistribution(0, 1)}, r"space\['kind'\]=.*choice True"),
    ],
)
def test_another_space_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    space = {k: v for k, v in {**SPACE, **changes}.items() if v is not None}
    with pytest.raises(ValueError, match=words):
        PORTFOLIO.settings_in(space)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": ""}, "kind=''"),
        ({"num_agents": 0}, "num_agents=0"),
        ({"private": 1}, "private=1"),
        ({"private": False}, "epsilon=2.0 is not allowed: None where"),
        ({"epsilon": None}, "epsilon=None is not allowed: a number"),
        ({"epsilon": -1.0}, "epsilon=-1"),
        ({"delta": 1.0}, "delta=1"),
    ],
)
def test_a_source_names_what_is_wrong(values: dict[str, Any], words: str) -> None:
    about: dict[str, Any] = {
        "kind": "FedVote",
        "num_agents": 3,
        "private": True,
        "epsilon": 2.0,
        "delta": 1e-3,
    }
    with pytest.raises(ValueError, match=words):
        PortfolioSource(**{**about, **values})


def test_plain_optuna_begins_with_the_list(tmp_path: Path) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    PORTFOLIO.save(tmp_path / "a.json")
    for portfolio in (PORTFOLIO, str(tmp_path / "a.json"), tmp_path / "a.json"):
        sampler = FederatedSampler.from_space(SPACE, "maximize", portfolio, seed=1)
        study = optuna.create_study(sampler=sampler, direction="maximize")
        for settings in SETTINGS:
            trial = study.ask(SPACE)
            assert trial.params == settings
            study.tell(trial, 0.0)
