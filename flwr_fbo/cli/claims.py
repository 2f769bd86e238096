"""``flwr-fbo claims NAME...``: what papers claim, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from flwr_fbo.cli.errors import plain_errors
from flwr_fbo.study.base import Estimate, Experiment, Run
from flwr_fbo.study.claims import Finding, findings
from flwr_fbo.study.experiment import find_experiment
from flwr_fbo.study.results import read_results

_HEADER = """\
| figure | command | seeds | claim | what came out | verdict |
| --- | --- | --- | --- | --- | --- |"""


def claims(
    experiments: Annotated[list[str], typer.Argument(metavar="NAME|FILE...")],
    output: Annotated[
        Path, typer.Option(help="Folder of the results.", file_okay=False)
    ] = Path("results"),
) -> None:
    """Print a Markdown table: what papers claim, and what the runs in OUTPUT say.

    The verdicts follow a rule: see flwr_fbo/study/claims.py. An experiment without
    results is a row that says "not run".
    """
    with plain_errors(ValueError):
        rows = [row for name in experiments for row in _rows(name, output)]
    typer.echo("\n".join([_HEADER, *rows]))


def print_claims(experiment: Experiment, runs: Sequence[Run], console: Console) -> None:
    """Print what the runs say of the experiment's claims, if it has any."""
    if not experiment.claims:
        return
    console.print("\nWhat is claimed, and what these runs show (95% t intervals):")
    for finding in findings(experiment, runs):
        text = f"- {finding.claim.text}: {_outcome(finding)}: {finding.verdict}"
        console.print(escape(text))


def _rows(name: str, output: Path) -> list[str]:
    plan = find_experiment(name)
    folder = output / plan.name
    if not folder.exists():
        return [_row(name, plan.num_seeds, c.text, "not run", "-") for c in plan.claims]
    found = findings(plan, read_results(folder)[1])
    return [
        _row(name, f.gain.num_runs, f.claim.text, _outcome(f), f.verdict) for f in found
    ]


def _row(name: str, seeds: int, claim: str, outcome: str, verdict: str) -> str:
    command = f"`flwr-fbo run {name} --seeds {seeds}`"
    seeds_run = 0 if outcome == "not run" else seeds
    cells = (Path(name).stem, command, seeds_run, claim, outcome, verdict)
    return f"| {' | '.join(map(str, cells))} |"


def _outcome(finding: Finding) -> str:
    claim = finding.claim
    when = "in the end" if claim.by == "final" else "in the mean"
    until = "" if claim.until is None else f" to iteration {claim.until}"
    text = f"{when}{until} {_number(finding.gain)}"
    if finding.over_noise_only is not None:
        text += f", over its noise-only {_number(finding.over_noise_only)}"
    return text


def _number(estimate: Estimate) -> str:
    if estimate.num_runs < 2:
        return f"{estimate.mean:+.4f}"
    return f"{estimate.mean:+.4f} ± {estimate.standard_error:.4f}"
