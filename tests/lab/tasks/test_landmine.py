"""Landmine: what its objective computes, and what its loader refuses."""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import savemat
from sklearn.metrics import roc_auc_score
from sklearn.svm import SVC

from flwr_fbo.lab.datasets.base import DataError, data_file
from flwr_fbo.lab.datasets.landmine import partition
from flwr_fbo.lab.tasks.base import Objective
from flwr_fbo.lab.tasks.landmine import LandmineTask
from tests.support.landmine import LANDMINE, needs_landmine

SETTING = {"C": 3.0, "gamma": 0.5}


def _settings(number: int, seed: int = 0) -> list[dict[str, float]]:
    rng = np.random.default_rng(seed)
    draws = zip(
        rng.uniform(1e-4, 10, number), rng.uniform(1e-2, 10, number), strict=True
    )
    return [{"C": float(C), "gamma": float(gamma)} for C, gamma in draws]


@needs_landmine
def test_the_objective_is_the_area_of_the_decision_function() -> None:
    data = partition(4)
    model = SVC(kernel="rbf", **SETTING).fit(data.X_train, data.y_train)
    scores = model.decision_function(data.X_validation)
    value = LandmineTask().objective(4, 29, seed=0)(SETTING)
    assert value == roc_auc_score(data.y_validation, scores)
    assert value == LandmineTask().objective(4, 7, seed=1)(SETTING)
    assert LandmineTask().objective(0, 29, seed=0)(SETTING) > 0.8


@needs_landmine
def test_the_noisy_objective_is_a_draw_of_the_published_one() -> None:
    setting = {"C": 8.0, "gamma": 0.2}  # every other draw turns field 9 around
    data = partition(9)

    def published(state: int) -> float:
        model = SVC(kernel="rbf", probability=True, random_state=state, **setting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            model.fit(data.X_train, data.y_train)
        scores = model.predict_proba(data.X_validation)[:, 1]
        return float(roc_auc_score(data.y_validation, scores))

    task = LandmineTask(noisy=True)
    ours = [task.objective(9, 29, seed)(setting) for seed in range(20)]
    theirs = [published(state) for state in range(20)]
    exact = LandmineTask().objective(9, 29, seed=0)(setting)
    for values in (ours, theirs):
        assert min(values) == pytest.approx(1 - exact, abs=0.01)
        assert max(values) == pytest.approx(exact, abs=0.01)
        assert 0.25 < np.mean(np.array(values) < 0.5) < 0.75


@needs_landmine
def test_noise_belongs_to_seed_client_and_setting() -> None:
    settings = _settings(12)

    def values(objective: Objective) -> dict[float, float]:
        return {s["C"]: objective(s) for s in settings}

    task = LandmineTask(noisy=True)
    first = values(task.objective(9, 29, seed=3))
    settings.reverse()  # a run that goes on asks for the rest only
    assert values(task.objective(9, 29, seed=3)) == first
    assert values(task.objective(9, 29, seed=4)) != first
    # Settings so close that only their noise differs.
    near = [{"C": 8.0 + 1e-12 * i, "gamma": 0.2} for i in range(20)]
    objective = task.objective(9, 29, seed=3)
    assert len({round(objective(s), 2) for s in near}) > 1


@needs_landmine
def test_noise_turns_about_a_quarter_of_the_values_around() -> None:
    turned, low = [], []
    for field in (0, 7):
        exact = LandmineTask().objective(field, 29, seed=0)
        noisy = LandmineTask(noisy=True).objective(field, 29, seed=0)
        for setting in _settings(20, seed=field):
            a, b = exact(setting), noisy(setting)
            turned.append(abs(b - (1 - a)) < abs(b - a))
            low.append(b < 0.5)
    assert 0.10 < np.mean(turned) < 0.45
    assert 0.10 < np.mean(low) < 0.45


@needs_landmine
def test_only_the_expected_warning_is_silenced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LandmineTask(noisy=True).objective(0, 29, seed=0)(SETTING)
        with pytest.raises(FutureWarning, match="another"):
            warnings.warn("another", FutureWarning, stacklevel=1)


@pytest.mark.parametrize("number", [0, 30, True])
def test_landmine_names_a_bad_number_of_clients(number: Any) -> None:
    with pytest.raises(ValueError, match=f"num_agents={number!r} is not allowed"):
        LandmineTask().check(number)


def test_noisy_is_a_bool() -> None:
    with pytest.raises(ValueError, match="noisy=1 is not allowed"):
        LandmineTask(noisy=1)  # type: ignore[arg-type]


# Missing and damaged data


def _refusal() -> str:
    with pytest.raises(DataError) as error:
        LandmineTask().check(29)
    return str(error.value)


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_they_are_looked_for_in_a_cache_folder(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("FLWR_FBO_DATA", raising=False)
    else:
        monkeypatch.setenv("FLWR_FBO_DATA", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    text = _refusal()
    assert str(tmp_path) in text
    assert f"flwr-fbo/{LANDMINE} is missing" in text
    assert "`flwr-fbo data download landmine`" in text
    assert "set FLWR_FBO_DATA to the folder that holds landmine/Landmine" in text


def test_missing_data_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path / "gone"))
    assert f"{tmp_path / 'gone' / LANDMINE} is missing" in _refusal()
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    assert f"{tmp_path / LANDMINE} is missing" in _refusal()
    (tmp_path / LANDMINE).mkdir(parents=True)
    assert f"{tmp_path / LANDMINE} is missing" in _refusal()


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the landmine file is looked for; nothing is there yet."""
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    path = tmp_path / LANDMINE
    path.parent.mkdir()
    return path


def _cells(*contents: NDArray[Any]) -> NDArray[np.object_]:
    cells = np.empty((1, len(contents)), dtype=object)
    for i, content in enumerate(contents):
        cells[0, i] = content
    return cells


def _fields(rows: int = 8, columns: int = 9) -> dict[str, Any]:
    y = (np.arange(rows)[:, None] % 2).astype(np.uint8)
    X = np.random.default_rng(0).normal(size=(rows, columns))
    return {"feature": _cells(*[X] * 29), "label": _cells(*[y] * 29)}


def test_small_fields_are_read(target: Path) -> None:
    savemat(target, _fields())
    assert partition(28).X_train.shape == (4, 9)


def test_rubbish_is_refused(target: Path) -> None:
    savemat(target, _fields(rows=100))
    whole = target.read_bytes()
    noise = np.random.default_rng(0).bytes(5000)
    for content in (b"", b"rubbish", noise, whole[:60], whole[:500], whole[:-9]):
        target.write_bytes(content)
        text = _refusal()
        assert str(target) in text
        assert "is damaged, or is another file" in text
        assert "Remove it and get it anew" in text
    target.write_bytes(whole)  # a refusal is not remembered
    LandmineTask().check(29)


@needs_landmine
def test_the_file_cut_short_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = data_file(*LANDMINE.parts).read_bytes()
    (tmp_path / LANDMINE).parent.mkdir()
    (tmp_path / LANDMINE).write_bytes(whole[: len(whole) // 2])
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    assert str(tmp_path / LANDMINE) in _refusal()


def _changed(name: str, value: Any) -> dict[str, Any]:
    return {**_fields(), name: value}


def _with_first(name: str, value: Any) -> dict[str, Any]:
    fields = _fields()
    fields[name][0, 0] = np.asarray(value)
    return fields


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"other": np.zeros(3)}, "no 1 x 29 arrays 'feature' and 'label'"),
        (_changed("label", np.zeros((1, 28))), "no 1 x 29 arrays"),
        (_fields(columns=8), "field 0 is not n x 9 numbers"),
        (_with_first("label", np.zeros((7, 1))), "field 0 is not n x 9 numbers"),
        (_with_first("feature", [["a"] * 9] * 8), "field 0 is not n x 9 numbers"),
        (_with_first("feature", np.full((8, 9), math.nan)), "field 0 is not n x 9"),
        (_with_first("label", [[2], [0]] * 4), "field 0 has other labels"),
    ],
)
def test_other_contents_are_refused(
    content: dict[str, Any], words: str, target: Path
) -> None:
    savemat(target, content)
    assert words in _refusal()
