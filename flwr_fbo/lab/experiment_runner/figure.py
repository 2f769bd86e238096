"""Draw the curves of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fbo._common.pictures import drawable, fonts_for
from flwr_fbo.lab.experiment_runner.base import Experiment
from flwr_fbo.lab.experiment_runner.curves import curves_by_method
from flwr_fbo.lab.experiment_runner.ends import name_beside, set_title
from flwr_fbo.lab.experiment_runner.linear_bandit_experiment import BanditExperiment
from flwr_fbo.lab.experiment_runner.looks import (
    Target,
    draw_mean,
    line_styles,
    new_figure,
    save,
    seeds_of,
    title_of,
)
from flwr_fbo.lab.experiment_runner.runs import Run
from flwr_fbo.lab.experiment_runner.tradeoff import draw_series, draw_sweep
from flwr_fbo.lab.experiment_runner.transfer_experiment import TransferExperiment
from flwr_fbo.lab.experiment_runner.transfer_figure import (
    draw_agents,
    draw_lengths,
    draw_times,
)
from flwr_fbo.lab.experiment_runner.tuning_experiment import TuningExperiment

# Names of more lines than this stand beside a figure: below it they would be cut off.
_MOST_NAMES_BELOW = 12
_FORMS = {"lengths": draw_lengths, "times": draw_times, "agents": draw_agents}


def _own_form(experiment: Experiment) -> Callable[..., None] | None:
    """Return what draws a figure that does not show curves against steps."""
    if isinstance(experiment, TuningExperiment) and experiment.form == "tradeoff":
        return draw_series
    if isinstance(experiment, TransferExperiment):
        return _FORMS.get(experiment.form)
    sweep = experiment.sweep if isinstance(experiment, BanditExperiment) else None
    if sweep is not None and sweep.axis is not None:
        return draw_sweep
    return None


def has_own_form(experiment: Experiment) -> bool:
    """Return whether its figure does not show curves against steps."""
    return _own_form(experiment) is not None


def draw_own_form(axes: Any, experiment: Experiment, runs: Sequence[Run]) -> None:
    """Draw the figure of an experiment that has a form of its own."""
    own_form = _own_form(experiment)
    assert own_form is not None
    own_form(axes, experiment, runs)


def draw(experiment: Experiment, runs: Sequence[Run], path: Target) -> None:
    """Write a picture: curves against steps, or the experiment's own form.

    A PNG, unless matplotlib's settings say otherwise.
    """
    names = [experiment.name, *map(experiment.label_of, experiment.methods)]
    with fonts_for("".join(names)):
        if has_own_form(experiment):
            figure, axes = new_figure()
            draw_own_form(axes, experiment, runs)
            name_beside(figure, runs, path)
        elif experiment.counts_scalars:
            _draw_communication(experiment, runs, path)
        else:
            _draw_convergence(experiment, runs, path)


def _draw_convergence(
    experiment: Experiment, runs: Sequence[Run], path: Target
) -> None:
    """Write a PNG: mean over runs as lines, one standard error as bands."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    draw_curves(axes, experiment, curves_by_method(experiment.methods, runs))
    axes.set(xlabel=experiment.axes[0], ylabel=experiment.axes[1])
    set_title(axes, title_of(experiment, runs))
    if experiment.log_axes:
        axes.set(xscale="log", yscale="log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(experiment.methods) > _MOST_NAMES_BELOW:
        name_beside(figure, runs, path)
    else:
        _name_lines(figure, axes)
        save(figure, runs, path)


def _draw_communication(
    experiment: Experiment, runs: Sequence[Run], path: Target
) -> None:
    """Write a PNG of two panels: regret by round, and what was sent by then.

    On log scales: what learns nothing, or sends always, would press all others
    together. Who sends nothing is in the left one only.
    """
    figure, (left, right) = new_figure(num_panels=2)
    scalars = curves_by_method(experiment.methods, runs, "scalars")
    sent = {name: curves for name, curves in scalars.items() if curves.any()}
    draw_curves(left, experiment, curves_by_method(experiment.methods, runs))
    draw_curves(right, experiment, sent)
    x_label, y_label = experiment.axes
    left.set(xlabel=x_label, ylabel=y_label, yscale="log")
    right.set(xlabel=x_label, ylabel="scalars sent so far", yscale="log")
    title = drawable(f"{experiment.name}: {experiment.num_agents} agents")
    figure.suptitle(f"{title}, {seeds_of(experiment, runs)}", fontsize=10)
    _name_lines(figure, left)
    save(figure, runs, path)


def _name_lines(figure: Any, axes: Any) -> None:
    """Put the names of the lines below: a search for the best place may take long."""
    names = axes.get_legend_handles_labels()
    for ncols in (4, 3, 2, 1):
        legend = figure.legend(
            *names, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9
        )
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        if ncols > 1:
            legend.remove()


def draw_curves(
    axes: Any, experiment: Experiment, curves: Mapping[str, NDArray[np.float64]]
) -> None:
    """Draw a line and a band a method."""
    shown = slice(experiment.first_shown, None)
    x = experiment.steps[shown]
    for name, style in line_styles(experiment, dict.fromkeys(curves, x)).items():
        draw_mean(axes, x, curves[name][:, shown], linewidth=1.6, **style)
