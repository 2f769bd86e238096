"""Draw the curves of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flwr_fbo.study.bandits import BanditExperiment
from flwr_fbo.study.base import Experiment, Run, curves_by_method
from flwr_fbo.study.experiment import TuningExperiment
from flwr_fbo.study.looks import looks_of, new_figure, save, title_of
from flwr_fbo.study.tradeoff import draw_series, draw_sweep


def draw(experiment: Experiment, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG: curves, or what they end at where that is the experiment's form."""
    if isinstance(experiment, TuningExperiment) and experiment.form == "tradeoff":
        draw_series(experiment, runs, path)
    elif isinstance(experiment, BanditExperiment) and experiment.sweep is not None:
        draw_sweep(experiment, experiment.sweep, runs, path)
    else:
        _draw_convergence(experiment, runs, path)


def _draw_convergence(experiment: Experiment, runs: Sequence[Run], path: Path) -> None:
    """Write a PNG: mean over runs as lines, one standard error as bands."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    iterations = experiment.iterations
    looks = looks_of(experiment)
    for name, curves in curves_by_method(experiment.methods, runs).items():
        mean = curves.mean(axis=0)
        color, style, marker = looks[name]
        axes.plot(
            iterations,
            mean,
            color=color,
            linestyle=style,
            marker=marker,
            markersize=4,
            markevery=max(1, len(mean) // 10),
            linewidth=1.6,
            label=experiment.label_of(name),
        )
        if len(curves) > 1:
            error = curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
            axes.fill_between(
                iterations, mean - error, mean + error, color=color, alpha=0.15, lw=0
            )
    x_label, y_label = experiment.axes
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title_of(experiment, runs), fontsize=10)
    if experiment.log_axes:
        axes.set(xscale="log", yscale="log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    many = len(experiment.methods) > 8
    axes.legend(frameon=False, fontsize=7 if many else None, ncols=2 if many else 1)
    save(figure, axes, runs, path)
