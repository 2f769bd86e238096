"""Draw what longer messages, more time and more agents do: FTS, figs. 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flwr_fbo._common.pictures import in_legend
from flwr_fbo.lab.experiment_runner.curves import curves_by_method
from flwr_fbo.lab.experiment_runner.ends import (
    draw_level,
    draw_points,
    ends_of,
    in_the_end,
    set_title,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.looks import draw_mean, looks_of, title_of
from flwr_fbo.lab.experiment_runner.runs import Run
from flwr_fbo.lab.experiment_runner.transfer_experiment import TransferExperiment


def draw_lengths(
    axes: Any, experiment: TransferExperiment, runs: Sequence[Run]
) -> None:
    """Draw what is best in the end against how many numbers an agent sends.

    A line for each method that sends messages, through its curves; a level for each
    that sends none. As in fig. 2 of the paper of FTS.
    """
    _draw_at_places(axes, experiment, ends_of(experiment, runs), ".4f")
    axes.set(xscale="log", xlabel="numbers in a message", ylabel=in_the_end(experiment))
    set_title(axes, title_of(experiment, runs))


def draw_times(axes: Any, experiment: TransferExperiment, runs: Sequence[Run]) -> None:
    """Draw the best value so far against a target's CPU time, objective included.

    As in fig. 3 of the paper of FTS. Queries are taken to last equally long, the mean
    over the runs of a method, and initial points no time: times compare only where all
    runs were made on one machine.
    """
    looks = looks_of(experiment)
    first, num_queries = experiment.num_initial, experiment.num_queries
    part = np.arange(1, num_queries + 1) / num_queries
    names = experiment.methods
    times = curves_by_method(names, runs, "seconds")
    for name, curves in curves_by_method(names, runs).items():
        seconds = times[name].mean() / experiment.num_targets
        color, style, _ = looks[name]
        label = in_legend(f"{experiment.label_of(name)}: {seconds:.2g} s")
        x, y = part * seconds, curves[:, first:]
        draw_mean(axes, x, y, color=color, ls=style, label=label)
    x_label = "CPU seconds of a target, on a log scale"
    axes.set(xscale="log", xlabel=x_label, ylabel=experiment.axes[1])
    set_title(axes, title_of(experiment, runs))


def draw_agents(axes: Any, experiment: TransferExperiment, runs: Sequence[Run]) -> None:
    """Draw a target's CPU time against how many agents there are, as in fig. 3d.

    A line for each method that sends messages, a level for each that sends none. Times
    compare only where all runs were made on one machine.
    """
    seconds = curves_by_method(experiment.methods, runs, "seconds")
    of_target = {
        name: Estimate.of(values / experiment.num_targets)
        for name, values in seconds.items()
    }
    _draw_at_places(axes, experiment, of_target, ".2g")
    axes.set(xlabel="agents", ylabel="CPU seconds of a target", ylim=(0, None))
    set_title(axes, title_of(experiment, runs))


def _draw_at_places(
    axes: Any,
    experiment: TransferExperiment,
    values: Mapping[str, Estimate],
    precision: str,
) -> None:
    """Draw a method's values at its curves' places, or as a level if it has none."""
    looks = looks_of(experiment)
    for base, places in experiment.places.items():
        label = experiment.label_of(base)
        if places[base]:
            names = sorted(places, key=places.__getitem__)
            points = [(places[name], values[name]) for name in names]
            draw_points(axes, points, looks[base], label)
        else:
            mean = format(values[base].mean, precision)
            draw_level(axes, values[base], looks[base], f"{label}: {mean}")
