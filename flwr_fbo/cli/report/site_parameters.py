"""The part of a site's page about parameters: importances, slices, all at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
)

from flwr_fbo._text import printable
from flwr_fbo.agents.tuning.base import Agent
from flwr_fbo.cli.report import page_figures as figures
from flwr_fbo.cli.report.page import Figure, Section, Table
from flwr_fbo.cli.report.site_worth import scatter
from flwr_fbo.experiment_runner.looks import BLUE, literal
from flwr_fbo.integrations.optuna_export import study_in_memory
from flwr_fbo.journal.trial_table import Trial
from flwr_fbo.models.threads import one_blas_thread

# With fewer trials, or parameters, there is nothing to weigh.
_FEWEST_TRIALS, _FEWEST_PARAMETERS = 4, 2
# More do not fit a page that is 400 pixels wide.
_MOST_AXES, _MOST_LETTERS, _MOST_IN_LABEL = 6, 12, 40
_BEST_SHARE = 0.25


def parameter_sections(done: Sequence[Trial], agent: Agent) -> list[Section]:
    """Return sections about the parameters of trials that have a value."""
    if not done:
        return []
    parameters = agent.space.distributions
    importances = importances_of(done, agent)
    order = sorted(parameters, key=lambda name: -importances.get(name, 0.0))
    shown = {name: parameters[name] for name in order[:_MOST_AXES]}
    parts: list[str | Table | Figure] = [_importances(importances, len(done))]
    if len(order) > len(shown):
        left = ", ".join(order[len(shown) :])
        parts.append(f"The charts leave out the less important ones: {left}.")
    parts += [_slice(i, *item, done) for i, item in enumerate(shown.items())]
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
    is_log = getattr(distribution, "log", False)

    def draw(axes: Any) -> None:
        if isinstance(distribution, CategoricalDistribution):
            choices = distribution.choices
            scatter(axes, done, [choices.index(value) for value in values])
            axes.set_xticks(range(len(choices)), [_short(choice) for choice in choices])
        else:
            scatter(axes, done, values)

    about = f"slice-{index}", caption, (_short(name, _MOST_IN_LABEL), "value"), draw
    counts = isinstance(distribution, IntDistribution)
    return figures.chart(*about, log_x=is_log, whole_x=counts)


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
        ends = [_ends(d) for d in shown.values()] + [(f"{low:.3g}", f"{high:.3g}")]
        for place, (bottom, top) in zip(places, ends, strict=True):
            axes.axvline(place, color="#7f7f7f", lw=0.5)
            text: dict[str, Any] = {"ha": "center", "fontsize": 8}
            axes.text(place, -0.03, bottom, va="top", **text)
            axes.text(place, 1.03, top, va="bottom", **text)
        names = [_short(name) for name in (*shown, "value")]
        axes.set_xticks(places, names, rotation=25, ha="right")
        axes.tick_params(axis="x", length=0)
        axes.set_yticks([])
        axes.set_ylim(-0.12, 1.12)
        axes.spines[["left", "bottom"]].set_visible(False)

    return figures.chart("parallel", caption, ("", ""), draw, whole_x=False)


def _height(value: Any, distribution: Any) -> float:
    """Return where a value lies on its axis, from 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices.index(value) / (len(distribution.choices) - 1)
    low, high, here = float(distribution.low), float(distribution.high), float(value)
    if distribution.log:
        low, high, here = math.log(low), math.log(high), math.log(here)
    return (here - low) / (high - low)


def _ends(distribution: Any) -> tuple[str, str]:
    """Return what stands at both ends of an axis."""
    if isinstance(distribution, CategoricalDistribution):
        return _short(distribution.choices[0]), _short(distribution.choices[-1])
    return f"{distribution.low:.3g}", f"{distribution.high:.3g}"


def _short(value: Any, most: int = _MOST_LETTERS) -> str:
    """Return a name as matplotlib can draw it, in so many letters."""
    text = printable(str(value))
    return literal(text if len(text) <= most else f"{text[: most - 1]}…")
