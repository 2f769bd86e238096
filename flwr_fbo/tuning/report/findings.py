"""What the page of a tuning study's server tells first: from its releases alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.arrays import FloatArray
from flwr_fbo._common.pictures import BLUE
from flwr_fbo.journal.tables import LedgerRow
from flwr_fbo.space.search_space import SearchSpace
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.page import Figure, Part, Section, Table, params_text
from flwr_fbo.study.report.releases import NOTHING_RELEASED
from flwr_fbo.tuning.fed_warm_start.server import reported_in, verdict
from flwr_fbo.tuning.search.recommendation import (
    ReleasedFunction,
    released_function,
)
from flwr_fbo.tuning.search.study import TuningStudy

# Points along an axis, and along the side of a map.
_NUM_POINTS, _MAP_SIDE = 101, 41
# Values of a discrete parameter that are told apart.
_MOST_DOTS = 20
_SCORE = "released score"


def findings(
    stored: Mapping[str, Any],
    ledger: Sequence[LedgerRow],
    state: Mapping[str, NDArray[Any]],
) -> list[Section]:
    """Return the first sections of the page of a study's server.

    Parameters
    ----------
    stored : mapping of str to JSON value
        The study.
    ledger : sequence of LedgerRow
        Its releases.
    state : mapping of str to ndarray
        What the server's journal has besides.
    """
    study = TuningStudy.from_dict(stored)
    reported = reported_in(state)
    told = verdict(study, reported) if reported else ""
    helped = [Section("Whether it helped", [f"{told}."])] if told else []
    return [_recommendation(study, ledger), *helped]


def _recommendation(study: TuningStudy, ledger: Sequence[LedgerRow]) -> Section:
    """Return what the releases recommend, with a picture of their function."""
    released = released_function(study, ledger)
    if released is None:
        return Section("Recommendation", [NOTHING_RELEASED])
    found = released.recommendation
    first: Part = (
        f"{found.purpose}: none, because {found.reason} ({found.evidence})."
        if found.params is None
        else Table(
            ("parameter", "value"),
            list(found.params.items()),
            f"{found.purpose}: {found.evidence}.",
            numeric=False,
        )
    )
    # A cross would point to a setting that is not recommended.
    is_mapped = found.params is not None and study.space.dim == 2
    maps = [score_map(study.space, released)] if is_mapped else []
    return Section("Recommendation", [first, *slices(study.space, released), *maps])


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

    def chart(index: int, name: str) -> Figure:
        def draw(axes: Any) -> None:
            style = ".:" if len(curves[name][0]) <= _MOST_DOTS else "-"
            axes.plot(*curves[name], style, color=BLUE)
            # One scale for all: what hardly matters looks flat.
            axes.set_ylim(levels.min() - margin, levels.max() + margin)
            if threshold is not None:
                label = "chance and noise reach this in 5 % of studies"
                axes.axhline(threshold, color="#7f7f7f", ls="--", lw=1, label=label)

        caption = (
            f"Chart of the released score against {name}; all other parameters have "
            f"their best values. It is highest at {params_text({name: best[name]})}."
        )
        labels = (name, space.distributions[name]), _SCORE
        return charts.chart(f"slice-{index}", caption, labels, draw)

    shown = [chart(*item) for item in enumerate(order[: charts.MOST_SHOWN])]
    return [*shown, *charts.left_out(order)]


def score_map(space: SearchSpace, released: ReleasedFunction) -> Figure:
    """Return a map of the released function of two parameters."""
    (rows, y), (columns, x) = (_along(space, index, _MAP_SIDE) for index in (1, 0))
    points = np.stack(np.meshgrid(columns, rows), axis=-1)
    values = released.function(points.reshape(-1, 2)).reshape(points.shape[:2])
    best = space.from_unit(released.best)
    across, up = space.distributions.items()

    def draw(axes: Any) -> None:
        shades = axes.contourf(x, y, values, levels=10, cmap="Blues")
        axes.figure.colorbar(shades, ax=axes, label=_SCORE)
        here = (charts.number_of(best[name], kind) for name, kind in (across, up))
        # White with a dark edge: seen on all shades.
        axes.plot(*here, "X", ms=11, color="#ffffff", mec="#1b1b1b", clip_on=False)

    caption = (
        f"Map of the released score over {across[0]} and {up[0]}, dark where it is "
        f"high. The cross marks the highest score, at {params_text(best)}."
    )
    return charts.chart("map", caption, (across, up), draw)


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
    numbers = [charts.number_of(value, space.distributions[name]) for value in values]
    return points[:, index], np.array(numbers)
