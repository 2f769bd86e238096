"""Many small minima at once: each is found, and found as if it were alone."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo.models.quasi_newton import minimize_all


class Counted:
    """Rosenbrock's functions, each with a valley of its own; counts evaluations."""

    def __init__(self, num: int) -> None:
        self.depth = np.linspace(1.0, 100.0, num)
        self.count = np.zeros(num, dtype=int)

    def __call__(
        self, x: FloatArray, index: NDArray[np.intp]
    ) -> tuple[FloatArray, FloatArray]:
        np.add.at(self.count, index, 1)
        (a, b), c = x.T, self.depth[index]
        off = b - a * a
        gradient = np.column_stack(
            [-4.0 * c * a * off - 2.0 * (1.0 - a), 2.0 * c * off]
        )
        return c * off**2 + (1.0 - a) ** 2, gradient


def run(
    functions: Any, starts: FloatArray, upper: float = 2.0, max_steps: int = 200
) -> tuple[FloatArray, FloatArray]:
    one, every = np.ones_like(starts), np.arange(len(starts))
    begin = starts, *functions(starts, every)
    return minimize_all(
        functions,
        begin,
        -2.0 * one,
        upper * one,
        0.3 * one,
        tolerance=1e-10,
        max_steps=max_steps,
    )


@pytest.fixture
def starts() -> FloatArray:
    return np.random.default_rng(0).uniform(-2.0, 0.5, (20, 2))


def test_every_minimum_is_found_in_few_evaluations(starts: FloatArray) -> None:
    functions = Counted(len(starts))
    points, values = run(functions, starts)
    np.testing.assert_allclose(points, 1.0, atol=1e-3)
    assert np.all(values < 1e-8)
    assert functions.count.max() < 100


def test_on_the_border_of_the_box_it_is_scipys(starts: FloatArray) -> None:
    functions = Counted(len(starts))
    points, values = run(functions, starts, upper=0.5)
    for i, start in enumerate(starts):

        def alone(x: FloatArray, i: int = i) -> tuple[float, FloatArray]:
            value, gradient = functions(x[None], np.array([i]))
            return float(value[0]), gradient[0]

        theirs = minimize(
            alone, start, jac=True, method="L-BFGS-B", bounds=[(-2.0, 0.5)] * 2
        )
        assert values[i] <= theirs.fun + 1e-6
    assert np.all(points <= 0.5)


def test_each_goes_as_if_it_were_alone(starts: FloatArray) -> None:
    """To the last bit, and at the same number of evaluations."""
    functions = Counted(len(starts))
    points, values = run(functions, starts)
    together = functions.count.copy()
    for i in range(len(starts)):
        alone = Counted(len(starts))

        def one(x: FloatArray, index: NDArray[np.intp], i: int = i) -> Any:
            return alone(x, index + i)  # noqa: B023

        point, value = run(one, starts[[i]])
        np.testing.assert_array_equal(point[0], points[i])
        assert value[0] == values[i]
        assert alone.count[i] == together[i]


def test_one_that_has_ended_is_not_evaluated_again(starts: FloatArray) -> None:
    starts[3] = 1.0  # its minimum
    functions = Counted(len(starts))
    points, _ = run(functions, starts)
    assert (
        functions.count[3]
        == 2
        < functions.count.min(initial=99, where=starts[:, 0] < 1)
    )
    np.testing.assert_array_equal(points[3], 1.0)


def test_it_ends_after_so_many_steps(starts: FloatArray) -> None:
    functions = Counted(len(starts))
    _, values = run(functions, starts, max_steps=3)
    assert functions.count.max() == 4
    assert np.all(values <= functions(starts, np.arange(len(starts)))[0])


def test_what_is_not_finite_is_stepped_back_from() -> None:
    def root(x: FloatArray, _: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Minimal at 0.01, not a number below 0, and steep where it begins."""
        with np.errstate(invalid="ignore"):
            value = x - 0.2 * np.sqrt(x)
            return value[:, 0], 1.0 - 0.1 / np.sqrt(x)

    starts = np.array([[0.9], [0.5]])
    begin = starts, *root(starts, np.arange(2))
    one = np.ones_like(starts)
    points, values = minimize_all(
        root, begin, -one, one, 3.0 * one, tolerance=1e-12, max_steps=100
    )
    np.testing.assert_allclose(points, 0.01, atol=1e-5)
    assert np.all(np.isfinite(values))


def test_equal_bounds_hold_a_coordinate(starts: FloatArray) -> None:
    functions, every = Counted(len(starts)), np.arange(len(starts))
    lower, upper = np.full_like(starts, -2.0), np.full_like(starts, 2.0)
    lower[:, 0] = upper[:, 0] = starts[:, 0]
    begin = starts, *functions(starts, every)
    points, _ = minimize_all(
        functions,
        begin,
        lower,
        upper,
        0.3 * np.ones_like(starts),
        tolerance=1e-12,
        max_steps=100,
    )
    np.testing.assert_array_equal(points[:, 0], starts[:, 0])
    expected = np.clip(starts[:, 0] ** 2, -2.0, 2.0)
    np.testing.assert_allclose(points[:, 1], expected, atol=1e-4)
