"""The page of a site that tunes, for the site: from the journal that its client keeps.

The site sees whether tuning, and the federation, were worth it, and which
parameters mattered: importances, slices, and all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution

from flwr_fbo._common.arrays import one_blas_thread
from flwr_fbo._common.fields import from_json
from flwr_fbo._common.pictures import BLUE, ORANGE, VERMILION
from flwr_fbo._common.text import counted
from flwr_fbo.journal.journal import Journal
from flwr_fbo.journal.journal_file import has_journal
from flwr_fbo.journal.tables import Trial, TrialSource
from flwr_fbo.privacy.filters import Spent
from flwr_fbo.privacy.guarantee import Guarantee, PrivacyUnit
from flwr_fbo.privacy.spending_ledger import (
    DEFAULT_DELTA,
    NOTES,
    Facts,
    Promise,
    SpendingLedger,
    notes_of,
)
from flwr_fbo.privacy.spending_ledger import FILE_NAME as LEDGER_NAME
from flwr_fbo.study.conditions import total_guarantee, totals_of
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.page import (
    FOR_THE_SITE,
    Figure,
    Part,
    Section,
    Table,
    journal_page,
    params_text,
)
from flwr_fbo.tuning.search.agent import Agent
from flwr_fbo.tuning.search.agent_journal import recorded_agent
from flwr_fbo.tuning.search.comparison import Comparison
from flwr_fbo.tuning.search.optuna_trials import study_in_memory
from flwr_fbo.tuning.search.settings import Direction
from flwr_fbo.tuning.site.tuning_journals import recorded_comparison

# Marker and colour of each source: told apart without colour too.
LOOKS: dict[TrialSource, tuple[str, str]] = {
    "enqueued": ("D", ORANGE),
    "start": ("s", "#7f7f7f"),
    "own search": ("o", BLUE),
    "federation": ("^", VERMILION),
}
_OWN_SOURCES = ("enqueued", "start", "own search")
# With fewer trials, or parameters, there is nothing to weigh.
_FEWEST_TRIALS, _FEWEST_PARAMETERS = 4, 2
_BEST_SHARE = 0.25
# Ends of axes that stand side by side.
_MOST_AT_END = 7


def tuning_page(journal: Journal) -> str:
    """Return the page of an agent that tunes."""
    agent = recorded_agent(journal)
    trials = journal.trials()
    done = [trial for trial in trials if trial.state == "complete"]
    ended = [trial for trial in trials if trial.state != "running"]
    comparison = recorded_comparison(journal)
    privacy = privacy_section(journal)
    journal.close()  # its site may need it before all is drawn
    sections = [
        _best(agent.best_value, agent.best_setting, comparison),
        worth_section(ended, agent.direction, comparison),
        privacy,
        _convergence(done, agent.direction),
        parameter_section(done, agent),
        _trials(trials),
    ]
    num_trials = counted(len(trials), "trial")
    lead = f"Agent {agent.slot}: {num_trials}, {len(done)} with a value."
    title = "A site's study of tuning"
    return journal_page(title, lead, sections, journal, warning=FOR_THE_SITE)


def privacy_section(journal: Journal) -> Section:
    """Return what a site was charged: in this study, and in all of its ledger."""
    promise = from_json(Promise, journal.identity["promise"])
    notes = notes_of(journal.load_array(NOTES))
    delta = DEFAULT_DELTA if promise.delta is None else promise.delta
    terms = Guarantee(promise.unit)
    promised = Spent((promise.charges,), promise.num_releases)
    rows = [
        ("promised by this study", promised.num_releases, promised.text(delta, terms)),
        ("charged in this study", *_charged(notes, delta, promise.unit)),
    ]
    path = journal.path
    ledger = None if path is None else path.with_name(LEDGER_NAME)
    if ledger is not None and has_journal(ledger):
        with Journal.snapshot(ledger) as kept:
            owner = int(journal.identity["slot"])
            every = SpendingLedger(kept).facts(owner)
        for unit in totals_of(every):
            rows.append(("charged in all studies", *_charged(every, delta, unit)))
    parts: list[Part] = []
    if not promise.private:
        parts.append("NOT PRIVATE: this study promises no epsilon.")
    caption = (
        "Limits are in the site's node config, which `flwr-fbo check-site` reads, and "
        "in its app."
    )
    parts.append(Table(("what", "releases", "spent"), rows, caption, numeric=False))
    return Section("Privacy spent", parts)


def _charged(
    facts: Sequence[Facts], delta: float, unit: PrivacyUnit
) -> tuple[int, str]:
    spent = Spent.of(unit, facts)
    return spent.num_releases, spent.text(delta, total_guarantee(facts, unit))


def _best(
    value: float | None, setting: dict[str, Any] | None, comparison: Comparison | None
) -> Section:
    if value is None or setting is None:
        return Section("Best setting", ["No trial has a value yet."])
    is_used = comparison is None or comparison.tuned_is_better
    given = "it" if is_used else "the default, which was kept on held-out data,"
    caption = (
        f"Value {value:.6g}. `best_params` gives {given} to the site's own code. With "
        "`fbo-tuned=false` in a run config it gives the default."
    )
    table = Table(("parameter", "value"), list(setting.items()), caption, numeric=False)
    return Section("Best setting", [table])


def _trials(trials: list[Trial]) -> Section:
    rows = [
        (
            trial.number,
            trial.iteration + 1,
            datetime.fromtimestamp(trial.started).isoformat(" ", "seconds"),
            f"{trial.value:.6g}" if trial.state == "complete" else trial.state,
            trial.source,
            params_text(trial.params),
        )
        for trial in trials
    ]
    headings = ("trial", "round", "started", "value", "source", "setting")
    folded = counted(len(trials), "trial")
    return Section(
        "Trials", [Table(headings, rows, "All trials, in order.", False, folded)]
    )


def worth_section(
    trials: Sequence[Trial], direction: Direction, comparison: Comparison | None
) -> Section:
    """Return what the default, the site's own trials and the federation gave.

    Parameters
    ----------
    trials : sequence of Trial
        All that have ended.
    direction : {"maximize", "minimize"}
        Which values are better.
    comparison : Comparison, optional
        With the default on held-out data, if one was made.
    """
    default = [trial for trial in trials if trial.source == "enqueued"][:1]
    own = [trial for trial in trials if trial.source in _OWN_SOURCES]
    federation = [trial for trial in trials if trial.source == "federation"]
    rows = [
        ("default (enqueued first)", *_spent(default, direction)),
        ("own trials (enqueued, start, own search)", *_spent(own, direction)),
        ("federation", *_spent(federation, direction)),
    ]
    caption = "Evaluations spent, and the best value of each kind of trials."
    headings = ("trials", "evaluations", "failed", "best value")
    parts = [
        _about_federation(own, federation, direction),
        _about_default(default, [*own, *federation], direction),
        Table(headings, rows, caption),
        *_held_out(comparison, best_of(trials, direction)),
    ]
    return Section("Was it worth it?", parts)


def best_of(trials: Sequence[Trial], direction: Direction) -> Trial | None:
    """Return the trial with the best value, the first of several; None without any."""
    done = [trial for trial in trials if trial.state == "complete"]
    choose = max if direction == "maximize" else min
    return choose(done, key=lambda trial: trial.value) if done else None


def _spent(trials: Sequence[Trial], direction: Direction) -> tuple[int, int, str]:
    best = best_of(trials, direction)
    failed = sum(trial.state == "failed" for trial in trials)
    return len(trials), failed, "-" if best is None else f"{best.value:.6g}"


def _about_federation(
    own: Sequence[Trial], federation: Sequence[Trial], direction: Direction
) -> str:
    if not federation:
        return "No trial came from the federation: this site searched on its own."
    ours, theirs = best_of(own, direction), best_of(federation, direction)
    if theirs is None:
        return f"All trials from the federation failed: {_evaluations(federation)}."
    if ours is None:
        return "All of the site's own trials failed. The best setting is another's."
    spent = (
        f"{theirs.value:.4g} from the federation in {_evaluations(federation)}, "
        f"{ours.value:.4g} from the site's own trials in {_evaluations(own)}. "
        "One study does not say what the site would have found alone."
    )
    if best_of([ours, theirs], direction) is theirs:
        return f"The best setting came from the federation: {spent}"
    return f"The federation brought no better setting: {spent}"


def _about_default(
    default: Sequence[Trial], trials: Sequence[Trial], direction: Direction
) -> str:
    if not default:
        return (
            "No setting was enqueued, so the tuning has not evaluated the default: "
            "`enqueue=[default]` does it first."
        )
    known, best = best_of(default, direction), best_of(trials, direction)
    if known is None:
        return "The default failed in the tuning."
    assert best is not None  # the default is one of them
    if best.value == known.value:
        return f"No trial is better than the default, {known.value:.4g}."
    return (
        f"The best trial has {best.value:.4g}, the default {known.value:.4g}. The best "
        "of many trials looks better than it is: a comparison on held-out data tells."
    )


def _held_out(comparison: Comparison | None, best: Trial | None) -> list[Part]:
    if comparison is None:
        return [
            "The tuned setting was not compared with the default on held-out data: "
            "give `compare` to `best_params`, `with_tuning` or `add_tuning`."
        ]
    rows = [
        ("default", _score(comparison.default_score), params_text(comparison.default)),
        ("tuned", _score(comparison.tuned_score), params_text(comparison.tuned)),
    ]
    caption = "Scores on held-out data of this site, before its training."
    table = Table(("setting", "score", "parameters"), rows, caption, numeric=False)
    lines: list[Part] = [f"On held-out data: {comparison.outcome}", table]
    if best is not None and best.params != comparison.tuned:
        lines.append("The best setting has changed since this comparison.")
    return lines


def _score(score: float) -> str:
    return "failed" if np.isnan(score) else f"{score:.6g}"


def _evaluations(trials: Sequence[Trial]) -> str:
    return counted(len(trials), "evaluation")


def _convergence(done: Sequence[Trial], direction: Direction) -> Section:
    """Return a chart of all values by source, and of the best so far."""
    if not done:
        return Section("Convergence")
    values = np.array([trial.value for trial in done])
    better = np.maximum if direction == "maximize" else np.minimum
    best = better.accumulate(values)
    counts = {s: sum(trial.source == s for trial in done) for s in LOOKS}
    words = ", ".join(f"{count} {s}" for s, count in counts.items() if count)
    caption = (
        f"Chart of the value of each trial, marked by its source ({words}), and the "
        f"best so far, as a line; {'higher' if direction == 'maximize' else 'lower'} "
        f"is better. In the end: {best[-1]:.4g}."
    )

    def draw(axes: Any) -> None:
        numbers = [trial.number for trial in done]
        axes.plot(numbers, best, color=BLUE, ds="steps-post", label="best so far")
        _scatter(axes, done, numbers)

    figure = charts.chart("trials", caption, ("trial", "value"), draw)
    return Section("Convergence", [figure])


def _scatter(axes: Any, done: Sequence[Trial], x: Sequence[float]) -> None:
    """Draw the value of each trial against x, marked by its source."""
    for source, (marker, color) in LOOKS.items():
        here = [
            (place, trial.value)
            for place, trial in zip(x, done, strict=True)
            if trial.source == source
        ]
        if here:
            axes.plot(*zip(*here, strict=True), marker, ms=4, color=color, label=source)


def parameter_section(done: Sequence[Trial], agent: Agent) -> Section:
    """Return a section about the parameters of trials that have a value."""
    if not done:
        return Section("Parameters")
    parameters = agent.space.distributions
    importances = importances_of(done, agent)
    order = sorted(parameters, key=lambda name: -importances.get(name, 0.0))
    shown = {name: parameters[name] for name in order[: charts.MOST_SHOWN]}
    parts: list[Part] = []
    if importances:
        rows = [(name, f"{share:.0%}") for name, share in importances.items()]
        caption = (
            "Importance: each parameter's share of the variance of values, by Optuna's "
            f"fANOVA from {len(done)} trials. With few trials it is a rough guess."
        )
        parts.append(Table(("parameter", "importance"), rows, caption))
    else:
        parts.append(
            "There are no importances: they need several trials with different values, "
            "and two parameters or more."
        )
    parts += [_slice(i, *item, done) for i, item in enumerate(shown.items())]
    parts += charts.left_out(order)
    if len(shown) > 1 and len(done) > 1:
        parts.append(_parallel(shown, done, agent))
    return Section("Parameters", parts)


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


def _slice(
    index: int, name: str, distribution: BaseDistribution, done: Sequence[Trial]
) -> Figure:
    values = [trial.params[name] for trial in done]
    if isinstance(distribution, CategoricalDistribution):
        tried = f"{len(set(map(str, values)))} of {len(distribution.choices)} choices"
    else:
        tried = f"from {min(values):.4g} to {max(values):.4g}"
    caption = (
        f"Chart of the value of each trial against {name}, marked by its source; "
        f"{tried}."
    )
    numbers = [charts.number_of(value, distribution) for value in values]
    labels = (name, distribution), "value"
    return charts.chart(
        f"slice-{index}", caption, labels, lambda axes: _scatter(axes, done, numbers)
    )


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

    def draw(axes: Any) -> None:
        places = range(len(shown) + 1)
        for i, trial in enumerate(ranked):
            is_best = i >= len(ranked) - num_best
            look: dict[str, Any] = {"color": "#7f7f7f", "lw": 0.6, "alpha": 0.6}
            if is_best:
                look = {"color": BLUE, "lw": 2.0}
            heights = [_height(trial.params[name], d) for name, d in shown.items()]
            heights += [(trial.value - low) / (high - low) if high > low else 0.5]
            axes.plot(places, heights, **look)
        ends = [_ends(d) for d in shown.values()] + [(f"{low:.2g}", f"{high:.2g}")]
        for place, (bottom, top) in zip(places, ends, strict=True):
            axes.axvline(place, color="#7f7f7f", lw=0.5)
            axes.text(place, -0.03, bottom, va="top", ha="center")
            axes.text(place, 1.03, top, va="bottom", ha="center")
        names = charts.all_short((*shown, "value"))
        axes.set_xticks(places, names, rotation=25, ha="right")
        axes.tick_params(axis="x", length=0)
        axes.set_yticks([])
        axes.set_ylim(-0.12, 1.12)
        axes.spines[["left", "bottom"]].set_visible(False)

    return charts.chart("parallel", caption, ("", ""), draw, whole_x=False)


def _height(value: Any, distribution: Any) -> float:
    """Return where a value lies on its axis, from 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        return charts.number_of(value, distribution) / (len(distribution.choices) - 1)
    low, high, here = float(distribution.low), float(distribution.high), float(value)
    if distribution.log:
        low, high, here = math.log(low), math.log(high), math.log(here)
    return (here - low) / (high - low)


def _ends(distribution: Any) -> tuple[str, str]:
    """Return what stands at both ends of an axis."""
    if isinstance(distribution, CategoricalDistribution):
        first, *_, last = distribution.choices
        return charts.short(first, _MOST_AT_END), charts.short(last, _MOST_AT_END)
    return charts.plain(distribution.low), charts.plain(distribution.high)
