"""What a server's page says of a released function."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.report.page import Figure
from flwr_fbo.tuning.report.findings import score_map, slices
from flwr_fbo.tuning.search.recommendation import Recommendation, ReleasedFunction


def test_a_released_function_that_is_flat_is_drawn(tmp_path: Path) -> None:
    space = SearchSpace({"x": FloatDistribution(0, 1), "y": FloatDistribution(0, 1)})
    flat = ReleasedFunction(
        lambda x: np.zeros(len(x)), np.array([0.5, 0.5]), Recommendation()
    )
    assert "svg" in score_map(space, flat).svg
    assert len(slices(space, flat)) == 2


MIXED = SearchSpace(
    {
        "rate": FloatDistribution(1e-4, 1.0, log=True),
        "kernel": CategoricalDistribution(["rbf", "poly", "linear"]),
        "depth": IntDistribution(1, 4),
        "step": FloatDistribution(0.0, 1.0, step=0.25),
    }
)


def _released(space: SearchSpace, weights: list[float]) -> ReleasedFunction:
    """Return a sum of coordinates, highest in the upper corner."""
    best = space.snap(np.ones(space.dim))
    return ReleasedFunction(lambda x: x @ np.array(weights), best, Recommendation())


def _texts(figure: Figure) -> list[str]:
    return [unescape(t) for t in re.findall("<text[^>]*>(.*?)</text>", figure.svg)]


def test_axes_of_a_released_function_have_the_values_of_parameters() -> None:
    """The most important parameter comes first."""
    charts = slices(MIXED, _released(MIXED, [1.0, 4.0, 3.0, 2.0]))
    kernel, depth, step, rate = (one for one in charts if isinstance(one, Figure))
    assert {"kernel", "rbf", "poly", "linear"} <= set(_texts(kernel))
    assert {"depth", "1", "2", "3", "4"} <= set(_texts(depth))
    assert "1.5" not in _texts(depth)
    assert {"step", "0.0", "1.0"} <= set(_texts(step))
    assert {"rate", "0.0001", "0.01", "1"} <= set(_texts(rate))
    assert "highest at kernel = linear." in kernel.caption


@pytest.mark.parametrize("names", [("rate", "kernel"), ("depth", "step")])
def test_a_map_has_the_values_of_both_parameters(names: tuple[str, str]) -> None:
    space = SearchSpace({name: MIXED.distributions[name] for name in names})
    figure = score_map(space, _released(space, [1.0, 1.0]))
    known = {
        "rate": {"rate", "0.0001", "1"},
        "kernel": {"kernel", "rbf", "poly", "linear"},
        "depth": {"depth", "1", "2", "3", "4"},
        "step": {"step", "0.0", "1.0"},
    }
    for name in names:
        assert known[name] <= set(_texts(figure))


def test_a_server_draws_the_six_most_important_parameters() -> None:
    space = SearchSpace({f"p{i}": FloatDistribution(0, 1) for i in range(8)})
    *charts, text = slices(space, _released(space, [float(i) for i in range(8)]))
    labels = [set(_texts(one)) for one in charts if isinstance(one, Figure)]
    assert [f"p{i}" in names for i, names in zip(range(7, 1, -1), labels, strict=True)]
    assert text == "The charts leave out the less important ones: p1, p0."
