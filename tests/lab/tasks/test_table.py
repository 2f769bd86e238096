"""Objectives looked up in tables: what is between their points, and who has which."""

from pathlib import Path

import numpy as np
import pytest

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.lab.datasets.base import DataError, data_folder
from flwr_fbo.lab.tasks.table import Table, TableTask, weights_of
from flwr_fbo.space.search_space import SearchSpace

TABLES = {"hgb_magic_5d": (24, 5), "oboe_ksvm": (418, 3), "pimp_random_forest": (94, 5)}
needs_tables = pytest.mark.skipif(
    not (data_folder() / "surfaces").is_dir(),
    reason=f"no folder surfaces in {data_folder()}",
)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableTask:
    """Return a task of five data sets, the last of which is flat."""
    (tmp_path / "surfaces").mkdir()
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 5, (40, 2))
    x[:4] = [[-3, -3], [5, -3], [-3, 5], [5, 5]]
    y = np.array([10 * k + x[:, 0] + k * x[:, 1] for k in range(5)])
    y[4] = 7.0
    np.savez(tmp_path / "surfaces" / "made.npz", X=x, Y=y)
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    return TableTask(table="made")


def table_of(
    points: FloatArray, values: FloatArray, axes: list[int], shift: list[float]
) -> Table:
    weights, ends = weights_of(points, values), (values.min(), values.max())
    return Table(points, weights, *ends, np.array(axes), np.array(shift))


def test_values_are_those_of_the_table_and_linear_in_between() -> None:
    points = np.array([[0.0], [0.5], [1.0]])
    table = table_of(points, np.array([2.0, 6.0, 4.0]), [0], [0.0])
    values = [table({"x0": x}) for x in (0.0, 0.25, 0.5, 0.75, 1.0)]
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0, 0.75, 0.5], atol=1e-12)
    assert (table.lowest, table.highest) == (2.0, 6.0)


def test_axes_are_permuted_and_shifted_there_and_back() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    values = np.array([0.0, 1.0, 2.0, 3.0])  # x + 2 y
    turned = table_of(points, values, [1, 0], [1.0, 0.0])
    # The table's first axis is x1, shifted by half the circle: reflected.
    assert turned({"x0": 1.0, "x1": 1.0}) == pytest.approx(2 / 3)
    assert turned({"x0": 0.0, "x1": 0.0}) == pytest.approx(1 / 3)
    assert turned({"x0": 1.0, "x1": 0.0}) == pytest.approx(1.0)
    line = table_of(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]), [0], [0.75])
    found = [line({"x0": x}) for x in (0.0, 0.25, 0.75, 1.0)]
    assert found == pytest.approx([0.75, 1.0, 0.5, 0.25])


def test_each_seed_has_other_data_sets(task: TableTask) -> None:
    assert list(task.space) == ["x0", "x1"]
    task.check(4)
    with pytest.raises(ValueError, match="num_agents=5 is not allowed: at most 4"):
        task.check(5)
    setting = {"x0": 0.3, "x1": 0.8}
    orders = set()
    for seed in range(6):
        values = [task.objective(n, 4, seed)(setting) for n in range(4)]
        again = [task.objective(n, 4, seed)(setting) for n in range(4)]
        assert values == again
        assert len(set(values)) == 4
        assert all(0 <= value <= 1 for value in values)
        orders.add(tuple(values))
        assert sorted(values) == pytest.approx(sorted(next(iter(orders))))
    assert len(orders) > 1
    few = {task.objective(0, 1, seed)(setting) for seed in range(12)}
    assert len(few) > 1


def test_unrelated_ones_share_no_axes(task: TableTask) -> None:
    unrelated = TableTask(table="made", unrelated=True)
    corners = [{"x0": a, "x1": b} for a in (0.0, 1.0) for b in (0.0, 1.0)]

    def best(which: TableTask, client: int, seed: int) -> int:
        objective = which.objective(client, 4, seed)
        return int(np.argmax([objective(corner) for corner in corners]))

    every = [(n, seed) for n in range(4) for seed in range(8)]
    assert {best(task, *one) for one in every} <= {
        2,
        3,
    }  # the second axis may count for nothing
    assert {best(unrelated, *one) for one in every} == {0, 1, 2, 3}


def test_what_is_missing_or_damaged_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_FBO_DATA", str(tmp_path))
    gone = TableTask(table="gone")
    with pytest.raises(DataError, match=r"surfaces/gone\.npz is missing\. Fetch it"):
        gone.check(3)
    (tmp_path / "surfaces").mkdir()
    path = tmp_path / "surfaces" / "gone.npz"
    path.write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"gone\.npz is damaged"):
        gone.check(3)
    np.savez(path, X=np.zeros((3, 2)), Y=np.zeros((2, 5)))
    with pytest.raises(DataError, match="X of shape"):
        gone.check(3)
    for name in ("", "../gone", "a.npz"):
        with pytest.raises(ValueError, match="the name of a file of surfaces/"):
            TableTask(table=name)
    with pytest.raises(ValueError, match="unrelated=1 is not allowed"):
        TableTask(table="gone", unrelated=1)  # type: ignore[arg-type]


@needs_tables
@pytest.mark.parametrize(("name", "shape"), TABLES.items())
def test_real_tables_have_a_site_a_data_set(name: str, shape: tuple[int, int]) -> None:
    task = TableTask(table=name)
    space = SearchSpace(task.space)
    assert space.dim == shape[1]
    task.check(24)
    with pytest.raises(ValueError, match="one data set each"):
        task.check(shape[0] + 1)
    rng = np.random.default_rng(1)
    for client in (0, 23):
        objective = task.objective(client, 24, 0)
        values = [objective(space.from_unit(x)) for x in rng.random((50, space.dim))]
        assert 0 <= min(values) < max(values) <= 1


def test_a_constant_axis_is_an_error_that_names_the_file_and_the_axis(
    task: TableTask, tmp_path: Path
) -> None:
    path = tmp_path / "surfaces" / "made.npz"
    with np.load(path) as stored:
        x, y = stored["X"].copy(), stored["Y"]
    x[:, 1] = 3.0
    np.savez(path, X=x, Y=y)
    with pytest.raises(DataError, match=r"made\.npz.*x1"):
        task.objective(0, 2, seed=0)


def test_data_sets_of_one_grid_have_the_weights_that_each_has_alone() -> None:
    rng = np.random.default_rng(0)
    points, values = rng.random((30, 2)), rng.random((30, 4))
    together = weights_of(points, values)
    for i in range(4):
        np.testing.assert_allclose(together[:, i], weights_of(points, values[:, i]))
