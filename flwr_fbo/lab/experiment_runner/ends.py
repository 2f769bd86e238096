"""What curves end at, as the points and levels of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flwr_fbo._common.pictures import in_legend
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.curves import curves_by_method
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.looks import Target, save
from flwr_fbo.lab.experiment_runner.methods import Look
from flwr_fbo.lab.experiment_runner.runs import Run
from flwr_fbo.lab.experiment_runner.tuning_table import OptimisationExperiment


def ends_of(experiment: Experiment, runs: Sequence[Run]) -> dict[str, Estimate]:
    """Return what the methods' curves end at."""
    curves = curves_by_method(experiment.methods, runs)
    return {name: Estimate.of(curve[:, -1]) for name, curve in curves.items()}


def in_the_end(experiment: OptimisationExperiment) -> str:
    """Return the label of an axis of final best values."""
    return f"best {experiment.task.unit}, evaluation {experiment.num_evaluations}"


def draw_level(axes: Any, estimate: Estimate, look: Look, label: str) -> None:
    """Draw an estimate that does not depend on x, with one standard error."""
    color, style, _ = look
    mean, error = estimate.mean, estimate.standard_error
    axes.axhline(mean, color=color, ls=style, lw=1.4, label=in_legend(label))
    axes.axhspan(mean - error, mean + error, color=color, alpha=0.1, lw=0)


def draw_points(
    axes: Any, points: Sequence[tuple[float, Estimate]], look: Look, label: str
) -> None:
    """Draw estimates at their x, with bars of one standard error."""
    color, style, marker = look
    axes.errorbar(
        [x for x, _ in points],
        [estimate.mean for _, estimate in points],
        [estimate.standard_error for _, estimate in points],
        label=in_legend(label),
        color=color,
        marker=marker,
        ls=style,
        capsize=3,
    )


def label_values(
    axes: Any, scale: str, values: Sequence[float], texts: Sequence[str]
) -> None:
    """Put ticks on the x axis at some values only."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale(scale)
    axes.set_xticks(values, texts)
    axes.xaxis.set_minor_locator(NullLocator())


def set_title(axes: Any, title: str) -> None:
    """Write what the figure shows above its axes."""
    axes.set_title(title, fontsize=10)


def name_beside(figure: Any, runs: Sequence[Run], path: Target) -> None:
    """Write the PNG, with its legend beside it."""
    # More names would be cut off at the lower edge.
    size = 8 if len(figure.axes[0].get_legend_handles_labels()[1]) <= 26 else 6.5
    figure.legend(loc="outside right upper", frameon=False, fontsize=size)
    save(figure, runs, path)
