"""The page of an experiment: what `flwr-fbo run` has left in a results file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from flwr_fbo._common.text import counted, humanised
from flwr_fbo.lab.cli.claims_command import outcome, power_text
from flwr_fbo.lab.cli.experiment_tables import cells_of, headings_of
from flwr_fbo.lab.experiment_runner.base import Experiment, Run
from flwr_fbo.lab.experiment_runner.claims import (
    finding_of,
    findings,
    in_second_reading,
)
from flwr_fbo.lab.experiment_runner.config import find_experiment
from flwr_fbo.lab.experiment_runner.curves import (
    common_seeds,
    curves_by_method,
    summarize,
)
from flwr_fbo.lab.experiment_runner.estimates import Row
from flwr_fbo.lab.experiment_runner.figure import (
    draw_curves,
    own_form,
)
from flwr_fbo.lab.experiment_runner.results import read_results, version_of
from flwr_fbo.lab.experiment_runner.tuning_table import TuningRun
from flwr_fbo.study.report import charts
from flwr_fbo.study.report.page import (
    Part,
    Section,
    Table,
    bytes_text,
    params_text,
    whole_page,
)

_NOT_PRIVATE = (
    "An experiment: not private. Its noise is seeded, so that it can be repeated, or "
    "there is none; epsilon is what real noise of that size would have spent."
)


def experiment_page(path: Path) -> str:
    """Return the page of a results file.

    Raises
    ------
    ValueError
        If it is not a results file, is damaged, or no seed was run by all methods.
    OSError
        If it cannot be read.
    """
    stored, runs = read_results(path)
    experiment = _as_planned(stored)
    seeds = common_seeds(experiment.methods, runs)
    rows = summarize(experiment, runs)
    sections = [
        _summary(experiment, runs, rows),
        Section("Convergence", _convergence(experiment, runs, rows)),
        _claims(experiment, runs),
        _communication(experiment, runs),
        _settings_of_agents(experiment, runs, seeds[0]),
    ]
    description = f"{experiment.description}. " if experiment.description else ""
    labels = ", ".join(experiment.label_of(name) for name in experiment.methods)
    lead = (
        f"{description}{counted(experiment.num_agents, 'agent')}, "
        f"{experiment.num_steps} "
        f"{experiment.step}s, {counted(len(seeds), 'seed')}, methods {labels}."
    )
    private = all(run.private for run in runs)
    warning = "" if private else _NOT_PRIVATE
    title, settings = f"Experiment {experiment.name}", experiment.to_dict()
    return whole_page(title, lead, sections, settings, [version_of(path)], warning)


def _summary(
    experiment: Experiment, runs: Sequence[Run], rows: Mapping[str, Row]
) -> Section:
    title, notes = experiment.notes(runs, None)
    cells = [cells_of(row, experiment) for row in rows.values()]
    caption = f"{title}; ± one standard error over seeds."
    table = Table(headings_of(experiment), cells, caption)
    return Section("Summary", [*experiment.verdict(rows), table, *notes])


def _convergence(
    experiment: Experiment, runs: Sequence[Run], rows: Mapping[str, Row]
) -> list[Part]:
    curves = curves_by_method(experiment.methods, runs)
    x_label, y_label = experiment.axes
    ends = [
        f"{experiment.label_of(name)} {experiment.drawn(curve[:, -1]).mean():.4g}"
        for name, curve in curves.items()
    ]
    better = "lower" if experiment.falls else "higher"
    caption = (
        f"Chart of {y_label} against {x_label}, a line a method: mean over seeds; "
        f"bands are one standard error; {better} is better. "
        f"In the end: {'; '.join(ends)}."
    )

    figure = charts.chart(
        "convergence",
        caption,
        experiment.axes,
        lambda axes: draw_curves(axes, experiment, curves),
        log_x=experiment.log_axes,
        # What learns nothing would press all others together.
        log_y=experiment.log_axes or experiment.counts_scalars,
    )
    parts: list[Part] = [figure]
    if draw_form := own_form(experiment):
        caption = (
            "Chart in the form of the paper's figure: mean over seeds; bars and bands "
            "are one standard error."
        )
        draw = partial(draw_form, experiment=experiment, runs=runs)
        parts.append(charts.chart("form", caption, ("", ""), draw, whole_x=False))
    return parts


def _as_planned(stored: Experiment) -> Experiment:
    """Return the experiment with its description and claims, which results lack.

    They are those of the built-in or published experiment that it is, if it is one.
    """
    try:
        plan = find_experiment(stored.name)
    except (ValueError, OSError):
        return stored
    return plan if plan.to_dict() == stored.to_dict() else stored


def _claims(experiment: Experiment, runs: Sequence[Run]) -> Section:
    if not experiment.claims:
        return Section("Claims")
    rows = [
        (f.claim.text, outcome(f), f.verdict, power_text(f) or "-")
        for f in findings(experiment, runs)
    ]
    rows += [
        (f"{claim.text} (second reading)", outcome(f), f.verdict, power_text(f) or "-")
        for claim in experiment.claims
        if (second := in_second_reading(claim, experiment)) is not None
        for f in [finding_of(second, experiment, runs)]
    ]
    caption = "Differences are positive where the claim holds; ± one standard error."
    headings = ("claim", "what came out", "verdict", "power")
    table = Table(headings, rows, caption, numeric=False)
    line = "What a paper claims, and what these runs show (95% t intervals)."
    return Section("Claims", [line, table])


def _communication(experiment: Experiment, runs: Sequence[Run]) -> Section:
    sent = {name: experiment.num_sent(name, runs) for name in experiment.methods}
    if not any(sent.values()):
        return Section("Communication")
    rows = [
        (experiment.label_of(name), humanised(number), bytes_text(number))
        for name, number in sent.items()
        if number is not None
    ]
    caption = "Numbers sent in the end, by agents and server together."
    lines = [
        "A number is 8 bytes. What Flower adds to a message, and messages that are "
        "sent again, are not counted."
    ]
    if len(rows) < len(sent):
        lines.append("What agents send along a graph is not counted.")
    table = Table(("method", "numbers", "bytes"), rows, caption)
    return Section("Communication", [*lines, table])


def _settings_of_agents(
    experiment: Experiment, runs: Sequence[Run], seed: int
) -> Section:
    """Return each agent's best setting on one seed: an experiment has no secrets."""
    folded = []
    for run in runs:
        if run.seed != seed or not isinstance(run, TuningRun) or not run.best_settings:
            continue
        ends = [values[-1] for values in run.best_so_far]
        pairs = zip(ends, run.best_settings, strict=True)
        rows = [
            (f"agent {slot}", f"{end:.4g}", params_text(params))
            for slot, (end, params) in enumerate(pairs)
        ]
        label = experiment.label_of(run.method)
        headings = ("agent", "best value", "setting")
        caption = f"{label}, seed {seed}: where each agent had its best value."
        folded.append(Table(headings, rows, caption, numeric=False, folded=label))
    line = f"Seed {seed}, by method. In a real study only the site knows its own."
    return Section("Best settings of the agents", [line, *folded] if folded else [])
