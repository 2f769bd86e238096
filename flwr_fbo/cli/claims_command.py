"""``flwr-fbo claims NAME...``: what papers claim, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flwr_fbo._text import printable
from flwr_fbo._validation import require
from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.cli.tables import count
from flwr_fbo.experiment_runner.base import Claim, Experiment, Run
from flwr_fbo.experiment_runner.claims import Finding, finding_of, findings
from flwr_fbo.experiment_runner.config import (
    builtin_experiments,
    find_experiment,
    load_experiment,
    published_experiments,
)
from flwr_fbo.experiment_runner.estimates import Estimate
from flwr_fbo.experiment_runner.results import FILE_NAME, read_results
from flwr_fbo.experiment_runner.wording import humanised

_HEADER = """\
| figure | command | seeds | claim | what came out | verdict |
| --- | --- | --- | --- | --- | --- |"""
_WHEN = {"final": "in the end", "mean": "in the mean", "scalars": "fewer scalars"}


def claims(
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME|FILE...")
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Folder of the results.", file_okay=False)
    ] = Path("results"),
) -> None:
    """Print a Markdown table of the papers' claims and the results in OUTPUT.

    The verdicts follow a rule: see flwr_fbo/experiment_runner/claims.py. An experiment
    without results has a row "not run". Without a name the command lists the
    experiments that have claims.

    Examples
    --------
    $ flwr-fbo claims
    $ flwr-fbo claims fig3d
    """
    with plain_errors(ValueError):
        if not experiments:
            typer.echo("\n".join(_listed()))
            return
        rows = [row for name in experiments for row in _rows(name, output)]
    typer.echo(printable("\n".join([_HEADER, *rows])))


def print_claims(experiment: Experiment, runs: Sequence[Run], console: Console) -> None:
    """Print what the runs say of the experiment's claims, if it has any."""
    if not experiment.claims:
        return
    console.print("\nWhat is claimed, and what these runs show (95% t intervals):")
    for finding in findings(experiment, runs):
        came_out = outcome(finding, experiment.step)
        text = f"- {finding.claim.text}: {came_out}: {finding.verdict}"
        console.print(text)


def _listed() -> list[str]:
    """Return the experiments that have claims, a line each."""
    files = {**builtin_experiments(), **published_experiments()}
    plans = {name: load_experiment(path) for name, path in files.items()}
    claimed = {name: plan.claims for name, plan in plans.items() if plan.claims}
    width = max(map(len, claimed), default=0)
    return [
        f"{name:{width}}  {count(len(claims), 'claim')}"
        for name, claims in sorted(claimed.items())
    ]


def _rows(name: str, output: Path) -> list[str]:
    plan = find_experiment(name)
    allowed = "one that has claims: flwr-fbo claims lists them"
    require(len(plan.claims) > 0, "experiment", name, allowed)
    runs, missing = _runs_of(plan, output)
    return [_row(name, plan, claim, runs, missing) for claim in plan.claims]


def _runs_of(plan: Experiment, output: Path) -> tuple[list[Run], str]:
    """Return the runs of the plan that are there, and what to say of others."""
    path = output / plan.name / FILE_NAME
    if not path.is_file():
        return [], "not run"
    stored, runs = read_results(path)
    if stored.num_steps < plan.num_steps:
        return [], f"{stored.num_steps} of {plan.num_steps} {plan.step}s run"
    same = {
        name
        for name in {*plan.methods} & {*stored.methods}
        if stored.recipe(name) == plan.recipe(name)
    }
    of_plan = [run for run in runs if run.method in same]
    return of_plan, "not run" if of_plan else "run with other settings"


def _row(
    name: str, plan: Experiment, claim: Claim, runs: Sequence[Run], missing: str
) -> str:
    try:
        finding = finding_of(claim, plan, runs)
    except ValueError:  # a method has not been run yet
        num_seeds, came_out, verdict = 0, missing, "-"
    else:
        num_seeds = finding.gain.num_runs
        came_out, verdict = outcome(finding, plan.step), finding.verdict
        if num_seeds < plan.num_seeds:
            verdict += f" ({num_seeds} of {plan.num_seeds} seeds)"
    command = f"`flwr-fbo run {name} --seeds {num_seeds or plan.num_seeds}`"
    cells = (Path(name).stem, command, num_seeds, claim.text, came_out, verdict)
    return f"| {' | '.join(map(str, cells))} |"


def outcome(finding: Finding, step: str) -> str:
    """Return what came out for a claim, in figures.

    Parameters
    ----------
    finding : Finding
    step : str
        What the claim's steps are called.
    """
    claim = finding.claim
    when = _WHEN[claim.by]
    until = "" if claim.until is None else f" to {step} {claim.until}"
    number = _of_scalars if claim.by == "scalars" else _number
    text = f"{when}{until} {number(finding.gain)}"
    if finding.over_noise_only is not None:
        text += f", over its noise-only {number(finding.over_noise_only)}"
    return text


def _of_scalars(gain: Estimate) -> str:
    return humanised(gain.mean, gain.standard_error, "+")


def _number(estimate: Estimate) -> str:
    if estimate.num_runs < 2:
        return f"{estimate.mean:+.4f}"
    return f"{estimate.mean:+.4f} ± {estimate.standard_error:.4f}"
