"""Surfaces of objectives: computed once, and of whose data they are."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import platformdirs
import pytest
from optuna.distributions import FloatDistribution

from flwr_fbo.lab.datasets.base import Split
from flwr_fbo.lab.tasks import landmine
from flwr_fbo.lab.tasks.emnist import EmnistTask
from flwr_fbo.lab.tasks.landmine import LandmineTask
from flwr_fbo.lab.tasks.surface import SurfaceSource
from flwr_fbo.space.search_space import SearchSpace
from tests.support.landmine import needs_landmine


@pytest.fixture
def small_surfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Surfaces of 3 x 3 settings, kept in a folder of the test."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.setattr(landmine, "GRID_SHAPE", (3, 3))
    with joblib.parallel_config("threading"):
        yield tmp_path / "flwr-fbo"


@needs_landmine
def test_the_surface_is_the_objective_at_its_grid(small_surfaces: Path) -> None:
    task = LandmineTask(surface=True)
    task.check(2)
    assert len(list(small_surfaces.iterdir())) == 2
    exact, looked_up = (t.objective(1, 29, 0) for t in (LandmineTask(), task))
    space = SearchSpace(task.space)
    corners = [space.from_unit(np.array(u)) for u in ((0, 0), (1, 0.25), (0.25, 1))]
    for params in corners:
        assert looked_up(params) == exact(params)
    between = space.from_unit(np.array([0.5625, 0.25]))  # roots .75 and .5
    values = [exact(space.from_unit(np.array([u, 0.25]))) for u in (0.25, 1.0)]
    assert looked_up(between) == pytest.approx(np.mean(values))


@needs_landmine
def test_surfaces_are_computed_once_and_where_one_is_missing(
    small_surfaces: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = LandmineTask(surface=True)
    task.check(3)
    kept = {path: path.read_bytes() for path in small_surfaces.iterdir()}
    gone = task.source(1).path
    gone.unlink()
    caplog.clear()
    task.check(3)
    assert "computing 1 surfaces, once, from landmine-field-1 on" in caplog.text
    assert {path: path.read_bytes() for path in small_surfaces.iterdir()} == kept
    np.save(gone, np.full((3, 3), 0.25))
    assert task.source(1).surface()({"C": 1.0, "gamma": 1.0}) == 0.25


def _constant(value: float, params: dict[str, Any]) -> float:
    return value


def test_other_data_have_another_surface(small_surfaces: Path) -> None:
    space = {"x": FloatDistribution(0.0, 1.0)}
    for i in range(2):
        data = Split(*(np.full(2, i) for _ in range(4)))
        for value in (i, 7):  # the second is not asked for
            constant = partial(_constant, float(value))
            one = SurfaceSource("a", constant, space, (2,), data)
            surface = one.surface()
            assert surface({"x": 0.0}) == surface({"x": 1.0}) == i
    assert replace(one, grid_shape=(3,)).path != one.path
    assert replace(one, space=EmnistTask().space).path != one.path
    assert len(list(small_surfaces.iterdir())) == 2


def test_a_noisy_surface_is_refused() -> None:
    with pytest.raises(ValueError, match="surface=True is not allowed: False, where"):
        LandmineTask(noisy=True, surface=True)
