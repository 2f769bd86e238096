"""The part of a server's page that draws the function that was released."""

from __future__ import annotations

from typing import Any

import numpy as np

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import BLUE
from flwr_fbo.algorithms.search.recommendation import ReleasedFunction
from flwr_fbo.cli.report import page_figures as figures
from flwr_fbo.cli.report.page import Figure, params_text
from flwr_fbo.cli.report.parameter_axes import (
    MOST_SHOWN,
    is_log,
    is_whole,
    label_of,
    left_out,
    name_choices,
    number_of,
)
from flwr_fbo.space.search_space import SearchSpace

# Points along an axis, and along the side of a map.
_NUM_POINTS, _MAP_SIDE = 101, 41
# Values of a discrete parameter that are told apart.
_MOST_DOTS = 20
_SCORE = "released score"


def slices(space: SearchSpace, released: ReleasedFunction) -> list[str | Figure]:
    """Return a chart of the released function along each axis, through its best.

    The parameters that matter most come first.
    """
    curves = {}
    for index, name in enumerate(space.distributions):
        positions, numbers = _along(space, index, _NUM_POINTS)
        x = np.tile(released.best, (len(positions), 1))
        x[:, index] = positions
        curves[name] = numbers, released.function(x)
    order = sorted(curves, key=lambda name: -np.ptp(curves[name][1]))
    best, threshold = space.from_unit(released.best), released.recommendation.threshold
    all_scores = np.concatenate([scores for _, scores in curves.values()])
    levels = np.append(all_scores, [] if threshold is None else threshold)
    margin = 0.05 * np.ptp(levels) or 1.0

    def draw(axes: Any, name: str, style: str) -> None:
        axes.plot(*curves[name], style, color=BLUE)
        # One scale for all: what hardly matters looks flat.
        axes.set_ylim(levels.min() - margin, levels.max() + margin)
        name_choices(axes.xaxis, space.distributions[name])
        if threshold is not None:
            label = "chance and noise reach this in 5 % of studies"
            axes.axhline(threshold, color="#7f7f7f", ls="--", lw=1, label=label)

    def chart(index: int, name: str) -> Figure:
        distribution = space.distributions[name]
        caption = (
            f"Chart of the released score against {name}; all other parameters have "
            f"their best values. It is highest at {params_text({name: best[name]})}."
        )
        style = ".:" if len(curves[name][0]) <= _MOST_DOTS else "-"
        return figures.chart(
            f"slice-{index}",
            caption,
            (label_of(name), _SCORE),
            lambda axes: draw(axes, name, style),
            log_x=is_log(distribution),
            whole_x=is_whole(distribution),
        )

    shown = [chart(*item) for item in enumerate(order[:MOST_SHOWN])]
    return [*shown, *left_out(order)]


def score_map(space: SearchSpace, released: ReleasedFunction) -> Figure:
    """Return a map of the released function of two parameters."""
    (rows, y), (columns, x) = (_along(space, index, _MAP_SIDE) for index in (1, 0))
    points = np.stack(np.meshgrid(columns, rows), axis=-1)
    values = released.function(points.reshape(-1, 2)).reshape(points.shape[:2])
    best = space.from_unit(released.best)
    (x_name, x_kind), (y_name, y_kind) = space.distributions.items()

    def draw(axes: Any) -> None:
        shades = axes.contourf(x, y, values, levels=10, cmap="Blues")
        axes.figure.colorbar(shades, ax=axes, label=_SCORE)
        here = number_of(best[x_name], x_kind), number_of(best[y_name], y_kind)
        # White with a dark edge: seen on all shades.
        axes.plot(*here, "X", ms=11, color="#ffffff", mec="#1b1b1b", clip_on=False)
        name_choices(axes.xaxis, x_kind)
        name_choices(axes.yaxis, y_kind)

    caption = (
        f"Map of the released score over {x_name} and {y_name}, dark where it is high. "
        f"The cross marks the highest score, at {params_text(best)}."
    )
    return figures.chart(
        "map",
        caption,
        (label_of(x_name), label_of(y_name)),
        draw,
        log_x=is_log(x_kind),
        log_y=is_log(y_kind),
        whole_x=is_whole(x_kind),
        whole_y=is_whole(y_kind),
    )


def _along(
    space: SearchSpace, index: int, num_points: int
) -> tuple[FloatArray, FloatArray]:
    """Return positions along one axis of the cube, and the parameter's numbers there.

    Each value of a discrete axis is there once.
    """
    points = np.tile(space.center, (num_points, 1))
    points[:, index] = np.linspace(0.0, 1.0, num_points)
    points = np.unique(space.snap_discrete(points), axis=0)
    name = list(space.distributions)[index]
    values = [space.from_unit(point)[name] for point in points]
    distribution = space.distributions[name]
    numbers = [number_of(value, distribution) for value in values]
    return points[:, index], np.array(numbers)
