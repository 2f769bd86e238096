"""``flwr-fbo claims NAME...``: what papers claim, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flwr_fbo._common.text import counted, humanised, printable
from flwr_fbo._common.validation import require
from flwr_fbo.cli.output import plain_errors
from flwr_fbo.lab.experiment_runner.base import Claim, Experiment, Run
from flwr_fbo.lab.experiment_runner.claims import Finding, finding_of, findings
from flwr_fbo.lab.experiment_runner.config import (
    builtin_experiments,
    find_experiment,
    load_experiment,
    published_experiments,
)
from flwr_fbo.lab.experiment_runner.estimates import Estimate
from flwr_fbo.lab.experiment_runner.results import place_of, read_results

_DETAILS = """\
| claim (section) | what came out | verdict |
| --- | --- | --- |"""
_SUMMARY = """\
| figure | seeds | CPU minutes | claims | confirmed | not over noise-only | contrary |
| --- | --- | --- | --- | --- | --- | --- |"""
_COUNTED = ("confirmed", "not told from noise-only", "not confirmed: the contrary")
_WHEN = {
    "final": "in the end",
    "mean": "in the mean",
    "scalars": "fewer scalars",
    "seconds": "fewer CPU seconds",
}


def claims(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE|PAPER...")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results: 'results' by default; those of a published "
            "figure are beside its TOML.",
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Print a Markdown table: what papers claim, and what came out.

    Each claim of an experiment has a row: NAME and FILE are as in `flwr-fbo run`. Each
    figure of a PAPER has one, which counts verdicts. These follow a rule: see
    flwr_fbo/lab/experiment_runner/claims.py. Without a name the command lists the
    experiments that have claims.

    Examples
    --------
    $ flwr-fbo claims
    $ flwr-fbo claims dp-fts-de/fig3d
    $ flwr-fbo claims dp-fts-de
    """
    with plain_errors(ValueError):
        if not experiments:
            typer.echo("\n".join(_listed()))
            return
        named = {name: _names_of(name) for name in experiments}
        found = {
            name: [_Found.of(experiment, output) for experiment in names]
            for name, names in named.items()
        }
    for number, (name, figures) in enumerate(found.items()):
        if named[name] == [name]:
            lines = [figures[0].title(), "", _DETAILS, *figures[0].details()]
        else:
            lines = [_SUMMARY, *(figure.summary() for figure in figures)]
        typer.echo(printable("\n".join([""] * (number > 0) + lines)))


def _names_of(name: str) -> list[str]:
    """Return the figures of a paper that have claims, or an experiment's own name."""
    figures = published_experiments()
    of_paper = [figure for figure in figures if figure.startswith(f"{name}/")]
    return [f for f in of_paper if load_experiment(figures[f]).claims] or [name]


def print_claims(experiment: Experiment, runs: Sequence[Run], console: Console) -> None:
    """Print what the runs say of the experiment's claims, if it has any."""
    if not experiment.claims:
        return
    console.print("\nWhat is claimed, and what these runs show (95% t intervals):")
    for finding in findings(experiment, runs):
        came_out = outcome(finding)
        text = f"- {finding.claim.text}: {came_out}: {finding.verdict}"
        console.print(text)


def _listed() -> list[str]:
    """Return the experiments that have claims, a line each."""
    files = {**builtin_experiments(), **published_experiments()}
    plans = {name: load_experiment(path) for name, path in files.items()}
    claimed = {name: plan.claims for name, plan in plans.items() if plan.claims}
    width = max(map(len, claimed), default=0)
    return [
        f"{name:{width}}  {counted(len(claims), 'claim')}"
        for name, claims in sorted(claimed.items())
    ]


@dataclass(frozen=True)
class _Found:
    """An experiment and those of its runs that are there.

    Attributes
    ----------
    plan : Experiment
        The experiment.
    runs : list of Run
        Its runs, in the order in which they ended.
    missing : str
        Text about a method that has not been run.
    """

    plan: Experiment
    runs: list[Run]
    missing: str

    @classmethod
    def of(cls, name: str, output: Path | None) -> _Found:
        """Return what there is of an experiment that has claims."""
        plan = find_experiment(name)
        expected = "one that has claims: flwr-fbo claims lists them"
        require(len(plan.claims) > 0, "experiment", name, expected)
        path = place_of(name, plan, output).rows
        if not path.is_file():
            return cls(plan, [], "not run")
        stored, runs = read_results(path)
        if stored.num_steps < plan.num_steps:
            ran = f"{stored.num_steps} of {plan.num_steps} {plan.step}s run"
            return cls(plan, [], ran)
        same = {
            method
            for method in {*plan.methods} & {*stored.methods}
            if stored.recipe(method) == plan.recipe(method)
        }
        of_plan = [run for run in runs if run.method in same]
        return cls(plan, of_plan, "not run" if of_plan else "run with other settings")

    def _minutes(self) -> str:
        return f"{sum(run.seconds for run in self.runs) / 60:.3g}"

    def title(self) -> str:
        """Return the figure, and what its runs took."""
        return (
            f"{self.plan.name}: {self.plan.description}. {self._minutes()} CPU minutes."
        )

    def details(self) -> list[str]:
        """Return one row per claim."""
        cells = [self._cells(claim) for claim in self.plan.claims]
        return [f"| {' | '.join(texts)} |" for _, *texts in cells]

    def summary(self) -> str:
        """Return the row of the figure, which counts verdicts."""
        cells = [self._cells(claim) for claim in self.plan.claims]
        seeds = "-".join(map(str, sorted({num_seeds for num_seeds, *_ in cells})))
        verdicts = [verdict for *_, verdict in cells]
        counts = [sum(v.startswith(verdict) for v in verdicts) for verdict in _COUNTED]
        row = [self.plan.name, seeds, self._minutes(), len(cells), *counts]
        return f"| {' | '.join(map(str, row))} |"

    def _cells(self, claim: Claim) -> tuple[int, str, str, str]:
        """Return the seeds, the text, what came out and the verdict."""
        plan, num_seeds, came_out, verdict = self.plan, 0, self.missing, "-"
        with suppress(ValueError):  # a method has not been run yet
            finding = finding_of(claim, plan, self.runs)
            num_seeds, came_out = finding.gain.num_runs, outcome(finding)
            verdict = finding.verdict
            if num_seeds < plan.num_seeds:
                verdict += f" ({num_seeds} of {plan.num_seeds} seeds)"
        text = f"{claim.text} ({claim.section or 'not in the paper'})"
        return num_seeds, text, came_out, verdict


def outcome(finding: Finding) -> str:
    """Return what came out for a claim, in figures."""
    claim = finding.claim
    of_scalars = claim.by == "scalars"
    text = f"{_WHEN[claim.by]} {_number(finding.gain, of_scalars)}"
    if finding.over_noise_only is not None:
        over = _number(finding.over_noise_only, of_scalars)
        text += f", over its noise-only {over}"
    if 1 < finding.gain.num_groups < finding.gain.num_runs:
        text += f" (± over {finding.gain.num_groups} functions)"
    return text


def _number(estimate: Estimate, of_scalars: bool) -> str:
    """Return a mean with its sign and, if it is known, its standard error.

    Four decimals, or none of a large number.
    """
    if of_scalars:
        return humanised(estimate.mean, estimate.standard_error, "+")
    values = (estimate.mean, estimate.standard_error)
    mean, error = (f"{v:+.4f}" if abs(v) < 100 else f"{v:+,.0f}" for v in values)
    return mean if estimate.num_runs < 2 else f"{mean} ± {error[1:]}"
