"""The part of a site's page about parameters: importances, slices, all at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo._common.pictures import BLUE
from flwr_fbo.algorithms.search.agent import Agent
from flwr_fbo.cli.report import page_figures as figures
from flwr_fbo.cli.report.page import Figure, Section, Table
from flwr_fbo.cli.report.parameter_axes import (
    MOST_SHOWN,
    all_short,
    is_log,
    is_whole,
    label_of,
    left_out,
    name_choices,
    number_of,
    short,
)
from flwr_fbo.cli.report.site_worth import scatter
from flwr_fbo.integrations.optuna_export import study_in_memory
from flwr_fbo.journal.tables import Trial

# With fewer trials, or parameters, there is nothing to weigh.
_FEWEST_TRIALS, _FEWEST_PARAMETERS = 4, 2
_BEST_SHARE = 0.25
# Ends of axes that stand side by side.
_MOST_AT_END = 7


def parameter_sections(done: Sequence[Trial], agent: Agent) -> list[Section]:
    """Return sections about the parameters of trials that have a value."""
    if not done:
        return []
    parameters = agent.space.distributions
    importances = importances_of(done, agent)
    order = sorted(parameters, key=lambda name: -importances.get(name, 0.0))
    shown = {name: parameters[name] for name in order[:MOST_SHOWN]}
    parts: list[str | Table | Figure] = [_importances(importances, len(done))]
    parts += [_slice(i, *item, done) for i, item in enumerate(shown.items())]
    parts += left_out(order)
    if len(shown) > 1 and len(done) > 1:
        parts.append(_parallel(shown, done, agent))
    return [Section("Parameters", parts)]


@one_blas_thread
def importances_of(done: Sequence[Trial], agent: Agent) -> dict[str, float]:
    """Return each parameter's share of the variance of values, by Optuna's fANOVA.

    Empty where there are too few trials or parameters, or all values are the same.
    """
    values = [trial.value for trial in done]
    too_few = len(done) < _FEWEST_TRIALS or agent.space.dim < _FEWEST_PARAMETERS
    if too_few or np.ptp(values) == 0.0:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    evaluator = FanovaImportanceEvaluator(seed=0)  # the same page each time
    study = study_in_memory(done, agent)
    try:
        found = get_param_importances(study, evaluator=evaluator)
    except (ValueError, RuntimeError):  # no tree has found anything that varies
        return {}
    known = {name: float(share) for name, share in found.items()}
    return known if all(map(math.isfinite, known.values())) else {}


def _importances(importances: Mapping[str, float], num_trials: int) -> str | Table:
    if not importances:
        return (
            "There are no importances: they need several trials with different values, "
            "and two parameters or more."
        )
    rows = [(name, f"{share:.0%}") for name, share in importances.items()]
    caption = (
        "Importance: each parameter's share of the variance of values, by Optuna's "
        f"fANOVA from {num_trials} trials. With few trials it is a rough guess."
    )
    return Table(("parameter", "importance"), rows, caption)


def _slice(
    index: int, name: str, distribution: BaseDistribution, done: Sequence[Trial]
) -> Figure:
    values = [trial.params[name] for trial in done]
    caption = (
        f"Chart of the value of each trial against {name}, marked by its source; "
        f"{_range(values, distribution)}."
    )

    def draw(axes: Any) -> None:
        scatter(axes, done, [number_of(value, distribution) for value in values])
        name_choices(axes.xaxis, distribution)

    about = f"slice-{index}", caption, (label_of(name), "value"), draw
    log, whole = is_log(distribution), is_whole(distribution)
    return figures.chart(*about, log_x=log, whole_x=whole)


def _range(values: Sequence[Any], distribution: BaseDistribution) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return f"{len(set(map(str, values)))} of {len(distribution.choices)} choices"
    return f"from {min(values):.4g} to {max(values):.4g}"


def _parallel(
    shown: Mapping[str, BaseDistribution], done: Sequence[Trial], agent: Agent
) -> Figure:
    """Return a line a trial through all its parameters, and its value."""
    sign = 1.0 if agent.direction == "maximize" else -1.0
    ranked = sorted(done, key=lambda trial: sign * trial.value)
    num_best = math.ceil(_BEST_SHARE * len(done))
    values = [trial.value for trial in done]
    low, high = min(values), max(values)
    caption = (
        f"Chart of all {len(done)} trials, a line each, through {len(shown)} "
        "parameters and the value. Each axis goes from its lowest to its highest "
        f"number. Thick, the best {num_best}."
    )

    def heights(trial: Trial) -> list[float]:
        params = [_height(trial.params[name], d) for name, d in shown.items()]
        spread = high - low
        return [*params, (trial.value - low) / spread if spread > 0 else 0.5]

    def draw(axes: Any) -> None:
        places = range(len(shown) + 1)
        for i, trial in enumerate(ranked):
            is_best = i >= len(ranked) - num_best
            look: dict[str, Any] = {"color": "#7f7f7f", "lw": 0.6, "alpha": 0.6}
            if is_best:
                look = {"color": BLUE, "lw": 2.0}
            axes.plot(places, heights(trial), **look)
        ends = [_ends(d) for d in shown.values()] + [(f"{low:.2g}", f"{high:.2g}")]
        for place, (bottom, top) in zip(places, ends, strict=True):
            axes.axvline(place, color="#7f7f7f", lw=0.5)
            axes.text(place, -0.03, bottom, va="top", ha="center")
            axes.text(place, 1.03, top, va="bottom", ha="center")
        names = all_short((*shown, "value"))
        axes.set_xticks(places, names, rotation=25, ha="right")
        axes.tick_params(axis="x", length=0)
        axes.set_yticks([])
        axes.set_ylim(-0.12, 1.12)
        axes.spines[["left", "bottom"]].set_visible(False)

    return figures.chart("parallel", caption, ("", ""), draw, whole_x=False)


def _height(value: Any, distribution: Any) -> float:
    """Return where a value lies on its axis, from 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        return number_of(value, distribution) / (len(distribution.choices) - 1)
    low, high, here = float(distribution.low), float(distribution.high), float(value)
    if distribution.log:
        low, high, here = math.log(low), math.log(high), math.log(here)
    return (here - low) / (high - low)


def _ends(distribution: Any) -> tuple[str, str]:
    """Return what stands at both ends of an axis."""
    if isinstance(distribution, CategoricalDistribution):
        first, *_, last = distribution.choices
        return short(first, _MOST_AT_END), short(last, _MOST_AT_END)
    return figures.plain(distribution.low), figures.plain(distribution.high)
